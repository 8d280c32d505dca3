//! Keeps claims alive while their handlers run.
//!
//! One task renews all claims of an engine, many in one call. A holder counts its lease from *before* it
//! sent the claim or the renewal, so that it never believes in a lease longer than the store does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::attempt::Company;
use crate::claim::{Claim, Refusal, SettleAnswer, SettleRequest, Token, Verb};
use crate::clock::Clock;
use crate::delivery::Position;
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
    position: Option<Position>,
    counted_from: Duration,
    lost: CancellationToken,
}

impl Held {
    fn lose(&self, why: &str) {
        let position = self.position.as_ref().map(tracing::field::display);
        let (key, attempt) = (&self.claim.key, self.claim.attempt());
        tracing::warn!(%key, position, attempt, "the lease was lost, {why}");
        let scope = key.scope().to_string();
        metrics::counter!(names::LEASE_LOST, "scope" => scope).increment(1);
        self.lost.cancel();
    }
}

/// A claim that is renewed until this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    leases: Leases,
    pub(crate) claim: Claim,
    /// Of the delivery that it was claimed for, if there was one: for logs.
    pub(crate) position: Option<Position>,
    /// Cancelled when the claim can't be relied on any more.
    pub(crate) lost: CancellationToken,
    alone: Mutex<Option<Company>>,
}

impl Lease {
    /// Keeps its holder alone in the process for as long as the lease is kept.
    pub(crate) fn stay_alone(&self, alone: Company) {
        *self.alone.lock().unwrap_or_else(PoisonError::into_inner) = Some(alone);
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
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
    pub(crate) fn keep(&self, claim: Claim, position: Option<Position>, counted_from: Duration) -> Lease {
        let lost = CancellationToken::new();
        let held =
            Held { claim: claim.clone(), position: position.clone(), counted_from, lost: lost.clone() };
        let start_keeper = {
            let mut table = self.lock();
            table.by_token.insert(claim.token, held);
            let place = (claim.token, CancellationToken::new());
            if let Some((_, earlier)) = table.by_key.insert(claim.key.clone(), place) {
                // Who waited for an earlier holder in this process asks again, and then waits for this one.
                earlier.cancel();
            }
            !std::mem::replace(&mut table.keeper_runs, true)
        };
        if start_keeper {
            tokio::spawn(keep_all(Keeper { leases: self.clone(), retired: false }));
        }
        Lease { leases: self.clone(), claim, position, lost, alone: Mutex::default() }
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

/// The right to be the one task that renews. Gone with its runtime or by a panic, the next claim starts
/// another.
struct Keeper {
    leases: Leases,
    retired: bool,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.retired {
            self.leases.lock().keeper_runs = false;
        }
    }
}

/// Renews what is due until nothing is held any more.
async fn keep_all(mut keeper: Keeper) {
    let leases = &keeper.leases.clone();
    loop {
        leases.0.clock.sleep(leases.tick()).await;
        let due = {
            let mut table = leases.lock();
            if table.by_token.is_empty() {
                // Under the same lock as the look, so that a claim made now starts the next keeper.
                table.keeper_runs = false;
                keeper.retired = true;
                return;
            }
            let now = leases.0.clock.monotonic();
            let third = leases.0.lease / 3;
            let is_due = |held: &&Held| {
                !held.lost.is_cancelled() && now.saturating_sub(held.counted_from) + leases.tick() >= third
            };
            table.by_token.values().filter(is_due).map(|held| held.claim.clone()).collect::<Vec<_>>()
        };
        if !due.is_empty() {
            renew(leases, due).await;
        }
    }
}

async fn renew(leases: &Leases, due: Vec<Claim>) {
    let sent_at = leases.0.clock.monotonic();
    let request = |claim: &Claim| SettleRequest { claim: claim.clone(), verb: Verb::Renew, group: None };
    let mut call = leases.0.store.settle_many(due.iter().map(request).collect());
    // A call that hangs must not keep the holders from noticing that their time is over.
    let answers = loop {
        tokio::select! {
            biased;
            answers = &mut call => break answers,
            () = leases.0.clock.sleep(leases.tick()) => {
                lose_what_is_over(leases);
                if leases.0.clock.monotonic().saturating_sub(sent_at) >= leases.0.lease / 3 {
                    break Vec::new();
                }
            }
        }
    };
    let mut table = leases.lock();
    for (claim, answer) in due.iter().zip(answers) {
        let Some(held) = table.by_token.get_mut(&claim.token) else { continue };
        match answer {
            Ok(SettleAnswer::Applied(_)) => held.counted_from = sent_at,
            // Its holder has just ended it, and waits for the answer: that is no loss.
            Ok(SettleAnswer::Refused(Refusal::AlreadyEnded)) | Err(_) => {}
            Ok(SettleAnswer::Refused(refusal)) => {
                let scope = claim.key.scope().to_string();
                metrics::counter!(names::REFUSED, "scope" => scope, "refusal" => refusal.to_string())
                    .increment(1);
                held.lose(&refusal.to_string());
            }
        }
    }
    drop(table);
    lose_what_is_over(leases);
}

/// Cancels the holders of leases that were not renewed in time.
fn lose_what_is_over(leases: &Leases) {
    let now = leases.0.clock.monotonic();
    for held in leases.lock().by_token.values() {
        let left = leases.0.lease.saturating_sub(now.saturating_sub(held.counted_from));
        if left <= leases.margin() && !held.lost.is_cancelled() {
            held.lose("it could not be renewed");
        }
    }
}
