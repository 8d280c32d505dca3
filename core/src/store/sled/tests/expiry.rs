//! The end of records: at once for readers, and off the disk by the index.

use super::*;
use crate::claim::Failing;

#[tokio::test]
async fn one_list_a_batch_and_none_after_the_purge() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    let mut settles = Vec::new();
    for id in 0..20 {
        let claim = acquire(&store, &key(id)).await;
        settles.push(SettleRequest { claim, verb: Verb::Complete { result: None }, group: None });
    }
    store.settle_many(settles).await;
    assert_eq!(entries(&store, b'e').len(), 1);
    assert_eq!(store.purge_expired(100).await.unwrap(), Purged::default());
    clock.advance(HOUR);
    assert_eq!(store.get(&key(1)).await.unwrap(), None, "absent before any purge");
    assert_eq!(store.purge_expired(15).await.unwrap(), Purged { removed: 15, more: true });
    assert_eq!(entries(&store, b'e').len(), 1, "the rest of the list is kept");
    assert_eq!(store.purge_expired(5).await.unwrap(), Purged { removed: 5, more: false });
    assert!(entries(&store, b'e').is_empty() && entries(&store, b'r').is_empty());
    assert!(entries(&store, b'c').is_empty());
    assert_eq!(store.stats().await.unwrap().keys, 0);
}

#[tokio::test]
async fn a_record_that_was_written_again_lives_on_by_its_later_list() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    let claim = acquire(&store, &key("1")).await;
    store.fail(&claim, Failing::Retry { delay: Duration::ZERO }).await.unwrap();
    clock.advance(HOUR / 2);
    complete(&store, "1").await;
    clock.advance(HOUR / 2);
    assert_eq!(store.purge_expired(9).await.unwrap().removed, 0);
    assert!(is_completed(&store, &key("1")).await);
    assert_eq!(entries(&store, b'e').len(), 1);
    clock.advance(HOUR / 2);
    assert_eq!(store.purge_expired(9).await.unwrap().removed, 1);
    assert!(entries(&store, b'e').is_empty());
}

#[tokio::test]
async fn the_record_under_a_live_claim_stays_and_stays_listed() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    let claim = acquire(&store, &key("1")).await;
    store.fail(&claim, Failing::Retry { delay: Duration::ZERO }).await.unwrap();
    clock.advance(HOUR - Duration::from_secs(10));
    let claim = acquire(&store, &key("1")).await;
    clock.advance(Duration::from_secs(20));
    assert_eq!(store.purge_expired(9).await.unwrap().removed, 0);
    assert_eq!(entries(&store, b'e').len(), 1, "listed anew");
    clock.advance(HOUR);
    assert_eq!(store.purge_expired(9).await.unwrap().removed, 1, "never settled, it ends all the same");
    assert!(entries(&store, b'r').is_empty());
    assert_eq!(store.stats().await.unwrap().keys, 0);
    assert_eq!(store.settle(&claim, Verb::Renew).await.unwrap(), SettleAnswer::Refused(Refusal::Superseded));
    clock.advance(HOUR);
    store.purge_expired(9).await.unwrap();
    assert!(entries(&store, b'e').is_empty());
}

#[tokio::test]
async fn an_undecodable_record_survives_a_purge_and_the_others_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    complete(&store, "good").await;
    complete(&store, "bad").await;
    let raw = record::record_key(&key("bad"));
    store.handle.shared.disk().unwrap().apply(&Batch::from([(raw, Some(vec![9]))])).unwrap();
    clock.advance(HOUR);
    assert_eq!(store.purge_expired(9).await.unwrap(), Purged { removed: 1, more: false });
    assert_eq!(entries(&store, b'r').len(), 1);
    assert_eq!(entries(&store, b'e').len(), 1);
}

#[tokio::test]
async fn a_full_store_makes_room_of_what_has_expired() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let (store, _) = open_held(dir.path(), |config| config.max_keys(2).clock(Arc::<Hands>::clone(&clock)));
    complete(&store, "1").await;
    complete(&store, "2").await;
    assert_eq!(store.claim(request(&key("3"))).await.unwrap_err().kind(), StoreErrorKind::Full);
    clock.advance(HOUR);
    complete(&store, "3").await;
}

#[tokio::test]
async fn the_time_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Hands::new();
    let store = open_at(dir.path(), &clock).await;
    complete(&store, "1").await;
    store.close().await.unwrap();
    clock.0.lock().unwrap().0 = Timestamp::MIN;
    let store = open_at(dir.path(), &clock).await;
    assert!(
        is_completed(&store, &key("1")).await,
        "a clock set back to 1970 expires nothing and revives nothing"
    );
    clock.advance(HOUR);
    assert!(!is_completed(&store, &key("1")).await);
}
