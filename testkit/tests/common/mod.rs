//! What the tests of the worker share. Time passes only when a test says so.

#![allow(
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "each test uses a part, and a test may panic"
)]

pub mod bench;
pub mod inbox;
pub mod seen;
pub mod watching;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use einmal::worker::{Lanes, Limits, Summary, Worker, WorkerConfig, WorkerError};
use einmal::{
    Backoff, Clock, Context, DeadLetter, DeadLetterError, DeadLetters, DedupKey, DedupStore, Delivery,
    Failure, Handler, Header, Idempotent, MemoryConfig, MemoryStore, MessageId, Policy, PolicyBuilder,
    Position, Scope, Settings,
};
use einmal_testkit::{FaultyStore, Hand, ManualClock, hand_source};
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use watching::Watching;

pub const SECOND: Duration = Duration::from_secs(1);
pub const LEASE: Duration = Duration::from_secs(30);
pub const SCOPE: &str = "orders";

pub fn key(id: &str) -> DedupKey {
    DedupKey::new(Scope::new(SCOPE).unwrap(), MessageId::new(id).unwrap())
}

pub fn header(name: &str, value: &str) -> Header {
    (name.into(), Some(Bytes::copy_from_slice(value.as_bytes())))
}

/// A delivery of the operation `id`, whose payload is its id, from partition 0.
pub fn delivery(offset: i64, id: &str) -> Delivery {
    delivery_from(0, offset, id)
}

pub fn delivery_from(partition: i32, offset: i64, id: &str) -> Delivery {
    Delivery::new(Position::in_log("topic", partition, offset), Some(Bytes::copy_from_slice(id.as_bytes())))
        .with_headers(vec![header("message-id", id)])
}

pub type TestStore = FaultyStore<Watching<MemoryStore>>;

/// A store that lives by `clock`, notes its outcomes, and fails on demand.
pub fn store(clock: &ManualClock) -> TestStore {
    FaultyStore::new(Watching::new(MemoryStore::new(MemoryConfig::default(), clock.shared())))
}

/// No back-off: a retry is due at once.
pub fn policy() -> PolicyBuilder {
    let backoff = Backoff { initial: Duration::ZERO, factor: 1.0, max: Duration::ZERO };
    Policy::builder().lease(LEASE).backoff(backoff)
}

pub fn settings(clock: &ManualClock, letters: &Letters) -> Settings {
    Settings::new(Scope::new(SCOPE).unwrap())
        .policy(policy().build().unwrap())
        .clock(clock.shared())
        .dead_letters(letters.clone())
}

pub fn config(lanes: Lanes) -> WorkerConfig {
    WorkerConfig { lanes, drain: 20 * SECOND, ..WorkerConfig::default() }
}

pub fn with_limits(lanes: Lanes, limits: Limits) -> WorkerConfig {
    WorkerConfig { limits, ..config(lanes) }
}

/// A worker that runs.
pub struct Running {
    pub hand: Hand,
    pub shutdown: CancellationToken,
    pub worker: Arc<Worker>,
    task: JoinHandle<Result<Summary, WorkerError>>,
}

impl Running {
    /// Waits for its end.
    pub async fn ended(self) -> Result<Summary, WorkerError> {
        self.task.await.unwrap()
    }

    /// The process dies: nothing is given back, nothing settled.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

pub fn start<S: DedupStore, H: Handler>(
    store: S,
    handler: H,
    settings: Settings,
    config: WorkerConfig,
) -> Running {
    let idempotent = Idempotent::new(store, handler, settings).unwrap();
    run(Worker::new(&idempotent, config).unwrap())
}

pub fn run(worker: Worker) -> Running {
    let (hand, source) = hand_source();
    let (shutdown, worker) = (CancellationToken::new(), Arc::new(worker));
    let task = tokio::spawn({
        let (worker, shutdown) = (Arc::clone(&worker), shutdown.clone());
        async move { worker.run(source, shutdown).await }
    });
    Running { hand, shutdown, worker, task }
}

/// Guards a test against hanging; no test is as slow as this.
pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), future).await.expect("the test hangs")
}

/// Waits for a condition, without time passing.
pub async fn until(mut condition: impl FnMut() -> bool) {
    within(async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Lets everything happen that happens by itself, without time passing.
pub async fn settle_down() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Lets time pass, from one sleeper to the next, until `future` has ended.
pub async fn drive<T>(clock: &ManualClock, future: impl Future<Output = T>) -> T {
    tokio::pin!(future);
    let driven = async {
        loop {
            for _ in 0..64 {
                tokio::select! {
                    biased;
                    output = &mut future => return output,
                    () = tokio::task::yield_now() => {}
                }
            }
            clock.advance_to_next();
        }
    };
    within(driven).await
}

/// Lets `by` pass in small steps, with everything happening that is due.
pub async fn pass(clock: &ManualClock, by: Duration) {
    let until = clock.monotonic() + by;
    settle_down().await;
    while clock.monotonic() < until {
        clock.advance((SECOND / 2).min(until - clock.monotonic()));
        settle_down().await;
    }
}

/// What handlers did, in order, and a way to wait for it.
#[derive(Clone, Debug)]
pub struct Journal(watch::Sender<Vec<String>>);

impl Default for Journal {
    fn default() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }
}

impl Journal {
    pub fn note(&self, what: impl Into<String>) {
        self.0.send_modify(|lines| lines.push(what.into()));
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    pub fn count(&self, what: &str) -> usize {
        self.0.borrow().iter().filter(|line| *line == what).count()
    }

    pub async fn wait_len(&self, len: usize) {
        let _ = within(self.0.subscribe().wait_for(|lines| lines.len() >= len)).await.unwrap();
    }

    pub async fn wait_count(&self, what: &str, count: usize) {
        let seen = |lines: &Vec<String>| lines.iter().filter(|line| *line == what).count() >= count;
        let _ = within(self.0.subscribe().wait_for(seen)).await.unwrap();
    }
}

/// Doors that handlers wait at, by name. They are open unless they were closed.
#[derive(Clone, Debug)]
pub struct Doors(watch::Sender<HashMap<String, bool>>);

impl Default for Doors {
    fn default() -> Self {
        Self(watch::Sender::new(HashMap::new()))
    }
}

impl Doors {
    pub fn close(&self, name: &str) {
        self.0.send_modify(|doors| doors.extend([(name.to_owned(), false)]));
    }

    pub fn open(&self, name: &str) {
        self.0.send_modify(|doors| doors.extend([(name.to_owned(), true)]));
    }

    pub async fn pass(&self, name: &str) {
        let open = |doors: &HashMap<String, bool>| doors.get(name).copied().unwrap_or(true);
        let _ = self.0.subscribe().wait_for(open).await.unwrap();
    }
}

/// Notes that it begins and ends, and waits in between at the door of its payload.
pub fn gated(
    journal: &Journal,
    doors: &Doors,
) -> impl Fn(Context) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static {
    let (journal, doors) = (journal.clone(), doors.clone());
    move |context: Context| {
        let (journal, doors) = (journal.clone(), doors.clone());
        Box::pin(async move {
            let name = String::from_utf8_lossy(context.payload()).into_owned();
            journal.note(format!("run {name}"));
            doors.pass(&name).await;
            journal.note(format!("end {name}"));
            Ok(())
        })
    }
}

/// Where dead letters go in a test.
#[derive(Clone, Debug, Default)]
pub struct Letters(Arc<Post>);

#[derive(Debug, Default)]
struct Post {
    arrived: Mutex<Vec<DeadLetter>>,
    fails: AtomicUsize,
    hangs: AtomicBool,
    hangs_after: AtomicBool,
    tried: AtomicUsize,
}

impl Letters {
    pub fn arrived(&self) -> Vec<DeadLetter> {
        self.0.arrived.lock().unwrap().clone()
    }

    pub fn tried(&self) -> usize {
        self.0.tried.load(Ordering::SeqCst)
    }

    /// The next `times` are not confirmed.
    pub fn fail(&self, times: usize) {
        self.0.fails.store(times, Ordering::SeqCst);
    }

    /// Publishing does not end, and nothing arrives.
    pub fn hang(&self, hangs: bool) {
        self.0.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Letters arrive, and the confirmation does not.
    pub fn hang_after(&self, hangs: bool) {
        self.0.hangs_after.store(hangs, Ordering::SeqCst);
    }
}

#[async_trait]
impl DeadLetters for Letters {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        self.0.tried.fetch_add(1, Ordering::SeqCst);
        if self.0.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let left = |fails: usize| fails.checked_sub(1);
        if self.0.fails.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(DeadLetterError::new("the broker is not there"));
        }
        self.0.arrived.lock().unwrap().push(letter);
        if self.0.hangs_after.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// The counters add up (rule 12).
pub fn assert_adds_up(summary: Summary) {
    let Summary { received, in_flight, ran_ok, ran_failed, ignored, duplicate, conflict, .. } = summary;
    let Summary { parked, dead_lettered_without_run, rejected_before_claim, passed, unsettled, .. } = summary;
    let answered = ran_ok + ran_failed + ignored + duplicate + conflict + parked;
    let answered = answered + dead_lettered_without_run + rejected_before_claim + passed + unsettled;
    assert_eq!(received, in_flight + answered, "{summary:?}");
}
