//! A cluster, a producer, and what is committed.

use std::collections::BTreeMap;
use std::time::Duration;

use einmal::Delivery;
use einmal::worker::{HealthCell, Incoming, Source};
use einmal_kafka::{KafkaAck, KafkaConfig, KafkaConfigBuilder, KafkaConsumer, KafkaSource};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

pub(crate) const TOPIC: &str = "orders";

/// No test waits longer than this; none expects anything to be faster.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Cluster {
    pub(crate) mock: MockCluster<'static, DefaultProducerContext>,
    pub(crate) producer: BaseProducer,
}

impl Cluster {
    pub(crate) fn new(partitions: i32) -> Self {
        // Shown for a failed test only.
        let _ = tracing_subscriber::fmt()
            .with_test_writer()
            .with_ansi(false)
            .with_max_level(tracing::Level::DEBUG)
            .try_init();
        let mock = MockCluster::new(1).unwrap();
        mock.create_topic(TOPIC, partitions, 1).unwrap();
        // Fetches come in whole batches.
        let producer = client(&mock.bootstrap_servers()).set("batch.num.messages", "10").create().unwrap();
        Self { mock, producer }
    }

    pub(crate) fn client(&self) -> ClientConfig {
        client(&self.mock.bootstrap_servers())
    }

    /// Sends `count` messages to `partition`, whose payloads are `partition:number`, and waits for all.
    pub(crate) fn produce(&self, partition: i32, numbers: std::ops::Range<i64>) {
        for number in numbers {
            let payload = format!("{partition}:{number}");
            let record = BaseRecord::<(), str>::to(TOPIC).partition(partition).payload(&payload);
            self.producer.send(record).map_err(|(error, _)| error).unwrap();
        }
        self.producer.flush(PATIENCE).unwrap();
    }

    pub(crate) fn config(&self, group: &str) -> KafkaConfigBuilder {
        let mut client = self.client();
        client.set("queued.min.messages", "20").set("fetch.message.max.bytes", "500");
        client.set("group.id", group).set("session.timeout.ms", "4000").set("heartbeat.interval.ms", "500");
        KafkaConfig::builder(client).topics([TOPIC]).drain(Duration::from_secs(3))
    }

    pub(crate) fn start(&self, config: KafkaConfigBuilder) -> Member {
        let health = HealthCell::default();
        let (source, consumer) = KafkaConsumer::start(&config.build().unwrap(), health.clone()).unwrap();
        Member { source, consumer, health }
    }

    /// The committed offset of each partition below `partitions` that has one.
    pub(crate) fn committed(&self, group: &str, partitions: i32) -> BTreeMap<i32, i64> {
        let mut client = self.client();
        let consumer: BaseConsumer = client.set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(TOPIC, 0, partitions - 1);
        let list = consumer.committed_offsets(list, PATIENCE).unwrap();
        let raw = list.elements().into_iter().filter_map(|element| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            _ => None,
        });
        raw.collect()
    }

    /// Waits until partition 0 of `group` is committed up to `next`.
    pub(crate) async fn until_committed(&self, group: &str, next: i64) {
        until(&format!("the commit of {next} in {group}"), || {
            self.committed(group, 1).get(&0) == Some(&next)
        })
        .await;
    }
}

fn client(servers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", servers);
    client
}

pub(crate) struct Member {
    pub(crate) source: KafkaSource,
    pub(crate) consumer: KafkaConsumer,
    pub(crate) health: HealthCell,
}

impl Member {
    pub(crate) async fn next(&mut self) -> Incoming<KafkaAck> {
        let next = tokio::time::timeout(PATIENCE, self.source.next()).await;
        next.expect("a message within patience").expect("the source goes on")
    }

    pub(crate) async fn take(&mut self, count: usize) -> Vec<Incoming<KafkaAck>> {
        let mut taken = Vec::new();
        while taken.len() < count {
            taken.push(self.next().await);
        }
        taken
    }

    /// Gives everything back and closes.
    pub(crate) async fn close(self) {
        drop(self.source);
        self.consumer.close().await.unwrap();
    }
}

pub(crate) fn offset(incoming: &Incoming<KafkaAck>) -> i64 {
    incoming.delivery.position().offset().unwrap()
}

pub(crate) fn place(incoming: &Incoming<KafkaAck>) -> (i32, i64) {
    (incoming.delivery.position().partition().unwrap(), offset(incoming))
}

/// The id that the producer chose.
pub(crate) fn id(delivery: &Delivery) -> String {
    String::from_utf8(delivery.payload().unwrap().to_vec()).unwrap()
}

pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("never came: {what}"));
}
