//! Idempotent message consumers for at-least-once queues: the handler's effect happens once, the stored
//! outcome answers every repeat, and nothing is settled before its outcome is durable.
//!
//! # Three ways in
//!
//! **You consume from a broker**: take its adapter, such as `einmal-kafka`. It joins a broker's deliveries to
//! the [`Worker`](worker::Worker) of this crate.
//!
//! **You have a consumer loop**: give each delivery to [`Idempotent::process`], and settle it if, and only
//! if, the answer is [`Disposition::Settle`].
//!
//! **You have a piece of code that must not run twice**: [`Idempotent::run`].
//!
//! ```
//! use einmal::{Answer, DedupKey, Idempotent, MemoryStore, MessageId, RunError, Scope, Settings};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let scope = Scope::new("billing")?;
//! let once = Idempotent::without_handler(MemoryStore::default(), Settings::new(scope.clone()))?;
//! let key = DedupKey::new(scope, MessageId::new("invoice-4711")?);
//!
//! let charge = || async { Ok::<_, std::io::Error>("receipt 1".to_owned()) };
//! assert_eq!(once.run(&key, None, charge).await?, Answer::Ran("receipt 1".to_owned()));
//!
//! // The repeat gets the first run's result, and its own code is not run.
//! let again = || async { Ok::<_, std::io::Error>("receipt 2".to_owned()) };
//! assert_eq!(once.run(&key, None, again).await?, Answer::Replayed("receipt 1".to_owned()));
//! # Ok(())
//! # }
//! ```
//!
//! A handler of messages is an async function of a [`Context`]:
//!
//! ```
//! use bytes::Bytes;
//! use einmal::{Context, Delivery, Disposition, Failure, Idempotent, MemoryStore, Position, Scope, Settings};
//! use tokio_util::sync::CancellationToken;
//!
//! async fn book(context: Context) -> Result<(), Failure> {
//!     let amount: u64 = context.json()?; // no JSON: rejected, never tried again
//!     println!("{amount} under {}", context.downstream_key("book", 64)?);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let idempotent = Idempotent::new(MemoryStore::default(), book, Settings::new(Scope::new("ledger")?))?;
//! let delivery = Delivery::new(Position::in_log("payments", 0, 7), Some(Bytes::from_static(b"100")))
//!     .with_headers(vec![("message-id".into(), Some(Bytes::from_static(b"evt-1")))]);
//!
//! let disposition = idempotent.process(&delivery, &CancellationToken::new()).await;
//! assert!(matches!(disposition, Disposition::Settle(_)));
//! # Ok(())
//! # }
//! ```
//!
//! # What is kept where
//!
//! A [`DedupStore`] remembers claims and outcomes; [`MemoryStore`] is the reference, `SledStore` (feature
//! `sled`, on by default) is durable and embedded. With a [`TransactionalStore`] a [`TxHandler`] writes in
//! the outcome's own transaction, and its effect happens exactly once.
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `sled` | yes | the embedded store |

mod aside;
mod attempt;
pub mod claim;
mod clock;
mod cloud_event;
mod dead_letter;
mod delivery;
mod engine;
mod error;
mod fingerprint;
mod handler;
mod id;
mod idempotent;
mod identify;
mod lease;
mod mode;
pub mod names;
mod observe;
mod outcome;
mod policy;
mod quiet;
mod run;
mod settings;
mod settle;
mod span;
mod stop;
pub mod store;
mod trace_context;
pub mod worker;

pub use attempt::{InTx, Run};
pub use clock::{Clock, SystemClock, Timestamp};
pub use dead_letter::{DeadLetter, DeadLetterError, DeadLetterReason, DeadLetters};
pub use delivery::{Delivery, Header, Position};
pub use error::{InvalidSetting, StoreError, StoreErrorKind};
pub use fingerprint::{Fingerprint, FingerprintPolicy};
pub use handler::{Context, Failure, Handler, Reply, TxHandler};
pub use id::{DedupKey, InvalidId, MAX_LEN, MAX_PREFIX_LEN, MessageId, Scope};
pub use idempotent::Idempotent;
pub use identify::{CustomId, IdSource, Identify, MissingIdPolicy, NoId};
pub use mode::{Mode, ModeSwitch};
pub use observe::Observed;
pub use outcome::{FailReason, Failed, MAX_REASON_LEN, Outcome, StoredResult};
pub use policy::{Backoff, Policy, PolicyBuilder};
pub use run::{Answer, RunError};
pub use settings::Settings;
pub use settle::{Disposition, Later, Settled, Unsettled};
pub use store::memory::{MemoryConfig, MemoryStore};
#[cfg(feature = "sled")]
pub use store::sled::{Durability, SledConfig, SledConfigBuilder, SledStore, SledTx, SledView};
pub use store::transactional::{TransactionalStore, TxAnswer};
pub use store::{Capabilities, DedupStore, DedupStoreExt, Purged, Stats};
