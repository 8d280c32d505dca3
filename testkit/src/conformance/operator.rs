//! What people and tools do to a key: look, forget, force.

use einmal::DedupStore;
use einmal::claim::{Claim, ClaimAnswer, Counters, ForceAnswer, ForgetAnswer, Refusal, Stage};

use super::Harness;
use super::desk::*;

async fn forget<H: Harness>(desk: &Desk<'_, H>, id: &str) -> ForgetAnswer {
    desk.store.forget(&key("scope", id)).await.unwrap()
}

async fn force<H: Harness>(desk: &Desk<'_, H>, id: &str) -> ForceAnswer {
    desk.store.force(&key("scope", id), desk.rules.retention).await.unwrap()
}

/// What is looked at is what was written, in every state, and looking changes nothing.
pub async fn get_shows_the_record<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    assert_eq!(desk.record("m").await, None);
    let claim = acquired(desk.send(desk.with_content("m", "mine")).await);
    let record = desk.record("m").await.unwrap();
    assert_eq!((record.fence, record.generation), (claim.fence, claim.generation));
    assert_eq!(record.fingerprint, Some(print_of("mine")));
    assert_eq!((record.phase_name(), record.first_at), ("in_progress", claim.first_at));
    desk.apply(&claim, release()).await;
    assert_eq!(desk.phase("m").await, "released");
    let claim = desk.start("m").await;
    desk.apply(&claim, reject("no")).await;
    assert_eq!(desk.phase("m").await, "owed");
    desk.apply(&claim, einmal::claim::Verb::DeadLettered).await;
    assert_eq!(desk.phase("m").await, "failed");
    assert_eq!(desk.record("m").await, desk.record("m").await);
    failed(desk.claim("m").await);
}

/// After forgetting, the next delivery is a new operation.
pub async fn forgotten_key_is_new<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::Absent);
    desk.done("m", "r").await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::Forgotten);
    assert_eq!((desk.record("m").await, forget(&desk, "m").await), (None, ForgetAnswer::Absent));
    let claim = desk.acquire("m").await;
    assert_eq!((claim.stage, claim.counters), (Stage::Run, Counters::default()));
    desk.bury("failed").await;
    assert_eq!(forget(&desk, "failed").await, ForgetAnswer::Forgotten);
    desk.acquire("failed").await;
}

/// Neither a live claim nor an owed dead letter is forgotten: it would double an effect, or lose the letter.
pub async fn live_and_owed_are_not_forgotten<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::RefusedLive);
    desk.apply(&claim, reject("no")).await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::RefusedLive);
    desk.lapse().await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::RefusedOwed);
    desk.apply(&claim, release()).await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::RefusedOwed);
    desk.acquire("m").await;
}

/// A lapsed claim can be forgotten, and its holder is told when it comes late; it changes nothing of the new
/// operation.
pub async fn forgotten_holder_is_superseded<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let old = desk.start("m").await;
    desk.lapse().await;
    assert_eq!(forget(&desk, "m").await, ForgetAnswer::Forgotten);
    assert_eq!(desk.refuse(&old, complete("old")).await, Refusal::Superseded);
    let new = desk.start("m").await;
    assert_eq!(desk.refuse(&old, complete("old")).await, Refusal::Superseded);
    desk.apply(&new, complete("new")).await;
    assert_eq!(completed(desk.claim("m").await).result.bytes().unwrap(), "new");
}

async fn is_forced<H: Harness>(desk: &Desk<'_, H>, old: &Claim, id: &str) -> Claim {
    let answer = force(desk, id).await;
    let ForceAnswer::Forced(generation) = answer else { panic!("expected Forced, not {answer:?}") };
    let claim = desk.start(id).await;
    assert_eq!((claim.stage.clone(), claim.counters), (Stage::Run, Counters::default()));
    assert_eq!((claim.generation, claim.attempt(), claim.interrupted), (generation, 1, false));
    assert_eq!(desk.refuse(old, complete("old")).await, Refusal::Superseded);
    claim
}

/// Scenario 24: a forced run goes through a claim, as a new generation, with its counters at zero; from
/// whatever state that is not live. The fence of the old generation is worth nothing.
pub async fn forced_key_runs_as_a_new_generation<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    assert_eq!(force(&desk, "m").await, ForceAnswer::Absent);
    let old = desk.done("completed", "r").await;
    let new = is_forced(&desk, &old, "completed").await;
    desk.apply(&new, complete("again")).await;
    assert_eq!(completed(desk.claim("completed").await).result.bytes().unwrap(), "again");

    let old = desk.bury("failed").await;
    is_forced(&desk, &old, "failed").await;
    let old = desk.owe("owed").await;
    desk.apply(&old, release()).await;
    is_forced(&desk, &old, "owed").await;
    let old = super::fail::fail_times(&desk, "released", 1).await;
    desk.apply(&old, retry(desk.delay())).await;
    is_forced(&desk, &old, "released").await;
    let old = desk.start("lapsed").await;
    desk.lapse().await;
    is_forced(&desk, &old, "lapsed").await;
}

/// A live claim is not forced: its handler may be running.
pub async fn live_key_is_not_forced<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    assert_eq!(force(&desk, "m").await, ForceAnswer::RefusedLive);
    desk.apply(&claim, reject("no")).await;
    assert_eq!(force(&desk, "m").await, ForceAnswer::RefusedLive);
}

/// A forced run is of the same operation: other content is still a conflict.
pub async fn forced_key_keeps_its_fingerprint<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = acquired(desk.send(desk.with_content("m", "mine")).await);
    desk.apply(&claim, complete("r")).await;
    assert!(matches!(force(&desk, "m").await, ForceAnswer::Forced(_)));
    assert_eq!(desk.send(desk.with_content("m", "other")).await, ClaimAnswer::Conflict);
    acquired(desk.send(desk.with_content("m", "mine")).await);
}
