//! The executable reference: every rule of the contract, nothing kept.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::time::StoreTime;
use super::{Capabilities, DedupStore, Groups, Purged, Stats};
use crate::claim::{
    ClaimAnswer, ClaimRequest, Fence, ForceAnswer, ForgetAnswer, Phase, Record, Refusal, SettleAnswer,
    SettleRequest, state,
};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{StoreError, StoreErrorKind};
use crate::id::{DedupKey, Scope};

/// Bounds of a store, by default a million keys, of which one scope may have them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The most records in the store.
    pub max_keys: usize,
    /// The most records in one scope.
    pub max_keys_per_scope: usize,
    /// The longest result that is kept, in bytes.
    pub max_value: usize,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_keys_per_scope: 1_000_000, max_value: 8 * 1024 }
    }
}

/// A store in this process's memory, for tests and for work that may repeat after a restart.
///
/// Cloning gives another handle of the same store.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    table: Arc<Mutex<Table>>,
    time: StoreTime,
    config: MemoryConfig,
}

#[derive(Debug, Default)]
struct Table {
    records: HashMap<DedupKey, Record>,
    /// The same keys by the time at which they expire.
    by_expiry: BTreeSet<(Timestamp, DedupKey)>,
    per_scope: HashMap<Scope, usize>,
    claims: usize,
    last_fence: Fence,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryConfig::default(), Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new(config: MemoryConfig, clock: Arc<dyn Clock>) -> Self {
        Self { table: Arc::default(), time: StoreTime::begin(clock), config }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics while it holds the lock, so there is no half-done change to be afraid of.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn next_fence(&mut self) -> Fence {
        self.last_fence = self.last_fence.next();
        self.last_fence
    }

    fn change(&mut self, key: &DedupKey, change: state::Change) {
        let old = match change {
            state::Change::Keep => return,
            state::Change::Put(record) => {
                self.last_fence = self.last_fence.max(record.fence);
                self.by_expiry.insert((record.expires_at, key.clone()));
                self.claims += usize::from(is_claimed(&record));
                let (new, old) = (record.expires_at, self.records.insert(key.clone(), *record));
                if old.is_none() {
                    *self.per_scope.entry(key.scope().clone()).or_default() += 1;
                }
                old.map(|old| (old.expires_at != new, old))
            }
            state::Change::Remove => {
                let old = self.records.remove(key);
                if let Some(count) = self.per_scope.get_mut(key.scope()).filter(|_| old.is_some()) {
                    *count -= 1;
                    if *count == 0 {
                        self.per_scope.remove(key.scope());
                    }
                }
                old.map(|old| (true, old))
            }
        };
        if let Some((moved, old)) = old {
            self.claims -= usize::from(is_claimed(&old));
            if moved {
                self.by_expiry.remove(&(old.expires_at, key.clone()));
            }
        }
    }

    fn claim(
        &mut self,
        request: &ClaimRequest,
        now: Timestamp,
        config: &MemoryConfig,
    ) -> Result<ClaimAnswer, StoreError> {
        if self.room_for(&request.key, config).is_err() {
            self.purge(now, MAKE_ROOM);
            self.room_for(&request.key, config)?;
        }
        let fence = self.next_fence();
        let (change, answer) = state::claim(self.records.get(&request.key), request, now, fence);
        self.change(&request.key, change);
        Ok(answer)
    }

    fn room_for(&self, key: &DedupKey, config: &MemoryConfig) -> Result<(), StoreError> {
        let full = |bound: &str, max: usize| {
            StoreError::new(StoreErrorKind::Full, format!("{bound} is reached: {max} keys"))
        };
        if self.records.contains_key(key) {
            return Ok(());
        }
        if self.per_scope.get(key.scope()).is_some_and(|count| *count >= config.max_keys_per_scope) {
            return Err(full("max_keys_per_scope", config.max_keys_per_scope).with_scope(key.scope()));
        }
        if self.records.len() >= config.max_keys {
            return Err(full("max_keys", config.max_keys).with_scope(key.scope()));
        }
        Ok(())
    }

    fn purge(&mut self, now: Timestamp, limit: usize) -> Purged {
        let due = self.by_expiry.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| key);
        let mut keys: Vec<DedupKey> = due.take(limit.saturating_add(1)).cloned().collect();
        let more = keys.len() > limit;
        keys.truncate(limit);
        for key in &keys {
            self.change(key, state::Change::Remove);
        }
        Purged { removed: keys.len() as u64, more }
    }
}

const fn is_claimed(record: &Record) -> bool {
    matches!(record.phase, Phase::InProgress { .. })
}

/// How many expired records a claim that meets a full store takes away before it is refused.
const MAKE_ROOM: usize = 64;

#[async_trait]
impl DedupStore for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("memory", self.config.max_value)
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        let now = self.time.now();
        let mut table = self.lock();
        let mut groups = Groups::default();
        let claim = |request: ClaimRequest| {
            if groups.is_behind(request.group) {
                return Ok(ClaimAnswer::Behind);
            }
            let answer = table.claim(&request, now, &self.config);
            groups.saw_claim(request.group, &answer);
            answer
        };
        requests.into_iter().map(claim).collect()
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        let now = self.time.now();
        let mut table = self.lock();
        let mut groups = Groups::default();
        let settle = |request: SettleRequest| {
            if groups.is_behind(request.group) {
                return Ok(SettleAnswer::Refused(Refusal::Behind));
            }
            let (claim, verb) = (&request.claim, &request.verb);
            let record = table.records.get(&claim.key);
            let (change, answer) = state::settle(record, claim, verb, now, self.config.max_value);
            table.change(&claim.key, change);
            groups.saw_settle(request.group, &Ok(answer.clone()));
            Ok(answer)
        };
        requests.into_iter().map(settle).collect()
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        let now = self.time.now();
        Ok(self.lock().records.get(key).filter(|record| !record.is_expired(now)).cloned())
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        let now = self.time.now();
        let mut table = self.lock();
        let (change, answer) = state::forget(table.records.get(key), now);
        table.change(key, change);
        Ok(answer)
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        let now = self.time.now();
        let mut table = self.lock();
        let fence = table.next_fence();
        let (change, answer) = state::force(table.records.get(key), now, fence, retention);
        table.change(key, change);
        drop(table);
        if let ForceAnswer::Forced(generation) = answer {
            tracing::warn!(%key, %generation, "forced to run again");
        }
        Ok(answer)
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        let now = self.time.now();
        let table = self.lock();
        let lapsed = table.records.iter().filter(|(_, record)| record.is_lapsed(now));
        Ok(lapsed.take(limit).map(|(key, record)| (key.clone(), record.clone())).collect())
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        let now = self.time.now();
        Ok(self.lock().purge(now, limit))
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let table = self.lock();
        Ok(Stats { keys: table.records.len() as u64, claims: table.claims as u64, bytes_on_disk: None })
    }
}
