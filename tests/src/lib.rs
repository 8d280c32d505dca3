//! What the tests across crates and processes share.

pub mod chaos;
pub mod kafka;
pub mod kafka_broker;
pub mod kafka_secure;
pub mod kafka_worker;
pub mod log_broker;
pub mod logs;
pub mod points;
pub mod proxy;
pub mod trial;
pub mod witness;
