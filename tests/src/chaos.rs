//! Faults at random against a Kafka worker, for as long as one likes.
//!
//! A producer keeps sending, a worker process on sled keeps consuming through a proxy, and both the broker and
//! the worker are stopped, killed and cut off. What happened is written down outside the store, and compared
//! with it after each death and at the end.

pub mod fault;
pub mod ledger;
pub mod producer;
pub mod run;
