//! The one thread that writes.
//!
//! It takes whatever waits, makes one batch of it, applies it, syncs once, and only then lets anybody see or
//! hear of it. It never lingers: while one batch is synced the next one gathers by itself. One thread,
//! because a second one makes sled slower, and because sled deadlocks when many call its asynchronous flush.
//!
//! A batch goes into sled by `apply_batch`, all of it or nothing. Single inserts are a fifth to a quarter
//! faster (a batch costs sled two more writes of its buffer), but the batch makes three things true that
//! would each need an argument of their own about sled's log: the outcomes of an ordered group are never durable with a gap; a handler's
//! writes in the inbox and its outcome are one; the counts of keys are those of the records beside them.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::disk::{Batch, Disk};
use super::purge::Plan;
use super::record::{self, State};
use super::shared::{Shared, Write, closed};
use super::tx::Effects;
use crate::clock::Timestamp;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::{DedupKey, Scope};

/// When a batch takes in no more: by its writes, by its bytes.
pub(super) const MAX_WRITES: usize = 4096;
const MAX_BYTES: usize = 4 << 20;
/// The most calls that wait for the writer; the next one waits to be let in.
pub(super) const QUEUE: usize = 4096;

#[derive(Debug)]
pub(super) enum Job {
    /// Writes of keys, in their order.
    Write { writes: Vec<Write>, done: oneshot::Sender<Result<Verdict, StoreError>> },
    /// What a purge found.
    Purge { plan: Plan, done: oneshot::Sender<Result<Verdict, StoreError>> },
    /// A handler's writes, with their outcome or alone.
    Commit { write: Option<Write>, effects: Effects, done: oneshot::Sender<Result<Verdict, StoreError>> },
    /// Nothing any more.
    Close { done: oneshot::Sender<()> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Written,
    /// What the handler read has changed; nothing was written.
    Conflict,
}

/// Where what the disk holds is counted along.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) state: State,
    /// Records on disk.
    pub(super) counts: HashMap<Scope, u64>,
    /// The last numbers given to appended values.
    pub(super) appended: HashMap<String, u64>,
    pub(super) lists: u64,
}

/// A batch in the making.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) batch: Batch,
    /// The keys whose records end, and when.
    due: Vec<(Timestamp, DedupKey)>,
    counted: HashMap<Scope, u64>,
    pub(super) appended: HashMap<String, u64>,
}

/// Somebody who waits, and what to tell them if the batch becomes durable.
type Waiting = (oneshot::Sender<Result<Verdict, StoreError>>, Result<Verdict, StoreError>);

impl Writer {
    /// Runs until the last handle is gone or the store is closed.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut closing = None;
        while closing.is_none() {
            let Some(first) = jobs.blocking_recv() else { break };
            let (mut taken, mut writes, mut bytes) = (Vec::new(), 0, 0);
            let mut next = Some(first);
            while let Some(job) = next.take() {
                match job {
                    Job::Close { done } => closing = Some(done),
                    job => {
                        let (more, len) = job.size();
                        (writes, bytes) = (writes + more, bytes + len);
                        taken.push(job);
                        if writes < MAX_WRITES && bytes < MAX_BYTES {
                            next = jobs.try_recv().ok();
                        }
                    }
                }
            }
            self.drain(taken);
        }
        self.end(jobs);
        if let Some(done) = closing {
            let _ = done.send(());
        }
    }

    fn drain(&mut self, jobs: Vec<Job>) {
        if let Err(error) = self.shared.check() {
            return jobs.into_iter().for_each(|job| self.refuse(job, &error));
        }
        // The table's part is not in here: it must be done also when sled panics.
        let mut unsure: Vec<DedupKey> = Vec::new();
        for job in &jobs {
            unsure.extend(job.writes().iter().map(|write| write.key.clone()));
        }
        let attempt = catch_unwind(AssertUnwindSafe(|| self.write(jobs)));
        let (result, waiting) = match attempt {
            Ok((result, waiting)) => (result, waiting),
            Err(_) => {
                let panicked = StoreError::new(StoreErrorKind::Corrupt, "the writer panicked");
                (Err(panicked), Vec::new())
            }
        };
        match result {
            Ok(()) => waiting.into_iter().for_each(|(done, verdict)| {
                let _ = done.send(verdict);
            }),
            Err(cause) => {
                let error = self.shared.poison(cause);
                unsure.iter().for_each(|key| self.shared.unknown(key));
                for (done, _) in waiting {
                    let _ = done.send(Err(error.clone()));
                }
            }
        }
    }

    /// Makes the jobs durable; then, and not before, shows them in the table.
    fn write(&mut self, jobs: Vec<Job>) -> (Result<(), StoreError>, Vec<Waiting>) {
        let mut draft = Draft::default();
        let (mut written, mut waiting) = (Vec::new(), Vec::new());
        for job in jobs {
            match job {
                Job::Write { writes, done } => {
                    for mut write in writes {
                        self.stage(&mut draft, &mut write);
                        written.push(write);
                    }
                    waiting.push((done, Ok(Verdict::Written)));
                }
                Job::Purge { plan, done } => {
                    for mut write in plan.writes {
                        self.stage(&mut draft, &mut write);
                        written.push(write);
                    }
                    draft.batch.extend(plan.index);
                    draft.due.extend(plan.again);
                    waiting.push((done, Ok(Verdict::Written)));
                }
                Job::Commit { write, effects, done } => {
                    let verdict = effects.stage(self, &mut draft);
                    if let Some(mut write) = write {
                        if let Ok(Verdict::Written) = verdict {
                            self.stage(&mut draft, &mut write);
                            written.push(write);
                        } else {
                            self.shared.not_written(&write.key);
                        }
                    }
                    waiting.push((done, verdict));
                }
                Job::Close { .. } => {}
            }
        }
        if !draft.batch.is_empty()
            && let Err(error) = self.make_durable(draft)
        {
            return (Err(error), waiting);
        }
        for write in written {
            self.shared.written(write);
        }
        (Ok(()), waiting)
    }

    fn stage(&self, draft: &mut Draft, write: &mut Write) {
        let value = write.value.take();
        let is_put = value.is_some();
        draft.batch.insert(record::record_key(&write.key), value);
        if let Some(record) = &write.next {
            draft.due.push((record.expires_at, write.key.clone()));
        }
        if write.was_on_disk == is_put {
            return;
        }
        let scope = write.key.scope();
        let before = draft.counted.get(scope).or_else(|| self.counts.get(scope)).copied().unwrap_or_default();
        let after = if is_put { before.saturating_add(1) } else { before.saturating_sub(1) };
        draft.counted.insert(scope.clone(), after);
    }

    fn make_durable(&mut self, draft: Draft) -> Result<(), StoreError> {
        let Draft { mut batch, due, counted, appended } = draft;
        for (at, list) in record::expiry_lists(due) {
            batch.insert(self.new_list_key(at), Some(list));
        }
        for (scope, count) in &counted {
            let value = (*count > 0).then(|| record::encode(count)).transpose()?;
            batch.insert(record::count_key(scope.as_str()), value);
        }
        self.state.batch = self.state.batch.saturating_add(1);
        self.state.mark = self.shared.time.mark();
        batch.insert(record::STATE_KEY.to_vec(), Some(record::encode(&self.state)?));

        self.disk.apply(&batch)?;
        self.disk.sync()?;

        for (scope, count) in counted {
            if count == 0 {
                self.counts.remove(&scope);
            } else {
                self.counts.insert(scope, count);
            }
        }
        self.appended.extend(appended);
        if let Err(error) = self.shared.journal.note_batch(self.state.batch) {
            // The batch is durable. Only the check at the next opening knows less.
            tracing::warn!(%error, "the last batch's number could not be noted");
        }
        Ok(())
    }

    fn new_list_key(&mut self, at: Timestamp) -> Vec<u8> {
        self.lists = self.lists.saturating_add(1);
        record::expiry_key(at, self.lists)
    }

    fn refuse(&self, job: Job, error: &StoreError) {
        for write in job.writes() {
            self.shared.unknown(&write.key);
        }
        match job {
            Job::Write { done, .. } | Job::Purge { done, .. } | Job::Commit { done, .. } => {
                let _ = done.send(Err(error.clone()));
            }
            Job::Close { done } => {
                let _ = done.send(());
            }
        }
    }

    /// Refuses what is still waiting and gives the files back.
    fn end(self, mut jobs: mpsc::Receiver<Job>) {
        let _ = self.shared.ended.set(closed());
        jobs.close();
        let error = self.shared.check().err().unwrap_or_else(closed);
        while let Some(job) = jobs.blocking_recv() {
            self.refuse(job, &error);
        }
        let Self { shared, disk, .. } = self;
        let held = shared.disk.write().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        // sled's own end flushes and can take a second: it is waited for here and on no other thread.
        drop(held);
        if catch_unwind(AssertUnwindSafe(|| drop(disk))).is_err() {
            tracing::error!(path = %shared.config.path.display(), "sled panicked while it was closed");
        }
    }
}

impl Job {
    fn writes(&self) -> &[Write] {
        match self {
            Self::Write { writes, .. } => writes,
            Self::Purge { plan, .. } => &plan.writes,
            Self::Commit { write, .. } => write.as_slice(),
            Self::Close { .. } => &[],
        }
    }

    fn size(&self) -> (usize, usize) {
        let writes = self.writes();
        let records: usize = writes.iter().map(|write| write.value.as_ref().map_or(0, Vec::len)).sum();
        let more = match self {
            Self::Commit { effects, .. } => effects.bytes(),
            Self::Write { .. } | Self::Purge { .. } | Self::Close { .. } => 0,
        };
        (writes.len(), records + more)
    }
}
