//! Rule 1: nothing is answered before it is durable. For durable stores only.

use std::sync::Arc;

use einmal::claim::{ClaimAnswer, Counters, ForceAnswer, ForgetAnswer, Stage, Standing, Verb};
use einmal::{DedupStore, DedupStoreExt, FailReason};
use futures_util::future::poll_immediate;

use super::Harness;
use super::desk::*;

/// What was answered as applied is still so after the process was killed: every outcome, every counter,
/// every back-off, every dead letter that is owed.
pub async fn answers_after_the_sync<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    if !desk.store.capabilities().durable {
        return;
    }
    desk.done("completed", "r").await;
    desk.bury("failed").await;
    let owing = desk.owe("owed").await;
    desk.apply(&owing, release()).await;
    let last = super::fail::fail_times(&desk, "attempts", desk.rules.max_failures - 1).await;
    desk.apply(&last, retry(desk.delay())).await;
    desk.apply(&last, release()).await;
    let twice = super::fail::fail_times(&desk, "waiting", 1).await;
    let wait = released(desk.apply(&twice, retry(desk.rules.max_delay)).await);
    let content = acquired(desk.send(desk.with_content("content", "mine")).await);
    desk.apply(&content, release()).await;
    let forgotten = desk.done("forgotten", "r").await;
    assert_eq!(desk.store.forget(&forgotten.key).await.unwrap(), ForgetAnswer::Forgotten);
    let done = desk.done("forced", "r").await;
    let forced = desk.store.force(&done.key, desk.rules.retention).await.unwrap();
    let ForceAnswer::Forced(generation) = forced else { panic!("{forced:?}") };

    let Some(desk) = desk.crash().await else { return };
    assert_eq!(completed(desk.claim("completed").await).result.bytes().unwrap(), "r");
    assert_eq!(failed(desk.claim("failed").await).reason, FailReason::Rejected("no".into()));
    assert_eq!(desk.start("owed").await.stage, Stage::DeadLetter(FailReason::Rejected("no".into())));
    assert_eq!(desk.start("attempts").await.stage, Stage::DeadLetter(FailReason::Attempts));
    assert!(not_yet(desk.claim("waiting").await) <= wait);
    desk.advance(wait).await;
    let waited = desk.start("waiting").await;
    assert_eq!(waited.counters, Counters { failures: 2, interruptions: 0, crashes: 0 });
    assert_eq!(desk.send(desk.with_content("content", "other")).await, ClaimAnswer::Conflict);
    assert_eq!(desk.start("forgotten").await.counters, Counters::default());
    assert_eq!(desk.start("forced").await.generation, generation);
}

/// A claim whose process was killed: in a store that only one process can have open, the owner is gone, and
/// the key is free at once; in a shared one its lease counts. If the handler had started it is an
/// interruption either way (scenarios 1 and 36).
pub async fn killed_claim_is_an_interruption<H: Harness>(harness: &H) {
    let mut desk = Desk::open(harness).await;
    let shared = desk.store.capabilities().shared;
    desk.start("started").await;
    desk.acquire("claimed").await;
    let told_later = desk.acquire("told later").await;
    desk.apply(&told_later, Verb::Started).await;
    for interruptions in 1..=3 {
        let Some(again) = desk.crash().await else { return };
        desk = again;
        if shared {
            in_progress(desk.claim("started").await);
            desk.lapse().await;
        }
        for id in ["started", "told later"] {
            let claim = desk.start(id).await;
            assert_eq!(claim.counters.interruptions, interruptions, "{id}");
            assert!(claim.interrupted);
        }
        let claim = desk.acquire("claimed").await;
        assert_eq!((claim.counters, claim.interrupted), (Counters::default(), false));
    }
}

/// A crash loop ends, though each crash takes the whole process with it (rule 6, scenario 36).
pub async fn crash_loop_ends_across_kills<H: Harness>(harness: &H) {
    let mut desk = Desk::open(harness).await;
    for run in 1.. {
        let claim = desk.start("m").await;
        if let Stage::DeadLetter(reason) = claim.stage {
            assert_eq!((reason, run), (FailReason::CrashLoop, 2 + desk.rules.max_crashes + 1));
            return;
        }
        assert_eq!(claim.alone, run > 2, "run {run}");
        assert!(run < 20, "it never ends");
        let Some(again) = desk.crash().await else { return };
        desk = again;
        desk.lapse().await;
    }
}

/// A claim of before a restart that is gone can't settle against a later one; against none it may, as nobody
/// has run meanwhile.
pub async fn owner_of_before_a_restart_is_stale<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let old = desk.start("m").await;
    let Some(desk) = desk.crash().await else { return };
    desk.lapse().await;
    let new = desk.start("m").await;
    assert!(new.fence > old.fence);
    desk.refuse(&old, complete("old")).await;
    assert_eq!(desk.apply(&new, complete("new")).await, Standing::Completed);
}

/// A restart in good order keeps everything, and what ends still ends.
pub async fn restart_keeps_outcomes_until_they_end<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.done("m", "r").await;
    desk.advance(desk.rules.retention / 2).await;
    let Some(desk) = desk.reopen().await else { return };
    assert_eq!(completed(desk.claim("m").await).result.bytes().unwrap(), "r");
    desk.advance(desk.rules.retention / 2).await;
    assert_eq!(desk.phase("m").await, "absent");
    assert_eq!(desk.store.purge_expired(10).await.unwrap().removed, 1);
    assert_eq!(desk.stats().await.keys, 0);
}

/// What a reader sees as completed is durable: while a completion waits for its sync, it is not answered,
/// and the key is in progress and can't be taken over, also when its lease ends meanwhile.
pub async fn completion_is_not_seen_before_its_sync<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    if !harness.hold_sync(&desk.store).await {
        return;
    }
    let Desk { store, rules, .. } = desk;
    let store = Arc::new(store);
    let mut call = tokio::spawn({
        let (store, claim) = (Arc::clone(&store), claim.clone());
        async move { store.settle(&claim, complete("r")).await.unwrap() }
    });
    tokio::select! {
        () = harness.wait_held(&store) => {}
        answer = &mut call => panic!("{answer:?} before the sync"),
    }
    for _ in 0..2 {
        assert!(poll_immediate(&mut call).await.is_none(), "answered before the sync");
        let mut request = einmal::claim::ClaimRequest {
            key: claim.key.clone(),
            token: einmal::claim::Token::random(),
            fingerprint: None,
            rules,
            started: true,
            group: None,
        };
        let retry_after = in_progress(store.claim(request.clone()).await.unwrap());
        assert!(!retry_after.is_zero() && retry_after <= rules.lease, "{retry_after:?}");
        request.group = Some(1);
        in_progress(store.claim(request).await.unwrap());
        let record = store.get(&claim.key).await.unwrap();
        assert_ne!(record.map(|record| record.phase_name()), Some("completed"));
        harness.advance(rules.lease).await;
    }
    harness.release_sync(&store).await;
    assert_eq!(applied(call.await.unwrap()), Standing::Completed);
    let record = store.get(&claim.key).await.unwrap().unwrap();
    assert_eq!(record.phase_name(), "completed");
}

/// Rule 9: the outcomes of a group become durable as a prefix. However far a batch of completions had come
/// when the process was killed, there is no later one without the earlier.
pub async fn group_is_durable_as_a_prefix<H: Harness>(harness: &H) {
    let mut desk = Desk::open(harness).await;
    for polls in 0..8 {
        let id = |n: usize| format!("{polls} {n}");
        let mut batch = Vec::new();
        for n in 0..8 {
            batch.push(settle_request(&desk.start(&id(n)).await, complete("r"), Some(1)));
        }
        let mut call = desk.store.settle_many(batch);
        for _ in 0..polls {
            if poll_immediate(&mut call).await.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(call);
        let Some(again) = desk.crash().await else { return };
        desk = again;
        let mut stored = Vec::new();
        for n in 0..8 {
            stored.push(desk.phase(&id(n)).await == "completed");
        }
        assert!(stored.is_sorted_by(|earlier, later| earlier >= later), "{stored:?}");
    }
}
