//! Stores that take a handler's own writes into the outcome's transaction: the inbox.

use async_trait::async_trait;
use bytes::Bytes;

use super::DedupStore;
use crate::claim::{Claim, SettleAnswer};
use crate::error::StoreError;

/// Answers a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxAnswer {
    /// The outcome was applied together with the handler's writes, or refused together with them.
    Settled(SettleAnswer),
    /// Something that the handler read has changed meanwhile. Nothing was written; run it again, uncharged.
    Conflict,
}

/// A store in which the effect and the outcome are one transaction, so that inside it the effect happens
/// exactly once.
#[async_trait]
pub trait TransactionalStore: DedupStore {
    /// The handler's side of the transaction. Dropped without a commit it leaves no trace.
    type Tx: Send + 'static;

    /// Begins the transaction in which the handler of `claim` runs.
    ///
    /// # Errors
    /// When the store failed. Nothing was written.
    async fn begin(&self, claim: &Claim) -> Result<Self::Tx, StoreError>;

    /// Makes the handler's writes and the outcome of `claim` durable: both, or neither.
    ///
    /// # Errors
    /// When the store failed; the transaction may have been committed. Never send a `complete` instead: it
    /// could record an effect that did not happen. [Read](DedupStore::get) the record: if this claim's token
    /// [ended](crate::claim::Record::ended) it by completing, the effect is there too.
    ///
    /// # Cancel safety
    /// As after an error.
    async fn commit(
        &self,
        tx: Self::Tx,
        claim: &Claim,
        result: Option<Bytes>,
    ) -> Result<TxAnswer, StoreError>;

    /// Makes the handler's writes durable without an outcome, whatever its claim has become. Only for modes
    /// that obey no answer of the store: see [`Mode`](crate::Mode).
    ///
    /// `false` when something that the handler read has changed meanwhile: nothing was written; run it again.
    ///
    /// # Errors
    /// When the store failed; the writes may have been committed.
    ///
    /// # Cancel safety
    /// As after an error.
    async fn commit_alone(&self, tx: Self::Tx) -> Result<bool, StoreError>;
}
