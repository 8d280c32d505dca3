//! Ctrl-C and SIGTERM: the first drains, a second ends at once.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Cancels `shutdown` on the first signal, and ends the process on the second.
///
/// To end at once is safe, as a `kill -9` is: what is not settled is delivered again.
pub(crate) fn watch(shutdown: CancellationToken) -> Result<()> {
    let listen = |kind| signal(kind).context("signals can't be caught");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    tokio::spawn(async move {
        next(&mut interrupt, &mut terminate).await;
        tracing::info!("stopping: what runs may end, and is committed; a second signal ends at once");
        shutdown.cancel();
        next(&mut interrupt, &mut terminate).await;
        tracing::warn!("ended at once: what was running is delivered again");
        std::process::exit(INTERRUPTED)
    });
    Ok(())
}

async fn next(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
