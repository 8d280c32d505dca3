//! What a store must do: the contract between Einmal and whatever remembers its outcomes.
//!
//! [`DedupStore`] is for those who write a store: few methods, batches first, every sentence with MUST
//! checked by the conformance suite of `einmal-testkit` under the name in brackets. [`DedupStoreExt`] is
//! for those who use one: a single claim, a single settle.

mod batch;
pub mod memory;
#[cfg(feature = "sled")]
pub mod sled;
mod time;
pub mod transactional;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::claim::{
    Claim, ClaimAnswer, ClaimRequest, Failing, ForceAnswer, ForgetAnswer, Record, SettleAnswer,
    SettleRequest, Verb,
};
use crate::error::StoreError;
use crate::id::DedupKey;

pub use batch::Groups;
pub use time::{StoreTime, TimeMark};

/// What a store is and can hold. Layers check their own bounds against it when they are built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name, as in logs and metrics.
    pub name: &'static str,
    /// What was answered as applied survives the process.
    pub durable: bool,
    /// Several processes can use one store at once.
    pub shared: bool,
    /// A handler's own writes can be made in the outcome's transaction.
    pub transactional: bool,
    /// The longest result that is kept, in bytes.
    pub max_value: usize,
}

impl Capabilities {
    /// A store that is neither durable, shared nor transactional.
    #[must_use]
    pub const fn new(name: &'static str, max_value: usize) -> Self {
        Self { name, durable: false, shared: false, transactional: false, max_value }
    }

    /// With `durable` set.
    #[must_use]
    pub const fn durable(mut self, durable: bool) -> Self {
        self.durable = durable;
        self
    }

    /// With `shared` set.
    #[must_use]
    pub const fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// With `transactional` set.
    #[must_use]
    pub const fn transactional(mut self, transactional: bool) -> Self {
        self.transactional = transactional;
        self
    }
}

/// What a store holds. Counted, not scanned, so that it can be asked often.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Records, expired ones that no purge has met included.
    pub keys: u64,
    /// Claims held now.
    pub claims: u64,
    /// Bytes on disk; `None` where there is no disk or it can't be told.
    pub bytes_on_disk: Option<u64>,
}

/// What one purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Records taken away.
    pub removed: u64,
    /// Whether more were due than the limit allowed.
    pub more: bool,
}

/// Remembers claims and outcomes.
///
/// # Contract
///
/// - A record MUST change as [`claim::state`](crate::claim::state) says, and look-up, decision and write
///   MUST be one critical section for a key \[`claim_is_atomic`\].
/// - An answer MUST NOT be given before what it says is as durable as the store gets; what a reader sees as
///   completed MUST be durable, and until then the key answers `InProgress` and can't be taken over
///   \[`answers_after_the_sync`, `completion_is_not_seen_before_its_sync`\].
/// - An error MUST mean "not known": the call may have been applied. The same call sent again with the same
///   token MUST give the answer of the first \[`same_claim_again`, `same_settle_again`\].
/// - A batch MUST be answered with one answer an item, in the items' order \[`batch_answers_in_order`\]. An
///   error of one item MUST NOT touch the others, except those of its group
///   \[`undecodable_record_fails_alone`\].
/// - Items of a batch that name the same [group](ClaimRequest::group) MUST be handled in their order, and
///   after the first that is not acquired (`InProgress`, `NotYet`, a dead letter's claim, an error; outcomes
///   and conflicts are decided and don't count) or not applied, the rest MUST be answered `Behind` and not
///   be looked at \[`group_stops_claims`, `group_stops_settles`\].
/// - The same key twice in a batch MUST be handled as two calls in that order \[`same_key_twice_in_a_batch`\].
/// - The outcomes of a group MUST become durable as a prefix: never the later without the earlier
///   \[`group_is_durable_as_a_prefix`\].
/// - Fences MUST grow for a key, across restarts, forgetting, expiry and forced re-runs \[`fence_grows`,
///   `fence_grows_after_a_restart`, `fence_grows_after_forget`, `fence_grows_after_expiry`,
///   `fence_grows_after_force`\].
/// - An expired record MUST count as absent from the moment on, whether or not it has been purged
///   \[`expired_is_absent_at_once`\], and a live claim MUST NOT expire \[`live_claim_never_expires`\].
/// - At a bound the store MUST refuse new keys with [`Full`](crate::StoreErrorKind::Full), naming the bound,
///   MUST go on serving the keys that it has, and MUST NOT evict a record that has not expired
///   \[`full_refuses_only_new_keys`\]; a full scope MUST refuse only its own new keys
///   \[`full_scope_refuses_only_its_own`\].
/// - No scope MUST ever see a record of another \[`scopes_are_apart`\].
///
/// # Cancel safety
///
/// Dropping the future of any method leaves it open whether the call was applied, as an error does; it MUST
/// NOT leave a key that can't be claimed once the lease has ended \[`dropped_call_leaves_no_stuck_key`\].
///
/// # Wrappers
///
/// A store that wraps another should implement every method, also those that get a default one day.
#[async_trait]
pub trait DedupStore: fmt::Debug + Send + Sync + 'static {
    /// What this store is and can hold.
    fn capabilities(&self) -> Capabilities;

    /// Claims keys: the atomic right to run their handlers.
    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>>;

    /// Changes held keys.
    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>>;

    /// The record of `key`, for people and tools; `None` when there is none or it has expired. What a
    /// worker may do is decided by a claim only.
    ///
    /// # Errors
    /// When the store can't be read, or this record can't be decoded.
    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError>;

    /// Takes the record of `key` away, so that the next delivery is a new operation. Refused on a live
    /// claim and on a dead letter that is still owed.
    ///
    /// # Errors
    /// When the store failed; whether the record is gone is then not known.
    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError>;

    /// Makes `key` ready to run again as a new generation, to be claimed within `retention`. Refused on a
    /// live claim.
    ///
    /// # Errors
    /// When the store failed; whether the record has changed is then not known.
    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError>;

    /// At most `limit` claims whose lease has ended without a settle and that nobody has taken over.
    ///
    /// # Errors
    /// When the store can't be read.
    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError>;

    /// Takes away at most `limit` expired records, without looking through the others.
    ///
    /// # Errors
    /// When the store failed; some of them may be gone.
    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError>;

    /// What the store holds.
    ///
    /// # Errors
    /// When the store can't be read.
    async fn stats(&self) -> Result<Stats, StoreError>;
}

/// Single calls, made of the batch calls that every store has.
#[async_trait]
pub trait DedupStoreExt: DedupStore {
    /// Claims one key.
    ///
    /// # Errors
    /// When the store failed; the claim may have been made. Send the same request again.
    async fn claim(&self, request: ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        only(self.claim_many(vec![request]).await)
    }

    /// Changes one held key.
    ///
    /// # Errors
    /// When the store failed; the change may have been made. Send the same request again.
    async fn settle(&self, claim: &Claim, verb: Verb) -> Result<SettleAnswer, StoreError> {
        only(self.settle_many(vec![SettleRequest { claim: claim.clone(), verb, group: None }]).await)
    }

    /// The handler is about to run.
    ///
    /// # Errors
    /// See [`DedupStoreExt::settle`], here and below.
    async fn started(&self, claim: &Claim) -> Result<SettleAnswer, StoreError> {
        self.settle(claim, Verb::Started).await
    }

    /// Goes on holding the key for another lease.
    async fn renew(&self, claim: &Claim) -> Result<SettleAnswer, StoreError> {
        self.settle(claim, Verb::Renew).await
    }

    /// The operation is done.
    async fn complete(&self, claim: &Claim, result: Option<Bytes>) -> Result<SettleAnswer, StoreError> {
        self.settle(claim, Verb::Complete { result }).await
    }

    /// The attempt failed.
    async fn fail(&self, claim: &Claim, failing: Failing) -> Result<SettleAnswer, StoreError> {
        self.settle(claim, Verb::Fail(failing)).await
    }

    /// The owed dead letter is published.
    async fn dead_lettered(&self, claim: &Claim) -> Result<SettleAnswer, StoreError> {
        self.settle(claim, Verb::DeadLettered).await
    }

    /// Gives the key back, uncharged.
    async fn release(&self, claim: &Claim, delay: Duration) -> Result<SettleAnswer, StoreError> {
        self.settle(claim, Verb::Release { delay }).await
    }
}

impl<S: DedupStore + ?Sized> DedupStoreExt for S {}

fn only<T>(answers: Vec<Result<T, StoreError>>) -> Result<T, StoreError> {
    answers.into_iter().next().unwrap_or_else(|| {
        let message = "the store answered a batch of one with no answer";
        Err(StoreError::new(crate::error::StoreErrorKind::Misuse, message))
    })
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: DedupStore + ?Sized> DedupStore for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        (**self).claim_many(requests).await
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        (**self).settle_many(requests).await
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        (**self).get(key).await
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        (**self).forget(key).await
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        (**self).force(key, retention).await
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        (**self).expired_claims(limit).await
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        (**self).purge_expired(limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        (**self).stats().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn generic<S: DedupStore>(_: &S) {}

    /// Both ways to use a store compile: as a trait object and as a type parameter.
    #[test]
    fn object_and_generic() {
        let erased: Arc<dyn DedupStore> = Arc::new(memory::MemoryStore::default());
        generic(&erased);
        generic(&memory::MemoryStore::default());
        assert_eq!(erased.capabilities().name, "memory");
    }
}
