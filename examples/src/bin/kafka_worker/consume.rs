//! The worker: store, handler, endpoint, and the way out.

use anyhow::{Context, Result, bail};
use einmal::SledStore;
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;
use crate::live::Live;
use crate::metrics::Endpoint;
use crate::report::Report;
use crate::settings::Args;
use crate::signals;

pub(crate) async fn run(args: &Args) -> Result<()> {
    let live = Live::new(args.report_every);
    live.start_logs();
    let shutdown = CancellationToken::new();
    signals::watch(shutdown.clone())?;
    // Before the worker, which begins to count when it is made.
    let endpoint = match args.metrics {
        Some(address) => Some(Endpoint::start(address).await?),
        None => None,
    };
    let config = args.kafka()?;
    let store = SledStore::open(args.store_config()?)
        .await
        .with_context(|| format!("the store in {}; is another worker running?", args.store.display()))?;
    let ledger = args.ledger.as_deref().map(Ledger::open).transpose()?;
    let broken = ledger.as_ref().map_or_else(CancellationToken::new, |ledger| ledger.broken().clone());
    let worker = args.worker(config, store.clone(), ledger)?;
    let served = endpoint.map(|endpoint| tokio::spawn(endpoint.serve(worker.health().clone())));

    let stop = async {
        broken.cancelled().await;
        shutdown.cancel();
        std::future::pending::<()>().await;
    };
    let ran = tokio::select! {
        ran = worker.run(shutdown.clone()) => ran,
        never = live.show(&worker) => match never {},
        () = stop => bail!("the worker went on though it was told to stop"),
    };
    live.finish();
    if let Some(served) = served {
        served.abort();
    }
    // Also after a failure: what was done until then.
    let report = Report::from(worker.summary());
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    let closed = store.close().await;
    ran?;
    closed.context("the store did not close")?;
    if broken.is_cancelled() {
        bail!("the ledger could not be written");
    }
    Ok(())
}
