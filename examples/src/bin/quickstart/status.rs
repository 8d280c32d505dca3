//! How the worker tells its parent how far it is: one JSON line every few milliseconds.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// What a worker process has done so far.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Status {
    pub(crate) settled: u64,
    pub(crate) in_flight: u64,
    pub(crate) duplicate: u64,
    /// Since its first delivery.
    pub(crate) active_ms: u64,
}

/// The last status of a worker, read on a thread of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latest(Arc<Mutex<Status>>);

impl Latest {
    pub(crate) fn get(&self) -> Status {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until the pipe ends.
    pub(crate) fn follow(pipe: impl Read + Send + 'static) -> (Self, std::thread::JoinHandle<()>) {
        let latest = Self::default();
        let writer = latest.clone();
        let thread = std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if let Ok(status) = serde_json::from_str(&line) {
                    *writer.0.lock().unwrap_or_else(PoisonError::into_inner) = status;
                }
            }
        });
        (latest, thread)
    }
}
