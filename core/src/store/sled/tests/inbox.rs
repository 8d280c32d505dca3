//! Effect and outcome are one.

use super::*;
use crate::store::transactional::{TransactionalStore, TxAnswer};

fn took_effect(answer: &TxAnswer) -> bool {
    matches!(answer, TxAnswer::Settled(SettleAnswer::Applied(_)))
}

#[tokio::test]
async fn the_effect_is_there_once_and_only_with_the_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claim = acquire(&store, &key("1")).await;
    let mut tx = store.begin(&claim).await.unwrap();
    assert_eq!(tx.get("stock", b"apples").unwrap(), None);
    tx.put("stock", b"apples", "7").unwrap();
    assert_eq!(tx.get("stock", b"apples").unwrap().unwrap(), "7", "it sees its own writes");
    tx.append("log", "sold").unwrap();
    tx.append("log", "sold again").unwrap();
    let (stock, log) = (store.view("stock").unwrap(), store.view("log").unwrap());
    assert!(stock.is_empty().unwrap() && log.is_empty().unwrap());
    assert!(took_effect(&store.commit(tx, &claim, None).await.unwrap()));
    assert!(is_completed(&store, &key("1")).await);

    // Sent again, as after a lost answer: the same answer, and no second effect.
    let mut tx = store.begin(&claim).await.unwrap();
    tx.append("log", "sold").unwrap();
    assert!(took_effect(&store.commit(tx, &claim, None).await.unwrap()));
    assert_eq!((stock.len().unwrap(), log.len().unwrap()), (1, 2));
    assert_eq!(stock.get(b"apples").unwrap().unwrap(), "7");
    store.close().await.unwrap();

    // Numbers go on, also past a value that was taken out.
    let store = open(dir.path()).await;
    let claim = acquire(&store, &key("2")).await;
    let mut tx = store.begin(&claim).await.unwrap();
    tx.remove("log", &2u64.to_be_bytes()).unwrap();
    tx.put("log", &3u64.to_be_bytes(), "by hand").unwrap();
    tx.append("log", "later").unwrap();
    assert!(took_effect(&store.commit(tx, &claim, None).await.unwrap()));
    let log = store.view("log").unwrap();
    let numbers: Vec<_> = log.scan(None, 9).unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(numbers, [1u64, 3, 4].map(|number| Bytes::copy_from_slice(&number.to_be_bytes())));
    assert_eq!(log.scan(Some(&1u64.to_be_bytes()), 1).unwrap()[0].1, "by hand");
}

#[tokio::test]
async fn what_was_read_and_has_changed_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    let (one, two) = (acquire(&store, &key("1")).await, acquire(&store, &key("2")).await);
    let (mut first, mut second) = (store.begin(&one).await.unwrap(), store.begin(&two).await.unwrap());
    for tx in [&mut first, &mut second] {
        assert_eq!(tx.get("stock", b"n").unwrap(), None);
        tx.put("stock", b"n", "1").unwrap();
        tx.append("log", "x").unwrap();
    }
    // Both wait in the queue while the disk is busy, and so are one batch.
    let busy = acquire(&store, &key("3")).await;
    hand.hold();
    let completing = {
        let store = store.clone();
        tokio::spawn(async move { store.complete(&busy, None).await })
    };
    until(|| hand.applies() == 1).await;
    let letting_go = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        hand.release();
    };
    let (first, second) = (store.commit(first, &one, None), store.commit(second, &two, None));
    let (first, second, ()) = tokio::join!(first, second, letting_go);
    assert!(applied(&completing.await.unwrap().unwrap()));
    assert_eq!(hand.applies(), 2, "the two were not one batch");
    assert!(took_effect(&first.unwrap()));
    assert_eq!(second.unwrap(), TxAnswer::Conflict);
    assert_eq!(store.view("log").unwrap().len().unwrap(), 1);

    // Still held, to run again.
    assert!(applied(&store.renew(&two).await.unwrap()));
    let mut again = store.begin(&two).await.unwrap();
    assert_eq!(again.get("stock", b"n").unwrap().unwrap(), "1");
    again.put("stock", b"n", "2").unwrap();
    assert!(took_effect(&store.commit(again, &two, None).await.unwrap()));
    assert_eq!(store.view("stock").unwrap().get(b"n").unwrap().unwrap(), "2");
}

#[tokio::test]
async fn a_refused_claim_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    let old = acquire(&store, &key("1")).await;
    let mut tx = store.begin(&old).await.unwrap();
    tx.append("log", "stale").unwrap();
    clock.advance(Duration::from_secs(31));
    let new = acquire(&store, &key("1")).await;
    assert!(new.interrupted);
    let answer = store.commit(tx, &old, None).await.unwrap();
    assert_eq!(answer, TxAnswer::Settled(SettleAnswer::Refused(Refusal::TakenOver)));
    assert!(store.view("log").unwrap().is_empty().unwrap());
    let tx = store.begin(&old).await.unwrap();
    assert_eq!(store.commit(tx, &new, None).await.unwrap_err().kind(), StoreErrorKind::Misuse);
}

#[tokio::test]
async fn a_failed_commit_poisons_and_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    let (store, hand) = open_held(dir.path(), |config| config);
    let claim = acquire(&store, &key("1")).await;
    let mut tx = store.begin(&claim).await.unwrap();
    tx.append("log", "x").unwrap();
    hand.fail_sync.store(true, Ordering::SeqCst);
    assert_eq!(store.commit(tx, &claim, None).await.unwrap_err().kind(), StoreErrorKind::Poisoned);
}

#[tokio::test]
async fn a_transaction_has_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claim = acquire(&store, &key("1")).await;
    let mut tx = store.begin(&claim).await.unwrap();
    let misuse =
        |result: Result<(), StoreError>| assert_eq!(result.unwrap_err().kind(), StoreErrorKind::Misuse);
    misuse(tx.put("", b"k", "v"));
    misuse(tx.put(&"t".repeat(256), b"k", "v"));
    misuse(tx.put("t", &[0; 513], "v"));
    misuse(tx.append("t", vec![0; 8193]));
    for at in 0u64..1024 {
        tx.put("t", &at.to_be_bytes(), "v").unwrap();
    }
    misuse(tx.put("t", b"one more", "v"));
    assert!(took_effect(&store.commit(tx, &claim, None).await.unwrap()));
    let view = store.view("t").unwrap();
    assert_eq!(view.len().unwrap(), 1024);

    let claim = acquire(&store, &key("2")).await;
    let mut tx = store.begin(&claim).await.unwrap();
    let too_much = (0u64..1024).try_for_each(|at| tx.put("t", &at.to_be_bytes(), vec![0; 8192]));
    misuse(too_much);
    drop(tx);
    assert!(applied(&store.renew(&claim).await.unwrap()), "dropped, it leaves no trace");
}

#[tokio::test]
async fn a_transaction_alone_is_durable_writes_no_outcome_and_can_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).await;
    let claim = acquire(&store, &key("1")).await;
    let (mut first, mut second) = (store.begin(&claim).await.unwrap(), store.begin(&claim).await.unwrap());
    for tx in [&mut first, &mut second] {
        assert_eq!(tx.get("stock", b"n").unwrap(), None);
        tx.put("stock", b"n", "1").unwrap();
        tx.append("log", "x").unwrap();
    }
    assert!(store.commit_alone(first).await.unwrap());
    assert!(!store.commit_alone(second).await.unwrap(), "what it read has changed");
    assert!(!is_completed(&store, &key("1")).await);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = open(elsewhere.path()).await;
    let tx = store.begin(&claim).await.unwrap();
    assert_eq!(other.commit_alone(tx).await.unwrap_err().kind(), StoreErrorKind::Misuse);
    store.close().await.unwrap();

    let store = open(dir.path()).await;
    assert_eq!(store.view("stock").unwrap().get(b"n").unwrap().unwrap(), "1");
    assert_eq!(store.view("log").unwrap().len().unwrap(), 1);
    assert!(!is_completed(&store, &key("1")).await);
}
