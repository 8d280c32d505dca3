//! Rule 6: interruptions and crashes. Poison ends, innocents don't.

use einmal::FailReason;
use einmal::claim::{Claim, Counters, Stage, Standing, Verb};

use super::Harness;
use super::desk::*;

/// A claim that lapses before its handler has started costs nothing, however often.
pub async fn lapse_before_the_start_costs_nothing<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    for _ in 0..10 {
        let claim = desk.acquire("m").await;
        assert_eq!((claim.counters, claim.interrupted, claim.attempt()), (Counters::default(), false, 1));
        desk.lapse().await;
    }
}

/// A claim that lapses after its handler has started is an interruption, and the next attempt is told.
pub async fn lapse_after_the_start_is_an_interruption<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.start("m").await;
    desk.lapse().await;
    let claim = desk.acquire("m").await;
    assert_eq!(claim.counters, Counters { failures: 0, interruptions: 1, crashes: 0 });
    assert!(claim.interrupted && claim.attempt() == 2);
}

/// `started`, told apart from the claim, counts as told with it.
pub async fn started_can_be_told_later<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.acquire("m").await;
    assert_eq!(desk.apply(&claim, Verb::Started).await, Standing::Held);
    assert_eq!(desk.apply(&claim, Verb::Started).await, Standing::Held, "sent again");
    desk.lapse().await;
    assert_eq!(desk.acquire("m").await.counters.interruptions, 1);
}

/// A copy that only asks charges nothing: an interruption is counted once, by who takes the key over.
pub async fn interruption_is_counted_once<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.start("m").await;
    for _ in 0..3 {
        in_progress(desk.claim("m").await);
    }
    desk.lapse().await;
    let request = desk.starting("m");
    for _ in 0..3 {
        let claim = acquired(desk.send(request.clone()).await);
        assert_eq!(claim.counters.interruptions, 1);
        in_progress(desk.claim("m").await);
    }
}

/// Who must run alone has to wait, and has not started with its claim: what it waits for can take the process
/// with it, and that is not its crash.
pub async fn waiting_to_run_alone_is_no_start<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    interrupt(&desk, 2).await;
    desk.lapse().await;
    let counted = acquired(desk.send(desk.starting("m")).await).counters;
    desk.lapse().await;
    assert_eq!(acquired(desk.send(desk.starting("m")).await).counters, counted);
}

async fn interrupt<H: Harness>(desk: &Desk<'_, H>, times: u32) -> Claim {
    for _ in 0..times {
        desk.start("m").await;
        desk.lapse().await;
    }
    desk.start("m").await
}

/// A key interrupted twice runs alone, and an interruption before that is no crash.
pub async fn twice_interrupted_runs_alone<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    assert!(!interrupt(&desk, 1).await.alone);
    desk.lapse().await;
    let claim = desk.start("m").await;
    assert!(claim.alone);
    assert_eq!(claim.counters, Counters { failures: 0, interruptions: 2, crashes: 0 });
}

/// Only an interruption of a key that ran alone is a crash; at the limit it is given up as a crash loop,
/// and the handler is not run again.
pub async fn crashes_alone_end_in_a_crash_loop<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let limit = desk.rules.max_crashes;
    let last_run = interrupt(&desk, 2 + limit - 1).await;
    assert_eq!((last_run.stage, last_run.counters.crashes), (Stage::Run, limit - 1));
    desk.lapse().await;
    let claim = desk.start("m").await;
    assert_eq!(claim.stage, Stage::DeadLetter(FailReason::CrashLoop));
    assert_eq!(claim.counters, Counters { failures: 0, interruptions: 2 + limit, crashes: limit });
    assert!(!claim.alone, "to publish is no reason to be alone");
    desk.lapse().await;
    assert_eq!(desk.start("m").await.stage, Stage::DeadLetter(FailReason::CrashLoop));
    in_progress(desk.claim("m").await);
}

/// A handler that was interrupted and then ends well is done; its outcome tells the attempt.
pub async fn interrupted_then_completed_is_completed<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = interrupt(&desk, 2).await;
    desk.apply(&claim, complete("r")).await;
    assert_eq!(completed(desk.claim("m").await).attempt, 3);
}
