//! Produces payments, some of them more than once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use serde::Serialize;
use tokio::time::Instant;

use crate::client::{ClientArgs, without_values};
use crate::handler::Payment;
use crate::stream::Stream;

const PATIENCE: Duration = Duration::from_secs(60);
const BROKERS_DEFAULT: i32 = -1;
const QUEUE_FULL: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    client: ClientArgs,
    /// The topic.
    #[arg(long, env = "EINMAL_TOPIC", default_value = "payments")]
    topic: String,
    /// Make the topic and its dead letters' topic first, where they are missing.
    #[arg(long)]
    create: bool,
    /// Partitions of a topic that --create makes; its replication is the broker's default.
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(i32).range(1..=1000))]
    partitions: i32,
    /// Messages to produce, repeats included.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    count: u64,
    /// How many in a hundred messages repeat an earlier id.
    #[arg(long, value_name = "PCT", default_value_t = 30, value_parser = clap::value_parser!(u8).range(0..=90))]
    repeats: u8,
    /// How many in a hundred ids have an amount that is refused, and become dead letters.
    #[arg(long, value_name = "PCT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    bad: u8,
    /// What payments are drawn from. With the same seed a second run repeats all ids of the first.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Messages a second at the most; 0 for as fast as the broker takes them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    rate: u32,
    /// The header that bears the message id.
    #[arg(long, env = "EINMAL_ID_HEADER", value_name = "NAME", default_value = "event-id")]
    id_header: String,
    /// Print one JSON object instead of a sentence.
    #[arg(long)]
    json: bool,
}

/// What was produced. Bookings and their sum are what a worker must come to.
#[derive(Debug, Default, Serialize)]
struct Produced {
    messages: u64,
    repeats: u64,
    /// Different ids whose amount is not refused.
    bookings: u64,
    /// The sum of these, each counted once.
    cents: i64,
}

pub(crate) async fn run(args: &Args) -> Result<()> {
    let config = args.client.config()?;
    if args.create {
        create(&config, args).await?;
    }
    let failures = Failures::default();
    let failed = Arc::clone(&failures.0);
    let mut idempotent = config.clone();
    if idempotent.get("enable.idempotence").is_none() {
        // Its own retries make no repeats: only those that were asked for.
        idempotent.set("enable.idempotence", "true");
    }
    let producer: ThreadedProducer<Failures> =
        idempotent.create_with_context(failures).map_err(without_values).context("the producer")?;
    let mut produced = Produced::default();
    let begun = Instant::now();
    for (payment, repeat) in Stream::new(args.count, args.repeats, args.bad, args.seed) {
        if args.rate > 0 {
            let due = Duration::from_secs(produced.messages) / args.rate;
            tokio::time::sleep_until(begun + due).await;
        }
        send(&producer, args, &payment).await?;
        produced.messages += 1;
        if repeat {
            produced.repeats += 1;
        } else if payment.cents > 0 {
            produced.bookings += 1;
            produced.cents += payment.cents;
        }
    }
    let flushed = producer.flush(PATIENCE);
    let lost = failed.load(Ordering::SeqCst);
    ensure!(lost == 0, "the broker did not take {lost} of {} messages", produced.messages);
    flushed.with_context(|| format!("{} messages are not confirmed", producer.in_flight_count()))?;
    if args.json {
        println!("{}", serde_json::to_string(&produced)?);
    } else {
        let Produced { messages, repeats, bookings, cents } = produced;
        println!(
            "{messages} messages, {repeats} of them repeats; {bookings} payments to book, {cents} cents in all"
        );
    }
    Ok(())
}

async fn send(producer: &ThreadedProducer<Failures>, args: &Args, payment: &Payment) -> Result<()> {
    let payload = serde_json::to_vec(payment)?;
    // The account orders its payments; the id is another thing.
    let key = payment.account.to_string();
    let headers = OwnedHeaders::new().insert(Header { key: &args.id_header, value: Some(&payment.id) });
    let mut record = BaseRecord::to(&args.topic).key(&key).payload(&payload).headers(headers);
    loop {
        match producer.send(record) {
            Ok(()) => return Ok(()),
            Err((error, back)) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull) => {
                record = back;
                tokio::time::sleep(QUEUE_FULL).await;
            }
            Err((error, _)) => return Err(error).context("a message could not be sent"),
        }
    }
}

async fn create(config: &ClientConfig, args: &Args) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> =
        config.create().map_err(without_values).context("the admin's client")?;
    let letters = format!("{}.dead-letter", args.topic);
    let topics = [&args.topic, &letters]
        .map(|name| NewTopic::new(name, args.partitions, TopicReplication::Fixed(BROKERS_DEFAULT)));
    let options = AdminOptions::new().request_timeout(Some(PATIENCE)).operation_timeout(Some(PATIENCE));
    for made in admin.create_topics(&topics, &options).await.context("topics could not be made")? {
        match made {
            Ok(topic) => eprintln!("topic {topic} is made"),
            Err((topic, RDKafkaErrorCode::TopicAlreadyExists)) => eprintln!("topic {topic} is there"),
            Err((topic, code)) => bail!("topic {topic} could not be made: {code}"),
        }
    }
    Ok(())
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
