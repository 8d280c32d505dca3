//! Release: a key is given back, uncharged.

use einmal::claim::{Counters, Refusal, Stage, Verb};

use super::Harness;
use super::desk::*;

/// A released key can be claimed at once, and nothing was charged, though the handler had started.
pub async fn release_charges_nothing<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    for _ in 0..10 {
        let claim = desk.start("m").await;
        assert_eq!((claim.stage.clone(), claim.counters), (Stage::Run, Counters::default()));
        assert!(released(desk.apply(&claim, release()).await).is_zero());
        assert!(is_released(&desk.record("m").await.unwrap()));
    }
}

/// A release may ask that the key be left alone for a while.
pub async fn release_with_a_delay_answers_not_yet<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    let delay = desk.delay();
    assert!(released(desk.apply(&claim, Verb::Release { delay }).await) <= delay);
    assert!(not_yet(desk.claim("m").await) <= delay);
    desk.advance(delay).await;
    desk.acquire("m").await;
}

/// Rule 6: what was counted is still counted after a release.
pub async fn counters_survive_release<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    super::fail::fail_times(&desk, "m", 1).await;
    desk.lapse().await;
    let claim = desk.start("m").await;
    let counters = Counters { failures: 1, interruptions: 1, crashes: 0 };
    assert_eq!(claim.counters, counters);
    desk.apply(&claim, release()).await;
    let next = desk.start("m").await;
    assert_eq!((next.counters, next.generation), (counters, claim.generation));
    assert!(next.interrupted);
}

/// A claim that was released can do nothing any more, before and after the key has a new holder.
pub async fn released_claim_has_ended<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    desk.apply(&claim, release()).await;
    for verb in [complete("x"), retry(desk.delay()), Verb::Started, Verb::Renew] {
        assert_eq!(desk.refuse(&claim, verb.clone()).await, Refusal::AlreadyEnded, "{verb:?}");
    }
    let owner = desk.start("m").await;
    for verb in [complete("x"), retry(desk.delay()), Verb::Renew, release()] {
        assert_eq!(desk.refuse(&claim, verb.clone()).await, Refusal::TakenOver, "{verb:?}");
    }
    desk.apply(&owner, complete("r")).await;
}
