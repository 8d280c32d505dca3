//! A worker that kills itself at a named point, or waits to be killed.
//!
//! `kill-worker DIR SOURCE LANES EFFECT [POINT NTH]`. SOURCE is a number of messages of the log on a file, or
//! `ADDRESS/TOPIC` of a Kafka cluster, where the group bears the topic's name; EFFECT is `inbox` (a row in the
//! outcome's transaction), `strict` (the same, and some are rejected and go to the dead letters of the topic) or
//! `file` (a line in a file, outside of the store). `RUST_LOG` has it tell on its standard error what it does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use einmal::store::sled::WritePoint;
use einmal::worker::{Lanes, Worker, WorkerConfig};
use einmal::{
    Context, DeadLetter, DeadLetterError, DeadLetters, Failure, Handler, Idempotent, Reply, Run, Scope,
    Settings, SledConfig, SledStore, SledTx, TxHandler,
};
use einmal_kafka::{DeadLetterTopic, KafkaConfig, KafkaConsumer, KafkaDeadLetters};
use einmal_tests::log_broker::{LogBroker, Watched, is_rejected};
use einmal_tests::points::{Killer, Point};
use einmal_tests::witness::{Lines, Place};
use rdkafka::ClientConfig;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (directory, source, lanes, effect, kill) = match args.as_slice() {
        [directory, source, lanes, effect] => (directory, source, lanes, effect, None),
        [directory, source, lanes, effect, point, nth] => {
            (directory, source, lanes, effect, Some((point.parse::<Point>()?, nth.parse::<i64>()?)))
        }
        _ => bail!("usage: kill-worker DIR SOURCE LANES EFFECT [POINT NTH]"),
    };
    let killer = Arc::new(Killer::new(kill.map(|(point, _)| point), kill.map_or(0, |(_, nth)| nth)));
    let place = Place(PathBuf::from(directory));
    let lanes = match lanes.as_str() {
        "partition" => Lanes::Partition,
        "key" => Lanes::Key,
        "none" => Lanes::None,
        other => bail!("there are no lanes {other}"),
    };
    let probe = Arc::clone(&killer);
    let config = SledConfig::builder(place.store()).probe(move |point| {
        probe.pass(match point {
            WritePoint::BeforeFlush => Point::BeforeFlush,
            WritePoint::AfterFlush => Point::AfterFlush,
            WritePoint::AfterSync => Point::AfterSync,
        });
    });
    let store = SledStore::open(config.build()?).await.context("the store")?;
    let handler = Effect {
        strict: effect == "strict",
        stalled: std::fs::read_to_string(place.stalled()).ok(),
        pause: std::fs::read_to_string(place.pause()).ok().and_then(|text| text.trim().parse().ok()),
        cancelled: Arc::new(Lines::append_to(&place.cancelled())?),
        starts: Lines::append_to(&place.starts())?,
        effects: Lines::append_to(&place.0.join("effects.log"))?,
        killer: Arc::clone(&killer),
    };
    let mut settings = Settings::new(Scope::new("kill")?);
    if handler.strict {
        let (client, _) = client(source)?;
        let inner = KafkaDeadLetters::new(&client, DeadLetterTopic::default())?;
        settings = settings.dead_letters(WatchedLetters { inner, killer: Arc::clone(&killer) });
    }
    let config = WorkerConfig { lanes, ..WorkerConfig::default() };
    let job = Job { place, source: source.clone(), config, killer };
    match effect.as_str() {
        "inbox" | "strict" => job.work(&Idempotent::in_tx(store, handler, settings)?).await,
        "file" => job.work(&Idempotent::new(store, handler, settings)?).await,
        other => bail!("there is no effect {other}"),
    }
}

fn client(source: &str) -> Result<(ClientConfig, &str)> {
    let (address, topic) = source.split_once('/').context("a source is ADDRESS/TOPIC")?;
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", address);
    Ok((client, topic))
}

struct Job {
    place: Place,
    source: String,
    config: WorkerConfig,
    killer: Arc<Killer>,
}

impl Job {
    async fn work<H: Run>(self, idempotent: &Idempotent<SledStore, H>) -> Result<()> {
        let worker = Worker::new(idempotent, self.config)?;
        let summaries = self.place.summaries();
        match self.source.parse() {
            Ok(messages) => {
                let log = LogBroker::open(&self.place, messages)?;
                worker.run(Watched::new(log, &self.place, self.killer)?, CancellationToken::new()).await?;
            }
            Err(_) => self.consume(&worker).await?,
        }
        idempotent.store().close().await?;
        let summary = worker.summary();
        let counts = json!({
            "pid": std::process::id(),
            "received": summary.received,
            "in_flight": summary.in_flight,
            "unsettled": summary.unsettled,
            "ran_ok": summary.ran_ok,
            "ran_failed": summary.ran_failed,
            "duplicate": summary.duplicate,
            "dead_lettered_without_run": summary.dead_lettered_without_run,
        });
        Lines::append_to(&summaries)?.push(&counts.to_string())?;
        Ok(())
    }

    /// Consumes until its standard input ends, or it is told to terminate.
    async fn consume(self, worker: &Worker) -> Result<()> {
        let (mut client, topic) = client(&self.source)?;
        client.set("group.id", topic);
        // The mock cluster gives a killed member up after twice this time, and lets none join under 3 s.
        client.set("session.timeout.ms", "3500").set("heartbeat.interval.ms", "900");
        let config = KafkaConfig::builder(client).topics([topic]).drain(Duration::from_secs(2)).build()?;
        let (source, consumer) = KafkaConsumer::start(&config, worker.health().clone())?;
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::spawn(async move {
            let (mut input, mut byte) = (tokio::io::stdin(), [0]);
            tokio::select! {
                _ = input.read(&mut byte) => {}
                _ = terminate.recv() => {}
            }
            stop.cancel();
        });
        worker.run(Watched::new(source, &self.place, self.killer)?, shutdown).await?;
        consumer.close().await?;
        Ok(())
    }
}

/// Dropped with an id, the handler was.
struct CutShort {
    cancelled: Arc<Lines>,
    id: Option<String>,
}

impl Drop for CutShort {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            let _ = self.cancelled.push(&format!("{id} {}", std::process::id()));
        }
    }
}

/// Writes down that it starts, and then has its effect.
struct Effect {
    strict: bool,
    stalled: Option<String>,
    /// In milliseconds.
    pause: Option<u64>,
    cancelled: Arc<Lines>,
    starts: Lines,
    effects: Lines,
    killer: Arc<Killer>,
}

impl Effect {
    /// Fails if it is rejected.
    async fn start(&self, context: &Context) -> Result<(), Failure> {
        self.killer.pass(Point::AfterClaim);
        let (id, fence) = (context.key().id().as_str(), context.fence());
        self.starts.push(&format!("{id} {} {fence}", std::process::id()))?;
        let mut cut_short = CutShort { cancelled: Arc::clone(&self.cancelled), id: Some(id.to_owned()) };
        self.killer.pass(Point::InHandler);
        if let Some(pause) = self.pause {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        if self.stalled.as_deref() == Some(id) {
            std::future::pending::<()>().await;
        }
        cut_short.id = None;
        if self.strict && is_rejected(id) {
            return Err(Failure::reject("one of those"));
        }
        Ok(())
    }
}

#[async_trait]
impl TxHandler<SledStore> for Effect {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        self.start(&context).await?;
        tx.append("ledger", context.key().id().as_str())?;
        self.killer.pass(Point::AfterEffect);
        Ok(Reply::none())
    }
}

#[async_trait]
impl Handler for Effect {
    async fn handle(&self, context: Context) -> Result<Reply, Failure> {
        self.start(&context).await?;
        self.effects.push(&format!("{} {}", context.key().id().as_str(), std::process::id()))?;
        self.killer.pass(Point::AfterEffect);
        Ok(Reply::none())
    }
}

/// Passes a point before each letter and after it.
#[derive(Debug)]
struct WatchedLetters {
    inner: KafkaDeadLetters,
    killer: Arc<Killer>,
}

#[async_trait]
impl DeadLetters for WatchedLetters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        self.killer.pass(Point::BeforePublish);
        self.inner.publish(letter).await?;
        self.killer.pass(Point::AfterPublish);
        Ok(())
    }
}
