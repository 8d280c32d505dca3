//! Each fault of the faulty store does what it says, and is counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use einmal::claim::{Claim, ClaimAnswer, ClaimRequest, Rules, SettleAnswer, Standing, Token};
use einmal::{DedupKey, DedupStore, DedupStoreExt, MemoryStore, MessageId, Scope, StoreErrorKind};
use einmal_testkit::{Duplicator, Fault, FaultyStore, Method};

fn request(id: &str) -> ClaimRequest {
    let seconds = Duration::from_secs;
    ClaimRequest {
        key: DedupKey::new(Scope::new("s").unwrap(), MessageId::new(id).unwrap()),
        token: Token::random(),
        fingerprint: None,
        rules: Rules {
            lease: seconds(30),
            retention: seconds(3600),
            max_failures: 5,
            max_crashes: 5,
            max_delay: seconds(300),
            max_result: usize::MAX,
        },
        started: true,
        group: None,
    }
}

async fn acquire(store: &FaultyStore<MemoryStore>, id: &str) -> Claim {
    match store.claim(request(id)).await.unwrap() {
        ClaimAnswer::Acquired(claim) => claim,
        other => panic!("{other:?}"),
    }
}

async fn is_known(store: &FaultyStore<MemoryStore>, id: &str) -> bool {
    store.inner().get(&request(id).key).await.unwrap().is_some()
}

#[tokio::test]
async fn errors_before_during_and_after_differ_in_what_was_applied() {
    let store = FaultyStore::new(MemoryStore::default());
    let faults = store.faults();
    for (fault, applied) in [(Fault::ErrorBefore, 0), (Fault::ErrorDuring, 2), (Fault::ErrorAfter, 3)] {
        faults.at(Method::ClaimMany, 1, fault);
        let ids = [1, 2, 3].map(|n| format!("{fault:?}{n}"));
        let answers = store.claim_many(ids.iter().map(|id| request(id)).collect()).await;
        let errors = answers.into_iter().map(Result::unwrap_err);
        assert!(errors.map(|error| error.kind()).eq([StoreErrorKind::Unavailable; 3]));
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(is_known(&store, id).await, n < applied, "{id}");
        }
        assert_eq!(faults.injected(Method::ClaimMany, fault), 1);
    }
    assert_eq!((faults.total(), faults.calls(Method::ClaimMany)), (3, 3));
}

#[tokio::test]
async fn a_lost_reply_is_applied_and_the_call_sent_again_finds_it() {
    let store = FaultyStore::new(MemoryStore::default());
    let claim = acquire(&store, "m").await;
    let faults = store.faults();
    faults.at(Method::SettleMany, 1, Fault::ReplyLost);
    tokio::select! {
        answer = store.complete(&claim, None) => panic!("{answer:?}"),
        () = faults.wait_hanging(1) => {}
    }
    assert_eq!(faults.hanging(), 0, "the call was dropped");
    let again = store.complete(&claim, None).await.unwrap();
    assert_eq!(again, SettleAnswer::Applied(Standing::Completed));
}

#[tokio::test]
async fn a_hanging_call_goes_on_when_released_and_is_not_applied_when_dropped() {
    let store = FaultyStore::new(MemoryStore::default());
    let faults = store.faults();
    faults.at(Method::ClaimMany, 1, Fault::HangBefore);
    tokio::select! {
        answer = store.claim(request("dropped")) => panic!("{answer:?}"),
        () = faults.wait_hanging(1) => {}
    }
    assert!(!is_known(&store, "dropped").await);

    faults.at(Method::ClaimMany, 1, Fault::HangBefore);
    let call = tokio::spawn({
        let store = store.clone();
        async move { acquire(&store, "released").await }
    });
    faults.wait_hanging(1).await;
    assert!(!is_known(&store, "released").await);
    faults.release();
    call.await.unwrap();
}

#[tokio::test]
async fn down_fails_everything_until_it_is_up() {
    let store = FaultyStore::new(MemoryStore::default());
    let key = request("m").key;
    store.faults().down(true);
    assert!(store.claim(request("m")).await.is_err());
    assert!(store.get(&key).await.is_err());
    assert!(store.forget(&key).await.is_err());
    assert!(store.force(&key, Duration::from_secs(1)).await.is_err());
    assert!(store.expired_claims(1).await.is_err());
    assert!(store.purge_expired(1).await.is_err());
    assert!(store.stats().await.is_err());
    assert_eq!(store.faults().total(), 7);
    store.faults().down(false);
    acquire(&store, "m").await;
}

#[tokio::test]
async fn a_seed_fails_the_same_calls() {
    let run = async |seed| {
        let store = FaultyStore::new(MemoryStore::default());
        store.faults().seeded(seed, 0.3, &Fault::ERRORS);
        let mut failed = Vec::new();
        for n in 0..100 {
            failed.push(store.claim(request(&n.to_string())).await.is_err());
        }
        assert_eq!(failed.iter().filter(|failed| **failed).count() as u64, store.faults().total());
        failed
    };
    let first = run(1).await;
    assert_eq!(first, run(1).await);
    assert_ne!(first, run(2).await);
    let failures = first.iter().filter(|failed| **failed).count();
    assert!((10..60).contains(&failures), "{failures} of 100");
}

#[tokio::test]
async fn clear_takes_everything_back() {
    let store = FaultyStore::new(MemoryStore::default());
    let faults = store.faults();
    faults.down(true);
    faults.seeded(1, 1.0, &Fault::ALL);
    faults.at(Method::ClaimMany, 1, Fault::HangBefore);
    faults.clear();
    acquire(&store, "m").await;
    assert_eq!(faults.total(), 0);
}

/// Scenario 34, as far as a store can show it: over a store that fails before, during and after its calls, a
/// caller that sends the same call again until it is answered runs each message of a redelivered stream once.
#[tokio::test]
async fn same_calls_again_run_each_message_once() {
    for seed in 0..20 {
        let store = FaultyStore::new(MemoryStore::default());
        store.faults().seeded(seed, 0.3, &Fault::ERRORS);
        let messages = Duplicator::new(seed).adjacent(0.3).far(0.3, 20).repeated(0.05, 4);
        let messages = messages.apply((0..50).map(|n| n.to_string()), Clone::clone);
        assert!(messages.repeats() > 0);
        let mut ran = Vec::new();
        for id in &messages.stream {
            let request = request(id);
            let answer = loop {
                if let Ok(answer) = store.claim(request.clone()).await {
                    break answer;
                }
            };
            let claim = match answer {
                ClaimAnswer::Acquired(claim) => claim,
                ClaimAnswer::Completed(_) => continue,
                other => panic!("{other:?}"),
            };
            ran.push(id.clone());
            let answer = loop {
                if let Ok(answer) = store.complete(&claim, None).await {
                    break answer;
                }
            };
            assert_eq!(answer, SettleAnswer::Applied(Standing::Completed));
        }
        assert_eq!(ran, messages.distinct, "seed {seed}");
    }
}
