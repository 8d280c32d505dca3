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

use std::time::Duration;

use common::inbox::{Commit, Inbox, Writes};
use common::*;
use einmal::claim::{Claim, ClaimAnswer, ClaimRequest, Record, Refusal, SettleAnswer};
use einmal::worker::{Lanes, Worker};
use einmal::{DedupStore, DedupStoreExt, Idempotent, Mode, StoreErrorKind, TransactionalStore, TxAnswer};
use einmal_testkit::{Fate, Fault, ManualClock, Method};

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
        self.start_in(Mode::Enforce, lanes, clock)
    }

    fn start_in(&self, mode: Mode, lanes: Lanes, clock: &ManualClock) -> Running {
        let handler = Writes { journal: self.journal.clone(), doors: self.doors.clone() };
        let settings = settings(clock, &Letters::default()).mode(mode);
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

#[tokio::test]
async fn in_observe_every_copy_writes_and_only_the_first_with_an_outcome() {
    for lanes in LANES {
        let bench = Bench::new();
        let mut running = bench.start_in(Mode::Observe, lanes, &bench.clock);
        for offset in 0..3 {
            if offset == 2 {
                bench.inbox.plan(&[Commit::Conflict, Commit::Conflict]);
            }
            let handle = running.hand.push(delivery(offset, "a"));
            assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
        }
        assert_eq!((bench.inbox.rows()["a"], bench.journal.count("run a")), (3, 5), "{lanes:?}");
        assert_eq!(bench.record("a").await.phase_name(), "completed");
        let summary = running.worker.summary();
        assert_adds_up(summary);
        assert_eq!((summary.ran_ok, summary.observed.would_run, summary.observed.would_duplicate), (3, 1, 2));

        // Whether the store remembers or not, the handler's own table is there.
        bench.inbox.dedup.faults().down(true);
        let handle = running.hand.push(delivery(3, "b"));
        assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
        assert_eq!((bench.inbox.rows()["b"], bench.journal.count("run b")), (1, 1), "{lanes:?}");
    }
}

#[tokio::test]
async fn in_observe_a_claim_that_was_lost_costs_no_write() {
    for lanes in LANES {
        for blocked in [false, true] {
            let bench = Bench::new();
            // Blocked, no time passes for the worker: it does not know that its lease has ended.
            let clock = if blocked { ManualClock::new() } else { bench.clock.clone() };
            bench.doors.close("a");
            let mut running = bench.start_in(Mode::Observe, lanes, &clock);
            let handle = running.hand.push(delivery(0, "a"));
            bench.journal.wait_len(1).await;
            bench.inbox.dedup.faults().down(true);
            pass(&bench.clock, LEASE).await;
            bench.inbox.dedup.faults().down(false);
            let other = bench.claim("a").await;
            bench.doors.open("a");
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled, "{lanes:?} {blocked}");
            let runs = if blocked { 2 } else { 1 };
            assert_eq!((bench.inbox.rows()["a"], bench.journal.count("run a")), (1, runs), "{lanes:?}");
            assert_eq!(bench.record("a").await.fence, other.fence, "the other's");
        }
    }
}

#[tokio::test]
async fn in_observe_and_off_a_transaction_that_fails_is_made_again() {
    for lanes in LANES {
        for (mode, fault) in [
            (Mode::Observe, Commit::ErrorBefore),
            (Mode::Observe, Commit::HangBefore),
            (Mode::Off, Commit::ErrorBefore),
            (Mode::Off, Commit::HangBefore),
        ] {
            let bench = Bench::new();
            bench.inbox.plan(&[fault]);
            bench.inbox.begins.lock().unwrap().push_back(StoreErrorKind::Poisoned);
            let mut running = bench.start_in(mode, lanes, &bench.clock);
            let handle = running.hand.push(delivery(0, "a"));
            assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{lanes:?} {mode} {fault:?}");
            assert_eq!((bench.inbox.rows()["a"], bench.journal.count("run a")), (1, 2), "{lanes:?} {mode}");
            let passed = u64::from(mode == Mode::Off);
            assert_eq!(running.worker.summary().passed, passed);
            assert_eq!(bench.inbox.dedup.faults().calls(Method::ClaimMany) == 0, mode == Mode::Off);
        }
    }
}
