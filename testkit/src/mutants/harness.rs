//! The suite's harness for the pretended disk.

use std::time::Duration;

use async_trait::async_trait;
use einmal::DedupKey;

use super::{Breach, Disk};
use crate::ManualClock;
use crate::conformance::{Bounds, Harness};

/// Opens [`Disk`]s that break one rule.
#[derive(Clone, Debug)]
pub struct DiskHarness {
    clock: ManualClock,
    breach: Breach,
}

impl DiskHarness {
    /// For stores that break this rule.
    #[must_use]
    pub fn new(breach: Breach) -> Self {
        Self { clock: ManualClock::new(), breach }
    }
}

#[async_trait]
impl Harness for DiskHarness {
    type Store = Disk;

    async fn open(&self, bounds: Bounds) -> Disk {
        Disk::new(self.breach, bounds, self.clock.shared())
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_wall(&self, seconds: i64) -> bool {
        self.clock.step_wall(seconds);
        true
    }

    async fn reopen(&self, store: Disk) -> Option<Disk> {
        Some(store.reopen())
    }

    async fn crash(&self, store: Disk) -> Option<Disk> {
        Some(store.crash())
    }

    async fn hold_sync(&self, store: &Disk) -> bool {
        store.hold_sync(true);
        true
    }

    async fn wait_held(&self, store: &Disk) {
        store.wait_held().await;
    }

    async fn release_sync(&self, store: &Disk) {
        store.hold_sync(false);
    }

    async fn damage(&self, store: &Disk, key: &DedupKey) -> bool {
        store.damage(key);
        true
    }
}
