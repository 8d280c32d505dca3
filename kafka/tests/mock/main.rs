//! Against librdkafka's mock cluster: groups, commits and rebalances without a broker.
//!
//! Each test counts by ids that its producer chose. Where several groups fit in one cluster they share it: the
//! first message of a group takes the mock three seconds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop; clippy knows only the functions marked as tests"
)]

mod content;
mod failing;
mod pressure;
mod rebalance;
mod settling;
mod support;
mod worker;
