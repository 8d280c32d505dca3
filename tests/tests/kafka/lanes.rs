//! Order, and what holds up what.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use einmal::claim::{
    ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer, Record, SettleAnswer, SettleRequest, Verb,
};
use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Capabilities, Context, DedupKey, DedupStore, Failure, MemoryStore, Policy};
use einmal::{Purged, Stats, StoreError, StoreErrorKind};
use einmal_kafka::KafkaWorker;
use einmal_tests::kafka::{Special, Topic};
use einmal_tests::kafka_worker::{Running, Runs};
use tokio_util::sync::CancellationToken;

fn config(lanes: Lanes) -> WorkerConfig {
    WorkerConfig { lanes, ..WorkerConfig::default() }
}

/// Two partitions, and in each a copy of what is behind in the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_36c_lanes_with_copies_of_each_others_messages_both_finish() {
    const PAIRS: usize = 500;
    let test = "scenario_36c_lanes_with_copies_of_each_others_messages_both_finish";
    let Some(topic) = Topic::for_test(test, 2, &[]).await.unwrap() else { return };
    let names: Vec<_> = (0..PAIRS).map(|n| (format!("x{n}"), format!("y{n}"))).collect();
    let one = |partition, id| Special { partition, id: Some(id), ..Special::default() };
    let messages: Vec<_> =
        names.iter().flat_map(|(x, y)| [one(0, y), one(1, x), one(0, x), one(1, y)]).collect();
    topic.send(&messages).unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |context: Context| {
            runs.note(context.key().id().as_str());
            async {
                tokio::time::sleep(Duration::from_millis(2)).await;
                Ok::<(), Failure>(())
            }
        }
    };
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
        .worker(config(Lanes::Partition))
        .dead_letters(None)
        .build(MemoryStore::default(), handler);
    let running = Running::start(worker.unwrap());
    running.until_committed(&topic, &[2 * PAIRS; 2]).await.unwrap();
    let summary = running.stop().await.unwrap();
    assert_eq!(runs.once().unwrap().len(), 2 * PAIRS);
    let n = 2 * PAIRS as u64;
    assert_eq!((summary.ran_ok, summary.duplicate, summary.unsettled), (n, n, 0), "{summary:?}");
}

/// While it fails, handlers can start, and nothing that they did is stored.
#[derive(Debug)]
struct NoOutcomes {
    inner: MemoryStore,
    fails: Arc<AtomicBool>,
}

#[async_trait]
impl DedupStore for NoOutcomes {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        self.inner.claim_many(requests).await
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        let starts = requests.iter().all(|request| matches!(request.verb, Verb::Started));
        if !starts && self.fails.load(Ordering::SeqCst) {
            let error = StoreError::new(StoreErrorKind::Unavailable, "as the test wants it");
            return vec![Err(error); requests.len()];
        }
        self.inner.settle_many(requests).await
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        self.inner.get(key).await
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        self.inner.forget(key).await
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        self.inner.force(key, retention).await
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        self.inner.expired_claims(limit).await
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        self.inner.purge_expired(limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.inner.stats().await
    }
}

/// "pending" can't be stored, in spite of every try until its lease is lost, while what comes after it has run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_36d_when_a_completion_fails_the_lane_is_replayed_in_order() {
    let test = "scenario_36d_when_a_completion_fails_the_lane_is_replayed_in_order";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let one = |id, payload| Special { id: Some(id), payload: Some(payload), ..Special::default() };
    topic.send(&[one("1", b"pending"), one("2", b"paid"), one("3", b"shipped")]).unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let store = NoOutcomes { inner: MemoryStore::default(), fails: Arc::clone(&fails) };
    let (states, go) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
    let handler = {
        let (states, fails, go) = (Arc::clone(&states), Arc::clone(&fails), go.clone());
        move |context: Context| {
            let (states, fails, go) = (Arc::clone(&states), Arc::clone(&fails), go.clone());
            async move {
                let state = String::from_utf8(context.payload().to_vec()).unwrap();
                states.lock().unwrap().push(state.clone());
                if state == "pending" {
                    go.cancelled().await;
                    // The first time from here on, and the second time no more.
                    fails.store(states.lock().unwrap().len() == 1, Ordering::SeqCst);
                }
                Ok::<(), Failure>(())
            }
        }
    };
    let policy = Policy::builder().lease(Duration::from_secs(1)).build().unwrap();
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
        .worker(config(Lanes::Partition))
        .policy(policy)
        .dead_letters(None)
        .build(store, handler);
    let running = Running::start(worker.unwrap());
    running.until("all of them", || Ok(running.worker().summary().received == 3)).await.unwrap();
    go.cancel();
    running.until_committed(&topic, &[3]).await.unwrap();
    running.stop().await.unwrap();
    let states = states.lock().unwrap().clone();
    assert_eq!(states, ["pending", "paid", "shipped"].repeat(2), "{states:?}");
}

/// One key stands still: the others of its partition go on, and what is held is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_40_one_slow_key_holds_back_neither_the_others_nor_the_bound_on_memory() {
    const MESSAGES: usize = 20_000;
    const SPAN: usize = 30_000;
    let test = "scenario_40_one_slow_key_holds_back_neither_the_others_nor_the_bound_on_memory";
    for lanes in [Lanes::Key, Lanes::None] {
        let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
        // Its key is its id; every tenth message is of the slow key.
        let slow: Vec<_> = (0..20).map(|n| format!("slow-{n}")).collect();
        let one = |id| Special { id: Some(id), key: Some(b"slow"), ..Special::default() };
        topic.send(&slow.iter().map(|id| one(id)).collect::<Vec<_>>()).unwrap();
        topic.produce(0..MESSAGES).unwrap();
        let (release, runs) = (CancellationToken::new(), Runs::default());
        let handler = {
            let (release, runs) = (release.clone(), runs.clone());
            move |context: Context| {
                let (release, id) = (release.clone(), context.key().id().as_str().to_owned());
                runs.note(&id);
                async move {
                    if id.starts_with("slow") {
                        release.cancelled().await;
                    }
                    Ok::<(), Failure>(())
                }
            }
        };
        let config_of_topic = topic.config(topic.member()).max_span(SPAN).build().unwrap();
        let worker = KafkaWorker::builder(config_of_topic)
            .worker(config(lanes))
            .dead_letters(None)
            .build(MemoryStore::default(), handler);
        let running = Running::start(worker.unwrap());
        let worker = running.worker();
        let others = || {
            let summary = worker.summary();
            assert!(summary.in_flight <= 1_024, "{summary:?}");
            Ok(summary.ran_ok + summary.duplicate == MESSAGES as u64)
        };
        running.until("the end of all others", others).await.unwrap();
        assert_eq!(topic.committed().unwrap(), [0]);
        if lanes == Lanes::Key {
            assert_eq!(runs.of("slow-1"), 0, "in order behind the first of its key");
        }
        release.cancel();
        running.until_committed(&topic, &[MESSAGES + 20]).await.unwrap();
        running.stop().await.unwrap();
        runs.once().unwrap();
    }
}
