//! A topic of its own on the real broker: what goes into it, and what its group has committed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use einmal::{Clock, SystemClock};
use einmal_kafka::{KafkaConfig, KafkaConfigBuilder};
use einmal_services::{Service, address_or_skip};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders, OwnedMessage, ToBytes};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tracing_subscriber::EnvFilter;

use crate::log_broker::id_of;

/// No test waits longer than this for one condition; none expects anything to be faster.
pub const PATIENCE: Duration = Duration::from_secs(120);
const REQUEST: Duration = Duration::from_secs(30);

/// A topic, and the one group that reads it, which bears its name.
#[allow(missing_debug_implementations, reason = "the client has none")]
pub struct Topic {
    /// The broker.
    pub brokers: String,
    /// Unique.
    pub name: String,
    /// At its creation.
    pub partitions: usize,
    observer: BaseConsumer,
}

impl Topic {
    /// A new topic on the broker of the environment; `None` when there is no broker, and the test is skipped.
    ///
    /// # Errors
    /// When the broker does not make it.
    pub async fn for_test(test: &str, partitions: usize, settings: &[(&str, &str)]) -> Result<Option<Self>> {
        match address_or_skip(Service::Kafka, test) {
            Some(brokers) => Ok(Some(Self::create(brokers, test, partitions, settings).await?)),
            None => Ok(None),
        }
    }

    /// A new topic on this broker, with a name that begins with `test`.
    ///
    /// # Errors
    /// When the broker does not make it.
    pub async fn create(
        brokers: String,
        test: &str,
        partitions: usize,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let name = format!("{test}-{:016x}", rand::random::<u64>());
        // For who runs a test by hand with `RUST_LOG`.
        let _ = tracing_subscriber::fmt()
            .with_test_writer()
            .with_env_filter(EnvFilter::from_default_env())
            .try_init();
        let observer = client(&brokers).set("group.id", &name).set("enable.auto.commit", "false").create()?;
        let topic = Self { brokers, name, partitions, observer };
        topic.make(settings).await?;
        Ok(topic)
    }

    /// Makes the topic, until the broker agrees: one of this name that was just deleted can be in the way.
    ///
    /// # Errors
    /// When the broker says no for another reason.
    pub async fn make(&self, settings: &[(&str, &str)]) -> Result<()> {
        let admin = self.admin()?;
        loop {
            let count = i32::try_from(self.partitions)?;
            let mut new = NewTopic::new(&self.name, count, TopicReplication::Fixed(1));
            for (field, value) in settings {
                new = new.set(field, value);
            }
            match admin.create_topics([&new], &options()).await?.into_iter().next() {
                Some(Ok(_)) => return Ok(()),
                Some(Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                other => bail!("the topic was not made: {other:?}"),
            }
        }
    }

    /// The topic for its dead letters, made if it is not there.
    ///
    /// # Errors
    /// When the broker does not make it.
    pub async fn dead_letters(&self) -> Result<String> {
        let name = format!("{}.dead-letter", self.name);
        let new = NewTopic::new(&name, 1, TopicReplication::Fixed(1));
        match self.admin()?.create_topics([&new], &options()).await?.into_iter().next() {
            Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(name),
            other => bail!("the topic of the dead letters was not made: {other:?}"),
        }
    }

    /// Whatever partition 0 of a topic holds now.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(&self, topic: &str) -> Result<Vec<OwnedMessage>> {
        let mut client = self.client();
        client.set("group.id", "nobody").set("enable.auto.commit", "false");
        client.set("enable.partition.eof", "true").set("isolation.level", "read_committed");
        let reader: BaseConsumer = client.create()?;
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, 0, Offset::Beginning)?;
        reader.assign(&list)?;
        let mut all = Vec::new();
        loop {
            match reader.poll(PATIENCE).context("no answer")? {
                Ok(message) => all.push(message.detach()),
                Err(KafkaError::PartitionEOF(_)) => return Ok(all),
                Err(error) => bail!("{error}"),
            }
        }
    }

    /// A client for what a test asks of the broker.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn admin(&self) -> Result<AdminClient<DefaultClientContext>> {
        Ok(self.client().create()?)
    }

    /// The settings of a client of this broker.
    #[must_use]
    pub fn client(&self) -> ClientConfig {
        client(&self.brokers)
    }

    /// The settings of a member of the group, which is given up after six seconds.
    #[must_use]
    pub fn member(&self) -> ClientConfig {
        let mut client = self.client();
        client.set("group.id", &self.name);
        client.set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "500");
        // What is new or gone is found soon.
        client.set("topic.metadata.refresh.interval.ms", "500");
        client
    }

    /// A member of the group.
    pub fn config(&self, client: ClientConfig) -> KafkaConfigBuilder {
        KafkaConfig::builder(client).topics([&self.name]).drain(Duration::from_secs(3))
    }

    /// Sends the messages of these numbers, each to the partition of its number, and waits for all.
    ///
    /// # Errors
    /// When one does not arrive.
    pub fn produce(&self, numbers: Range<usize>) -> Result<()> {
        self.produce_with(&self.client(), numbers, "")
    }

    /// The same with a client of these settings, and with `more` at the end of each payload.
    ///
    /// # Errors
    /// When one does not arrive.
    pub fn produce_with(&self, client: &ClientConfig, numbers: Range<usize>, more: &str) -> Result<()> {
        let context = Failures::default();
        let failures = context.0.clone();
        let producer: ThreadedProducer<Failures> = client.create_with_context(context)?;
        for number in numbers {
            send(&producer, &self.name, i32::try_from(number % self.partitions)?, number, more)?;
        }
        producer.flush(PATIENCE)?;
        let failed = failures.load(Ordering::SeqCst);
        ensure!(failed == 0 && producer.in_flight_count() == 0, "{failed} did not arrive");
        Ok(())
    }

    /// The committed offset of each partition; 0 where nothing is committed.
    ///
    /// # Errors
    /// When the broker does not tell.
    pub fn committed(&self) -> Result<Vec<usize>> {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.name, 0, i32::try_from(self.partitions)? - 1);
        let started = SystemClock.monotonic();
        let list = loop {
            match self.observer.committed_offsets(list.clone(), REQUEST) {
                // A broker that has just started is still looking for who keeps this group.
                Err(error) if is_not_coordinator(&error) && SystemClock.monotonic() - started < REQUEST => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                other => break other?,
            }
        };
        let offset = |element: TopicPartitionListElem<'_>| match element.offset() {
            Offset::Offset(offset) => usize::try_from(offset).unwrap_or_default(),
            _ => 0,
        };
        Ok(list.elements().into_iter().map(offset).collect())
    }

    /// Where the log of a partition begins and ends.
    ///
    /// # Errors
    /// When the broker does not tell.
    pub fn bounds(&self, partition: i32) -> Result<(usize, usize)> {
        let (low, high) = self.observer.fetch_watermarks(&self.name, partition, REQUEST)?;
        Ok((usize::try_from(low)?, usize::try_from(high)?))
    }
}

fn is_not_coordinator(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::NotCoordinator)
}

/// What the admin's calls may take.
#[must_use]
pub fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST)).operation_timeout(Some(REQUEST))
}

fn client(brokers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers).set("message.max.bytes", "1500000");
    client
}

/// Counts what the broker did not take.
#[derive(Default)]
struct Failures(Arc<AtomicUsize>);

impl ClientContext for Failures {}

impl ProducerContext for Failures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            eprintln!("a message did not arrive: {error}");
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A message that is not one of a number.
#[derive(Clone, Debug, Default)]
pub struct Special<'a> {
    /// Its partition.
    pub partition: i32,
    /// Its id, if it has one.
    pub id: Option<&'a str>,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its payload.
    pub payload: Option<&'a [u8]>,
    /// Further headers.
    pub headers: Vec<(&'a str, Option<&'a [u8]>)>,
}

impl Topic {
    /// Sends so many messages of so many bytes to one partition: without id, key and headers.
    ///
    /// # Errors
    /// When one does not arrive.
    pub fn fill(&self, partition: i32, count: usize, bytes: usize) -> Result<()> {
        let context = Failures::default();
        let failures = context.0.clone();
        let producer: ThreadedProducer<Failures> = self.client().create_with_context(context)?;
        let payload = vec![b'x'; bytes];
        for _ in 0..count {
            push(&producer, BaseRecord::<[u8], [u8]>::to(&self.name).partition(partition).payload(&payload))?;
        }
        producer.flush(PATIENCE)?;
        let failed = failures.load(Ordering::SeqCst);
        ensure!(failed == 0 && producer.in_flight_count() == 0, "{failed} did not arrive");
        Ok(())
    }

    /// Sends these one after the other.
    ///
    /// # Errors
    /// When one does not arrive.
    pub fn send(&self, messages: &[Special<'_>]) -> Result<()> {
        let context = Failures::default();
        let failures = context.0.clone();
        let producer: ThreadedProducer<Failures> = self.client().create_with_context(context)?;
        for message in messages {
            let mut headers = OwnedHeaders::new();
            if let Some(id) = message.id {
                headers = headers.insert(Header { key: "message-id", value: Some(id) });
            }
            for (key, value) in &message.headers {
                headers = headers.insert(Header { key, value: *value });
            }
            let mut record = BaseRecord::<[u8], [u8]>::to(&self.name).partition(message.partition);
            record.key = message.key;
            record.payload = message.payload;
            push(&producer, record.headers(headers))?;
        }
        producer.flush(PATIENCE)?;
        ensure!(failures.load(Ordering::SeqCst) == 0, "messages did not arrive");
        Ok(())
    }
}

/// Hands the message of this number to a producer.
///
/// # Errors
/// When it does not take it.
pub fn send<C: ProducerContext<DeliveryOpaque = ()>>(
    producer: &ThreadedProducer<C>,
    topic: &str,
    partition: i32,
    number: usize,
    more: &str,
) -> Result<()> {
    let (id, text) = (id_of(number), number.to_string());
    let headers = OwnedHeaders::new()
        .insert(Header { key: "message-id", value: Some(&id) })
        .insert(Header { key: "number", value: Some(&text) });
    let payload = format!("payload of {id}{more}");
    push(producer, BaseRecord::to(topic).partition(partition).key(&id).payload(&payload).headers(headers))
}

/// Waits while the producer's queue is full.
fn push<C, K, P>(producer: &ThreadedProducer<C>, mut record: BaseRecord<'_, K, P>) -> Result<()>
where
    C: ProducerContext<DeliveryOpaque = ()>,
    K: ToBytes + ?Sized,
    P: ToBytes + ?Sized,
{
    while let Err((error, back)) = producer.send(record) {
        let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
        ensure!(full, "a message was not taken: {error}");
        record = back;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Waits for a condition.
///
/// # Errors
/// When it never comes, or can't be looked at.
pub async fn until(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let wait = async {
        while !condition()? {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await.with_context(|| format!("never came: {what}"))?
}
