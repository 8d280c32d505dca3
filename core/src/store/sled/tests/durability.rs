//! Nothing is answered, and nothing is seen, before it is durable; and a failure is never an Ok.

use super::*;

#[tokio::test]
async fn no_answer_before_the_sync_and_the_key_is_in_progress_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let (store, hand) = open_held(dir.path(), |config| config.clock(Arc::<Hands>::clone(&clock)));
    let (key, before) = (key("a"), hand.syncs());
    let claim = acquire(&store, &key).await;
    hand.hold();
    let completing = {
        let (store, claim) = (store.clone(), claim.clone());
        tokio::spawn(async move { store.complete(&claim, None).await })
    };
    until(|| hand.applies() == 1).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!completing.is_finished(), "answered before the sync");

    // Written, not synced: nobody sees it, and nobody takes it over, whatever the lease says.
    clock.advance(Duration::from_secs(60));
    assert!(matches!(store.claim(request(&key)).await.unwrap(), ClaimAnswer::InProgress { .. }));
    assert_eq!(store.get(&key).await.unwrap().unwrap().phase_name(), "in_progress");
    let mut again = tokio_task(&store, &claim);
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut again).await.is_err());

    hand.release();
    assert!(applied(&completing.await.unwrap().unwrap()));
    assert!(applied(&again.await.unwrap().unwrap()), "the same settle gets the same answer");
    assert_eq!(hand.syncs(), before + 1, "and writes nothing of its own");
    assert!(is_completed(&store, &key).await);
    assert!(store.handle.shared.table.lock(&key).is_empty(), "what is durable leaves the memory");
}

fn tokio_task(store: &SledStore, claim: &Claim) -> tokio::task::JoinHandle<Result<SettleAnswer, StoreError>> {
    let (store, claim) = (store.clone(), claim.clone());
    tokio::spawn(async move { store.complete(&claim, None).await })
}

/// The entry must still be in memory when the writer is in the sync: sled has the record by then, and a
/// claim that missed the table would find it there, not yet durable.
#[tokio::test]
async fn a_reader_does_not_find_an_unsynced_outcome_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    let keys: Vec<_> = (0..50).map(key).collect();
    let mut claims = Vec::new();
    for key in &keys {
        claims.push(acquire(&store, key).await);
    }
    hand.hold();
    let settles = claims.into_iter().map(|claim| SettleRequest {
        claim,
        verb: Verb::Complete { result: None },
        group: None,
    });
    let settling = {
        let (store, settles) = (store.clone(), settles.collect());
        tokio::spawn(async move { store.settle_many(settles).await })
    };
    until(|| hand.applies() == 1 && entries(&store, b'r').len() == 50).await;
    for key in &keys {
        assert!(!is_completed(&store, key).await);
    }
    hand.release();
    assert!(settling.await.unwrap().iter().all(|answer| applied(answer.as_ref().unwrap())));
    assert_eq!(hand.applies(), 1, "one batch, one write");
}

/// sled keeps an error of its own threads for good: who is told to try again would try for ever.
#[tokio::test]
async fn a_failed_read_poisons_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    complete(&store, "before").await;
    hand.fail_reads.store(true, Ordering::SeqCst);
    let error = store.claim(request(&key("before"))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Poisoned, "{error}");
    hand.fail_reads.store(false, Ordering::SeqCst);
    assert!(store.claim(request(&key("before"))).await.unwrap_err().is_fatal());
}

#[tokio::test]
async fn a_failed_write_poisons_for_good() {
    for failing in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let (store, hand) = open_held(dir.path(), |config| config);
        complete(&store, "before").await;
        let (one, two) = (acquire(&store, &key("1")).await, acquire(&store, &key("2")).await);
        let fault = [&hand.fail_apply, &hand.fail_sync, &hand.panic_in_sync][failing];
        hand.hold();
        let first = tokio_task(&store, &one);
        until(|| hand.applies() == 2).await;
        let same = tokio_task(&store, &one);
        let behind = tokio_task(&store, &two);
        tokio::time::sleep(Duration::from_millis(20)).await;
        fault.store(true, Ordering::SeqCst);
        hand.release();
        for waiting in [first, same, behind] {
            match waiting.await.unwrap() {
                // A failing apply meets the later one only: the first was applied before.
                Ok(_) if failing == 0 => {}
                answer => assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Poisoned),
            }
        }
        fault.store(false, Ordering::SeqCst);
        let poisoned = |error: StoreError| {
            assert_eq!(error.kind(), StoreErrorKind::Poisoned);
            let text = error.to_string();
            let says_why = cfg!(not(unix)) || text.contains("the disk failed (No space left on device");
            assert!(says_why || failing == 2, "{text}");
            assert!(!text.contains("try again"), "{text}");
        };
        poisoned(store.complete(&one, None).await.unwrap_err());
        poisoned(store.claim(request(&key("before"))).await.unwrap_err());
        poisoned(store.renew(&two).await.unwrap_err());
        poisoned(store.get(&key("before")).await.unwrap_err());
        poisoned(store.forget(&key("before")).await.unwrap_err());
        poisoned(store.force(&key("before"), HOUR).await.unwrap_err());
        poisoned(store.purge_expired(1).await.unwrap_err());
        poisoned(store.stats().await.unwrap_err());
        poisoned(store.begin_for_test(&one).await.unwrap_err());
        poisoned(store.close().await.unwrap_err());
    }
}

impl SledStore {
    async fn begin_for_test(&self, claim: &Claim) -> Result<SledTx, StoreError> {
        crate::store::transactional::TransactionalStore::begin(self, claim).await
    }
}

#[tokio::test]
async fn starts_and_renewals_do_not_wait_for_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    let (busy, other) = (acquire(&store, &key("1")).await, acquire(&store, &key("2")).await);
    hand.hold();
    let completing = tokio_task(&store, &busy);
    until(|| hand.applies() == 1).await;
    assert!(applied(&store.started(&other).await.unwrap()));
    assert!(applied(&store.renew(&other).await.unwrap()));
    hand.release();
    completing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_settle_whose_caller_has_gone_is_made_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    let claim = acquire(&store, &key("1")).await;
    hand.hold();
    let completing = tokio_task(&store, &claim);
    until(|| hand.applies() == 1).await;
    completing.abort();
    let _ = completing.await;
    hand.release();
    assert!(applied(&store.complete(&claim, None).await.unwrap()));
    assert!(is_completed(&store, &key("1")).await);
}

#[tokio::test]
async fn without_the_sync_an_answer_survives_the_process_only() {
    let dir = tempfile::tempdir().unwrap();
    let config = || SledConfig::builder(dir.path()).durability(Durability::Flush).build().unwrap();
    let store = SledStore::open(config()).await.unwrap();
    complete(&store, "1").await;
    drop(store);
    assert!(is_completed(&SledStore::open(config()).await.unwrap(), &key("1")).await);
}

/// /dev/null takes every write and can't be synced.
#[cfg(target_os = "linux")]
#[test]
fn the_file_is_synced_or_it_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let db = sled::open(dir.path()).unwrap();
    let sync = |durability| {
        let file = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let disk =
            SledDisk { db: db.clone(), file, durability, probe: super::super::config::Probe::default() };
        disk.apply(&Batch::from([(b"key".to_vec(), Some(b"value".to_vec()))])).unwrap();
        disk.sync()
    };
    let error = sync(Durability::Fsync).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("the disk failed (Invalid argument"), "{error}");
    sync(Durability::Flush).unwrap();
}

#[tokio::test]
async fn more_settles_than_a_batch_takes_are_several() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    let claims = store.claim_many((0..5000).map(|id| request(&key(id))).collect()).await;
    let settles = claims.into_iter().map(|answer| {
        let Ok(ClaimAnswer::Acquired(claim)) = answer else { panic!("{answer:?}") };
        SettleRequest { claim, verb: Verb::Complete { result: None }, group: Some(1) }
    });
    let answers = store.settle_many(settles.collect()).await;
    assert_eq!(answers.len(), 5000);
    assert!(answers.iter().all(|answer| applied(answer.as_ref().unwrap())));
    assert!(hand.applies() >= 2);
    assert_eq!(entries(&store, b'r').len(), 5000);
}
