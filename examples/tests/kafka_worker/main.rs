//! `kafka_worker` as a user runs it: by its flags, its signals, its files and its endpoint.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

mod mock;
mod real;
mod support;
