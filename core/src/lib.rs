//! Idempotent message consumers for at-least-once queues.

pub mod claim;
mod clock;
pub mod dead_letter;
mod delivery;
mod error;
mod fingerprint;
mod id;
mod identify;
mod outcome;
pub mod store;
pub mod worker;

pub use clock::{Clock, SystemClock, Timestamp};
pub use dead_letter::{DeadLetter, DeadLetterError, DeadLetterReason, DeadLetters};
pub use delivery::{Delivery, Header, Position};
pub use error::{InvalidSetting, StoreError, StoreErrorKind};
pub use fingerprint::{Fingerprint, FingerprintPolicy};
pub use id::{DedupKey, InvalidId, MAX_LEN, MAX_PREFIX_LEN, MessageId, Scope};
pub use identify::{CustomId, IdSource, Identify, MissingIdPolicy, NoId};
pub use outcome::{FailReason, Failed, MAX_REASON_LEN, Outcome, StoredResult};
pub use store::memory::{MemoryConfig, MemoryStore};
#[cfg(feature = "sled")]
pub use store::sled::{Durability, SledConfig, SledConfigBuilder, SledStore, SledTx, SledView};
pub use store::transactional::{TransactionalStore, TxAnswer};
pub use store::{Capabilities, DedupStore, DedupStoreExt, Purged, Stats};
