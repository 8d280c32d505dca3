//! Claims: who gets a key, and what the others are told.

use einmal::Fingerprint;
use einmal::claim::{ClaimAnswer, ClaimRequest, Counters, Refusal, Stage, Standing, Verb};

use super::Harness;
use super::desk::*;

/// A key that nobody has claimed is acquired, to run for the first time.
pub async fn absent_key_is_acquired<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let request = desk.request("m");
    let claim = acquired(desk.send(request.clone()).await);
    assert_eq!((&claim.key, claim.token, claim.rules), (&request.key, request.token, request.rules));
    assert_eq!((claim.stage.clone(), claim.counters), (Stage::Run, Counters::default()));
    assert!(!claim.interrupted && !claim.alone);
    assert_eq!((claim.attempt(), claim.generation), (1, claim.fence));
}

/// Rule 3: a copy that meets a live claim is told to ask again, after more than nothing and at most the
/// lease; never that it is done.
pub async fn live_claim_answers_in_progress<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.acquire("m").await;
    let first = in_progress(desk.claim("m").await);
    assert!(!first.is_zero() && first <= desk.rules.lease, "{first:?}");
    desk.advance(desk.rules.lease / 2).await;
    let later = in_progress(desk.claim("m").await);
    assert!(!later.is_zero() && later <= desk.rules.lease / 2, "{later:?}");
    assert_eq!(desk.phase("m").await, "in_progress");
}

/// A copy with a shorter lease of its own is not told to wait longer than that.
pub async fn retry_after_is_at_most_the_own_lease<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.acquire("m").await;
    let mut request = desk.request("m");
    request.rules.lease = desk.rules.lease / 10;
    let retry_after = in_progress(desk.send(request.clone()).await);
    assert!(!retry_after.is_zero() && retry_after <= request.rules.lease, "{retry_after:?}");
}

/// Scenario 9: a claim whose answer was lost, sent again by its owner, finds itself: the same fence, no
/// second claim, nothing charged; and its lease counts from now.
pub async fn same_claim_again<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let request = desk.starting("m");
    let first = acquired(desk.send(request.clone()).await);
    desk.advance(desk.rules.lease * 3 / 4).await;
    assert_eq!(acquired(desk.send(request.clone()).await), first);
    desk.advance(desk.rules.lease / 2).await;
    in_progress(desk.claim("m").await);
    desk.lapse().await;
    assert_eq!(acquired(desk.send(request).await), first, "lapsed, but nobody has taken it over");
    assert_eq!(desk.record("m").await.unwrap().counters, Counters::default());
    assert_eq!(desk.apply(&first, complete("r")).await, Standing::Completed);
}

/// A claim that was ended is not found again by the call that made it: the outcome is.
pub async fn same_claim_again_after_its_end<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let request = desk.starting("m");
    let claim = acquired(desk.send(request.clone()).await);
    desk.apply(&claim, complete("r")).await;
    completed(desk.send(request).await);
}

/// Scenario 1: a claim that its holder does not renew is taken over when its lease has ended, and not
/// before; nobody waits for the retention.
pub async fn lapsed_claim_is_taken_over<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let first = desk.acquire("m").await;
    desk.advance(desk.rules.lease / 2).await;
    in_progress(desk.claim("m").await);
    desk.advance(desk.rules.lease / 2).await;
    let second = desk.acquire("m").await;
    assert!(second.fence > first.fence, "{} then {}", first.fence, second.fence);
    assert_eq!((second.generation, second.stage), (first.generation, Stage::Run));
}

/// Scenario 5: the same worker that claims again, under a new token, gets a new fence once its lease has
/// ended; with the old one it can do nothing any more.
pub async fn own_second_claim_gets_a_new_fence<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let first = desk.acquire("m").await;
    in_progress(desk.claim("m").await);
    desk.lapse().await;
    let second = desk.acquire("m").await;
    assert!(second.fence > first.fence && second.token != first.token);
    assert_eq!(desk.refuse(&first, complete("old")).await, Refusal::TakenOver);
    assert_eq!(desk.apply(&second, complete("new")).await, Standing::Completed);
}

/// Rule 4, scenario 4: an owner whose claim was taken over can neither complete, fail, renew, start nor
/// release it, and every refusal leaves the record as it was.
pub async fn stale_owner_changes_nothing<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let stale = desk.start("m").await;
    desk.lapse().await;
    let owner = desk.start("m").await;
    let before = desk.record("m").await;
    let verbs =
        [complete("stale"), retry(desk.delay()), reject("stale"), Verb::Renew, Verb::Started, release()];
    for verb in verbs.into_iter().chain([Verb::DeadLettered]) {
        assert_eq!(desk.refuse(&stale, verb.clone()).await, Refusal::TakenOver, "{verb:?}");
        assert_eq!(desk.record("m").await, before, "{verb:?}");
    }
    desk.apply(&owner, complete("owner")).await;
    assert_eq!(desk.refuse(&stale, complete("stale")).await, Refusal::TakenOver);
    assert_eq!(completed(desk.claim("m").await).result.bytes().unwrap(), "owner");
}

/// A settle must bring the token *and* the fence of the claim.
pub async fn token_and_fence_are_both_compared<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.acquire("m").await;
    let mut other_token = claim.clone();
    other_token.token = desk.request("m").token;
    desk.refuse(&other_token, complete("x")).await;
    for fence in [claim.fence.get() - 1, claim.fence.get() + 1] {
        let mut other_fence = claim.clone();
        other_fence.fence = einmal::claim::Fence::new(fence);
        desk.refuse(&other_fence, complete("x")).await;
    }
    assert_eq!(desk.apply(&claim, complete("r")).await, Standing::Completed);
}

/// A lease that has ended matters only once another has claimed: until then its holder may still settle, as
/// nobody else has run.
pub async fn late_settle_without_a_take_over_is_applied<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.start("m").await;
    desk.lapse().await;
    assert_eq!(desk.apply(&claim, complete("late")).await, Standing::Completed);
    assert_eq!(completed(desk.claim("m").await).attempt, 1);
}

/// A claim that was never made can't settle.
pub async fn settle_of_nothing_is_superseded<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let mut claim = desk.acquire("m").await;
    claim.key = key("scope", "other");
    assert_eq!(desk.refuse(&claim, complete("x")).await, Refusal::Superseded);
    assert_eq!(desk.phase("other").await, "absent");
}

/// Rule 5: the same key with another fingerprint is a conflict, in every state that a key can be in, and
/// changes nothing.
pub async fn conflict_in_every_state<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let states = ["live", "lapsed", "released", "completed", "owed", "publishing", "failed"];
    for state in states {
        let claim = acquired(desk.send(desk.with_content(state, "mine")).await);
        match state {
            "released" => drop(desk.apply(&claim, release()).await),
            "completed" => drop(desk.apply(&claim, complete("r")).await),
            "owed" | "publishing" | "failed" => drop(desk.apply(&claim, reject("no")).await),
            _ => {}
        }
        match state {
            "lapsed" => desk.lapse().await,
            "owed" => drop(desk.apply(&claim, release()).await),
            "failed" => drop(desk.apply(&claim, Verb::DeadLettered).await),
            _ => {}
        }
        let before = desk.record(state).await;
        let answer = desk.send(desk.with_content(state, "other")).await;
        assert_eq!(answer, ClaimAnswer::Conflict, "{state}");
        assert_eq!(desk.record(state).await, before, "{state}");
        assert_ne!(desk.send(desk.with_content(state, "mine")).await, ClaimAnswer::Conflict, "{state}");
    }
}

/// A claim without a fingerprint compares nothing; the first that brings one sets it.
pub async fn first_fingerprint_is_kept<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = desk.acquire("m").await;
    desk.apply(&claim, release()).await;
    let claim = acquired(desk.send(desk.with_content("m", "mine")).await);
    assert_eq!(desk.record("m").await.unwrap().fingerprint, Some(print_of("mine")));
    desk.apply(&claim, release()).await;
    let claim = desk.acquire("m").await;
    desk.apply(&claim, release()).await;
    assert_eq!(desk.send(desk.with_content("m", "other")).await, ClaimAnswer::Conflict);
}

/// Rule 5: the fingerprint survives release and take-over, so that an attempt can't run with other content
/// than the one before.
pub async fn fingerprint_survives_release_and_take_over<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let claim = acquired(desk.send(desk.with_content("m", "mine")).await);
    desk.apply(&claim, retry(desk.delay())).await;
    assert_eq!(desk.send(desk.with_content("m", "other")).await, ClaimAnswer::Conflict);
    desk.advance(desk.delay()).await;
    acquired(desk.send(desk.with_content("m", "mine")).await);
    desk.lapse().await;
    assert_eq!(desk.send(desk.with_content("m", "other")).await, ClaimAnswer::Conflict);
}

/// Scenario 35: fingerprints of another version of the rule are not compared: after a change of the rule the
/// old records go on answering.
pub async fn fingerprints_of_two_versions_are_not_compared<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let versioned = |version| ClaimRequest {
        fingerprint: Some(Fingerprint::custom(version, &[version])),
        ..desk.request("m")
    };
    let claim = acquired(desk.send(versioned(200)).await);
    desk.apply(&claim, complete("r")).await;
    completed(desk.send(versioned(201)).await);
}

/// Scenario 8: steps of a host's wall clock, either way, take no claim over and make no wait longer.
pub async fn steps_of_the_wall_clock_take_nothing_over<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    desk.acquire("m").await;
    for seconds in [300, -600, 300] {
        if !harness.step_wall(seconds).await {
            return;
        }
        let retry_after = in_progress(desk.claim("m").await);
        assert!(!retry_after.is_zero() && retry_after <= desk.rules.lease, "{seconds}: {retry_after:?}");
    }
    desk.lapse().await;
    desk.acquire("m").await;
}

/// Scenario 2: a lease of zero, should one get past the checks of the policy, is refused or ends at once; it
/// never means "no end".
pub async fn zero_lease_is_not_for_ever<H: Harness>(harness: &H) {
    use einmal::DedupStoreExt;
    let desk = Desk::open(harness).await;
    let mut request = desk.request("m");
    request.rules.lease = std::time::Duration::ZERO;
    let _ = desk.store.claim(request).await;
    desk.lapse().await;
    desk.acquire("m").await;
}
