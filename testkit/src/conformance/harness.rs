//! What the suite must know of a store to test it.

use std::time::Duration;

use async_trait::async_trait;
use einmal::claim::Rules;
use einmal::{DedupKey, DedupStore};

/// The bounds that a store is opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most records in the store.
    pub max_keys: usize,
    /// The most records in one scope.
    pub max_keys_per_scope: usize,
}

impl Default for Bounds {
    /// More than any case needs.
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_keys_per_scope: 1_000_000 }
    }
}

/// How a store is opened, how time passes for it, and what else can be done to it.
///
/// Each case gets a harness of its own. What a store can't do has a default that says so, and the cases that
/// need it pass without a look; but a store that [says](einmal::Capabilities) that it is durable must be
/// [reopened](Harness::reopen), and one that says that it is shared must be opened by
/// [another](Harness::another).
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The store under test.
    type Store: DedupStore;

    /// Opens a new, empty store with these bounds.
    async fn open(&self, bounds: Bounds) -> Self::Store;

    /// Lets time pass for all stores of this harness. Where the time is a server's, waits for real.
    async fn advance(&self, by: Duration);

    /// The rules that the cases claim under. All they wait is made of these times, so that a harness whose
    /// time is real can choose short ones; the retention should be at least forty leases and forty times
    /// the longest delay, as most cases must end within it.
    fn rules(&self) -> Rules {
        Rules {
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(24 * 3600),
            max_failures: 3,
            max_crashes: 2,
            max_delay: Duration::from_secs(60),
            max_result: usize::MAX,
        }
    }

    /// Sets the wall clock of the store's host by so many seconds, without time passing. `false` when it
    /// can't be done.
    async fn step_wall(&self, seconds: i64) -> bool {
        let _ = seconds;
        false
    }

    /// Closes the store in good order and opens it again, as a restart of the program does. `None` when it
    /// is not durable.
    async fn reopen(&self, store: Self::Store) -> Option<Self::Store> {
        drop(store);
        None
    }

    /// Opens the store again after its process was killed: what was not durable by then is gone. Without a
    /// way to do so, [`reopen`](Harness::reopen).
    async fn crash(&self, store: Self::Store) -> Option<Self::Store> {
        self.reopen(store).await
    }

    /// Opens the store a second time, as another process would. `None` when it is not shared.
    async fn another(&self, store: &Self::Store) -> Option<Self::Store> {
        let _ = store;
        None
    }

    /// From here on holds back every write on its way to the disk. `false` when it can't be done.
    async fn hold_sync(&self, store: &Self::Store) -> bool {
        let _ = store;
        false
    }

    /// Waits until a write is held back. Called only after [`hold_sync`](Harness::hold_sync) said yes.
    async fn wait_held(&self, store: &Self::Store) {
        let _ = store;
    }

    /// Lets go what is held back.
    async fn release_sync(&self, store: &Self::Store) {
        let _ = store;
    }

    /// Spoils the record of `key`, as a damaged disk or an unknown format would. `false` when it can't be
    /// done.
    async fn damage(&self, store: &Self::Store, key: &DedupKey) -> bool {
        let _ = (store, key);
        false
    }
}
