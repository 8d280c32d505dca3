//! Handlers whose writes are in the outcome's transaction: both, or neither.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::*;
use einmal::claim::{
    Claim, ClaimAnswer, ClaimRequest, ForceAnswer, ForgetAnswer, Record, Refusal, SettleAnswer, SettleRequest,
};
use einmal::worker::{Lanes, Worker};
use einmal::{
    Capabilities, Context, DedupKey, DedupStore, DedupStoreExt, Failure, Idempotent, Purged, Reply, Stats,
    StoreError, StoreErrorKind, TransactionalStore, TxAnswer, TxHandler,
};
use einmal_testkit::{Fate, Fault, ManualClock, Method};

/// How a commit goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    Conflict,
    ErrorBefore,
    ErrorAfter,
    HangBefore,
    HangAfter,
}

/// A store with a table of the user's, in memory.
#[derive(Clone, Debug)]
struct Inbox {
    dedup: TestStore,
    table: Arc<Mutex<BTreeMap<String, u32>>>,
    plan: Arc<Mutex<VecDeque<Commit>>>,
    begins: Arc<Mutex<VecDeque<StoreErrorKind>>>,
}

impl Inbox {
    fn new(clock: &ManualClock) -> Self {
        Self { dedup: store(clock), table: Arc::default(), plan: Arc::default(), begins: Arc::default() }
    }

    fn plan(&self, commits: &[Commit]) {
        self.plan.lock().unwrap().extend(commits);
    }

    fn rows(&self) -> BTreeMap<String, u32> {
        self.table.lock().unwrap().clone()
    }
}

fn down(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "injected")
}

#[async_trait]
impl TransactionalStore for Inbox {
    type Tx = Vec<String>;

    async fn begin(&self, _: &Claim) -> Result<Self::Tx, StoreError> {
        match self.begins.lock().unwrap().pop_front() {
            Some(kind) => Err(down(kind)),
            None => Ok(Vec::new()),
        }
    }

    async fn commit(
        &self,
        writes: Self::Tx,
        claim: &Claim,
        result: Option<Bytes>,
    ) -> Result<TxAnswer, StoreError> {
        let planned = self.plan.lock().unwrap().pop_front();
        match planned {
            Some(Commit::Conflict) => return Ok(TxAnswer::Conflict),
            Some(Commit::ErrorBefore) => return Err(down(StoreErrorKind::Unavailable)),
            Some(Commit::HangBefore) => std::future::pending().await,
            _ => {}
        }
        let answer = self.dedup.inner().complete(claim, result).await?;
        if matches!(answer, SettleAnswer::Applied(_)) {
            let mut table = self.table.lock().unwrap();
            writes.into_iter().for_each(|row| *table.entry(row).or_default() += 1);
        }
        match planned {
            Some(Commit::ErrorAfter) => Err(down(StoreErrorKind::Unavailable)),
            Some(Commit::HangAfter) => std::future::pending().await,
            _ => Ok(TxAnswer::Settled(answer)),
        }
    }
}

#[async_trait]
impl DedupStore for Inbox {
    fn capabilities(&self) -> Capabilities {
        self.dedup.capabilities().transactional(true)
    }
    async fn claim_many(&self, requests: Vec<ClaimRequest>) -> Vec<Result<ClaimAnswer, StoreError>> {
        self.dedup.claim_many(requests).await
    }
    async fn settle_many(&self, requests: Vec<SettleRequest>) -> Vec<Result<SettleAnswer, StoreError>> {
        self.dedup.settle_many(requests).await
    }
    async fn get(&self, key: &DedupKey) -> Result<Option<Record>, StoreError> {
        self.dedup.get(key).await
    }
    async fn forget(&self, key: &DedupKey) -> Result<ForgetAnswer, StoreError> {
        self.dedup.forget(key).await
    }
    async fn force(&self, key: &DedupKey, retention: Duration) -> Result<ForceAnswer, StoreError> {
        self.dedup.force(key, retention).await
    }
    async fn expired_claims(&self, limit: usize) -> Result<Vec<(DedupKey, Record)>, StoreError> {
        self.dedup.expired_claims(limit).await
    }
    async fn purge_expired(&self, limit: usize) -> Result<Purged, StoreError> {
        self.dedup.purge_expired(limit).await
    }
    async fn stats(&self) -> Result<Stats, StoreError> {
        self.dedup.stats().await
    }
}

/// Writes its id as a row, and then does what the id says.
struct Writes {
    journal: Journal,
    doors: Doors,
}

#[async_trait]
impl TxHandler<Inbox> for Writes {
    async fn handle(&self, context: Context, tx: &mut Vec<String>) -> Result<Reply, Failure> {
        let id = context.key().id().as_str().to_owned();
        self.journal.note(format!("run {id}"));
        tx.push(id.clone());
        self.doors.pass(&id).await;
        if id.starts_with("retry") && context.attempt() == 1 {
            return Err(Failure::retry("first"));
        }
        if id.starts_with("panic") && context.attempt() == 1 {
            panic!("the handler's fault");
        }
        Ok(Reply::bytes(id))
    }
}

struct Bench {
    clock: ManualClock,
    inbox: Inbox,
    journal: Journal,
    doors: Doors,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new();
        let inbox = Inbox::new(&clock);
        Self { clock, inbox, journal: Journal::default(), doors: Doors::default() }
    }

    fn start(&self, lanes: Lanes) -> Running {
        self.start_with(lanes, &self.clock)
    }

    fn start_with(&self, lanes: Lanes, clock: &ManualClock) -> Running {
        let handler = Writes { journal: self.journal.clone(), doors: self.doors.clone() };
        let settings = settings(clock, &Letters::default());
        let idempotent = Idempotent::in_tx(self.inbox.clone(), handler, settings).unwrap();
        run(Worker::new(&idempotent, config(lanes)).unwrap())
    }

    /// Another's claim.
    async fn claim(&self, id: &str) -> Claim {
        let request = ClaimRequest {
            key: key(id),
            token: einmal::claim::Token::random(),
            fingerprint: None,
            rules: policy().build().unwrap().rules(),
            started: true,
            group: None,
        };
        let ClaimAnswer::Acquired(claim) = self.inbox.dedup.claim(request).await.unwrap() else { panic!() };
        claim
    }

    async fn record(&self, id: &str) -> Record {
        self.inbox.dedup.inner().get(&key(id)).await.unwrap().unwrap()
    }

    async fn assert_uncharged(&self, id: &str) {
        let counters = self.record(id).await.counters;
        assert_eq!((counters.failures, counters.interruptions), (0, 0), "{id}");
    }
}

const LANES: [Lanes; 2] = [Lanes::Partition, Lanes::None];

#[tokio::test]
async fn a_conflict_runs_the_handler_again_uncharged() {
    for lanes in LANES {
        let bench = Bench::new();
        bench.inbox.plan(&[Commit::Conflict; 12]);
        let mut running = bench.start(lanes);
        let handle = running.hand.push(delivery(0, "a"));
        assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled);
        assert_eq!((bench.journal.count("run a"), bench.inbox.rows()["a"]), (13, 1), "{lanes:?}");
        bench.assert_uncharged("a").await;
        assert_eq!(running.worker.summary().ran_ok, 1);
    }
}

#[tokio::test]
async fn a_commit_that_failed_is_decided_by_the_record() {
    for lanes in LANES {
        for (fault, runs) in [
            (Commit::ErrorAfter, 1),
            (Commit::ErrorBefore, 2),
            (Commit::HangAfter, 1),
            (Commit::HangBefore, 2),
        ] {
            for read_fails in [false, true] {
                let case = format!("{lanes:?}, {fault:?}, the read fails: {read_fails}");
                let bench = Bench::new();
                bench.inbox.plan(&[fault]);
                if read_fails {
                    bench.inbox.dedup.faults().at(Method::Get, 1, Fault::ErrorBefore);
                }
                let mut running = bench.start(lanes);
                running.hand.push(delivery(0, "a"));
                running.hand.push(delivery(1, "b"));
                assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 2], "{case}");
                let rows: Vec<_> = bench.inbox.rows().into_iter().collect();
                assert_eq!(rows, [("a".to_owned(), 1), ("b".to_owned(), 1)], "{case}");
                assert_eq!(bench.journal.lines().len(), runs + 1, "{case}");
                for id in ["a", "b"] {
                    bench.assert_uncharged(id).await;
                    assert_eq!(bench.record(id).await.phase_name(), "completed");
                }
                assert_adds_up(running.worker.summary());
            }
        }
    }
}

#[tokio::test]
async fn a_commit_that_failed_is_not_taken_for_done_by_the_outcome_of_another_claim() {
    for lanes in LANES {
        let bench = Bench::new();
        // No time passes for the first worker while its lease ends.
        let blocked = ManualClock::new();
        bench.doors.close("a");
        let mut first = bench.start_with(lanes, &blocked);
        let stale = first.hand.push(delivery(0, "a"));
        bench.journal.wait_len(1).await;
        bench.clock.advance(LEASE);
        let other = bench.claim("a").await;
        let answer = bench.inbox.commit(vec!["a".into()], &other, None).await.unwrap();
        assert!(matches!(answer, TxAnswer::Settled(SettleAnswer::Applied(_))));

        // The record that is read now is completed, and not by this claim.
        bench.inbox.plan(&[Commit::ErrorBefore]);
        bench.doors.open("a");
        until(|| bench.inbox.dedup.faults().calls(Method::Get) > 0).await;
        settle_down().await;
        assert_eq!(stale.fate(), Fate::Pending, "{lanes:?}");
        assert_eq!(drive(&blocked, stale.wait()).await, Fate::Settled);
        let summary = first.worker.summary();
        assert_eq!((summary.ran_ok, summary.duplicate), (0, 1), "{lanes:?}");
        assert_eq!((bench.inbox.rows()["a"], bench.journal.count("run a")), (1, 1), "{lanes:?}");
    }
}

#[tokio::test]
async fn a_refused_commit_leaves_no_trace_and_settles_nothing() {
    for lanes in LANES {
        let bench = Bench::new();
        // No time passes for the first worker while its lease ends.
        let blocked = ManualClock::new();
        bench.doors.close("a");
        let mut first = bench.start_with(lanes, &blocked);
        let stale = first.hand.push(delivery(0, "a"));
        bench.journal.wait_len(1).await;
        bench.clock.advance(LEASE);
        let other = bench.claim("a").await;
        bench.doors.open("a");
        settle_down().await;
        assert_eq!((stale.fate(), bench.inbox.rows().len()), (Fate::Pending, 0), "{lanes:?}");
        let answer = bench.inbox.commit(vec!["a".into()], &other, None).await.unwrap();
        assert!(matches!(answer, TxAnswer::Settled(SettleAnswer::Applied(_))));
        assert_eq!(drive(&blocked, stale.wait()).await, Fate::Settled);
        assert_eq!(bench.inbox.rows()["a"], 1);
        let summary = first.worker.summary();
        assert_eq!((summary.ran_ok, summary.duplicate), (0, 1));
        let late = bench.inbox.dedup.release(&other, Duration::ZERO).await.unwrap();
        assert_eq!(late, SettleAnswer::Refused(Refusal::AlreadyEnded));
    }
}

#[tokio::test]
async fn what_a_failed_handler_wrote_is_gone() {
    for lanes in LANES {
        let bench = Bench::new();
        let mut running = bench.start(lanes);
        running.hand.push(delivery(0, "retry"));
        running.hand.push(delivery(1, "panic"));
        assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
        for id in ["retry", "panic"] {
            assert_eq!((bench.inbox.rows()[id], bench.journal.count(&format!("run {id}"))), (1, 2));
            assert_eq!(bench.record(id).await.counters.failures, 1);
        }
    }
}

#[tokio::test]
async fn a_transaction_that_can_not_begin_charges_nobody() {
    for lanes in LANES {
        let bench = Bench::new();
        let kinds = [StoreErrorKind::Unavailable, StoreErrorKind::Full];
        bench.inbox.begins.lock().unwrap().extend(kinds.into_iter().cycle().take(12));
        let mut running = bench.start(lanes);
        let handle = running.hand.push(delivery(0, "a"));
        assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled);
        assert_eq!((bench.inbox.rows()["a"], bench.journal.count("run a")), (1, 1));
        bench.assert_uncharged("a").await;
    }
}

#[tokio::test]
async fn rule_9_in_an_inbox_the_next_handler_waits_for_the_commit() {
    let bench = Bench::new();
    bench.inbox.plan(&[Commit::HangAfter]);
    let mut running = bench.start(Lanes::Partition);
    running.hand.push(delivery(0, "a"));
    running.hand.push(delivery(1, "b"));
    bench.journal.wait_len(1).await;
    settle_down().await;
    assert_eq!(bench.journal.lines(), ["run a"], "no pipelining");
    assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
    assert_eq!(bench.journal.lines(), ["run a", "run b"]);
}
