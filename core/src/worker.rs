//! Runs many deliveries at once.

mod health;
mod source;

pub use health::{Health, HealthCell};
pub use source::{Ack, Assignment, Incoming, Source};
