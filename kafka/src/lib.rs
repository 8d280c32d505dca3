//! Einmal for Apache Kafka: a message's offset is committed only after its outcome is stored.

mod commit;
mod config;
mod consumer;
mod context;
mod engine;
mod error;
mod ledger;
mod message;
mod offsets;
mod partition;
mod poll;
mod source;

pub use config::{KafkaConfig, KafkaConfigBuilder};
pub use consumer::KafkaConsumer;
pub use error::{KafkaError, KafkaErrorKind};
pub use source::{KafkaAck, KafkaSource};
