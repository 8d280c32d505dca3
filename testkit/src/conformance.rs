//! The suite that every store runs: one case for each thing that the contract of
//! [`DedupStore`](einmal::DedupStore) demands.
//!
//! A store's tests say how it is opened, and how time passes for it, in a [`Harness`]; the macro
//! [`conformance!`](crate::conformance!) makes a test of each case. Each case opens a store of its own.
//!
//! ```
//! use std::time::Duration;
//!
//! use einmal::{MemoryConfig, MemoryStore};
//! use einmal_testkit::ManualClock;
//! use einmal_testkit::conformance::{Bounds, Harness};
//!
//! #[derive(Default)]
//! struct Memory {
//!     clock: ManualClock,
//! }
//!
//! #[async_trait::async_trait]
//! impl Harness for Memory {
//!     type Store = MemoryStore;
//!
//!     async fn open(&self, bounds: Bounds) -> MemoryStore {
//!         let mut config = MemoryConfig::default();
//!         config.max_keys = bounds.max_keys;
//!         config.max_keys_per_scope = bounds.max_keys_per_scope;
//!         MemoryStore::new(config, self.clock.shared())
//!     }
//!
//!     async fn advance(&self, by: Duration) {
//!         self.clock.advance(by);
//!     }
//! }
//!
//! einmal_testkit::conformance!(Memory::default());
//! ```
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "cases are tests that live in a library: to panic is how they fail"
)]

pub mod batch;
pub mod bounds;
pub mod claim;
pub mod complete;
pub mod concurrency;
pub mod dead_letter;
mod desk;
pub mod durability;
pub mod expiry;
pub mod fail;
pub mod fence;
mod harness;
pub mod interruption;
pub mod isolation;
mod list;
pub mod operator;
pub mod release;
pub mod renew;
mod run;

pub use harness::{Bounds, Harness};
pub use list::{Case, cases};
pub use run::{block_on, failing};
