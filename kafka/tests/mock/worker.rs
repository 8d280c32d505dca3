//! Consumer, worker and store together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, IdSource, Identify, MemoryStore, Policy};
use einmal_kafka::{DeadLetterTopic, KafkaBuildError, KafkaConfig, KafkaWorker};
use einmal_testkit::FaultyStore;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};
use tokio_util::sync::CancellationToken;

use crate::support::{Cluster, PATIENCE, TOPIC, until};

const LETTERS: &str = "given-up";

/// Sends `id` as both header and payload, to a partition of its own choice.
fn send(cluster: &Cluster, partition: i32, id: &str) {
    let headers = OwnedHeaders::new().insert(Header { key: "message-id", value: Some(id) });
    let record = BaseRecord::<(), str>::to(TOPIC).partition(partition).payload(id).headers(headers);
    cluster.producer.send(record).map_err(|(error, _)| error).unwrap();
}

#[tokio::test]
async fn scenario_10_and_the_whole_way() {
    let cluster = Cluster::new(2);
    cluster.mock.create_topic(LETTERS, 1, 1).unwrap();
    // Each id twice, the second time in the other partition; one that is refused; one without an id.
    for number in 0..20 {
        send(&cluster, number % 2, &format!("m{number}"));
        send(&cluster, (number + 1) % 2, &format!("m{number}"));
    }
    send(&cluster, 0, "bad");
    let record = BaseRecord::<(), str>::to(TOPIC).partition(1).payload("nameless");
    cluster.producer.send(record).map_err(|(error, _)| error).unwrap();
    cluster.producer.flush(PATIENCE).unwrap();

    let runs = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let handler = {
        let runs = runs.clone();
        move |context: Context| {
            let runs = runs.clone();
            async move {
                let id = String::from_utf8_lossy(context.payload()).into_owned();
                *runs.lock().unwrap().entry(id.clone()).or_default() += 1;
                if id == "bad" { Err(Failure::reject("refused")) } else { Ok(()) }
            }
        }
    };
    let store = FaultyStore::new(MemoryStore::default());
    let faults = store.faults();
    faults.down(true);
    let worker = KafkaWorker::builder(cluster.config("app").build().unwrap())
        .worker(WorkerConfig { lanes: Lanes::None, ..WorkerConfig::default() })
        .dead_letters(Some(DeadLetterTopic::Fixed(LETTERS.to_owned())))
        .build(store, handler)
        .unwrap();
    let shutdown = CancellationToken::new();
    let script = async {
        // The store is down: nothing runs, nothing is settled, nothing is committed.
        until("the worker to notice", || !worker.health().read().ready).await;
        assert!(runs.lock().unwrap().is_empty());
        assert_eq!(cluster.committed("app", 2), BTreeMap::new());
        faults.clear();
        let all = BTreeMap::from([(0, 21), (1, 21)]);
        until("all is committed", || cluster.committed("app", 2) == all).await;
        shutdown.cancel();
    };
    let (summary, ()) = tokio::join!(worker.run(shutdown.clone()), script);
    let summary = summary.unwrap();

    let runs = runs.lock().unwrap().clone();
    assert_eq!(runs.len(), 21);
    assert!(runs.values().all(|count| *count == 1), "each id once: {runs:?}");
    assert_eq!((summary.received, summary.ran_ok, summary.duplicate), (42, 20, 20), "{summary:?}");

    let mut client = cluster.client();
    client.set("group.id", "letters").set("session.timeout.ms", "4000");
    let config = KafkaConfig::builder(client).topics([LETTERS]).drain(Duration::from_secs(1));
    let mut reader = cluster.start(config);
    let letters = reader.take(2).await;
    let mut reasons: Vec<_> =
        letters.iter().flat_map(|letter| letter.delivery.header("einmal-reason").flatten()).collect();
    reasons.sort();
    assert_eq!(reasons, ["bad_id", "rejected"]);
    drop(letters);
    reader.close().await;
}

#[test]
fn settings_that_contradict_each_other_are_found_when_building() {
    let mut client = rdkafka::ClientConfig::new();
    client.set("group.id", "g").set("bootstrap.servers", "127.0.0.1:1");
    let config = KafkaConfig::builder(client).topics([TOPIC]).build().unwrap();
    let handler = |_: Context| async { Ok::<(), Failure>(()) };
    let builder = || KafkaWorker::builder(config.clone()).identify(Identify::new([IdSource::RecordKey]));
    let policy = Policy::builder().max_run(Duration::from_secs(595)).build().unwrap();
    let error = builder().policy(policy).build(MemoryStore::default(), handler).unwrap_err();
    assert!(matches!(&error, KafkaBuildError::Setting(setting) if setting.field() == "max_run"), "{error}");
    // Letters that come back as messages, and what is no name.
    let fixed = |name: &str| Some(DeadLetterTopic::Fixed(name.to_owned()));
    for letters in
        [fixed(TOPIC), fixed(""), fixed("a topic"), Some(DeadLetterTopic::Suffix("/dead".to_owned()))]
    {
        let error = builder().dead_letters(letters).build(MemoryStore::default(), handler).unwrap_err();
        let named = matches!(&error, KafkaBuildError::Setting(setting) if setting.field() == "dead_letters");
        assert!(named, "{error}");
    }
    let worker = builder().build(MemoryStore::default(), handler).unwrap();
    assert!(worker.health().read().live);
}
