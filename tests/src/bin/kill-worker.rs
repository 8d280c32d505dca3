//! A worker that kills itself at a named point, or waits to be killed.
//!
//! `kill-worker DIR MESSAGES LANES EFFECT [POINT NTH]`; EFFECT is `inbox` (a row in the outcome's transaction)
//! or `file` (a line in a file, outside of it).

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use einmal::store::sled::WritePoint;
use einmal::worker::{Lanes, Worker, WorkerConfig};
use einmal::{
    Context, Failure, Handler, Idempotent, Reply, Run, Scope, Settings, SledConfig, SledStore, SledTx,
    TxHandler,
};
use einmal_tests::log_broker::LogBroker;
use einmal_tests::points::{Killer, Point};
use einmal_tests::witness::{Lines, Place};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (directory, messages, lanes, effect, kill) = match args.as_slice() {
        [directory, messages, lanes, effect] => (directory, messages, lanes, effect, None),
        [directory, messages, lanes, effect, point, nth] => {
            (directory, messages, lanes, effect, Some((point.parse::<Point>()?, nth.parse::<i64>()?)))
        }
        _ => bail!("usage: kill-worker DIR MESSAGES LANES EFFECT [POINT NTH]"),
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
    let source = LogBroker::open(&place, messages.parse()?, Arc::clone(&killer))?;
    let handler = Effect {
        starts: Lines::append_to(&place.starts())?,
        effects: Lines::append_to(&place.0.join("effects.log"))?,
        killer,
    };
    let settings = Settings::new(Scope::new("kill")?);
    let config = WorkerConfig { lanes, ..WorkerConfig::default() };
    match effect.as_str() {
        "inbox" => work(&Idempotent::in_tx(store, handler, settings)?, config, source).await,
        "file" => work(&Idempotent::new(store, handler, settings)?, config, source).await,
        other => bail!("there is no effect {other}"),
    }
}

async fn work<H: Run>(
    idempotent: &Idempotent<SledStore, H>,
    config: WorkerConfig,
    source: LogBroker,
) -> Result<()> {
    let worker = Worker::new(idempotent, config)?;
    let summary = worker.run(source, CancellationToken::new()).await?;
    idempotent.store().close().await?;
    println!("{summary:?}");
    Ok(())
}

/// Writes down that it starts, and then has its effect.
struct Effect {
    starts: Lines,
    effects: Lines,
    killer: Arc<Killer>,
}

impl Effect {
    fn start(&self, context: &Context) -> Result<(), Failure> {
        self.killer.pass(Point::AfterClaim);
        let (id, fence) = (context.key().id().as_str(), context.fence());
        self.starts.push(&format!("{id} {} {fence}", std::process::id()))?;
        self.killer.pass(Point::InHandler);
        Ok(())
    }
}

#[async_trait]
impl TxHandler<SledStore> for Effect {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        self.start(&context)?;
        tx.append("ledger", context.key().id().as_str())?;
        self.killer.pass(Point::AfterEffect);
        Ok(Reply::none())
    }
}

#[async_trait]
impl Handler for Effect {
    async fn handle(&self, context: Context) -> Result<Reply, Failure> {
        self.start(&context)?;
        self.effects.push(&format!("{} {}", context.key().id().as_str(), std::process::id()))?;
        self.killer.pass(Point::AfterEffect);
        Ok(Reply::none())
    }
}
