//! Einmal for Apache Kafka: a message's offset is committed only after its outcome is stored.
//!
//! # The usual way
//! [`KafkaWorker`] joins a consumer group and runs a handler once for each message id:
//!
//! ```no_run
//! use einmal::{Context, Failure, MemoryStore};
//! use einmal_kafka::{KafkaConfig, KafkaWorker};
//! use rdkafka::ClientConfig;
//! use tokio_util::sync::CancellationToken;
//!
//! async fn handle(context: Context) -> Result<(), Failure> {
//!     println!("{} bytes, attempt {}", context.payload().len(), context.attempt());
//!     Ok(())
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut client = ClientConfig::new();
//! client.set("bootstrap.servers", "localhost:9092").set("group.id", "billing");
//! let config = KafkaConfig::builder(client).topics(["orders"]).build()?;
//! let worker = KafkaWorker::builder(config).build(MemoryStore::default(), handle)?;
//! worker.run(CancellationToken::new()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Message ids come from where producers put them ([`einmal::Identify::default`]) unless you say where; never
//! from the record's key.
//!
//! # With a loop of your own
//! [`KafkaConsumer::start`] gives a [`KafkaSource`] of deliveries, each with a [`KafkaAck`]. Settle in any
//! order: what is committed is the first message that is not settled.
//!
//! # What holds
//! - A committed offset never lies past an unsettled message and never goes back while a partition is
//!   assigned; holes in the log don't stop it.
//! - Nothing of an assignment that has ended is committed. When a partition is taken away, nothing more of it
//!   is started, what runs may end within a budget, and only then is it given up.
//! - The client is polled at all times, on a thread of its own, however slow the handlers are. What waits is
//!   bounded; at the bound the broker is held back and the membership kept.
//! - A delivery that comes back unsettled is offered again, with all that followed it, in order.
//! - A message is a dead letter only when the broker has confirmed the letter.
//!
//! # Features
//! None is on by default.
//!
//! | feature | what | needs |
//! |---|---|---|
//! | `tls` | `security.protocol` SSL and SASL_SSL | OpenSSL of the system, with headers |
//! | `sasl` | SCRAM; PLAIN is always there | the same: librdkafka takes its hashes from it |
//! | `zstd` | messages compressed with zstd; gzip, snappy and lz4 are always there | nothing |
//!
//! Kerberos and OIDC are features of `rdkafka` itself, `gssapi` and `curl`.
//!
//! # What can repeat
//! Between an outcome and its commit lie up to 100 ms, and a broker refuses commits at times, as while a group
//! forms anew. What was settled by then is delivered again, and answered by its stored outcome. A store that
//! is one process's alone does not follow a partition to another: there the message runs once more.

mod commit;
mod config;
mod consumer;
mod context;
mod dead_letter;
mod engine;
mod error;
mod ledger;
mod message;
pub mod names;
mod offsets;
mod partition;
mod poll;
mod retention;
mod source;
mod trouble;
mod worker;

pub use config::{KafkaConfig, KafkaConfigBuilder};
pub use consumer::KafkaConsumer;
pub use dead_letter::{DeadLetterTopic, KafkaDeadLetters};
pub use error::{KafkaError, KafkaErrorKind};
pub use source::{KafkaAck, KafkaSource};
pub use worker::{KafkaBuildError, KafkaWorker, KafkaWorkerBuilder, KafkaWorkerError};
