//! Rule 11: what ends when, and the purge.

use std::collections::BTreeSet;

use einmal::DedupStore;
use einmal::claim::{Counters, ForceAnswer, ForgetAnswer, Refusal, Stage, Standing, Verb};

use super::Harness;
use super::desk::*;

/// An expired record is absent from the moment on, though no purge has met it; and not a moment earlier.
pub async fn expired_is_absent_at_once<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let old = desk.done("m", "r").await;
    desk.advance(desk.rules.retention * 9 / 10).await;
    completed(desk.claim("m").await);
    desk.advance(desk.rules.retention / 10).await;
    assert_eq!(desk.record("m").await, None);
    assert_eq!(desk.refuse(&old, complete("r")).await, Refusal::Superseded);
    assert_eq!(desk.store.forget(&old.key).await.unwrap(), ForgetAnswer::Absent);
    assert_eq!(desk.store.force(&old.key, desk.rules.retention).await.unwrap(), ForceAnswer::Absent);
    let claim = desk.acquire("m").await;
    assert_eq!((claim.stage.clone(), claim.counters, claim.attempt()), (Stage::Run, Counters::default(), 1));
    assert!(claim.first_at > old.first_at);
}

/// After its retention an operation is new in every way: its counters and its content are forgotten too.
pub async fn expired_history_is_forgotten<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = acquired(desk.send(desk.with_content("m", "mine")).await);
    desk.apply(&claim, retry(desk.delay())).await;
    desk.outlive().await;
    let claim = acquired(desk.send(desk.with_content("m", "other")).await);
    assert_eq!(claim.counters, Counters::default());
}

/// A live claim never ends by its retention: the lease alone counts, also when it is the longer of the two.
pub async fn live_claim_never_expires<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let mut request = desk.starting("m");
    request.rules.retention = desk.rules.lease / 10;
    let claim = acquired(desk.send(request).await);
    for _ in 0..4 {
        desk.advance(desk.rules.lease / 2).await;
        in_progress(desk.claim("m").await);
        desk.store.purge_expired(100).await.unwrap();
        in_progress(desk.claim("m").await);
        assert!(desk.record("m").await.is_some());
        assert_eq!(desk.apply(&claim, Verb::Renew).await, Standing::Held);
    }
    assert_eq!(desk.apply(&claim, complete("r")).await, Standing::Completed);
}

/// Released, lapsed and owed records end at their last touch plus retention; each attempt to publish
/// touches, so that a dead letter that can't be published is not lost while it is tried.
pub async fn unfinished_records_end_after_their_last_touch<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let step = desk.rules.retention * 6 / 10;
    let free = desk.start("released").await;
    desk.apply(&free, release()).await;
    desk.start("lapsed").await;
    let owing = desk.owe("owed").await;
    desk.apply(&owing, release()).await;
    for touched in 0..3 {
        desk.advance(step).await;
        for id in ["released", "lapsed", "owed"] {
            assert!(desk.record(id).await.is_some(), "{id}, touched {touched} times");
            let claim = desk.acquire(id).await;
            assert_eq!(matches!(claim.stage, Stage::DeadLetter(_)), id == "owed");
            if id != "lapsed" {
                desk.apply(&claim, release()).await;
            }
        }
    }
    desk.outlive().await;
    for id in ["released", "lapsed", "owed"] {
        assert_eq!(desk.phase(id).await, "absent", "{id}");
    }
}

/// Scenario 29: whatever state a key is left in, its record ends and is purged.
pub async fn every_record_ends<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.acquire("claimed").await;
    desk.start("started").await;
    let free = desk.start("released").await;
    desk.apply(&free, Verb::Release { delay: desk.delay() }).await;
    desk.done("completed", "r").await;
    desk.owe("owing").await;
    let owing = desk.owe("owed").await;
    desk.apply(&owing, release()).await;
    desk.bury("failed").await;
    let done = desk.done("forced", "r").await;
    desk.store.force(&done.key, desk.rules.retention).await.unwrap();
    assert_eq!(desk.stats().await.keys, 8);
    desk.outlive().await;
    assert_eq!(desk.store.purge_expired(100).await.unwrap().removed, 8);
    assert_eq!(desk.stats().await.keys, 0);
}

/// A purge takes away as many as it is told to, says whether there are more, and touches nothing that has
/// not expired.
pub async fn purge_is_bounded<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    for n in 0..10 {
        desk.done(&format!("old {n}"), "r").await;
    }
    desk.outlive().await;
    desk.done("young", "r").await;
    desk.start("live").await;
    let mut removed = Vec::new();
    loop {
        let purged = desk.store.purge_expired(4).await.unwrap();
        assert!(purged.removed <= 4);
        removed.push(purged.removed);
        if !purged.more {
            break;
        }
        assert!(removed.len() < 10, "it never ends: {removed:?}");
    }
    assert_eq!(removed.iter().sum::<u64>(), 10);
    assert_eq!(desk.store.purge_expired(4).await.unwrap(), einmal::Purged::default());
    assert_eq!(desk.stats().await.keys, 2);
    completed(desk.claim("young").await);
    in_progress(desk.claim("live").await);
}

/// Retention counts from the settle, not from the claim: an outcome, a failure and a release are remembered
/// for their whole retention, however late in it they came.
pub async fn retention_counts_from_the_settle<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let ends = [("completed", complete("r")), ("released", release()), ("owed", reject("no"))];
    let mut claims = Vec::new();
    for (id, _) in &ends {
        claims.push(desk.start(id).await);
    }
    // Late, but nobody has taken them over.
    desk.advance(desk.rules.retention * 8 / 10).await;
    for (claim, (_, verb)) in claims.iter().zip(ends) {
        desk.apply(claim, verb).await;
    }
    desk.apply(&claims[2], release()).await;
    desk.advance(desk.rules.retention * 8 / 10).await;
    for (claim, phase) in claims.iter().zip(["completed", "released", "owed"]) {
        assert_eq!(desk.phase(claim.key.id().as_str()).await, phase);
    }
    desk.advance(desk.rules.retention * 2 / 10).await;
    for claim in &claims {
        assert_eq!(desk.phase(claim.key.id().as_str()).await, "absent", "{}", claim.key);
    }
}

/// Touching a record moves its end: a purge at the old one leaves it.
pub async fn purge_leaves_what_was_touched<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    desk.apply(&claim, release()).await;
    desk.advance(desk.rules.retention / 2).await;
    desk.done("m", "r").await;
    desk.advance(desk.rules.retention * 6 / 10).await;
    desk.store.purge_expired(100).await.unwrap();
    completed(desk.claim("m").await);
}

/// Lapsed claims that nobody has taken over can be listed, up to a limit; live, ended and taken-over ones
/// are not among them.
pub async fn expired_claims_are_the_lapsed_ones<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    for id in ["a", "b", "c", "taken over"] {
        desk.start(id).await;
    }
    let released = desk.start("released").await;
    desk.apply(&released, release()).await;
    desk.done("done", "r").await;
    assert_eq!(desk.store.expired_claims(10).await.unwrap(), []);
    desk.lapse().await;
    desk.start("taken over").await;
    desk.start("live").await;
    let lapsed = desk.store.expired_claims(10).await.unwrap();
    let ids: BTreeSet<&str> = lapsed.iter().map(|(key, _)| key.id().as_str()).collect();
    assert_eq!((ids, lapsed.len()), (BTreeSet::from(["a", "b", "c"]), 3));
    assert!(lapsed.iter().all(|(_, record)| record.phase_name() == "in_progress"));
    assert_eq!(desk.store.expired_claims(2).await.unwrap().len(), 2);
}

/// The gauges count: records, and claims held.
pub async fn stats_count<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    assert_eq!((desk.stats().await.keys, desk.stats().await.claims), (0, 0));
    let one = desk.start("one").await;
    let two = desk.start("two").await;
    desk.done("three", "r").await;
    assert_eq!((desk.stats().await.keys, desk.stats().await.claims), (3, 2));
    desk.apply(&one, release()).await;
    desk.apply(&two, complete("r")).await;
    assert_eq!((desk.stats().await.keys, desk.stats().await.claims), (3, 0));
    desk.store.forget(&two.key).await.unwrap();
    assert_eq!(desk.stats().await.keys, 2);
    desk.start("one").await;
    assert_eq!((desk.stats().await.keys, desk.stats().await.claims), (2, 1));
}
