//! Rule 10: at a bound a store refuses new keys, and nothing else.

use einmal::claim::{Stage, Verb};
use einmal::{DedupStore, DedupStoreExt, StoreErrorKind};

use super::desk::*;
use super::{Bounds, Harness};

async fn is_full<H: Harness>(desk: &Desk<'_, H>, scope: &str, id: &str, bound: usize) {
    let error = desk.store.claim(desk.request_in(scope, id)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Full, "{error}");
    assert!(error.to_string().contains(&bound.to_string()), "it names no bound: {error}");
    assert_eq!(desk.store.get(&key(scope, id)).await.unwrap(), None);
}

/// A full store refuses new keys, goes on serving those that it has, and evicts none of them.
pub async fn full_refuses_only_new_keys<H: Harness>(harness: &H) {
    let bounds = Bounds { max_keys: 4, ..Bounds::default() };
    let desk = Desk::open_bounded(harness, bounds).await;
    desk.done("completed", "r").await;
    let owing = desk.owe("owed").await;
    let live = desk.start("live").await;
    let free = desk.start("released").await;
    desk.apply(&free, release()).await;
    for n in 0..3 {
        is_full(&desk, "scope", &format!("new {n}"), 4).await;
        is_full(&desk, "other scope", "new", 4).await;
    }
    completed(desk.claim("completed").await);
    in_progress(desk.claim("live").await);
    in_progress(desk.claim("owed").await);
    desk.apply(&live, Verb::Renew).await;
    desk.apply(&live, retry(std::time::Duration::ZERO)).await;
    let live = desk.start("live").await;
    desk.apply(&live, complete("r")).await;
    desk.apply(&owing, Verb::DeadLettered).await;
    assert_eq!(desk.start("released").await.stage, Stage::Run);
    desk.lapse().await;
    desk.start("released").await;
    assert_eq!(desk.stats().await.keys, 4);
}

/// In a batch, too, only the new keys are refused.
pub async fn full_batch_serves_what_it_has<H: Harness>(harness: &H) {
    let bounds = Bounds { max_keys: 2, ..Bounds::default() };
    let desk = Desk::open_bounded(harness, bounds).await;
    desk.done("done", "r").await;
    let batch = ["new", "one too many", "done", "new"].map(|id| desk.request(id)).to_vec();
    let [new, refused, done, again] = desk.store.claim_many(batch).await.try_into().unwrap();
    acquired(new.unwrap());
    assert_eq!(refused.unwrap_err().kind(), StoreErrorKind::Full);
    completed(done.unwrap());
    in_progress(again.unwrap());
}

/// A full scope refuses only its own new keys: it can't shut out the others.
pub async fn full_scope_refuses_only_its_own<H: Harness>(harness: &H) {
    let bounds = Bounds { max_keys_per_scope: 2, ..Bounds::default() };
    let desk = Desk::open_bounded(harness, bounds).await;
    let claim = acquired(desk.send(desk.request_in("full", "1")).await);
    acquired(desk.send(desk.request_in("full", "2")).await);
    is_full(&desk, "full", "3", 2).await;
    for n in ["1", "2"] {
        acquired(desk.send(desk.request_in("other", n)).await);
        in_progress(desk.send(desk.request_in("full", n)).await);
    }
    desk.apply(&claim, complete("r")).await;
    completed(desk.send(desk.request_in("full", "1")).await);
    is_full(&desk, "full", "3", 2).await;
    desk.store.forget(&claim.key).await.unwrap();
    acquired(desk.send(desk.request_in("full", "3")).await);
}

/// Room comes back when records are forgotten or have expired, and a refused call leaves nothing behind that
/// would take room.
pub async fn room_comes_back<H: Harness>(harness: &H) {
    let desk = Desk::open_bounded(harness, Bounds { max_keys: 2, max_keys_per_scope: 2 }).await;
    let one = desk.done("1", "r").await;
    desk.done("2", "r").await;
    is_full(&desk, "scope", "3", 2).await;
    desk.store.forget(&one.key).await.unwrap();
    desk.done("3", "r").await;
    is_full(&desk, "scope", "4", 2).await;
    desk.outlive().await;
    desk.store.purge_expired(100).await.unwrap();
    desk.done("4", "r").await;
    desk.done("5", "r").await;
    is_full(&desk, "scope", "6", 2).await;
    completed(desk.claim("4").await);
}

/// The bound is of the store: it holds after a restart, for the keys of before.
pub async fn bounds_hold_after_a_restart<H: Harness>(harness: &H) {
    let desk = Desk::open_bounded(harness, Bounds { max_keys: 2, max_keys_per_scope: 2 }).await;
    desk.done("1", "r").await;
    desk.done("2", "r").await;
    let Some(desk) = desk.reopen().await else { return };
    is_full(&desk, "scope", "3", 2).await;
    completed(desk.claim("1").await);
    assert_eq!(desk.stats().await.keys, 2);
}
