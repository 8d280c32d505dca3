//! A worker for a Kafka broker of yours: the smallest one that is worth running.
//!
//! ```text
//! KAFKA_BROKERS=localhost:9092 cargo run -p einmal-examples --bin kafka-worker
//! ```
//!
//! It consumes the topic `payments`, takes the message id from the header `event-id` or the member `/id` of the
//! JSON payload, and puts what it can't handle into `payments.dead-letter`, which must exist. Ctrl-C drains it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, IdSource, Identify, Policy, SledConfig, SledStore};
use einmal_kafka::{KafkaConfig, KafkaWorker};
use rdkafka::ClientConfig;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Deserialize)]
struct Payment {
    account: u64,
    cents: i64,
}

/// The effect. It goes to the outside, so it hands on a key that is the same on every attempt.
async fn book(context: Context) -> Result<(), Failure> {
    // No JSON of this shape: a dead letter, with its bytes. Trying again would not help.
    let payment: Payment = context.json()?;
    if payment.cents <= 0 {
        return Err(Failure::reject("an amount must be above zero"));
    }
    let key = context.downstream_key("booking", 64)?;
    println!(
        "booking {} cents to account {} (attempt {}, idempotency key {key})",
        payment.cents,
        payment.account,
        context.attempt()
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_env_filter(filter()).init();
    let brokers = std::env::var("KAFKA_BROKERS").unwrap_or_else(|_| "localhost:9092".to_owned());
    let path = std::env::var("EINMAL_STORE").unwrap_or_else(|_| "payments.sled".to_owned());

    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers).set("group.id", "payments-worker");
    let config = KafkaConfig::builder(client).topics(["payments"]).build()?;
    let store =
        SledStore::open(SledConfig::new(&path)?).await.with_context(|| format!("the store {path}"))?;

    let worker = KafkaWorker::builder(config)
        .identify(Identify::new([IdSource::header("event-id"), IdSource::json_pointer("/id")]))
        // Longer than the topic keeps its messages: after that a repeat is a new operation.
        .policy(Policy::builder().retention(Duration::from_secs(8 * 24 * 3600)).build()?)
        .worker(WorkerConfig { lanes: Lanes::Key, ..WorkerConfig::default() })
        .build(store.clone(), book)?;

    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    let summary = worker.run(shutdown).await?;
    store.close().await?;
    println!("{summary:?}");
    Ok(())
}

fn filter() -> tracing_subscriber::EnvFilter {
    tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into())
}
