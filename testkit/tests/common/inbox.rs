//! A store with a table of the user's.

#![allow(clippy::panic, reason = "a handler that panics is one to be tested")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use einmal::claim::{
    Claim, ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer, Record, SettleAnswer, SettleRequest,
};
use einmal::{
    Capabilities, Context, DedupKey, DedupStore, DedupStoreExt, Failure, Purged, Reply, Stats, StoreError,
    StoreErrorKind, TransactionalStore, TxAnswer, TxHandler,
};
use einmal_testkit::ManualClock;

use super::{Doors, Journal, TestStore, store};

/// How a commit goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Conflict,
    ErrorBefore,
    ErrorAfter,
    HangBefore,
    HangAfter,
}

/// A store with a table of the user's, in memory.
#[derive(Clone, Debug)]
pub struct Inbox {
    pub dedup: TestStore,
    pub table: Arc<Mutex<BTreeMap<String, u32>>>,
    pub plan: Arc<Mutex<VecDeque<Commit>>>,
    pub begins: Arc<Mutex<VecDeque<StoreErrorKind>>>,
}

impl Inbox {
    pub fn new(clock: &ManualClock) -> Self {
        Self { dedup: store(clock), table: Arc::default(), plan: Arc::default(), begins: Arc::default() }
    }

    pub fn plan(&self, commits: &[Commit]) {
        self.plan.lock().unwrap().extend(commits);
    }

    pub fn rows(&self) -> BTreeMap<String, u32> {
        self.table.lock().unwrap().clone()
    }
}

fn down(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "injected")
}

#[async_trait]
impl TransactionalStore for Inbox {
    type Tx = Vec<String>;

    async fn begin(&self, _: &Claim) -> Result<Self::Tx, StoreError> {
        match self.begins.lock().unwrap().pop_front() {
            Some(kind) => Err(down(kind)),
            None => Ok(Vec::new()),
        }
    }

    async fn commit(
        &self,
        writes: Self::Tx,
        claim: &Claim,
        result: Option<Bytes>,
    ) -> Result<TxAnswer, StoreError> {
        let planned = self.plan.lock().unwrap().pop_front();
        match planned {
            Some(Commit::Conflict) => return Ok(TxAnswer::Conflict),
            Some(Commit::ErrorBefore) => return Err(down(StoreErrorKind::Unavailable)),
            Some(Commit::HangBefore) => std::future::pending().await,
            _ => {}
        }
        let answer = self.dedup.inner().complete(claim, result).await?;
        if matches!(answer, SettleAnswer::Applied(_)) {
            let mut table = self.table.lock().unwrap();
            writes.into_iter().for_each(|row| *table.entry(row).or_default() += 1);
        }
        match planned {
            Some(Commit::ErrorAfter) => Err(down(StoreErrorKind::Unavailable)),
            Some(Commit::HangAfter) => std::future::pending().await,
            _ => Ok(TxAnswer::Settled(answer)),
        }
    }

    async fn commit_alone(&self, writes: Self::Tx) -> Result<bool, StoreError> {
        let planned = self.plan.lock().unwrap().pop_front();
        match planned {
            Some(Commit::Conflict) => return Ok(false),
            Some(Commit::ErrorBefore) => return Err(down(StoreErrorKind::Unavailable)),
            Some(Commit::HangBefore) => std::future::pending().await,
            _ => {}
        }
        let mut table = self.table.lock().unwrap();
        writes.into_iter().for_each(|row| *table.entry(row).or_default() += 1);
        Ok(true)
    }
}

#[async_trait]
impl DedupStore for Inbox {
    fn capabilities(&self) -> Capabilities {
        self.dedup.capabilities().transactional(true)
    }
    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        self.dedup.claim_many(requests).await
    }
    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        self.dedup.settle_many(requests).await
    }
    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        self.dedup.get(key).await
    }
    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        self.dedup.forget(key).await
    }
    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        self.dedup.force(key, retention).await
    }
    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        self.dedup.expired_claims(limit).await
    }
    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        self.dedup.purge_expired(limit).await
    }
    async fn stats(&self) -> Result<Stats, StoreError> {
        self.dedup.stats().await
    }
}

/// Writes its id as a row, and then does what the id says.
pub struct Writes {
    pub journal: Journal,
    pub doors: Doors,
}

#[async_trait]
impl TxHandler<Inbox> for Writes {
    async fn handle(&self, context: Context, tx: &mut Vec<String>) -> Result<Reply, Failure> {
        let id = context.key().id().as_str().to_owned();
        self.journal.note(format!("run {id}"));
        tx.push(id.clone());
        self.doors.pass(&id).await;
        if id.starts_with("retry") && context.attempt() == 1 {
            return Err(Failure::retry("first"));
        }
        if id.starts_with("panic") && context.attempt() == 1 {
            panic!("the handler's fault");
        }
        Ok(Reply::bytes(id))
    }
}
