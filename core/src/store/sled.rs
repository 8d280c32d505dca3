//! The embedded store: durable, one process, no server.
//!
//! The parts, in reading order: `record` (what is on the disk), `table` (what is in memory), `shared` (what
//! happens to one key, under its lock), `writer` (the one thread that writes), `journal` (which handlers ran
//! when the process died), `purge`, `tx` and `view` (the inbox), `open`, `disk`, `config`.
//!
//! The rule that shapes it: sled's `insert` is not durable, and its `flush` is not a sync. So nobody hears of
//! an outcome, and no reader sees it, before the file is synced; until then the key is kept in memory and
//! answers `InProgress`.

mod config;
mod disk;
mod journal;
mod open;
mod purge;
mod record;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod tx;
mod view;
mod writer;

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Mutex, mpsc, oneshot};

use self::purge::Plan;
use self::shared::{Shared, Step, Write, closed};
use self::writer::{Job, MAX_WRITES, QUEUE, Verdict, Writer};
use super::{Capabilities, DedupStore, Groups, Purged, Stats};
use crate::claim::{
    ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer, Record, Refusal, SettleAnswer, SettleRequest, Verb,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::id::DedupKey;

pub use config::{Durability, SledConfig, SledConfigBuilder, WritePoint};
pub use tx::SledTx;
pub use view::SledView;

/// The most records that one purge takes away, whatever it was asked: they are one batch.
const MAX_PURGE: usize = 4096;

/// How many expired records a claim that meets a full store takes away before it is refused.
const MAKE_ROOM: usize = 64;

/// A store in a directory of this machine, on [sled](https://docs.rs/sled).
///
/// One process at a time can have the directory open. Cloning gives another handle of the same store. When
/// the last handle is dropped, or at [`close`](SledStore::close), what is waiting is written and the
/// directory is given back.
///
/// # What survives
///
/// Outcomes, counters and owed dead letters, as [`Durability`] says. A claim doesn't have to: when the
/// directory is opened again, its holder is gone. That its handler had started is noted and survives the
/// death of the process, so that a message which kills its process is found out.
///
/// # Errors
///
/// The first write that fails poisons the store for good: this call and every later one is answered with
/// [`StoreErrorKind::Poisoned`] and the reason. A record that can't be decoded is that key's error alone and
/// is left as it is.
///
/// # Blocking
///
/// A call for a key that is not in memory reads sled on the caller's thread: from its cache as a rule, else
/// from the file. Writes and syncs are made by one thread of the store's own.
#[derive(Clone)]
pub struct SledStore {
    handle: Arc<Handle>,
}

impl fmt::Debug for SledStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledStore").field("path", &self.handle.shared.config.path).finish_non_exhaustive()
    }
}

struct Handle {
    // Dropped in this order: the writer's share is then the last, and sled is closed on its thread.
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Held by the one purge that runs.
    purging: Mutex<()>,
}

impl SledStore {
    /// Opens the store, or makes it where there is none.
    ///
    /// # Errors
    /// [`Locked`](StoreErrorKind::Locked) when the directory has been open elsewhere for two seconds;
    /// [`Corrupt`](StoreErrorKind::Corrupt) when what is there is damaged or not a store of Einmal's;
    /// [`Unavailable`](StoreErrorKind::Unavailable) when the disk failed. Nothing damaged is opened as if it
    /// were empty. Einmal deletes nothing; sled, when it can't read its log to the end, cuts off what comes
    /// after: copy the directory before you try to save it. A snapshot that sled has not finished is renamed
    /// to `einmal.aside.*`. In place of a lost `einmal.started`, an empty file opens the store without notes.
    pub async fn open(config: SledConfig) -> Result<Self, StoreError> {
        let path = config.path.clone();
        let (sender, opened) = oneshot::channel();
        let opening = move || {
            let _ = sender.send(open::open(config, |disk| Arc::new(disk)).and_then(Self::start));
        };
        thread("einmal-sled-open", opening)?;
        opened.await.unwrap_or_else(|_| Err(panicked(&path)))
    }

    /// [`SledStore::open`] for code that is not asynchronous.
    ///
    /// # Errors
    /// As there.
    pub fn open_blocking(config: SledConfig) -> Result<Self, StoreError> {
        let path = config.path.clone();
        let opening = move || open::open(config, |disk| Arc::new(disk)).and_then(Self::start);
        thread("einmal-sled-open", opening)?.join().unwrap_or_else(|_| Err(panicked(&path)))
    }

    fn start(writer: Writer) -> Result<Self, StoreError> {
        let shared = Arc::clone(&writer.shared);
        let (jobs, queue) = mpsc::channel(QUEUE);
        let thread = thread("einmal-sled-writer", move || writer.run(queue))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { handle: Arc::new(Handle { shared, jobs, thread, purging: Mutex::default() }) })
    }

    /// Writes what is waiting and gives the directory back, so that it can be opened again at once. Every
    /// later call, of other handles too, is answered with [`Closed`](StoreErrorKind::Closed).
    ///
    /// # Errors
    /// [`Poisoned`](StoreErrorKind::Poisoned) when a write had failed.
    pub async fn close(&self) -> Result<(), StoreError> {
        let mut thread = self.handle.thread.lock().await;
        if thread.is_some() {
            let (done, ended) = oneshot::channel();
            if self.handle.jobs.send(Job::Close { done }).await.is_ok() {
                let _ = ended.await;
            }
        }
        if let Some(thread) = thread.take() {
            // It has said its last word, or died: there is nothing left to wait for.
            let _ = thread.join();
        }
        match self.handle.shared.check() {
            Err(error) if error.kind() == StoreErrorKind::Poisoned => Err(error),
            _ => Ok(()),
        }
    }

    /// Reads one of the trees that [`SledTx`] writes.
    ///
    /// # Errors
    /// When `tree` is no name of a tree: those have 1 to 255 bytes.
    pub fn view(&self, tree: &str) -> Result<SledView, StoreError> {
        SledView::new(&self.handle.shared, tree)
    }
}

fn thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, StoreError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| {
        StoreError::new(StoreErrorKind::Unavailable, "a thread could not be started").with_source(error)
    })
}

fn panicked(path: &std::path::Path) -> StoreError {
    let message = format!("the store {}: sled panicked while it opened its files", path.display());
    StoreError::new(StoreErrorKind::Corrupt, message)
}

/// Writes that were decided together and wait together.
struct Sent {
    items: Vec<usize>,
    verdict: oneshot::Receiver<Result<Verdict, StoreError>>,
}

/// A place in the writer's queue, and what will go there. No future is waited for while it holds writes:
/// their keys would be kept from everybody if the caller were dropped there.
struct Drafted<'a> {
    permit: mpsc::Permit<'a, Job>,
    writes: Vec<Write>,
    items: Vec<usize>,
}

impl Drafted<'_> {
    fn send(self) -> Sent {
        let (done, verdict) = oneshot::channel();
        self.permit.send(Job::Write { writes: self.writes, done });
        Sent { items: self.items, verdict }
    }
}

impl Handle {
    async fn permit(&self) -> Result<mpsc::Permit<'_, Job>, StoreError> {
        match self.jobs.reserve().await {
            Ok(permit) => Ok(permit),
            Err(_) => Err(self.shared.check().err().unwrap_or_else(closed)),
        }
    }

    async fn verdict(
        &self,
        verdict: oneshot::Receiver<Result<Verdict, StoreError>>,
    ) -> Result<Verdict, StoreError> {
        verdict.await.unwrap_or_else(|_| {
            let gone = || StoreError::new(StoreErrorKind::Poisoned, "the writer is gone");
            Err(self.shared.check().err().unwrap_or_else(gone))
        })
    }

    /// Runs one call for one key to its durable end.
    async fn run<A>(&self, step: impl Fn() -> Result<Step<A>, StoreError>) -> Result<A, StoreError> {
        loop {
            let permit = self.permit().await?;
            match step()? {
                Step::Done(answer) => return Ok(answer),
                Step::Wait(ended) => {
                    drop(permit);
                    let _ = ended.await;
                }
                Step::Write(answer, write) => {
                    let sent = Drafted { permit, writes: vec![write], items: Vec::new() }.send();
                    self.verdict(sent.verdict).await?;
                    return Ok(answer);
                }
            }
        }
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        let mut made_room = false;
        loop {
            match self.shared.claim(request, self.shared.time.now()) {
                Ok(Step::Done(answer) | Step::Write(answer, _)) => return Ok(answer),
                Ok(Step::Wait(ended)) => {
                    let _ = ended.await;
                }
                Err(error) if error.kind() == StoreErrorKind::Full && !made_room => {
                    made_room = true;
                    self.purge(MAKE_ROOM).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        let mut groups = Groups::default();
        let mut answers = Vec::with_capacity(requests.len());
        let (mut drafted, mut sent) = (None, Vec::new());
        for (item, request) in requests.iter().enumerate() {
            let answer = if groups.is_behind(request.group) {
                Ok(SettleAnswer::Refused(Refusal::Behind))
            } else {
                self.settle(item, request, &mut drafted, &mut sent).await
            };
            groups.saw_settle(request.group, &answer);
            answers.push(answer);
        }
        sent.extend(drafted.map(Drafted::send));
        for Sent { items, verdict } in sent {
            if let Err(error) = self.verdict(verdict).await {
                for item in items {
                    if let Some(answer) = answers.get_mut(item) {
                        *answer = Err(error.clone());
                    }
                }
            }
        }
        answers
    }

    /// Decides one item of a batch; what it writes goes with its neighbours' writes.
    async fn settle<'a>(
        &'a self,
        item: usize,
        request: &SettleRequest,
        drafted: &mut Option<Drafted<'a>>,
        sent: &mut Vec<Sent>,
    ) -> Result<SettleAnswer, StoreError> {
        // These two are of the memory, and must not wait behind the disk: a lease depends on them.
        let writes = !matches!(request.verb, Verb::Started | Verb::Renew);
        loop {
            sent.extend(drafted.take_if(|drafted| drafted.writes.len() >= MAX_WRITES).map(Drafted::send));
            if writes && drafted.is_none() {
                let permit = self.permit().await?;
                *drafted = Some(Drafted { permit, writes: Vec::new(), items: Vec::new() });
            }
            match self.shared.settle(&request.claim, &request.verb, self.shared.time.now())? {
                Step::Done(answer) => return Ok(answer),
                Step::Wait(ended) => {
                    // It may be one of ours that is waited for.
                    sent.extend(drafted.take().map(Drafted::send));
                    let _ = ended.await;
                }
                Step::Write(answer, write) => {
                    if let Some(drafted) = drafted {
                        drafted.writes.push(write);
                        drafted.items.push(item);
                    }
                    return Ok(answer);
                }
            }
        }
    }

    async fn purge(&self, limit: usize) -> Result<Purged, StoreError> {
        let _only = self.purging.lock().await;
        let permit = self.permit().await?;
        self.shared.check()?;
        let mut plan = Plan::make(&self.shared, limit.min(MAX_PURGE), self.shared.time.now());
        let purged = Purged { removed: plan.writes.len() as u64, more: plan.more };
        let failed = plan.failed.take();
        if !plan.is_empty() {
            let (done, verdict) = oneshot::channel();
            permit.send(Job::Purge { plan, done });
            self.verdict(verdict).await?;
        }
        failed.map_or(Ok(purged), Err)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl DedupStore for SledStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new("sled", self.handle.shared.config.max_value).durable(true).transactional(true)
    }

    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        let mut groups = Groups::default();
        let mut answers = Vec::with_capacity(requests.len());
        for request in &requests {
            if groups.is_behind(request.group) {
                answers.push(Ok(ClaimAnswer::Behind));
                continue;
            }
            let answer = self.handle.claim(request).await;
            groups.saw_claim(request.group, &answer);
            answers.push(answer);
        }
        answers
    }

    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        self.handle.settle_many(requests).await
    }

    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        let shared = &self.handle.shared;
        shared.check()?;
        let now = shared.time.now();
        let shard = shared.table.lock(key);
        let record = match shard.get(key) {
            Some(entry) => Some(entry.record.clone()),
            None => shared.read(key)?,
        };
        Ok(record.filter(|record| !record.is_expired(now)))
    }

    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        let shared = &self.handle.shared;
        self.handle.run(|| shared.forget(key, shared.time.now())).await
    }

    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        let shared = &self.handle.shared;
        self.handle.run(|| shared.force(key, shared.time.now(), retention)).await
    }

    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        let shared = &self.handle.shared;
        shared.check()?;
        let now = shared.time.now();
        Ok(shared.table.find(limit, |record| record.is_lapsed(now)))
    }

    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        self.handle.purge(limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let shared = &self.handle.shared;
        shared.check()?;
        let claims: usize = shared.table.shards().map(|shard| shard.len()).sum();
        Ok(Stats {
            keys: shared.counts.keys() as u64,
            claims: claims as u64,
            bytes_on_disk: shared.disk()?.size(),
        })
    }
}
