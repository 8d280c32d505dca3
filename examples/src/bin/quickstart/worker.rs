//! The worker: what a user of Einmal writes.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use einmal::worker::{Lanes, Summary, WorkerConfig};
use einmal::{Context, Failure, IdSource, Identify, Reply, SledConfig, SledStore, SledTx, TxHandler};
use einmal_kafka::{KafkaConfig, KafkaWorker};
use rdkafka::ClientConfig;
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use crate::journal::Journal;
use crate::ledger::{BALANCES, LEDGER, Row, STORE, cents};
use crate::plan::Payment;
use crate::status::Status;

pub(crate) const TOPIC: &str = "payments";
pub(crate) const DEAD_LETTERS: &str = "payments.dead-letter";
pub(crate) const GROUP: &str = "ledger";
pub(crate) const ID_HEADER: &str = "event-id";

/// Books a payment: reads and writes the account's balance and appends a row, all in the transaction of the
/// message's outcome.
struct Book {
    journal: Journal,
}

#[async_trait]
impl TxHandler<SledStore> for Book {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        let id = context.key().id().as_str();
        self.journal.start(id, context.attempt(), context.fence().get())?;
        let payment: Payment = context.json()?;
        let account = payment.account.to_be_bytes();
        let balance = tx.get(BALANCES, &account)?.and_then(|value| cents(&value)).unwrap_or_default();
        tx.put(BALANCES, &account, (balance + payment.cents).to_be_bytes())?;
        let row = Row { id: id.to_owned(), account: payment.account, cents: payment.cents };
        tx.append(LEDGER, serde_json::to_vec(&row)?)?;
        Ok(Reply::none())
    }
}

pub(crate) fn run(brokers: &str, directory: &Path) -> Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(work(brokers, directory))?;
    Ok(ExitCode::SUCCESS)
}

async fn work(brokers: &str, directory: &Path) -> Result<()> {
    let store = SledStore::open(SledConfig::new(directory.join(STORE))?).await.context("the store")?;
    let journal = Journal::open(directory)?;

    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers).set("group.id", GROUP);
    // So that a killed member is missed after seconds. A real broker deserves the defaults.
    client.set("session.timeout.ms", "3500").set("heartbeat.interval.ms", "900");
    let config = KafkaConfig::builder(client).topics([TOPIC]).drain(Duration::from_secs(2)).build()?;

    let worker = KafkaWorker::builder(config)
        .identify(Identify::new([noted(journal.clone()), IdSource::header(ID_HEADER)]))
        // The payments of an account in their order, those of different accounts at once.
        .worker(WorkerConfig { lanes: Lanes::Key, ..WorkerConfig::default() })
        .build_in_tx(store.clone(), Book { journal })?;

    let shutdown = CancellationToken::new();
    let watch = watch_parent(shutdown.clone());
    let first_delivery = OnceLock::new();
    let told = tell(&worker, &first_delivery);
    let summary = tokio::select! {
        summary = worker.run(shutdown) => summary?,
        () = watch => anyhow::bail!("the worker went on though it was told to stop"),
        () = told => anyhow::bail!("nobody listens any more"),
    };
    println!("{}", serde_json::to_string(&status(&summary, first_delivery.get()))?);
    store.close().await?;
    Ok(())
}

/// Finds no id, but writes down that a message was delivered.
fn noted(journal: Journal) -> IdSource {
    IdSource::custom(move |delivery| {
        if let Err(error) = journal.delivery(delivery.position()) {
            eprintln!("a delivery could not be written down: {error}");
        }
        None
    })
}

/// Stops the worker when the parent closes its end, or is gone. Never ends itself.
async fn watch_parent(shutdown: CancellationToken) {
    let mut nothing = [0];
    // An error means that there is no parent either.
    let _ = tokio::io::stdin().read(&mut nothing).await;
    shutdown.cancel();
    std::future::pending().await
}

/// Says every few milliseconds how far the worker is.
async fn tell(worker: &KafkaWorker, first_delivery: &OnceLock<Instant>) {
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let summary = worker.summary();
        if summary.received > 0 {
            first_delivery.get_or_init(now);
        }
        let line = serde_json::to_string(&status(&summary, first_delivery.get())).unwrap_or_default();
        if writeln!(std::io::stdout(), "{line}").is_err() {
            return;
        }
    }
}

fn status(summary: &Summary, first_delivery: Option<&Instant>) -> Status {
    let active = first_delivery.map(Instant::elapsed).unwrap_or_default();
    Status {
        settled: summary.received - summary.in_flight - summary.unsettled,
        in_flight: summary.in_flight,
        duplicate: summary.duplicate,
        active_ms: u64::try_from(active.as_millis()).unwrap_or(u64::MAX),
    }
}

#[allow(clippy::disallowed_methods, reason = "a figure for people, of real time")]
fn now() -> Instant {
    Instant::now()
}
