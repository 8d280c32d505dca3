//! A worker in this process that counts what ran.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what is wrong in a test is said by failing")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use einmal::worker::{Lanes, Summary, WorkerConfig};
use einmal::{Context, Failure, MemoryStore};
use einmal_kafka::{KafkaWorker, KafkaWorkerBuilder, KafkaWorkerError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::kafka::{Topic, until};
use crate::log_broker::id_of;

/// How often each id ran, and how long its payload was.
type Runs = Arc<Mutex<BTreeMap<String, (usize, usize)>>>;

/// The worker. Dropped, it goes on until its runtime ends: [`stop`](Running::stop) it.
#[derive(Debug)]
pub struct Running {
    /// For its health.
    pub worker: Arc<KafkaWorker>,
    /// What ran.
    pub runs: Runs,
    shutdown: CancellationToken,
    work: JoinHandle<Result<Summary, KafkaWorkerError>>,
}

impl Running {
    /// A member of the topic's group that finds ids in the header of its tests, with a store of its own.
    ///
    /// # Panics
    /// When it can't be built.
    #[must_use]
    pub fn by_header(topic: &Topic) -> Self {
        Self::start(KafkaWorker::builder(topic.config(topic.member()).build().unwrap()))
    }

    /// The worker of `builder` with a store of its own.
    ///
    /// # Panics
    /// When it can't be built.
    #[must_use]
    pub fn start(builder: KafkaWorkerBuilder) -> Self {
        let runs = Runs::default();
        let handler = {
            let runs = runs.clone();
            move |context: Context| {
                let mut runs = runs.lock().unwrap();
                let run = runs.entry(context.key().id().as_str().to_owned()).or_default();
                *run = (run.0 + 1, context.payload().len());
                std::future::ready(Ok::<(), Failure>(()))
            }
        };
        let worker = builder
            .worker(WorkerConfig { lanes: Lanes::Partition, ..WorkerConfig::default() })
            .dead_letters(None)
            .build(MemoryStore::default(), handler)
            .unwrap();
        let shutdown = CancellationToken::new();
        let worker = Arc::new(worker);
        let (running, stop) = (worker.clone(), shutdown.clone());
        let work = tokio::spawn(async move { running.run(stop).await });
        Self { worker, runs, shutdown, work }
    }

    /// Each id that ran.
    ///
    /// # Panics
    /// When one ran twice.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        let runs = self.runs.lock().unwrap();
        assert!(runs.values().all(|(count, _)| *count == 1), "{runs:?}");
        runs.keys().cloned().collect()
    }

    /// Waits until these are the committed offsets.
    ///
    /// # Panics
    /// When they never are, or the worker ends.
    pub async fn until_committed(&self, topic: &Topic, all: &[usize]) {
        let mut last = Vec::new();
        let all_committed = until("the commit", || {
            assert!(!self.work.is_finished(), "the worker ended by itself");
            // A broker that has just started does not tell at once.
            last = topic.committed().unwrap_or_default();
            Ok(last == all)
        });
        if let Err(error) = all_committed.await {
            panic!("committed {last:?} of {all:?}, {} ids ran: {error}", self.runs.lock().unwrap().len());
        }
    }

    /// Waits until the health is not ready, for a reason that holds `text`.
    ///
    /// # Panics
    /// When it never is, or the worker ends.
    pub async fn until_trouble(&self, text: &str) -> String {
        let mut last = Vec::new();
        let said = until("the trouble", || {
            assert!(!self.work.is_finished(), "the worker ended by itself");
            let health = self.worker.health().read();
            last = health.reasons;
            Ok(!health.ready && last.iter().any(|reason| reason.contains(text)))
        });
        if let Err(error) = said.await {
            panic!("{last:?} instead of {text:?}: {error}");
        }
        last.into_iter().find(|reason| reason.contains(text)).unwrap()
    }

    /// Stops it.
    ///
    /// # Panics
    /// When it does not end well.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.work.await.unwrap().unwrap();
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
