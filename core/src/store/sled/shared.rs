//! The critical sections: what happens to one key, under the lock of its shard.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::oneshot;

use super::config::SledConfig;
use super::disk::{Disk, io_cause};
use super::journal::Journal;
use super::record;
use super::table::{Counts, Entry, Shard, Table, Waiters};
use crate::claim::{
    Claim, ClaimAnswer, ClaimRequest, Fence, ForceAnswer, ForgetAnswer, Phase, Record, SettleAnswer, Verb,
    state,
};
use crate::clock::Timestamp;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::DedupKey;
use crate::outcome::{Outcome, StoredResult};
use crate::store::StoreTime;

/// When to ask again for a key whose outcome is on its way to the disk.
const SOON: Duration = Duration::from_millis(10);

/// What the handles and the writer share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: SledConfig,
    pub(super) table: Table,
    pub(super) counts: Counts,
    pub(super) journal: Journal,
    pub(super) time: StoreTime,
    pub(super) fences: Fences,
    /// Gone once the store is closed, so that its files are free.
    pub(super) disk: RwLock<Option<Arc<dyn Disk>>>,
    /// Why nothing works any more: poisoned or closed.
    pub(super) ended: OnceLock<StoreError>,
}

/// The fences of one opening: its number in the upper 24 bits, a counter in the lower 40.
#[derive(Debug)]
pub(super) struct Fences {
    epoch: u64,
    given: AtomicU64,
}

const COUNTER_BITS: u32 = 40;
pub(super) const MAX_EPOCH: u64 = (1 << (u64::BITS - COUNTER_BITS)) - 1;

impl Fences {
    pub(super) const fn of(epoch: u64) -> Self {
        Self { epoch, given: AtomicU64::new(0) }
    }

    #[cfg(test)]
    pub(super) const fn after(epoch: u64, given: u64) -> Self {
        Self { epoch, given: AtomicU64::new(given) }
    }

    pub(super) fn next(&self) -> Result<Fence, StoreError> {
        let number = self.given.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if number >> COUNTER_BITS != 0 {
            // Far from wrapping: that would take another 2^64 calls.
            let message = "the fences of this opening are used up: 2^40 claims";
            return Err(StoreError::new(StoreErrorKind::Poisoned, message));
        }
        Ok(Fence::new(self.epoch << COUNTER_BITS | number))
    }
}

/// What a call for one key came to.
#[derive(Debug)]
pub(super) enum Step<A> {
    /// Decided, and nothing to write.
    Done(A),
    /// A write of this key is on its way: look again when it has ended.
    Wait(oneshot::Receiver<()>),
    /// Decided, and true once this is durable. The key is kept from others until the writer has dealt with
    /// the write, so it must be sent.
    Write(A, Write),
}

/// A key's next record on its way to the disk.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) key: DedupKey,
    /// The record as the table shows it afterwards.
    pub(super) next: Option<Box<Record>>,
    /// The same as bytes.
    pub(super) value: Option<Vec<u8>>,
    pub(super) was_on_disk: bool,
    /// The generation that an operator asked for.
    pub(super) forced: Option<Fence>,
}

impl Shared {
    /// Fails once the store is poisoned or closed.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.ended.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    pub(super) fn poison(&self, cause: StoreError) -> StoreError {
        let why = io_cause(&cause);
        let message = format!("the disk failed{why}, so nothing here can be trusted to be durable");
        let error = StoreError::new(StoreErrorKind::Poisoned, message).with_source(cause);
        if self.ended.set(error.clone()).is_ok() {
            tracing::error!(path = %self.config.path.display(), ?error, "the store is poisoned");
        }
        error
    }

    pub(super) fn disk(&self) -> Result<Arc<dyn Disk>, StoreError> {
        let disk = self.disk.read().unwrap_or_else(PoisonError::into_inner).clone();
        disk.ok_or_else(|| self.check().err().unwrap_or_else(closed))
    }

    /// Reads the disk. A read that fails poisons the store, as a write does: sled keeps an error of its own
    /// threads for good, and every later call would be told to try again, for ever.
    pub(super) fn on_disk<T>(
        &self,
        read: impl FnOnce(&dyn Disk) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        read(&*self.disk()?).map_err(|error| self.poison(error))
    }

    /// The record on the disk. On a miss only: whatever is being changed is in the table.
    pub(super) fn read(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        let found = self.on_disk(|disk| disk.get(&record::record_key(key)));
        let found = found.map_err(|error| error.with_key(key))?;
        let Some(bytes) = found else { return Ok(None) };
        record::decode(&bytes).map(Some).ok_or_else(|| {
            tracing::error!(%key, "a record can't be decoded; it is left as it is");
            StoreError::new(StoreErrorKind::Undecodable, "the record can't be decoded").with_key(key)
        })
    }

    /// Puts the key's record into its shard, if there is one anywhere.
    fn load<'a>(&self, shard: &'a mut Shard, key: &DedupKey) -> Result<Option<&'a mut Entry>, StoreError> {
        if !shard.contains_key(key) {
            let Some(record) = self.read(key)? else { return Ok(None) };
            let entry = Entry { record, on_disk: true, slot: None, write: None };
            shard.insert(key.clone(), entry);
        }
        Ok(shard.get_mut(key))
    }

    pub(super) fn claim(
        &self,
        request: &ClaimRequest,
        now: Timestamp,
    ) -> Result<Step<ClaimAnswer>, StoreError> {
        self.check()?;
        let key = &request.key;
        let mut shard = self.table.lock(key);
        let read;
        let old = match shard.get_mut(key) {
            Some(Entry { record, write: Some(waiters), .. }) => {
                if !matches!(record.phase, Phase::InProgress { .. }) {
                    // Being forgotten, purged or forced: nobody holds it, and it can be had in a moment.
                    return Ok(Step::Wait(waiters.join()));
                }
                // Being settled: not done before that is durable, and not to be taken over meanwhile.
                let retry_after = SOON.min(request.rules.lease);
                return Ok(Step::Done(ClaimAnswer::InProgress { retry_after }));
            }
            Some(entry) => Some(&entry.record),
            None => {
                read = self.read(key)?;
                read.as_ref()
            }
        };
        let fence = self.fences.next()?;
        let (is_new, on_disk) = (old.is_none(), old.is_some());
        if is_new {
            self.counts.add(key.scope())?;
        }
        let (change, answer) = state::claim(old, request, now, fence);
        if let state::Change::Put(record) = change
            && let Err(error) = self.hold(&mut shard, key, *record, on_disk)
        {
            if is_new {
                self.counts.subtract(key.scope());
            }
            return Err(error);
        }
        Ok(Step::Done(answer))
    }

    /// Takes a claim's new record into the table, and notes the handler's start.
    fn hold(
        &self,
        shard: &mut Shard,
        key: &DedupKey,
        record: Record,
        on_disk: bool,
    ) -> Result<(), StoreError> {
        let old = shard.get_mut(key);
        let started = matches!(record.phase, Phase::InProgress { started: true, .. });
        let old_slot = old.as_ref().and_then(|entry| entry.slot.as_ref());
        let noted = if started { Some(self.journal.note(old_slot, key, &record)?) } else { None };
        match old {
            Some(entry) => {
                entry.record = record;
                // A slot is kept until its claim's end is durable, or its key is started anew.
                entry.slot = noted.or(entry.slot.take());
            }
            None => {
                shard.insert(key.clone(), Entry { record, on_disk, slot: noted, write: None });
            }
        }
        Ok(())
    }

    pub(super) fn settle(
        &self,
        claim: &Claim,
        verb: &Verb,
        now: Timestamp,
    ) -> Result<Step<SettleAnswer>, StoreError> {
        self.check()?;
        let mut shard = self.table.lock(&claim.key);
        let read;
        let (old, on_disk) = match shard.get_mut(&claim.key) {
            Some(Entry { write: Some(waiters), .. }) => return Ok(Step::Wait(waiters.join())),
            Some(entry) => (Some(&entry.record), entry.on_disk),
            None => {
                read = self.read(&claim.key)?;
                (read.as_ref(), read.is_some())
            }
        };
        let (change, answer) = state::settle(old, claim, verb, now, self.config.max_value);
        match (change, verb) {
            (state::Change::Keep, _) => Ok(Step::Done(answer)),
            (state::Change::Put(record), Verb::Started | Verb::Renew) => {
                self.hold(&mut shard, &claim.key, *record, on_disk)?;
                Ok(Step::Done(answer))
            }
            (change, _) => {
                let write = self.begin_write(&mut shard, &claim.key, change)?;
                if let Some(Phase::Completed(Outcome { result: StoredResult::NotKept { len }, .. })) =
                    write.next.as_ref().map(|record| &record.phase)
                {
                    let max = self.config.max_value;
                    tracing::warn!(key = %claim.key, len, max, "the result is too long and is not kept");
                }
                Ok(Step::Write(answer, write))
            }
        }
    }

    pub(super) fn forget(&self, key: &DedupKey, now: Timestamp) -> Result<Step<ForgetAnswer>, StoreError> {
        self.change(key, |record| state::forget(record, now))
    }

    pub(super) fn force(
        &self,
        key: &DedupKey,
        now: Timestamp,
        retention: Duration,
    ) -> Result<Step<ForceAnswer>, StoreError> {
        let fence = self.fences.next()?;
        let mut step = self.change(key, |record| state::force(record, now, fence, retention))?;
        if let Step::Write(ForceAnswer::Forced(generation), write) = &mut step {
            write.forced = Some(*generation);
        }
        Ok(step)
    }

    /// Takes an expired record away. `Done(false)` when it is not expired, or not there.
    pub(super) fn expire(&self, key: &DedupKey, now: Timestamp) -> Result<Step<bool>, StoreError> {
        self.change(key, |record| match record {
            Some(record) if record.is_expired(now) => (state::Change::Remove, true),
            _ => (state::Change::Keep, false),
        })
    }

    fn change<A>(
        &self,
        key: &DedupKey,
        decide: impl FnOnce(Option<&Record>) -> (state::Change, A),
    ) -> Result<Step<A>, StoreError> {
        self.check()?;
        let mut shard = self.table.lock(key);
        let read;
        let old = match shard.get_mut(key) {
            Some(Entry { write: Some(waiters), .. }) => return Ok(Step::Wait(waiters.join())),
            Some(entry) => Some(&entry.record),
            None => {
                read = self.read(key)?;
                read.as_ref()
            }
        };
        match decide(old) {
            (state::Change::Keep, answer) => Ok(Step::Done(answer)),
            (change, answer) => Ok(Step::Write(answer, self.begin_write(&mut shard, key, change)?)),
        }
    }

    /// Keeps the key from others until its write has ended.
    fn begin_write(
        &self,
        shard: &mut Shard,
        key: &DedupKey,
        change: state::Change,
    ) -> Result<Write, StoreError> {
        let next = match change {
            state::Change::Put(record) => Some(record),
            state::Change::Keep | state::Change::Remove => None,
        };
        let value = next.as_deref().map(record::encode_record).transpose()?;
        let mut was_on_disk = false;
        if let Some(entry) = self.load(shard, key)? {
            entry.write = Some(Waiters::default());
            was_on_disk = entry.on_disk;
        }
        Ok(Write { key: key.clone(), next, value, was_on_disk, forced: None })
    }

    /// The write is durable: only now do others see it, and only now does the entry leave the memory.
    pub(super) fn written(&self, write: Write) {
        let mut shard = self.table.lock(&write.key);
        let Some(entry) = shard.get_mut(&write.key) else { return };
        let slot = entry.slot.take();
        match write.next {
            Some(record) if matches!(record.phase, Phase::InProgress { .. }) => {
                entry.record = *record;
                entry.on_disk = true;
                entry.write = None;
            }
            next => {
                shard.remove(&write.key);
                if next.is_none() {
                    self.counts.subtract(write.key.scope());
                }
            }
        }
        drop(shard);
        if let Some(slot) = slot {
            self.journal.clear(slot);
        }
        // Said here, so that it is said also when the caller has gone meanwhile.
        if let Some(generation) = write.forced {
            tracing::warn!(key = %write.key, %generation, "forced to run again");
        }
    }

    /// The write was not made, and nothing has changed.
    pub(super) fn not_written(&self, key: &DedupKey) {
        if let Some(entry) = self.table.lock(key).get_mut(key) {
            entry.write = None;
        }
    }

    /// Nobody knows whether the write was made: the key stays as it is for ever, but nobody waits for it.
    pub(super) fn unknown(&self, key: &DedupKey) {
        if let Some(entry) = self.table.lock(key).get_mut(key) {
            entry.write = Some(Waiters::default());
        }
    }
}

pub(super) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Closed, "the store has been closed")
}
