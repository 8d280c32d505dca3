//! A store that fails on demand.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use einmal::claim::{
    ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer, Record, SettleAnswer, SettleRequest,
};
use einmal::{Capabilities, DedupKey, DedupStore, Purged, Stats, StoreError, StoreErrorKind};

pub use plan::{Fault, Faults, Method};

/// Wraps a store, and lets its calls fail as its [`Faults`] say.
///
/// ```
/// use einmal::MemoryStore;
/// use einmal_testkit::{Fault, FaultyStore, Method};
///
/// let store = FaultyStore::new(MemoryStore::default());
/// let faults = store.faults();
/// faults.at(Method::SettleMany, 2, Fault::ErrorAfter); // the second settle from here on
/// faults.down(true); // and until it is up again, everything
/// ```
#[derive(Clone, Debug)]
pub struct FaultyStore<S> {
    inner: S,
    faults: Faults,
}

impl<S: DedupStore> FaultyStore<S> {
    /// A store that behaves as `inner` until told otherwise.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, faults: Faults::default() }
    }

    /// The store below, to look at what really happened.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Says when and how calls fail.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    async fn single<T: Send>(
        &self,
        method: Method,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let Some(fault) = self.faults.next(method) else { return call.await };
        match fault {
            Fault::ErrorBefore => Err(injected(method, fault)),
            Fault::ErrorDuring | Fault::ErrorAfter => {
                // What it answered is what gets lost.
                let _ = call.await;
                Err(injected(method, fault))
            }
            Fault::HangBefore => {
                self.faults.hang().await;
                call.await
            }
            Fault::ReplyLost => {
                let answer = call.await;
                self.faults.hang().await;
                answer
            }
        }
    }

    async fn batch<Q, A, F>(
        &self,
        method: Method,
        mut items: Vec<Q>,
        call: impl FnOnce(Vec<Q>) -> F + Send,
    ) -> Vec<Result<A, StoreError>>
    where
        Q: Send,
        A: Send,
        F: Future<Output = Vec<Result<A, StoreError>>> + Send,
    {
        let Some(fault) = self.faults.next(method) else { return call(items).await };
        let asked = items.len();
        let errors = || (0..asked).map(|_| Err(injected(method, fault))).collect();
        match fault {
            Fault::ErrorBefore => errors(),
            Fault::ErrorDuring => {
                items.truncate(asked.div_ceil(2));
                let _ = call(items).await;
                errors()
            }
            Fault::ErrorAfter => {
                let _ = call(items).await;
                errors()
            }
            Fault::HangBefore => {
                self.faults.hang().await;
                call(items).await
            }
            Fault::ReplyLost => {
                let answers = call(items).await;
                self.faults.hang().await;
                answers
            }
        }
    }
}

fn injected(method: Method, fault: Fault) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("injected into {method:?}: {fault:?}"))
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: DedupStore> DedupStore for FaultyStore<S> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        self.batch(Method::ClaimMany, requests, |requests| self.inner.claim_many(requests)).await
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        self.batch(Method::SettleMany, requests, |requests| self.inner.settle_many(requests)).await
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        self.single(Method::Get, self.inner.get(key)).await
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        self.single(Method::Forget, self.inner.forget(key)).await
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        self.single(Method::Force, self.inner.force(key, retention)).await
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        self.single(Method::ExpiredClaims, self.inner.expired_claims(limit)).await
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        self.single(Method::PurgeExpired, self.inner.purge_expired(limit)).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.single(Method::Stats, self.inner.stats()).await
    }
}

/// A faulty store can be shared like any other.
impl<S: DedupStore> From<FaultyStore<S>> for Arc<dyn DedupStore> {
    fn from(store: FaultyStore<S>) -> Self {
        Arc::new(store)
    }
}
