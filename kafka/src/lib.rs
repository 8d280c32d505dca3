//! Einmal for Apache Kafka: a message's offset is committed only after its outcome is stored.

mod commit;
mod config;
mod consumer;
mod context;
mod dead_letter;
mod engine;
mod error;
mod ledger;
mod message;
mod offsets;
mod partition;
mod poll;
mod source;
mod worker;

pub use config::{KafkaConfig, KafkaConfigBuilder};
pub use consumer::KafkaConsumer;
pub use dead_letter::{DeadLetterTopic, KafkaDeadLetters};
pub use error::{KafkaError, KafkaErrorKind};
pub use source::{KafkaAck, KafkaSource};
pub use worker::{KafkaBuildError, KafkaWorker, KafkaWorkerBuilder, KafkaWorkerError};
