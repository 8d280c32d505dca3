//! Ctrl-C and `kill`: what was started must still be stopped.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

fn flag() -> &'static Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    FLAG.get_or_init(Arc::default)
}

/// From here on a signal only raises a flag. A second one does no more: whoever runs the task may pass on the one
/// that the terminal sent already.
pub(crate) fn catch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(flag()))?;
    }
    Ok(())
}

pub(crate) fn raised() -> bool {
    flag().load(Ordering::SeqCst)
}

pub(crate) fn check() -> Result<()> {
    if raised() {
        bail!("interrupted");
    }
    Ok(())
}
