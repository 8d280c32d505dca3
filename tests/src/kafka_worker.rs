//! A worker in a test's own process, on the real broker.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use einmal::worker::{Lanes, Summary, WorkerConfig};
use einmal::{Context, Failure, MemoryStore};
use einmal_kafka::{KafkaWorker, KafkaWorkerBuilder, KafkaWorkerError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::kafka::{PATIENCE, Topic, until};
use crate::log_broker::id_of;

/// How often each id ran.
#[derive(Clone, Debug, Default)]
pub struct Runs(Arc<Mutex<BTreeMap<String, usize>>>);

impl Runs {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a run.
    pub fn note(&self, id: &str) {
        *self.all().entry(id.to_owned()).or_default() += 1;
    }

    /// How often this id ran.
    #[must_use]
    pub fn of(&self, id: &str) -> usize {
        self.all().get(id).copied().unwrap_or_default()
    }

    /// How many ids ran.
    #[must_use]
    pub fn ids(&self) -> usize {
        self.all().len()
    }

    /// How often any id ran once more.
    #[must_use]
    pub fn again(&self) -> usize {
        self.all().values().map(|runs| runs.saturating_sub(1)).sum()
    }

    /// Each id that ran.
    ///
    /// # Errors
    /// When one ran twice.
    pub fn once(&self) -> Result<Vec<String>> {
        let all = self.all();
        let again: Vec<_> = all.iter().filter(|(_, runs)| **runs != 1).collect();
        ensure!(again.is_empty(), "not once: {again:?}");
        Ok(all.keys().cloned().collect())
    }
}

/// A worker that runs.
#[derive(Debug)]
pub struct Running {
    worker: Arc<KafkaWorker>,
    shutdown: CancellationToken,
    work: JoinHandle<Result<Summary, KafkaWorkerError>>,
}

impl Running {
    /// Starts it.
    #[must_use]
    pub fn start(worker: KafkaWorker) -> Self {
        let (worker, shutdown) = (Arc::new(worker), CancellationToken::new());
        let (running, stop) = (Arc::clone(&worker), shutdown.clone());
        let work = tokio::spawn(async move { running.run(stop).await });
        Self { worker, shutdown, work }
    }

    /// The worker of `builder`, in ordered lanes, on a store of its own: it counts what runs.
    ///
    /// # Errors
    /// When it can't be built.
    pub fn counting(builder: KafkaWorkerBuilder) -> Result<(Self, Runs)> {
        let runs = Runs::default();
        let handler = {
            let runs = runs.clone();
            move |context: Context| {
                runs.note(context.key().id().as_str());
                std::future::ready(Ok::<(), Failure>(()))
            }
        };
        let config = WorkerConfig { lanes: Lanes::Partition, ..WorkerConfig::default() };
        let worker = builder.worker(config).dead_letters(None).build(MemoryStore::default(), handler)?;
        Ok((Self::start(worker), runs))
    }

    /// The same in the group of a topic of numbered messages.
    ///
    /// # Errors
    /// When it can't be built.
    pub fn by_header(topic: &Topic) -> Result<(Self, Runs)> {
        Self::counting(KafkaWorker::builder(topic.config(topic.member()).build()?))
    }

    /// The worker.
    #[must_use]
    pub fn worker(&self) -> &KafkaWorker {
        &self.worker
    }

    /// Waits for a condition while it runs.
    ///
    /// # Errors
    /// When it ends by itself, or the condition never comes.
    pub async fn until(&self, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
        until(what, || {
            ensure!(!self.work.is_finished(), "the worker ended by itself before {what}");
            condition()
        })
        .await
        .with_context(|| format!("{:?}, {:?}", self.worker.summary(), self.worker.health().read()))
    }

    /// Waits until these offsets are committed.
    ///
    /// # Errors
    /// As for `until`.
    pub async fn until_committed(&self, topic: &Topic, all: &[usize]) -> Result<()> {
        let mut last = Vec::new();
        let committed = self.until("the commit", || {
            // A broker that has just started does not tell at once.
            last = topic.committed().unwrap_or_default();
            Ok(last == all)
        });
        let committed = committed.await;
        committed.with_context(|| format!("committed {last:?} of {all:?}"))
    }

    /// Waits until it is not ready, for a reason that holds `text`, and hands that out.
    ///
    /// # Errors
    /// As for `until`.
    pub async fn until_trouble(&self, text: &str) -> Result<String> {
        let mut found = None;
        let trouble = self.until("the trouble", || {
            let health = self.worker.health().read();
            found = health.reasons.into_iter().find(|reason| reason.contains(text));
            Ok(!health.ready && found.is_some())
        });
        trouble.await.with_context(|| format!("no word of {text:?}"))?;
        found.context("no reason")
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// Its own, or that it does not.
    pub async fn end(self) -> Result<Summary> {
        let ended = tokio::time::timeout(PATIENCE, self.work).await;
        Ok(ended.with_context(|| format!("it goes on: {:?}", self.worker.summary()))???)
    }

    /// Stops it in order, with nothing left in flight.
    ///
    /// # Errors
    /// When it fails.
    pub async fn stop(self) -> Result<Summary> {
        self.shutdown.cancel();
        let summary = self.work.await??;
        ensure!(summary.in_flight == 0, "left in flight: {summary:?}");
        Ok(summary)
    }

    /// Drops it where it stands: nothing runs on, nothing is given back, nothing more is committed. Says how many
    /// deliveries that cut off.
    pub async fn abandon(self) -> u64 {
        self.work.abort();
        let _ = self.work.await;
        self.worker.summary().in_flight
    }
}

/// Without repeats, in their order.
pub fn sorted(ids: impl IntoIterator<Item = String>) -> Vec<String> {
    let ids: BTreeSet<_> = ids.into_iter().collect();
    ids.into_iter().collect()
}

/// The ids of the messages of these numbers.
pub fn ids_of(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    sorted(numbers.into_iter().map(id_of))
}
