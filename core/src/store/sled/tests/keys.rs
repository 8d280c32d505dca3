//! Claims, batches, fences, bounds.

use super::*;
use crate::claim::{Failing, Standing};
use crate::outcome::StoredResult;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_claims_at_once_one_is_acquired() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    hand.slow_reads.store(true, Ordering::SeqCst);
    for id in 0..10 {
        let claims = (0..8).map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.claim(request(&key(id))).await.unwrap() })
        });
        let mut acquired = 0;
        for claim in claims.collect::<Vec<_>>() {
            acquired += usize::from(matches!(claim.await.unwrap(), ClaimAnswer::Acquired(_)));
        }
        assert_eq!(acquired, 1, "key {id}");
    }
    assert_eq!(store.stats().await.unwrap().keys, 10);
}

#[tokio::test]
async fn everything_is_there_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    complete(&store, "done").await;
    let failing = acquire(&store, &key("failing")).await;
    let delay = Duration::from_secs(200);
    store.fail(&failing, Failing::Retry { delay }).await.unwrap();
    let lost = acquire(&store, &key("lost")).await;
    let reason = crate::FailReason::Rejected("no".into());
    let owed = acquire(&store, &key("owed")).await;
    let standing = store.fail(&owed, Failing::ForGood(reason.clone())).await.unwrap();
    assert_eq!(standing, SettleAnswer::Applied(Standing::Owed(reason.clone())));
    assert_eq!(store.stats().await.unwrap().claims, 2);
    store.close().await.unwrap();
    assert_eq!(store.stats().await.unwrap_err().kind(), StoreErrorKind::Closed);
    assert_eq!(store.claim(request(&lost.key)).await.unwrap_err().kind(), StoreErrorKind::Closed);

    let store = open(dir.path()).await;
    assert!(is_completed(&store, &key("done")).await);
    assert!(matches!(store.claim(request(&failing.key)).await.unwrap(), ClaimAnswer::NotYet { .. }));
    let again = acquire(&store, &owed.key).await;
    assert_eq!(again.stage, Stage::DeadLetter(reason));
    assert!(applied(&store.dead_lettered(&again).await.unwrap()));
    let again = acquire(&store, &lost.key).await;
    assert!(again.interrupted, "the handler had started");
    assert!(again.fence > lost.fence);
    assert_eq!(store.settle(&lost, Verb::Renew).await.unwrap(), SettleAnswer::Refused(Refusal::TakenOver));
    assert_eq!(store.stats().await.unwrap().keys, 4);
}

#[tokio::test]
async fn a_handler_that_had_not_started_was_not_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    store.claim(ClaimRequest { started: false, ..request(&key("1")) }).await.unwrap();
    let renewed = ClaimRequest { started: false, ..request(&key("2")) };
    let ClaimAnswer::Acquired(claim) = store.claim(renewed).await.unwrap() else { panic!() };
    store.started(&claim).await.unwrap();
    drop(store);
    let store = open(dir.path()).await;
    assert_eq!(store.expired_claims(9).await.unwrap().len(), 1, "lapsed at once");
    assert!(!acquire(&store, &key("1")).await.interrupted);
    assert!(acquire(&store, &key("2")).await.interrupted);
}

#[tokio::test]
async fn fences_grow_across_reopening_and_forgetting() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = crate::claim::Fence::default();
    for _ in 0..3 {
        let store = open(dir.path()).await;
        for _ in 0..3 {
            let claim = acquire(&store, &key("1")).await;
            assert!(claim.fence > last);
            last = claim.fence;
            store.complete(&claim, None).await.unwrap();
            store.forget(&key("1")).await.unwrap();
        }
        assert_eq!(store.stats().await.unwrap().keys, 0);
        store.close().await.unwrap();
    }
}

#[test]
fn used_up_fences_are_an_error() {
    let fences = shared::Fences::after(3, (1 << 40) - 2);
    assert_eq!(fences.next().unwrap().get(), (4 << 40) - 1);
    for _ in 0..3 {
        assert_eq!(fences.next().unwrap_err().kind(), StoreErrorKind::Poisoned);
    }
}

#[tokio::test]
async fn a_group_stops_and_other_items_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let grouped = |id: &str, group| ClaimRequest { group, ..request(&key(id)) };
    acquire(&store, &key("b")).await;
    let batch = vec![
        grouped("a", Some(1)),
        grouped("b", Some(1)),
        grouped("c", Some(1)),
        grouped("d", Some(2)),
        grouped("e", None),
    ];
    let answers = store.claim_many(batch).await;
    let claim = |at: usize| match answers[at].as_ref().unwrap() {
        ClaimAnswer::Acquired(claim) => claim.clone(),
        other => panic!("{other:?}"),
    };
    assert!(matches!(answers[1], Ok(ClaimAnswer::InProgress { .. })));
    assert_eq!(answers[2].as_ref().unwrap(), &ClaimAnswer::Behind);
    let complete = |claim, group| SettleRequest { claim, verb: Verb::Complete { result: None }, group };
    let stale = Claim { fence: crate::claim::Fence::new(1), ..claim(0) };
    let answers = store
        .settle_many(vec![
            complete(claim(3), Some(7)),
            complete(stale, Some(7)),
            complete(claim(0), Some(7)),
            complete(claim(4), None),
        ])
        .await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert!(applied(&answers[0]) && applied(&answers[3]));
    assert!(matches!(answers[1], SettleAnswer::Refused(_)));
    assert_eq!(answers[2], SettleAnswer::Refused(Refusal::Behind));
}

#[tokio::test]
async fn the_same_key_twice_in_a_batch_is_two_calls() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let answers = store.claim_many(vec![request(&key("1")), request(&key("1"))]).await;
    let Ok(ClaimAnswer::Acquired(claim)) = &answers[0] else { panic!("{answers:?}") };
    assert!(matches!(answers[1], Ok(ClaimAnswer::InProgress { .. })));
    let settle = |verb| SettleRequest { claim: claim.clone(), verb, group: None };
    let complete = Verb::Complete { result: None };
    let verbs = [complete.clone(), complete, Verb::Release { delay: HOUR }];
    let answers = store.settle_many(verbs.map(settle).to_vec()).await;
    assert!(applied(answers[0].as_ref().unwrap()) && applied(answers[1].as_ref().unwrap()));
    assert_eq!(answers[2].as_ref().unwrap(), &SettleAnswer::Refused(Refusal::AlreadyEnded));
}

#[tokio::test]
async fn bounds_refuse_new_keys_only_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let config = || SledConfig::builder(dir.path()).max_keys(3).max_keys_per_scope(2).build().unwrap();
    let other = |id: &str| DedupKey::new(Scope::new("other").unwrap(), MessageId::new(id).unwrap());
    let store = SledStore::open(config()).await.unwrap();
    complete(&store, "1").await;
    complete(&store, "2").await;
    let full = store.claim(request(&key("3"))).await.unwrap_err();
    assert_eq!(full.kind(), StoreErrorKind::Full);
    assert!(full.to_string().contains("max_keys_per_scope"), "{full}");
    acquire(&store, &other("1")).await;
    let full = store.claim(request(&other("2"))).await.unwrap_err();
    assert!(full.to_string().contains("max_keys is reached"), "{full}");
    assert!(is_completed(&store, &key("1")).await);
    store.close().await.unwrap();

    let store = SledStore::open(config()).await.unwrap();
    assert_eq!(store.claim(request(&key("3"))).await.unwrap_err().kind(), StoreErrorKind::Full);
    store.forget(&key("1")).await.unwrap();
    complete(&store, "3").await;
}

#[tokio::test]
async fn a_result_over_the_bound_is_not_kept_and_not_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claim = acquire(&store, &key("1")).await;
    store.complete(&claim, Some(vec![0; 8193].into())).await.unwrap();
    let ClaimAnswer::Completed(outcome) = store.claim(request(&key("1"))).await.unwrap() else { panic!() };
    assert_eq!(outcome.result, StoredResult::NotKept { len: 8193 });
}

#[tokio::test]
async fn an_undecodable_record_is_one_keys_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    complete(&store, "good").await;
    complete(&store, "bad").await;
    let raw = record::record_key(&key("bad"));
    store.handle.shared.disk().unwrap().apply(&Batch::from([(raw.clone(), Some(vec![9, 9]))])).unwrap();
    let answers = store.claim_many(vec![request(&key("bad")), request(&key("good"))]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Undecodable);
    assert!(error.to_string().contains("orders/bad"), "{error}");
    assert!(matches!(answers[1], Ok(ClaimAnswer::Completed(_))));
    assert_eq!(store.get(&key("bad")).await.unwrap_err().kind(), StoreErrorKind::Undecodable);
    assert_eq!(store.forget(&key("bad")).await.unwrap_err().kind(), StoreErrorKind::Undecodable);
    let left = store.handle.shared.disk().unwrap().get(&raw).unwrap();
    assert_eq!(left.as_deref(), Some([9, 9].as_slice()), "it stays");
}

/// Every answer is that of the executable reference.
#[tokio::test]
async fn a_long_walk_agrees_with_the_reference() {
    use rand::{RngExt, SeedableRng};
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    let reference = crate::MemoryStore::new(crate::MemoryConfig::default(), Arc::<Hands>::clone(&clock) as _);
    let mut random = rand::rngs::StdRng::seed_from_u64(7);
    let mut claims: Vec<(Claim, Claim)> = Vec::new();
    for step in 0..3000 {
        let key = key(random.random_range(0..6));
        match random.random_range(0..10) {
            0..=3 => {
                let request = ClaimRequest { started: random.random(), ..request(&key) };
                let ours = store.claim(request.clone()).await.unwrap();
                let theirs = reference.claim(request).await.unwrap();
                if let (ClaimAnswer::Acquired(ours), ClaimAnswer::Acquired(theirs)) = (&ours, &theirs) {
                    assert_eq!(
                        (&ours.stage, ours.counters, ours.alone),
                        (&theirs.stage, theirs.counters, theirs.alone),
                        "{step}"
                    );
                    claims.push((ours.clone(), theirs.clone()));
                } else {
                    assert_eq!(ours, theirs, "{step}");
                }
            }
            4..=6 if !claims.is_empty() => {
                let (ours, theirs) =
                    claims[random.random_range(claims.len().saturating_sub(12)..claims.len())].clone();
                let delay = Duration::from_secs(random.random_range(0..60));
                let verb = match random.random_range(0..7) {
                    0 => Verb::Started,
                    1 => Verb::Renew,
                    2 => Verb::Complete { result: None },
                    3 => Verb::Fail(Failing::Retry { delay }),
                    4 => Verb::Fail(Failing::ForGood(crate::FailReason::Parked("x".into()))),
                    5 => Verb::DeadLettered,
                    _ => Verb::Release { delay },
                };
                let ours = store.settle(&ours, verb.clone()).await.unwrap();
                assert_eq!(ours, reference.settle(&theirs, verb.clone()).await.unwrap(), "{step} {verb:?}");
            }
            7 => {
                assert_eq!(
                    store.forget(&key).await.unwrap(),
                    reference.forget(&key).await.unwrap(),
                    "{step}"
                );
            }
            8 => {
                let ours = store.force(&key, HOUR).await.unwrap();
                let theirs = reference.force(&key, HOUR).await.unwrap();
                assert_eq!(std::mem::discriminant(&ours), std::mem::discriminant(&theirs), "{step}");
            }
            _ => {
                clock.advance(Duration::from_secs([1, 20, 40, 1500][random.random_range(0..4)]));
                let ours = store.purge_expired(3).await.unwrap();
                assert_eq!(ours, reference.purge_expired(3).await.unwrap(), "{step}");
                let ours = store.expired_claims(9).await.unwrap().len();
                assert_eq!(ours, reference.expired_claims(9).await.unwrap().len(), "{step}");
            }
        }
        let (ours, theirs) = (store.stats().await.unwrap(), reference.stats().await.unwrap());
        assert_eq!((ours.keys, ours.claims), (theirs.keys, theirs.claims), "{step}");
    }
}
