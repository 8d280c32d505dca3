//! Renewal: a holder goes on holding.

use einmal::claim::{Refusal, Standing, Verb};

use super::Harness;
use super::desk::*;

/// Scenario 6: a handler that takes many leases and renews keeps its key.
pub async fn renewed_claim_stays_live<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    for _ in 0..6 {
        desk.advance(desk.rules.lease / 2).await;
        in_progress(desk.claim("m").await);
        assert_eq!(desk.apply(&claim, Verb::Renew).await, Standing::Held);
    }
    assert_eq!(desk.apply(&claim, complete("r")).await, Standing::Completed);
    assert_eq!(completed(desk.claim("m").await).attempt, 1);
}

/// Scenario 6: renewal stopped, the key is taken over; there is one recorded completion.
pub async fn renewal_stopped_is_taken_over<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let slow = desk.start("m").await;
    desk.apply(&slow, Verb::Renew).await;
    desk.lapse().await;
    let next = desk.start("m").await;
    assert_eq!(desk.refuse(&slow, Verb::Renew).await, Refusal::TakenOver);
    assert_eq!(desk.refuse(&slow, complete("slow")).await, Refusal::TakenOver);
    desk.apply(&next, complete("next")).await;
    assert_eq!(completed(desk.claim("m").await).result.bytes().unwrap(), "next");
}

/// Renewal does not hide that the handler has started.
pub async fn renewal_keeps_started<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    desk.apply(&claim, Verb::Renew).await;
    desk.lapse().await;
    assert_eq!(desk.acquire("m").await.counters.interruptions, 1);
}

/// A claim that was ended can't be renewed.
pub async fn ended_claim_is_not_renewed<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let done = desk.done("done", "r").await;
    assert_eq!(desk.refuse(&done, Verb::Renew).await, Refusal::AlreadyEnded);
    let free = desk.start("free").await;
    desk.apply(&free, release()).await;
    assert_eq!(desk.refuse(&free, Verb::Renew).await, Refusal::AlreadyEnded);
    desk.acquire("free").await;
}
