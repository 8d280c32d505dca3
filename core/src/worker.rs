//! Runs many deliveries at once: in order where order matters, within bounds, until it is told to stop.
//!
//! An adapter brings a [`Source`]; the worker brings back each [`Ack`] when, and only when, the outcome of
//! its delivery is durable.

mod budget;
mod health;
mod housekeeping;
mod item;
mod lane;
mod lanes;
mod pipeline;
mod recorder;
mod single;
mod source;
mod tally;
mod wait;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::attempt::Run;
use crate::clock::timeout;
use crate::engine::Engine;
use crate::error::{InvalidSetting, within};
use crate::idempotent::Idempotent;
use crate::settle::Unsettled;
use crate::store::DedupStore;
use budget::Budget;
use item::Item;
use lanes::Queues;
use tally::Tally;

pub use health::{Health, HealthCell};
pub use lanes::Lanes;
pub use source::{Ack, Assignment, Incoming, Source};
pub use tally::Summary;

/// How much a worker does at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Deliveries taken in and not answered. 1 to 1,000,000, default 1,024.
    pub deliveries: usize,
    /// Bytes of these; passed by at most one delivery. From 1, default 64 MiB.
    pub bytes: usize,
    /// Handlers that run at once. 1 to 100,000, default 64.
    pub handlers: usize,
    /// Deliveries, or heads of lanes, that wait for a copy or their back-off. At this bound nothing more is
    /// taken in. From 1, default 768.
    pub waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { deliveries: 1024, bytes: 64 * 1024 * 1024, handlers: 64, waiting: 768 }
    }
}

/// How a worker works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// What is processed in order.
    pub lanes: Lanes,
    /// How much at once.
    pub limits: Limits,
    /// How long handlers that run may go on after the worker was told to stop. Up to 1 h, default 20 s.
    pub drain: Duration,
    /// How long a delivery may be in flight before the worker says that it is not ready. From 1 s, default 15 min.
    pub stalled_after: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            lanes: Lanes::default(),
            limits: Limits::default(),
            drain: Duration::from_secs(20),
            stalled_after: Duration::from_secs(900),
        }
    }
}

/// Why a worker stopped by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// Nothing more can be processed until the process is started again.
    #[error("the worker stopped: {0}")]
    Fatal(#[source] Unsettled),
    /// A task of the worker panicked: a fault of Einmal's, or of a `Drop` that it does not guard.
    #[error("a task of the worker panicked: {0}")]
    Panicked(#[source] JoinError),
}

/// Processes deliveries of a [`Source`] with an [`Idempotent`] handler.
pub struct Worker {
    shared: Arc<Shared>,
    config: WorkerConfig,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Worker");
        debug.field("scope", &self.shared.engine.scope).field("config", &self.config).finish_non_exhaustive()
    }
}

pub(crate) struct Shared {
    engine: Arc<Engine>,
    handler: Arc<dyn Run>,
    budget: Arc<Budget>,
    slots: Arc<Semaphore>,
    tally: Tally,
    health: HealthCell,
    troubled: AtomicBool,
    stalled_after: Duration,
    /// Nothing more is started.
    closing: CancellationToken,
    /// What runs is cancelled.
    cancelled: CancellationToken,
    fatal: Mutex<Option<Unsettled>>,
}

impl Shared {
    /// Takes back the troubles that hold up no delivery any more.
    fn look_for_recovery(&self) {
        if !self.troubled.load(Ordering::Relaxed) {
            return;
        }
        let (by_store, by_dead_letters) = self.budget.held_up();
        if !by_store {
            self.health.clear(wait::STORE);
        }
        if !by_dead_letters {
            self.health.clear(wait::DEAD_LETTERS);
        }
        if !by_store && !by_dead_letters {
            self.troubled.store(false, Ordering::Relaxed);
        }
    }

    fn trouble(&self, name: &str, reason: String) {
        self.troubled.store(true, Ordering::Relaxed);
        self.health.trouble(name, reason);
    }

    fn fail(&self, unsettled: Unsettled) {
        tracing::error!(problem = %unsettled, "the worker stops");
        self.health.fatal(unsettled.to_string());
        self.fatal.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(unsettled);
        self.closing.cancel();
        self.cancelled.cancel();
    }
}

impl Worker {
    /// A worker that has not begun.
    ///
    /// # Errors
    /// Names the first setting that is out of its bounds, and the bounds.
    pub fn new<S: DedupStore, H: Run>(
        idempotent: &Idempotent<S, H>,
        config: WorkerConfig,
    ) -> Result<Self, InvalidSetting> {
        let limits = config.limits;
        within("limits.deliveries", &limits.deliveries, 1..=1_000_000)?;
        within("limits.bytes", &limits.bytes, 1..=usize::MAX)?;
        within("limits.handlers", &limits.handlers, 1..=100_000)?;
        within("limits.waiting", &limits.waiting, 1..=usize::MAX)?;
        within("drain", &config.drain, Duration::ZERO..=Duration::from_secs(3600))?;
        within("stalled_after", &config.stalled_after, Duration::from_secs(1)..=Duration::MAX)?;
        let engine = Arc::clone(&idempotent.engine);
        let shared = Shared {
            handler: Arc::<H>::clone(&idempotent.handler),
            budget: Arc::new(Budget::new(limits)),
            slots: Arc::new(Semaphore::new(limits.handlers)),
            tally: Tally::new(engine.scope_label.clone()),
            health: HealthCell::default(),
            troubled: AtomicBool::new(false),
            stalled_after: config.stalled_after,
            closing: CancellationToken::new(),
            cancelled: CancellationToken::new(),
            fatal: Mutex::default(),
            engine,
        };
        Ok(Self { shared: Arc::new(shared), config })
    }

    /// How the worker is, for whoever supervises it; adapters note their own troubles there.
    #[must_use]
    pub fn health(&self) -> &HealthCell {
        &self.shared.health
    }

    /// What it has answered so far.
    #[must_use]
    pub fn summary(&self) -> Summary {
        self.shared.tally.summary(self.shared.engine.observed())
    }

    /// Processes what `source` delivers until it ends or `shutdown` is cancelled.
    ///
    /// When the source ends, everything taken in is processed. On `shutdown` nothing more is started; what
    /// runs may end and be settled within the drain budget, and is then cancelled and given back. A worker
    /// runs once.
    ///
    /// # Errors
    /// When the store has failed for good, or a message has no id and the policy is to stop. What was taken
    /// in stays unsettled.
    ///
    /// # Cancel safety
    /// Dropping the future stops all handlers; nothing is settled that is not durable, but claims are not
    /// given back. Cancel `shutdown` instead.
    pub async fn run<S: Source>(
        &self,
        mut source: S,
        shutdown: CancellationToken,
    ) -> Result<Summary, WorkerError> {
        let shared = &self.shared;
        let mut tasks = JoinSet::new();
        let queues = Arc::new(Queues::new());
        let panicked = {
            let house = housekeeping::keep_house(shared);
            tokio::pin!(house);
            loop {
                let next = async {
                    shared.budget.room().await;
                    source.next().await
                };
                let incoming = tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {
                        shared.closing.cancel();
                        break None;
                    }
                    () = shared.closing.cancelled() => break None,
                    Some(ended) = tasks.join_next(), if !tasks.is_empty() => match ended {
                        Ok(()) => continue,
                        Err(error) => break Some(error),
                    },
                    // Before the deliveries, of which there may be no end.
                    () = &mut house => continue,
                    incoming = next => incoming,
                };
                let Some(incoming) = incoming else { break None };
                self.dispatch(incoming, &queues, &mut tasks);
            }
        };
        let panicked = match panicked {
            Some(error) => Some(error),
            None => self.drain(&mut tasks, &shutdown).await,
        };
        if timeout(&*shared.engine.clock, GIVE_BACK, tasks.shutdown()).await.is_none() {
            tracing::error!("a handler blocks its thread and can't be stopped");
        }
        // What still waits in a lane of a task that was stopped is unsettled.
        drop(queues);
        self.end(panicked)
    }

    fn dispatch<A: Ack>(&self, incoming: Incoming<A>, queues: &Arc<Queues<A>>, tasks: &mut JoinSet<()>) {
        let item = Item::new(incoming, &self.shared);
        let shared = Arc::clone(&self.shared);
        match self.config.lanes.of(&item.delivery) {
            // In a box: the runtime moves a new task's future about a dozen times, and this one is large.
            None => drop(tasks.spawn(Box::pin(single::process(shared, item)))),
            Some(lane) => {
                if queues.push(&lane, item) {
                    tasks.spawn(lanes::process(shared, Arc::clone(queues), lane));
                }
            }
        }
    }

    /// Waits for what runs; after `shutdown` no longer than the budget, and then a little for claims to be
    /// given back.
    async fn drain(&self, tasks: &mut JoinSet<()>, shutdown: &CancellationToken) -> Option<JoinError> {
        let shared = &self.shared;
        let budget = async {
            tokio::select! {
                () = shutdown.cancelled() => shared.closing.cancel(),
                () = shared.closing.cancelled() => {}
            }
            shared.engine.clock.sleep(self.config.drain).await;
        };
        let over = tokio::select! {
            biased;
            panicked = join_all(tasks) => return panicked,
            () = budget => tasks.len(),
        };
        tracing::warn!(running = over, "the time to drain is over; what still runs is cancelled");
        shared.cancelled.cancel();
        timeout(&*shared.engine.clock, GIVE_BACK, join_all(tasks)).await.flatten()
    }

    fn end(&self, panicked: Option<JoinError>) -> Result<Summary, WorkerError> {
        if let Some(error) = panicked {
            self.shared.health.fatal("a task of the worker panicked");
            return Err(WorkerError::Panicked(error));
        }
        match self.shared.fatal.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(unsettled) => Err(WorkerError::Fatal(unsettled)),
            None => Ok(self.summary()),
        }
    }
}

/// How long cancelled handlers may take to give their claims back.
const GIVE_BACK: Duration = Duration::from_secs(2);

async fn join_all(tasks: &mut JoinSet<()>) -> Option<JoinError> {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            return Some(error);
        }
    }
    None
}
