//! The roll-out in stages, on the real broker: half the messages of a topic repeat.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use einmal::worker::{Lanes, Summary, WorkerConfig};
use einmal::{Context, DedupStore, Failure, Mode, ModeSwitch, SledConfig, SledStore};
use einmal_kafka::KafkaWorker;
use einmal_tests::kafka::{PATIENCE, Topic, until};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use tokio_util::sync::CancellationToken;

const PARTITIONS: usize = 2;
const IDS: usize = 500;

/// Sends a message for each of these, to the partition of its number.
fn produce(producer: &ThreadedProducer<DefaultProducerContext>, topic: &Topic, numbers: Range<usize>) {
    for number in numbers {
        let (id, partition) = (format!("m{number}"), i32::try_from(number % PARTITIONS).unwrap());
        let headers = OwnedHeaders::new().insert(Header { key: "message-id", value: Some(&id) });
        let record =
            BaseRecord::<(), str>::to(&topic.name).partition(partition).payload(&id).headers(headers);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_is_observed_and_then_enforced() {
    let test = "a_topic_is_observed_and_then_enforced";
    let Some(topic) = Topic::for_test(test, PARTITIONS, &[]).await.unwrap() else { return };
    let producer = topic.client().create().unwrap();
    let runs = Arc::new(Mutex::new(BTreeMap::<String, u64>::new()));
    let handler = {
        let runs = Arc::clone(&runs);
        move |context: Context| {
            let runs = Arc::clone(&runs);
            async move {
                *runs.lock().unwrap().entry(context.key().id().as_str().to_owned()).or_default() += 1;
                Ok::<(), Failure>(())
            }
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let store = SledStore::open(SledConfig::new(dir.path().join("store")).unwrap()).await.unwrap();
    let mode = ModeSwitch::new(Mode::Observe);
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
        .worker(WorkerConfig { lanes: Lanes::Partition, ..WorkerConfig::default() })
        .mode(mode.clone())
        .dead_letters(None)
        .build(store.clone(), handler)
        .unwrap();
    let (shutdown, worker) = (CancellationToken::new(), Arc::new(worker));
    let work = tokio::spawn({
        let (worker, shutdown) = (Arc::clone(&worker), shutdown.clone());
        async move { worker.run(shutdown).await }
    });
    let runs_of = |ids: Range<usize>, times: u64| {
        let runs = runs.lock().unwrap();
        ids.into_iter().all(|number| runs.get(format!("m{number}").as_str()) == Some(&times))
    };

    // Each message twice, the second time soon after the first.
    for begin in (0..IDS).step_by(50) {
        produce(&producer, &topic, begin..begin + 50);
        produce(&producer, &topic, begin..begin + 50);
    }
    until("the commit of all", || Ok(topic.committed()? == [IDS; PARTITIONS])).await.unwrap();
    let Summary { received, ran_ok, duplicate, observed, .. } = worker.summary();
    let count = u64::try_from(IDS).unwrap();
    assert_eq!((received, ran_ok, duplicate), (2 * count, 2 * count, 0), "every copy runs");
    assert!(runs_of(0..IDS, 2));
    assert_eq!((observed.would_run, observed.would_duplicate), (count, count), "{observed:?}");

    // From here on the answers are obeyed: those of the records that were stored before too.
    mode.set(Mode::Enforce);
    produce(&producer, &topic, 0..IDS + 100);
    produce(&producer, &topic, 0..IDS + 100);
    until("the commit of the rest", || Ok(topic.committed()? == [2 * IDS + 100; PARTITIONS])).await.unwrap();
    assert!(runs_of(0..IDS, 2), "no repeat runs any more");
    assert!(runs_of(IDS..IDS + 100, 1), "what is new runs once");
    let summary = worker.summary();
    assert_eq!((summary.ran_ok, summary.duplicate), (2 * count + 100, 2 * count + 100), "{summary:?}");
    assert_eq!(summary.observed, observed, "nothing is observed any more");
    assert_eq!(store.stats().await.unwrap().keys, count + 100);
    shutdown.cancel();
    work.await.unwrap().unwrap();
}
