//! A store that notes which outcomes are stored, and in which order.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use einmal::claim::{
    ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer, Record, Refusal, SettleAnswer, SettleRequest, Verb,
};
use einmal::{Capabilities, DedupKey, DedupStore, Purged, Stats, StoreError, StoreErrorKind};
use tokio::sync::watch;

/// How a settle of one key goes wrong, once.
#[derive(Clone, Copy, Debug)]
pub enum Spoil {
    /// An error that is of no use to send again; nothing was applied.
    Unknown,
    /// The same, but it was applied.
    UnknownApplied,
    /// Refused.
    Refused(Refusal),
}

#[derive(Clone, Debug)]
pub struct Watching<S> {
    pub inner: S,
    outcomes: Arc<Mutex<Vec<String>>>,
    spoilt: Arc<Mutex<Option<(String, Spoil)>>>,
    unreadable: Arc<Mutex<Option<String>>>,
    /// Completions wait while this holds.
    stalled: watch::Sender<bool>,
}

impl<S: DedupStore> Watching<S> {
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            outcomes: Arc::default(),
            spoilt: Arc::default(),
            unreadable: Arc::default(),
            stalled: watch::Sender::new(false),
        }
    }

    /// While stalled, completions are on their way and do not arrive.
    pub fn stall(&self, stalled: bool) {
        self.stalled.send_replace(stalled);
    }

    /// The next completion of `id` goes wrong, and with it what is behind it in its batch.
    pub fn spoil(&self, id: &str, how: Spoil) {
        *self.spoilt.lock().unwrap() = Some((id.to_owned(), how));
    }

    /// The record of `id` can't be read.
    pub fn unreadable(&self, id: &str) {
        *self.unreadable.lock().unwrap() = Some(id.to_owned());
    }

    fn take_spoilt(&self, requests: &[SettleRequest]) -> Option<(usize, Spoil)> {
        let mut spoilt = self.spoilt.lock().unwrap();
        let (id, how) = spoilt.clone()?;
        let is_it = |request: &SettleRequest| {
            matches!(request.verb, Verb::Complete { .. }) && request.claim.key.id().as_str() == id
        };
        let at = requests.iter().position(is_it)?;
        *spoilt = None;
        Some((at, how))
    }

    /// The ids of the outcomes that were stored (completed, or dead-lettered), in their order.
    pub fn outcomes(&self) -> Vec<String> {
        self.outcomes.lock().unwrap().clone()
    }

    async fn is_done(&self, key: &DedupKey) -> bool {
        let record = self.inner.get(key).await.unwrap();
        record.is_some_and(|record| matches!(record.phase_name(), "completed" | "failed"))
    }
}

#[async_trait]
impl<S: DedupStore> DedupStore for Watching<S> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        let unreadable = self.unreadable.lock().unwrap().clone();
        let keys: Vec<_> = requests.iter().map(|request| request.key.clone()).collect();
        let answers = self.inner.claim_many(requests).await;
        let answer = |(key, answer): (DedupKey, _)| match unreadable.as_deref() == Some(key.id().as_str()) {
            true => Err(StoreError::new(StoreErrorKind::Undecodable, "it can't be decoded").with_key(&key)),
            false => answer,
        };
        keys.into_iter().zip(answers).map(answer).collect()
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        if requests.iter().any(|request| matches!(request.verb, Verb::Complete { .. })) {
            let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await.unwrap();
        }
        let mut open = Vec::new();
        for request in &requests {
            if !self.is_done(&request.claim.key).await {
                open.push(request.claim.key.clone());
            }
        }
        let answers = match self.take_spoilt(&requests) {
            None => self.inner.settle_many(requests).await,
            Some((at, how)) => {
                let applied = if matches!(how, Spoil::UnknownApplied) { at + 1 } else { at };
                let behind = requests.iter().skip(at + 1).cloned().collect::<Vec<_>>();
                let mut answers = self.inner.settle_many(requests.into_iter().take(applied).collect()).await;
                answers.truncate(at);
                answers.push(match how {
                    Spoil::Unknown | Spoil::UnknownApplied => {
                        Err(StoreError::new(StoreErrorKind::Misuse, "spoilt"))
                    }
                    Spoil::Refused(refusal) => Ok(SettleAnswer::Refused(refusal)),
                });
                if behind.iter().any(|request| request.group.is_none()) {
                    answers.extend(self.inner.settle_many(behind).await);
                } else {
                    answers.extend(behind.iter().map(|_| Ok(SettleAnswer::Refused(Refusal::Behind))));
                }
                answers
            }
        };
        for key in open {
            if self.is_done(&key).await {
                self.outcomes.lock().unwrap().push(key.id().as_str().to_owned());
            }
        }
        answers
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        self.inner.get(key).await
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        self.inner.forget(key).await
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        self.inner.force(key, retention).await
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        self.inner.expired_claims(limit).await
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        self.inner.purge_expired(limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.inner.stats().await
    }
}
