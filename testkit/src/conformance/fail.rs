//! Failures: tried again, or given up.

use einmal::claim::{Claim, Counters, Failing, Stage, Verb};
use einmal::{FailReason, MAX_REASON_LEN};

use super::Harness;
use super::desk::*;

/// The claim of the attempt after so many failures, each waited out.
pub(super) async fn fail_times<H: Harness>(desk: &Desk<'_, H>, id: &str, times: u32) -> Claim {
    for _ in 0..times {
        let claim = desk.start(id).await;
        desk.advance(released(desk.apply(&claim, retry(desk.delay())).await)).await;
    }
    desk.start(id).await
}

/// Rule 2, scenario 23: a failed handler's next delivery runs it again. It is no duplicate.
pub async fn failed_attempt_is_no_duplicate<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let first = desk.start("m").await;
    desk.advance(released(desk.apply(&first, retry(desk.delay())).await)).await;
    let second = desk.start("m").await;
    assert_eq!((second.stage.clone(), second.attempt()), (Stage::Run, 2));
    assert_eq!(second.counters, Counters { failures: 1, interruptions: 0, crashes: 0 });
    assert!(!second.interrupted, "a failure is no interruption");
    assert_eq!(second.generation, first.generation);
    desk.apply(&second, complete("r")).await;
    assert_eq!(completed(desk.claim("m").await).attempt, 2);
}

/// Until its back-off has ended a key answers `NotYet`, with a time within the back-off.
pub async fn back_off_answers_not_yet<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    let wait = released(desk.apply(&claim, retry(desk.delay())).await);
    assert!(!wait.is_zero() && wait <= desk.delay());
    let told = not_yet(desk.claim("m").await);
    assert!(!told.is_zero() && told <= desk.delay(), "{told:?}");
    desk.advance(desk.delay() / 2).await;
    assert!(not_yet(desk.claim("m").await) <= desk.delay() / 2);
    desk.advance(desk.delay() / 2).await;
    desk.acquire("m").await;
}

/// A back-off is never longer than the rules' longest delay, whatever was asked for.
pub async fn back_off_is_clamped<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let max = desk.rules.max_delay;
    for (id, verb) in [("fail", retry(max * 1000)), ("release", Verb::Release { delay: max * 1000 })] {
        let claim = desk.start(id).await;
        assert!(released(desk.apply(&claim, verb).await) <= max, "{id}");
        assert!(not_yet(desk.claim(id).await) <= max, "{id}");
    }
    desk.advance(max).await;
    desk.acquire("fail").await;
    desk.acquire("release").await;
}

/// A copy with a shorter longest delay is not told to wait longer than that.
pub async fn not_yet_is_at_most_the_own_delay<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    desk.apply(&claim, retry(desk.rules.max_delay)).await;
    let mut request = desk.request("m");
    request.rules.max_delay = desk.rules.max_delay / 10;
    assert!(not_yet(desk.send(request.clone()).await) <= request.rules.max_delay);
}

/// At the limit of failures the operation is given up: its dead letter is owed, the same claim holds it, and
/// the handler is not run again.
pub async fn failures_at_the_limit_are_owed<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let last = fail_times(&desk, "m", desk.rules.max_failures - 1).await;
    assert_eq!((last.stage.clone(), last.attempt()), (Stage::Run, desk.rules.max_failures));
    assert_eq!(owed(desk.apply(&last, retry(desk.delay())).await), FailReason::Attempts);
    in_progress(desk.claim("m").await);
    assert_eq!(desk.phase("m").await, "owed");
    desk.lapse().await;
    let claim = desk.start("m").await;
    assert_eq!(claim.stage, Stage::DeadLetter(FailReason::Attempts));
    assert_eq!(claim.counters.failures, desk.rules.max_failures);
}

/// A limit that was lowered meanwhile holds for what failed before: the next claim gives it up.
pub async fn lowered_limit_gives_up<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = fail_times(&desk, "m", desk.rules.max_failures - 1).await;
    desk.apply(&claim, release()).await;
    let mut request = desk.starting("m");
    request.rules.max_failures = 1;
    assert_eq!(acquired(desk.send(request).await).stage, Stage::DeadLetter(FailReason::Attempts));
}

/// Failures and interruptions have their own limits: neither eats up the other's.
pub async fn failures_and_crashes_are_counted_apart<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let failures = desk.rules.max_failures - 1;
    fail_times(&desk, "m", failures).await;
    desk.lapse().await;
    desk.start("m").await;
    desk.lapse().await;
    let claim = desk.start("m").await;
    assert_eq!(claim.stage, Stage::Run);
    assert_eq!(claim.counters, Counters { failures, interruptions: 2, crashes: 0 });
    assert_eq!(claim.attempt(), failures + 3);
}

/// What the handler refuses is given up at once, in its words.
pub async fn rejected_is_owed_in_its_words<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let rejected = desk.start("rejected").await;
    let reason = owed(desk.apply(&rejected, reject("wrong currency")).await);
    assert_eq!(reason, FailReason::Rejected("wrong currency".into()));
    let parked = desk.start("parked").await;
    let reason = FailReason::Parked("ask Ann".into());
    let verb = Verb::Fail(Failing::ForGood(reason.clone()));
    assert_eq!(owed(desk.apply(&parked, verb).await), reason);
    desk.lapse().await;
    assert_eq!(desk.start("parked").await.stage, Stage::DeadLetter(reason));
}

/// Words of any length are taken, and cut.
pub async fn long_words_are_cut<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    let reason = owed(desk.apply(&claim, reject(&"ä".repeat(10_000))).await);
    assert!(reason.detail().unwrap().len() <= MAX_REASON_LEN);
}
