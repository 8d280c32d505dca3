//! What a worker says of itself to whoever supervises it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The process is worth keeping. When false, only a restart helps.
    pub live: bool,
    /// Messages are being worked on.
    pub ready: bool,
    /// Why not, each in one sentence.
    pub reasons: Vec<String>,
}

/// Where a worker, its adapter and its store note what is wrong. Cloning gives another handle of the same.
#[derive(Clone, Debug, Default)]
pub struct HealthCell(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    fatal: Option<String>,
    troubles: BTreeMap<String, String>,
}

impl HealthCell {
    /// Notes that only a restart helps. The first such note stays.
    pub fn fatal(&self, reason: impl Into<String>) {
        self.change(|notes| {
            notes.fatal.get_or_insert(reason.into());
        });
    }

    /// Notes a trouble that may pass, under a name by which it is [cleared](HealthCell::clear).
    pub fn trouble(&self, name: impl Into<String>, reason: impl Into<String>) {
        self.change(|notes| {
            notes.troubles.insert(name.into(), reason.into());
        });
    }

    /// Takes back a trouble.
    pub fn clear(&self, name: &str) {
        self.change(|notes| {
            notes.troubles.remove(name);
        });
    }

    /// How things are now.
    #[must_use]
    pub fn read(&self) -> Health {
        self.change(|notes| Health {
            live: notes.fatal.is_none(),
            ready: notes.fatal.is_none() && notes.troubles.is_empty(),
            reasons: notes.fatal.iter().chain(notes.troubles.values()).cloned().collect(),
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Notes) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
