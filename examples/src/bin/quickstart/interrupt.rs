//! Ctrl-C: nothing is left behind, neither the worker nor the temporary directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// What a shell says of a program that Ctrl-C ended.
pub(crate) const CODE: u8 = 130;

/// Raised by a signal. A second signal ends the process at once, and leaves what it finds.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

/// The error that ends a run after a signal.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

impl Interrupt {
    /// From here on a signal only raises this flag.
    pub(crate) fn catch() -> Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: the first signal finds the flag down.
            flag::register_conditional_shutdown(signal, i32::from(CODE), Arc::clone(&raised))
                .and_then(|_| flag::register(signal, Arc::clone(&raised)))
                .context("signals can't be caught")?;
        }
        Ok(Self(raised))
    }

    /// Fails once the flag is raised.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(!self.0.load(Ordering::SeqCst), Interrupted);
        Ok(())
    }
}
