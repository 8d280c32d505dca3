//! Kafka, the real one: the scenarios of a broker's users, by name, and what a broker and a network can do.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

mod claims;
mod faults;
mod kill;
mod lanes;
mod letters;
mod members;
mod order;
mod pressure;
mod topics;
