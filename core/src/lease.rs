//! Keeps claims alive while their handlers run.
//!
//! One task renews all claims of an engine, many in one call. A holder counts its lease from *before* it
//! sent the claim or the renewal, so that it never believes in a lease longer than the store does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::claim::{Claim, SettleAnswer, SettleRequest, Token, Verb};
use crate::clock::{Clock, timeout};
use crate::id::DedupKey;
use crate::names;
use crate::store::DedupStore;

/// The claims that this process holds. Cloning gives another handle of the same.
#[derive(Clone, Debug)]
pub(crate) struct Leases(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn DedupStore>,
    clock: Arc<dyn Clock>,
    lease: Duration,
    held: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_token: HashMap<Token, Held>,
    /// Cancelled when the key's holder in this process lets go of it: what its copies wait for.
    by_key: HashMap<DedupKey, (Token, CancellationToken)>,
    keeper_runs: bool,
}

#[derive(Debug)]
struct Held {
    claim: Claim,
    counted_from: Duration,
    lost: CancellationToken,
}

/// A claim that is renewed until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Leases,
    pub(crate) claim: Claim,
    /// Cancelled when the claim can't be relied on any more.
    pub(crate) lost: CancellationToken,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut table = self.leases.lock();
        table.by_token.remove(&self.claim.token);
        let released = table.by_key.remove(&self.claim.key);
        match released {
            Some((token, released)) if token == self.claim.token => released.cancel(),
            // A later holder in this process: it keeps its place.
            Some(other) => {
                table.by_key.insert(self.claim.key.clone(), other);
            }
            None => {}
        }
    }
}

impl Leases {
    pub(crate) fn new(store: Arc<dyn DedupStore>, clock: Arc<dyn Clock>, lease: Duration) -> Self {
        Self(Arc::new(Shared { store, clock, lease, held: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `claim`, which was asked for at `counted_from` (monotonic).
    pub(crate) fn keep(&self, claim: Claim, counted_from: Duration) -> Lease {
        let lost = CancellationToken::new();
        let held = Held { claim: claim.clone(), counted_from, lost: lost.clone() };
        let start_keeper = {
            let mut table = self.lock();
            table.by_token.insert(claim.token, held);
            table.by_key.insert(claim.key.clone(), (claim.token, CancellationToken::new()));
            !std::mem::replace(&mut table.keeper_runs, true)
        };
        if start_keeper {
            tokio::spawn(keep_all(self.clone()));
        }
        Lease { leases: self.clone(), claim, lost }
    }

    /// Ends when this process lets go of `key`; `None` when it does not hold it.
    pub(crate) fn let_go(&self, key: &DedupKey) -> Option<CancellationToken> {
        self.lock().by_key.get(key).map(|(_, released)| released.clone())
    }

    /// Renewals are due after a third of the lease; this often is looked whether one is.
    fn tick(&self) -> Duration {
        self.0.lease / 12
    }

    /// What is left of the lease when a holder must stop relying on it.
    fn margin(&self) -> Duration {
        self.0.lease / 10
    }
}

/// Renews what is due until nothing is held any more.
async fn keep_all(leases: Leases) {
    loop {
        leases.0.clock.sleep(leases.tick()).await;
        let due = {
            let mut table = leases.lock();
            if table.by_token.is_empty() {
                table.keeper_runs = false;
                return;
            }
            let now = leases.0.clock.monotonic();
            let third = leases.0.lease / 3;
            let is_due = |held: &&Held| now.saturating_sub(held.counted_from) + leases.tick() >= third;
            table.by_token.values().filter(is_due).map(|held| held.claim.clone()).collect::<Vec<_>>()
        };
        if !due.is_empty() {
            renew(&leases, due).await;
        }
    }
}

async fn renew(leases: &Leases, due: Vec<Claim>) {
    let sent_at = leases.0.clock.monotonic();
    let request = |claim: &Claim| SettleRequest { claim: claim.clone(), verb: Verb::Renew, group: None };
    let call = leases.0.store.settle_many(due.iter().map(request).collect());
    // A call that hangs must not keep the holders from noticing that their time is over.
    let answers = timeout(&*leases.0.clock, leases.tick(), call).await.unwrap_or_default();
    let now = leases.0.clock.monotonic();
    let mut table = leases.lock();
    for (at, claim) in due.iter().enumerate() {
        let Some(held) = table.by_token.get_mut(&claim.token) else { continue };
        match answers.get(at) {
            Some(Ok(SettleAnswer::Applied(_))) => held.counted_from = sent_at,
            Some(Ok(SettleAnswer::Refused(refusal))) => {
                tracing::warn!(key = %claim.key, %refusal, "the lease was lost; the handler is cancelled");
                metrics::counter!(names::LEASE_LOST).increment(1);
                held.lost.cancel();
            }
            Some(Err(_)) | None => {
                let left = leases.0.lease.saturating_sub(now.saturating_sub(held.counted_from));
                if left <= leases.margin() && !held.lost.is_cancelled() {
                    tracing::warn!(key = %claim.key, "the lease could not be renewed; the handler is cancelled");
                    metrics::counter!(names::LEASE_LOST).increment(1);
                    held.lost.cancel();
                }
            }
        }
    }
}
