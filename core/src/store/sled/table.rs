//! Keys in memory: live claims, and keys whose write is on its way to the disk.
//!
//! Whatever is not here is on the disk, durable. A key's shard is locked over look-up, decision and change,
//! a read of the disk included, so that of two claims for one key the second sees the first.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::journal::Slot;
use crate::claim::Record;
use crate::clock::Timestamp;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::{DedupKey, Scope};

/// A power of two, many times the threads that a process has.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(super) struct Entry {
    /// As everyone sees it. While a write is on its way this is still the record before it.
    pub(super) record: Record,
    /// The disk has a record of this key, this one or an older one.
    pub(super) on_disk: bool,
    /// Where it is noted that the handler runs.
    pub(super) slot: Option<Slot>,
    pub(super) write: Option<Waiters>,
}

/// Those who wait for a key's write to end, well or badly. Dropped, it wakes them.
#[derive(Debug, Default)]
pub(super) struct Waiters(Vec<oneshot::Sender<()>>);

impl Waiters {
    pub(super) fn join(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        // Those who have gone again need no place.
        self.0.retain(|sender| !sender.is_closed());
        self.0.push(sender);
        receiver
    }
}

pub(super) type Shard = HashMap<DedupKey, Entry>;

#[derive(Debug)]
pub(super) struct Table {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    /// Stands in for a shard that is not there, which does not happen.
    spare: Mutex<Shard>,
}

impl Table {
    pub(super) fn new() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { shards, hasher: RandomState::new(), spare: Mutex::default() }
    }

    pub(super) fn lock(&self, key: &DedupKey) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        let at = usize::try_from(hash % SHARDS as u64).unwrap_or_default();
        lock(self.shards.get(at).unwrap_or(&self.spare))
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(lock)
    }

    /// At most `limit` keys with no write on its way that `wanted` wants.
    pub(super) fn find(&self, limit: usize, wanted: impl Fn(&Record) -> bool) -> Vec<(DedupKey, Record)> {
        let mut found = Vec::new();
        for shard in self.shards() {
            let here = shard.iter().filter(|(_, entry)| entry.write.is_none() && wanted(&entry.record));
            found.extend(
                here.take(limit - found.len()).map(|(key, entry)| (key.clone(), entry.record.clone())),
            );
            if found.len() == limit {
                break;
            }
        }
        found
    }

    pub(super) fn expired(&self, limit: usize, now: Timestamp) -> Vec<DedupKey> {
        self.find(limit, |record| record.is_expired(now)).into_iter().map(|(key, _)| key).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics between two changes that belong together.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many keys there are, in memory or on disk, against the bounds.
#[derive(Debug)]
pub(super) struct Counts {
    max_keys: usize,
    max_keys_per_scope: usize,
    now: Mutex<Now>,
}

#[derive(Debug, Default)]
struct Now {
    keys: usize,
    per_scope: HashMap<Scope, usize>,
}

impl Counts {
    pub(super) fn new(max_keys: usize, max_keys_per_scope: usize, per_scope: HashMap<Scope, usize>) -> Self {
        let keys = per_scope.values().sum();
        Self { max_keys, max_keys_per_scope, now: Mutex::new(Now { keys, per_scope }) }
    }

    pub(super) fn keys(&self) -> usize {
        lock(&self.now).keys
    }

    /// Counts a new key, if there is room for it.
    pub(super) fn add(&self, scope: &Scope) -> Result<(), StoreError> {
        let full = |bound: &str, max: usize| {
            let message = format!("{bound} is reached: {max} keys");
            Err(StoreError::new(StoreErrorKind::Full, message).with_scope(scope))
        };
        let mut now = lock(&self.now);
        let of_scope = now.per_scope.get(scope).copied().unwrap_or_default();
        if of_scope >= self.max_keys_per_scope {
            return full("max_keys_per_scope", self.max_keys_per_scope);
        }
        if now.keys >= self.max_keys {
            return full("max_keys", self.max_keys);
        }
        now.keys += 1;
        match now.per_scope.get_mut(scope) {
            Some(count) => *count += 1,
            None => {
                now.per_scope.insert(scope.clone(), 1);
            }
        }
        Ok(())
    }

    pub(super) fn subtract(&self, scope: &Scope) {
        let mut now = lock(&self.now);
        now.keys = now.keys.saturating_sub(1);
        if let Some(count) = now.per_scope.get_mut(scope) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                now.per_scope.remove(scope);
            }
        }
    }
}
