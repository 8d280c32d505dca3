//! A Kafka worker is killed with SIGKILL between the settle and the commit, and in a handler, and started again,
//! on librdkafka's mock cluster. Ledger and committed offsets are checked after each death.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use einmal_tests::log_broker::id_of;
use einmal_tests::points::Point;
use einmal_tests::trial::Trial;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

const SIGKILL: i32 = 9;
const MESSAGES: usize = 6_000;
const PARTITIONS: i32 = 4;
const BROKER: Duration = Duration::from_secs(10);

fn produce(brokers: &str) {
    let producer: ThreadedProducer<DefaultProducerContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    for number in 0..MESSAGES {
        let (id, text) = (id_of(number), number.to_string());
        let headers = OwnedHeaders::new()
            .insert(Header { key: "message-id", value: Some(&id) })
            .insert(Header { key: "number", value: Some(&text) });
        let (key, payload) = (id.clone(), format!("payload of {id}"));
        let partition = i32::try_from(number).unwrap() % PARTITIONS;
        let record = BaseRecord::to("log").partition(partition).key(&key).payload(&payload).headers(headers);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(Duration::from_secs(30)).unwrap();
}

/// The committed offset of each partition.
fn committed(observer: &BaseConsumer) -> Vec<usize> {
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range("log", 0, PARTITIONS - 1);
    let offsets = observer.committed_offsets(partitions, BROKER).unwrap();
    let offset = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset() {
        Offset::Offset(offset) => usize::try_from(offset).unwrap(),
        _ => 0,
    };
    offsets.elements().into_iter().map(offset).collect()
}

/// Whatever is committed has been settled, and whatever is settled has its row.
fn offsets_are_covered(trial: &Trial, observer: &BaseConsumer) {
    trial.settled_have_rows().unwrap();
    let settled = trial.place.read_settled().unwrap();
    for (partition, end) in committed(observer).into_iter().enumerate() {
        for offset in 0..end {
            let number = offset * usize::try_from(PARTITIONS).unwrap() + partition;
            assert!(
                settled.contains_key(&number),
                "{number} is under the committed offset {end}, and unsettled"
            );
        }
    }
}

#[test]
fn killed_before_the_commit_nothing_is_lost_and_nothing_settled_runs_again() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("log", PARTITIONS, 1).unwrap();
    let brokers = cluster.bootstrap_servers();
    produce(&brokers);
    let observer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &brokers)
        .set("group.id", "log")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();

    let program = env!("CARGO_BIN_EXE_kill-worker");
    let trial = Trial::new(program, format!("{brokers}/log"), MESSAGES, "partition", "inbox").unwrap();
    let mut cut_off = 0;
    for kill in [(Point::AfterSettle, 900), (Point::InHandler, 700)] {
        let mut child = trial.spawn(Some(kill)).unwrap();
        // `wait` would close it, and a worker ends with its standard input.
        let _stdin = child.stdin.take();
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(SIGKILL), "{kill:?}: {ended}");
        cut_off += trial.cut_off(child.id()).unwrap();
        offsets_are_covered(&trial, &observer);
    }
    let mut child = trial.spawn(None).unwrap();
    while committed(&observer).iter().sum::<usize>() < MESSAGES {
        assert!(child.try_wait().unwrap().is_none(), "the worker ended by itself");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    offsets_are_covered(&trial, &observer);
    trial.all_done_once(cut_off).unwrap();
}
