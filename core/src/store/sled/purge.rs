//! Taking expired records away, by the index of when which keys end.
//!
//! Every batch of writes leaves one list of its keys under the time at which their records end. When a list
//! is due each of its keys is looked at: its record may have been written again since, and is then on a
//! later list. Claims are looked through instead: there are only as many as are in flight or lapsed.

use std::collections::HashSet;
use std::time::Duration;

use super::disk::Batch;
use super::record;
use super::shared::{Shared, Step, Write};
use crate::clock::Timestamp;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::DedupKey;

/// How many listed keys are looked at for each that may be taken away, and at least.
const LOOKS: usize = 4;
const MIN_LOOKS: usize = 1024;
/// How many lists are read at once.
const PAGE: usize = 64;

/// What one purge will do.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Removals. Their keys are kept from others, so they must be sent.
    pub(super) writes: Vec<Write>,
    /// Lists that are used up, and what is left of others.
    pub(super) index: Batch,
    /// Keys to be listed again, and for when.
    pub(super) again: Vec<(Timestamp, DedupKey)>,
    planned: HashSet<DedupKey>,
    pub(super) more: bool,
    /// Why it stopped early.
    pub(super) failed: Option<StoreError>,
}

enum Look {
    /// It is on the plan, or there is nothing to do.
    Seen,
    /// It has expired, and the plan is full.
    NoRoom,
    /// Nothing can be done now; look again then.
    Again(Timestamp),
}

impl Plan {
    pub(super) fn make(shared: &Shared, limit: usize, now: Timestamp) -> Self {
        let mut plan = Self::default();
        let lapsed = shared.table.expired(limit.saturating_add(1), now);
        plan.more = lapsed.len() > limit;
        for key in lapsed.iter().take(limit) {
            match shared.expire(key, now) {
                Ok(Step::Write(_, write)) => plan.remove(write),
                Ok(Step::Done(_) | Step::Wait(_)) => {}
                Err(error) => plan.failed = Some(error),
            }
        }
        if !plan.more
            && plan.failed.is_none()
            && let Err(error) = plan.walk(shared, limit, now)
        {
            plan.failed = Some(error);
        }
        plan
    }

    fn walk(&mut self, shared: &Shared, limit: usize, now: Timestamp) -> Result<(), StoreError> {
        let disk = shared.disk()?;
        let mut looks = limit.saturating_mul(LOOKS).max(MIN_LOOKS);
        let mut after = Vec::new();
        'lists: loop {
            let page = disk.scan(&[record::EXPIRY], &after, PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = last.to_vec();
            for (at, list) in page {
                if record::due_at(&at).is_some_and(|due| due > now) {
                    break 'lists;
                }
                let Some(keys) = record::listed(&list) else {
                    // A later release's, perhaps. It stays, and its records are absent all the same.
                    tracing::error!("an entry of the expiry index can't be decoded; it is left as it is");
                    continue;
                };
                let mut left = keys.as_slice();
                while let [key, rest @ ..] = left {
                    if looks == 0 {
                        self.more = true;
                        break;
                    }
                    looks -= 1;
                    match self.look(shared, key, limit, now)? {
                        Look::Seen => {}
                        Look::NoRoom => {
                            self.more = true;
                            break;
                        }
                        Look::Again(then) => self.again.push((then, key.clone())),
                    }
                    left = rest;
                }
                if left.len() < keys.len() {
                    let rest = (!left.is_empty()).then(|| record::list(left));
                    self.index.insert(at.to_vec(), rest);
                }
                if self.more {
                    break 'lists;
                }
            }
        }
        Ok(())
    }

    fn look(
        &mut self,
        shared: &Shared,
        key: &DedupKey,
        limit: usize,
        now: Timestamp,
    ) -> Result<Look, StoreError> {
        if self.planned.contains(key) {
            return Ok(Look::Seen);
        }
        // Held: its record on disk is not the latest, and is listed nowhere else until it is settled.
        let held_until = shared.table.lock(key).get(key).map(|entry| entry.record.expires_at);
        if let Some(expires_at) = held_until {
            return Ok(Look::Again(expires_at.max(now.after(Duration::from_secs(1)))));
        }
        if self.writes.len() >= limit {
            return match shared.read(key) {
                Ok(Some(record)) if record.is_expired(now) => Ok(Look::NoRoom),
                Ok(_) => Ok(Look::Seen),
                Err(error) => undecodable(error, now),
            };
        }
        match shared.expire(key, now) {
            Ok(Step::Write(_, write)) => {
                self.remove(write);
                Ok(Look::Seen)
            }
            Ok(Step::Done(_)) => Ok(Look::Seen),
            Ok(Step::Wait(_)) => Ok(Look::Again(now.after(Duration::from_secs(1)))),
            Err(error) => undecodable(error, now),
        }
    }

    fn remove(&mut self, write: Write) {
        self.planned.insert(write.key.clone());
        self.writes.push(write);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.index.is_empty() && self.again.is_empty()
    }
}

/// A record that can't be decoded stays, and stays listed: a later release may know what it is.
fn undecodable(error: StoreError, now: Timestamp) -> Result<Look, StoreError> {
    if error.kind() == StoreErrorKind::Undecodable {
        return Ok(Look::Again(now.after(Duration::from_secs(3600))));
    }
    Err(error)
}
