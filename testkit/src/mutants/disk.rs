//! A small store on a pretended disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use einmal::claim::{
    ClaimAnswer, ClaimRequest, Fence, ForceAnswer, ForgetAnswer, Phase, Record, Refusal, SettleAnswer,
    SettleRequest, state,
};
use einmal::store::{Groups, StoreTime};
use einmal::{
    Capabilities, Clock, DedupKey, DedupStore, Purged, Stats, StoreError, StoreErrorKind, Timestamp,
};
use tokio::task::yield_now;

use super::Breach;
use super::gate::Gate;
use crate::conformance::Bounds;

const MAX_VALUE: usize = 1024;

/// A small store on a pretended disk, durable as far as a pretended crash can tell. It keeps its contract,
/// or breaks one rule of it.
///
/// Claims are on the disk at once; settles first wait for a sync, which can be held back.
#[derive(Clone, Debug)]
pub struct Disk {
    platter: Arc<Mutex<Platter>>,
    time: StoreTime,
    bounds: Bounds,
    breach: Breach,
    /// One settle after the other, so that each decides on what the one before has written.
    settling: Arc<tokio::sync::Mutex<()>>,
    gate: Gate,
}

#[derive(Debug, Default)]
struct Platter {
    table: BTreeMap<DedupKey, Record>,
    /// What a crash goes back to.
    synced: BTreeMap<DedupKey, Record>,
    /// Keys whose new records wait for their sync.
    pending: BTreeSet<DedupKey>,
    damaged: BTreeSet<DedupKey>,
    /// Survives everything, as an epoch that is synced at open would see to.
    last_fence: u64,
}

/// A decided settle on its way to the disk.
type Write = (DedupKey, Record);

impl Disk {
    /// An empty store that breaks this rule.
    #[must_use]
    pub fn new(breach: Breach, bounds: Bounds, clock: Arc<dyn Clock>) -> Self {
        let (time, platter) = (StoreTime::begin(clock), Arc::default());
        Self { platter, time, bounds, breach, settling: Arc::default(), gate: Gate::default() }
    }

    /// Kills the process and opens the store again: what was not synced is gone, and so is every owner.
    #[must_use]
    pub fn crash(self) -> Self {
        let mut platter = self.lock();
        platter.table = platter.synced.clone();
        drop(platter);
        self.reopen()
    }

    /// Closes the store in good order and opens it again.
    #[must_use]
    pub fn reopen(mut self) -> Self {
        let now = self.now();
        let mut platter = self.lock();
        platter.pending.clear();
        if self.breach == Breach::ForgetsClaimsAtARestart {
            platter.table.retain(|_, record| !matches!(record.phase, Phase::InProgress { .. }));
        }
        for record in platter.table.values_mut() {
            // Leases live in memory only: who held one is gone.
            if let Phase::InProgress { lease_until, .. } = &mut record.phase {
                *lease_until = (*lease_until).min(now);
            }
        }
        platter.synced = platter.table.clone();
        drop(platter);
        self.gate = Gate::default();
        self.settling = Arc::default();
        self
    }

    /// Holds back the syncs of settles from here on, or lets them go.
    pub fn hold_sync(&self, hold: bool) {
        self.gate.close(hold);
    }

    /// Waits until a settle waits for a sync that is held back.
    pub async fn wait_held(&self) {
        self.gate.wait_held().await;
    }

    /// Makes the record of `key` unreadable.
    pub fn damage(&self, key: &DedupKey) {
        let slot = self.breach.slot(key);
        self.lock().damaged.insert(slot);
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        match self.breach {
            Breach::TrustsTheWallClock => self.time.clock().wall(),
            _ => self.time.now(),
        }
    }

    fn seen(&self, platter: &Platter, slot: &DedupKey, now: Timestamp) -> Result<Option<Record>, StoreError> {
        if platter.damaged.contains(slot) {
            let error = StoreError::new(StoreErrorKind::Undecodable, "the record can't be read");
            return Err(error.with_key(slot));
        }
        Ok(platter.table.get(slot).cloned().map(|record| self.breach.seen(record, now)))
    }

    fn put(&self, platter: &mut Platter, slot: &DedupKey, record: Record) {
        if self.breach != Breach::AnswersBeforeTheSync {
            platter.synced.insert(slot.clone(), record.clone());
        }
        platter.table.insert(slot.clone(), record);
    }

    fn change(&self, platter: &mut Platter, slot: &DedupKey, change: state::Change) {
        match change {
            state::Change::Keep => {}
            state::Change::Put(record) => self.put(platter, slot, *record),
            state::Change::Remove => {
                platter.table.remove(slot);
                if self.breach != Breach::AnswersBeforeTheSync {
                    platter.synced.remove(slot);
                }
            }
        }
    }

    fn next_fence(&self, platter: &mut Platter, record: Option<&Record>) -> Fence {
        if self.breach == Breach::RestartsItsFences {
            return Fence::new(record.map_or(1, |record| record.fence.get().saturating_add(1)));
        }
        platter.last_fence += 1;
        Fence::new(platter.last_fence)
    }

    fn make_room(&self, platter: &mut Platter, slot: &DedupKey) -> Result<(), StoreError> {
        if platter.table.contains_key(slot) {
            return Ok(());
        }
        let full = |bound: &str, max: usize| {
            Err(StoreError::new(StoreErrorKind::Full, format!("{bound} is reached: {max} keys")))
        };
        let mut per_scope = BTreeMap::<_, usize>::new();
        for key in platter.table.keys() {
            *per_scope.entry(key.scope()).or_default() += 1;
        }
        let in_scope = match self.breach {
            Breach::LetsAScopeShutOutAll => per_scope.values().max().copied(),
            _ => per_scope.get(slot.scope()).copied(),
        };
        if in_scope.unwrap_or_default() >= self.bounds.max_keys_per_scope {
            return full("max_keys_per_scope", self.bounds.max_keys_per_scope);
        }
        if platter.table.len() < self.bounds.max_keys {
            return Ok(());
        }
        match platter.table.keys().next().cloned() {
            Some(first) if self.breach == Breach::EvictsTheLiving => {
                self.change(platter, &first, state::Change::Remove);
                Ok(())
            }
            _ => full("max_keys", self.bounds.max_keys),
        }
    }

    async fn claim(&self, asked: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        let (now, slot) = (self.now(), self.breach.slot(&asked.key));
        let request = self.breach.request(asked.clone());
        let mut early = None;
        if self.breach == Breach::ClaimsInTwoSteps {
            early = Some(self.seen(&self.lock(), &slot, now)?);
            // Long enough for every other task to look, too.
            for _ in 0..64 {
                yield_now().await;
            }
        }
        let mut guard = self.lock();
        let platter = &mut *guard;
        let seen = match early {
            Some(seen) => seen,
            None => self.seen(platter, &slot, now)?,
        };
        let held_by = match seen.as_ref().map(|record| &record.phase) {
            Some(Phase::InProgress { token, .. }) => Some(*token),
            _ => None,
        };
        let forgotten = self.breach == Breach::ForgetsItsClaims && held_by == Some(request.token);
        if platter.pending.contains(&slot) || forgotten {
            return Ok(ClaimAnswer::InProgress { retry_after: request.rules.lease });
        }
        self.make_room(platter, &slot)?;
        let fence = self.next_fence(platter, seen.as_ref());
        match state::claim(seen.as_ref(), &request, now, fence) {
            (state::Change::Put(record), ClaimAnswer::Acquired(mut claim)) => {
                let record = self.breach.acquired(*record, &mut claim, now);
                self.put(platter, &slot, record);
                claim.rules = asked.rules;
                Ok(ClaimAnswer::Acquired(claim))
            }
            (_, answer) => Ok(answer),
        }
    }

    fn settle(
        &self,
        platter: &Platter,
        writes: &[Write],
        request: &SettleRequest,
    ) -> Result<(Option<Write>, SettleAnswer), StoreError> {
        let (now, slot) = (self.now(), self.breach.slot(&request.claim.key));
        let earlier = writes.iter().rev().find(|(written, _)| *written == slot);
        let old = match earlier {
            Some((_, record)) => Some(self.breach.seen(record.clone(), now)),
            None => self.seen(platter, &slot, now)?,
        };
        let claim = self.breach.owner(request.claim.clone(), old.as_ref());
        let old = old.map(|record| self.breach.met(record, &claim, &request.verb, now));
        let max = if self.breach == Breach::KeepsAnyResult { usize::MAX } else { MAX_VALUE };
        let (change, answer) = state::settle(old.as_ref(), &claim, &request.verb, now, max);
        let write = match change {
            state::Change::Put(new) => {
                Some((slot, self.breach.written(old.as_ref(), *new, &claim, &request.verb, now)))
            }
            state::Change::Keep | state::Change::Remove => None,
        };
        Ok((write, answer))
    }
}

/// Takes the marks of pending keys away, also when the call is dropped.
struct Pending<'a>(&'a Disk, Vec<DedupKey>);

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut platter = self.0.lock();
        for key in &self.1 {
            platter.pending.remove(key);
        }
    }
}

#[async_trait]
impl DedupStore for Disk {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("disk", MAX_VALUE).durable(true)
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        let mut groups = Groups::default();
        let mut answers = Vec::new();
        for request in requests {
            if groups.is_behind(request.group) && self.breach != Breach::IgnoresGroups {
                answers.push(Ok(ClaimAnswer::Behind));
                continue;
            }
            let answer = self.claim(&request).await;
            groups.saw_claim(request.group, &answer);
            answers.push(answer);
        }
        let bad = answers.iter().find_map(|answer| answer.as_ref().err()).cloned();
        match bad.filter(|_| self.breach == Breach::FailsAllForOne) {
            Some(error) => answers.iter().map(|_| Err(error.clone())).collect(),
            None => answers,
        }
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        let _one_at_a_time = self.settling.lock().await;
        let mut groups = Groups::default();
        let (mut answers, mut writes) = (Vec::new(), Vec::<Write>::new());
        let pending = {
            let mut platter = self.lock();
            for request in &requests {
                if groups.is_behind(request.group) && self.breach != Breach::IgnoresGroups {
                    answers.push(Ok(SettleAnswer::Refused(Refusal::Behind)));
                    continue;
                }
                let answer = self.settle(&platter, &writes, request).map(|(write, answer)| {
                    writes.extend(write);
                    answer
                });
                groups.saw_settle(request.group, &answer);
                answers.push(answer);
            }
            let slots: Vec<DedupKey> = writes.iter().map(|(slot, _)| slot.clone()).collect();
            match self.breach {
                Breach::AnswersBeforeTheSync => {}
                Breach::ShowsBeforeTheSync => platter.table.extend(writes.iter().cloned()),
                _ => platter.pending.extend(slots.iter().cloned()),
            }
            Pending(self, slots)
        };
        match self.breach {
            Breach::AnswersBeforeTheSync => {}
            Breach::WritesTheLastFirst => {
                for (slot, record) in writes.iter().rev() {
                    self.gate.pass().await;
                    let later = self.lock().table.get(slot).is_some_and(|there| there.ended == record.ended);
                    if !later {
                        self.put(&mut self.lock(), slot, record.clone());
                    }
                }
                self.gate.pass().await;
            }
            _ => self.gate.pass().await,
        }
        let mut platter = self.lock();
        for (slot, record) in writes {
            self.put(&mut platter, &slot, record);
        }
        drop(platter);
        drop(pending);
        answers
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        let now = self.now();
        let seen = self.seen(&self.lock(), &self.breach.slot(key), now)?;
        Ok(seen.filter(|record| !record.is_expired(now)))
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        let (now, slot) = (self.now(), self.breach.slot(key));
        let mut platter = self.lock();
        if platter.pending.contains(&slot) {
            return Ok(ForgetAnswer::RefusedLive);
        }
        let seen = self.seen(&platter, &slot, now)?.map(|record| self.breach.idle(record));
        let (change, answer) = state::forget(seen.as_ref(), now);
        self.change(&mut platter, &slot, change);
        Ok(answer)
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        let (now, slot) = (self.now(), self.breach.slot(key));
        let mut platter = self.lock();
        if platter.pending.contains(&slot) {
            return Ok(ForceAnswer::RefusedLive);
        }
        let seen = self.seen(&platter, &slot, now)?.map(|record| self.breach.idle(record));
        let fence = self.next_fence(&mut platter, seen.as_ref());
        let (change, answer) = state::force(seen.as_ref(), now, fence, retention);
        self.change(&mut platter, &slot, change);
        Ok(answer)
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        let now = self.now();
        let platter = self.lock();
        let lapsed = platter.table.iter().filter(|(_, record)| record.is_lapsed(now));
        Ok(lapsed.take(limit).map(|(key, record)| (key.clone(), record.clone())).collect())
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        let now = self.now();
        let mut platter = self.lock();
        let due =
            |(key, record): &(&DedupKey, &Record)| record.is_expired(now) && !platter.pending.contains(*key);
        let mut keys: Vec<DedupKey> = platter.table.iter().filter(due).map(|(key, _)| key.clone()).collect();
        let limit = if self.breach == Breach::PurgesWithoutLimit { usize::MAX } else { limit };
        let more = keys.len() > limit;
        keys.truncate(limit);
        for key in &keys {
            self.change(&mut platter, key, state::Change::Remove);
        }
        Ok(Purged { removed: keys.len() as u64, more })
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let platter = self.lock();
        let held = |record: &&Record| matches!(record.phase, Phase::InProgress { .. });
        let mut stats = Stats::default();
        stats.keys = platter.table.len() as u64;
        stats.claims = platter.table.values().filter(held).count() as u64;
        Ok(stats)
    }
}
