//! Fences grow, whatever happens to a key.

use std::time::Duration;

use einmal::DedupStore;
use einmal::claim::{Claim, ForceAnswer, ForgetAnswer};

use super::Harness;
use super::desk::*;

/// Each claim of a key has a higher fence than all before: after a lapse, a failure and a release.
pub async fn fence_grows<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let mut last = desk.acquire("m").await;
    let mut grows = |claim: Claim| {
        assert!(claim.fence > last.fence, "{} then {}", last.fence, claim.fence);
        assert_eq!(claim.generation, last.generation);
        last = claim.clone();
        claim
    };
    desk.lapse().await;
    let claim = grows(desk.start("m").await);
    desk.apply(&claim, release()).await;
    let claim = grows(desk.start("m").await);
    desk.apply(&claim, retry(Duration::ZERO)).await;
    let claim = grows(desk.start("m").await);
    desk.apply(&claim, reject("no")).await;
    desk.lapse().await;
    grows(desk.start("m").await);
}

/// A forgotten key begins a new generation, above all fences before.
pub async fn fence_grows_after_forget<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let mut last = desk.acquire("m").await;
    for _ in 0..5 {
        desk.apply(&last, complete("r")).await;
        assert_eq!(desk.store.forget(&last.key).await.unwrap(), ForgetAnswer::Forgotten);
        let claim = desk.acquire("m").await;
        assert!(claim.fence > last.fence, "{} then {}", last.fence, claim.fence);
        assert_eq!(claim.generation, claim.fence);
        last = claim;
    }
}

/// So does an expired key, whether it was purged or not.
pub async fn fence_grows_after_expiry<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let mut last = desk.acquire("m").await;
    for purge in [false, true, true, false] {
        desk.apply(&last, complete("r")).await;
        desk.outlive().await;
        if purge {
            desk.store.purge_expired(100).await.unwrap();
        }
        let claim = desk.acquire("m").await;
        assert!(claim.fence > last.fence, "{} then {}", last.fence, claim.fence);
        assert_eq!(claim.generation, claim.fence);
        last = claim;
    }
}

/// So does a forced one; its claims are above its generation.
pub async fn fence_grows_after_force<H: Harness>(harness: &H) {
    let desk = Desk::open(harness).await;
    let mut last = desk.acquire("m").await;
    for _ in 0..5 {
        desk.apply(&last, complete("r")).await;
        let forced = desk.store.force(&last.key, desk.rules.retention).await.unwrap();
        let ForceAnswer::Forced(generation) = forced else { panic!("{forced:?}") };
        assert!(generation > last.fence);
        let claim = desk.acquire("m").await;
        assert_eq!(claim.generation, generation);
        assert!(claim.fence > generation);
        last = claim;
    }
}

/// So does a key of a store that was opened again, killed or closed, forgotten or not.
pub async fn fence_grows_after_a_restart<H: Harness>(harness: &H) {
    let mut desk = Desk::open(harness).await;
    let mut last = desk.acquire("m").await;
    for kill in [true, false, true] {
        desk.apply(&last, complete("r")).await;
        desk.store.forget(&last.key).await.unwrap();
        let again = if kill { desk.crash().await } else { desk.reopen().await };
        let Some(again) = again else { return };
        desk = again;
        let claim = desk.acquire("m").await;
        assert!(claim.fence > last.fence, "{} then {}", last.fence, claim.fence);
        last = claim;
    }
}
