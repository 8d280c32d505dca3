//! The reference store against the suite: by its own type, behind a trait object, and below a faulty store
//! that injects nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use einmal::{DedupStore, MemoryConfig, MemoryStore};
use einmal_testkit::conformance::{Bounds, Harness};
use einmal_testkit::{FaultyStore, ManualClock};

/// `S` is how the memory store is wrapped.
struct Memory<S> {
    clock: ManualClock,
    wrap: fn(MemoryStore) -> S,
}

impl<S> Memory<S> {
    fn new(wrap: fn(MemoryStore) -> S) -> Self {
        Self { clock: ManualClock::new(), wrap }
    }
}

#[async_trait]
impl<S: DedupStore> Harness for Memory<S> {
    type Store = S;

    async fn open(&self, bounds: Bounds) -> S {
        let config = MemoryConfig {
            max_keys: bounds.max_keys,
            max_keys_per_scope: bounds.max_keys_per_scope,
            ..MemoryConfig::default()
        };
        (self.wrap)(MemoryStore::new(config, self.clock.shared()))
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn step_wall(&self, seconds: i64) -> bool {
        self.clock.step_wall(seconds);
        true
    }
}

mod typed {
    use super::*;

    einmal_testkit::conformance!(Memory::new(|store| store));
}

mod erased {
    use super::*;

    einmal_testkit::conformance!(Memory::<Arc<dyn DedupStore>>::new(|store| Arc::new(store)));
}

mod wrapped {
    use super::*;

    einmal_testkit::conformance!(Memory::new(FaultyStore::new));
}
