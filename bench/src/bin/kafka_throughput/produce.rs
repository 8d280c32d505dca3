//! The topic that all cells read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};

use crate::Args;
use crate::cell::{REQUEST, client, runtime};
use crate::witness::{ID, id_of};

const FLUSH: Duration = Duration::from_secs(120);

/// Makes the topic, and fills it.
pub(crate) fn topic(args: &Args, brokers: &str) -> Result<String> {
    ensure!(
        args.messages > 0 && args.partitions > 0,
        "without messages or partitions there is nothing to read"
    );
    let topic = format!("einmal-bench-{:016x}", rand::random::<u64>());
    runtime()?.block_on(async {
        let new = NewTopic::new(&topic, args.partitions, TopicReplication::Fixed(1));
        match admin(brokers)?.create_topics([&new], &options()).await?.into_iter().next() {
            Some(Ok(_)) => Ok(()),
            other => bail!("the topic was not made: {other:?}"),
        }
    })?;
    fill(args, brokers, &topic)?;
    let reader: BaseConsumer = client(brokers).create()?;
    let mut sum = 0;
    for partition in 0..args.partitions {
        let (low, high) = reader.fetch_watermarks(&topic, partition, REQUEST)?;
        sum += high - low;
    }
    ensure!(u64::try_from(sum)? == args.messages, "the topic has {sum} messages, not {}", args.messages);
    eprintln!("produced {} messages into {topic}", args.messages);
    Ok(topic)
}

pub(crate) fn delete(brokers: &str, topic: &str) -> Result<()> {
    runtime()?.block_on(async { admin(brokers)?.delete_topics(&[topic], &options()).await })?;
    Ok(())
}

fn admin(brokers: &str) -> rdkafka::error::KafkaResult<AdminClient<DefaultClientContext>> {
    client(brokers).create()
}

fn options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(REQUEST)).operation_timeout(Some(REQUEST))
}

fn fill(args: &Args, brokers: &str, topic: &str) -> Result<()> {
    let context = Failures::default();
    let failed = Arc::clone(&context.0);
    let mut client = client(brokers);
    client.set("compression.type", &args.compression).set("linger.ms", "20");
    // Sent again by the client, a message must not be there twice: nothing else here has a repeat.
    client.set("enable.idempotence", "true");
    let producer: ThreadedProducer<Failures> = client.create_with_context(context)?;
    for number in 0..args.messages {
        let (id, payload) = (id_of(number), payload(number, args.size));
        let headers = OwnedHeaders::new().insert(Header { key: ID, value: Some(&id) });
        let partition = i32::try_from(number % u64::try_from(args.partitions)?)?;
        let mut record =
            BaseRecord::<(), _>::to(topic).partition(partition).payload(&payload).headers(headers);
        while let Err((error, back)) = producer.send(record) {
            let full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            ensure!(full, "a message was not taken: {error}");
            record = back;
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    producer.flush(FLUSH)?;
    let failed = failed.load(Ordering::SeqCst);
    ensure!(failed == 0, "{failed} messages did not arrive");
    Ok(())
}

/// Bytes that differ from message to message and can't be compressed away (Knuth's generator).
fn payload(number: u64, size: usize) -> Vec<u8> {
    let mut state = number;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    std::iter::repeat_with(next).flat_map(|[a, b, c, d, ..]| [a, b, c, d]).take(size).collect()
}

/// Counts what the broker did not take.
#[derive(Default)]
struct Failures(Arc<AtomicU64>);

impl ClientContext for Failures {}

impl ProducerContext for Failures {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}
