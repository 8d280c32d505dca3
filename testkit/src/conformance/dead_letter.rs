//! Rule 7: dead letters are not lost.

use einmal::FailReason;
use einmal::claim::{Counters, Refusal, Stage, Standing, Verb};

use super::Harness;
use super::desk::*;

/// A given-up operation answers `Failed` only once its dead letter is published; until then a copy is told
/// to come again, or gets the dead letter to publish. It is never told that all is done.
pub async fn owed_is_not_failed_before_it_is_published<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.owe("m").await;
    in_progress(desk.claim("m").await);
    desk.apply(&claim, release()).await;
    assert_eq!(desk.phase("m").await, "owed");
    let next = desk.start("m").await;
    assert_eq!(next.stage, Stage::DeadLetter(FailReason::Rejected("no".into())));
    in_progress(desk.claim("m").await);
    assert_eq!(desk.apply(&next, Verb::DeadLettered).await, Standing::DeadLettered);
    failed(desk.claim("m").await);
}

/// Every repeat of a dead-lettered operation is told why and after how many attempts.
pub async fn dead_lettered_answers_failed<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.bury("rejected").await;
    let outcome = failed(desk.claim("rejected").await);
    assert_eq!((outcome.reason, outcome.attempts), (FailReason::Rejected("no".into()), 1));

    let last = super::fail::fail_times(&desk, "attempts", desk.rules.max_failures - 1).await;
    desk.apply(&last, retry(desk.delay())).await;
    desk.apply(&last, Verb::DeadLettered).await;
    for _ in 0..3 {
        let outcome = failed(desk.claim("attempts").await);
        assert_eq!((outcome.reason, outcome.attempts), (FailReason::Attempts, desk.rules.max_failures));
    }
}

/// Scenario 36b: a publisher that dies leaves the dead letter to the next, under the same key and
/// generation, and that costs no attempt; the handler is not run again.
pub async fn lapsed_dead_letter_is_published_by_the_next<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let first = desk.owe("m").await;
    for _ in 0..4 {
        desk.lapse().await;
        let next = desk.start("m").await;
        assert_eq!(next.stage, Stage::DeadLetter(FailReason::Rejected("no".into())));
        assert_eq!((next.generation, next.counters), (first.generation, Counters::default()));
        assert!(next.fence > first.fence);
    }
}

/// A dead letter that could not be published is given back, and can be claimed at once.
pub async fn released_dead_letter_stays_owed<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.owe("m").await;
    let standing = desk.apply(&claim, release()).await;
    assert_eq!(standing, Standing::OwedUnclaimed(FailReason::Rejected("no".into())));
    assert_eq!(desk.acquire("m").await.stage, Stage::DeadLetter(FailReason::Rejected("no".into())));
}

/// Who publishes renews as who runs.
pub async fn dead_letter_claim_is_renewed<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.owe("m").await;
    for _ in 0..4 {
        desk.advance(desk.rules.lease / 2).await;
        assert_eq!(desk.apply(&claim, Verb::Renew).await, Standing::Held);
        in_progress(desk.claim("m").await);
    }
    assert_eq!(desk.apply(&claim, Verb::DeadLettered).await, Standing::DeadLettered);
}

/// A claim to publish can neither start, complete nor fail; a claim to run has no dead letter to confirm.
pub async fn stages_are_kept_apart<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.owe("m").await;
    desk.apply(&claim, release()).await;
    let publisher = desk.acquire("m").await;
    for verb in [Verb::Started, complete("x"), retry(desk.delay()), reject("x")] {
        assert_eq!(desk.refuse(&publisher, verb.clone()).await, Refusal::AlreadyEnded, "{verb:?}");
    }
    assert_eq!(desk.record("m").await.unwrap().counters, Counters::default());
    let runner = desk.start("other").await;
    assert_eq!(desk.refuse(&runner, Verb::DeadLettered).await, Refusal::AlreadyEnded);
    assert_eq!(desk.apply(&runner, complete("r")).await, Standing::Completed);
}

/// Rule 4, for dead letters: whose dead letter was taken over is told so, also when it sends its fail again.
pub async fn stale_publisher_changes_nothing<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let stale = desk.owe("m").await;
    desk.lapse().await;
    let publisher = desk.acquire("m").await;
    let before = desk.record("m").await;
    for verb in [reject("no"), Verb::Renew, release(), Verb::DeadLettered] {
        assert_eq!(desk.refuse(&stale, verb.clone()).await, Refusal::TakenOver, "{verb:?}");
    }
    assert_eq!(desk.record("m").await, before);
    assert_eq!(desk.apply(&publisher, Verb::DeadLettered).await, Standing::DeadLettered);
    assert_eq!(desk.refuse(&stale, Verb::DeadLettered).await, Refusal::TakenOver);
}
