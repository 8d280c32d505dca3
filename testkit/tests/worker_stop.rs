//! Stopping: what runs drains, what is not started goes back, and nothing is charged for it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use common::*;
use einmal::worker::{Lanes, Limits, WorkerError};
use einmal::{DedupStore, StoreError, StoreErrorKind, Unsettled};
use einmal_testkit::{Fate, Fault, ManualClock, Method};

#[tokio::test]
async fn scenario_17_a_worker_told_to_stop_drains_and_its_work_is_not_run_again() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        let limits = Limits { handlers: 1, ..Limits::default() };
        doors.close("b");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            with_limits(lanes, limits),
        );
        // The completion of a is pending when the worker is told to stop, b runs, c and d wait.
        store.faults().at(Method::SettleMany, 1, Fault::HangBefore);
        for (partition, id) in (0..).zip(["a", "b", "c", "d"]) {
            running.hand.push(delivery_from(partition.min(2), partition.into(), id));
        }
        journal.wait_count("run b", 1).await;
        within(running.hand.wait_taken(4)).await;
        running.shutdown.cancel();
        settle_down().await;
        assert_eq!(journal.count("run c") + journal.count("run d"), 0, "nothing more is started");
        doors.open("b");
        store.faults().release();
        let hand = &running.hand;
        let fates = drive(&clock, hand.wait_all()).await;
        assert_eq!(fates, [Fate::Settled, Fate::Settled, Fate::Dropped, Fate::Dropped], "{lanes:?}");
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_eq!((summary.ran_ok, summary.unsettled, summary.in_flight), (2, 2, 0));
        assert_adds_up(summary);

        let mut next = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            config(lanes),
        );
        for (partition, id) in (0..).zip(["a", "b", "c", "d"]) {
            next.hand.push(delivery_from(partition.min(2), partition.into(), id));
        }
        assert_eq!(drive(&clock, next.hand.wait_all()).await, [Fate::Settled; 4]);
        for id in ["a", "b", "c", "d"] {
            assert_eq!(journal.count(&format!("run {id}")), 1, "{id}, {lanes:?}");
        }
    }
}

/// Handlers over the time to drain are cancelled, given back and charged to nobody.
#[tokio::test]
async fn scenario_17_what_outlasts_the_time_to_drain_is_given_back_uncharged() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("a");
        let settings_of = || settings(&clock, &Letters::default());
        let mut running = start(store.clone(), gated(&journal, &doors), settings_of(), config(lanes));
        running.hand.push(delivery(0, "a"));
        running.hand.push(delivery(1, "b"));
        journal.wait_count("run a", 1).await;
        settle_down().await;
        running.shutdown.cancel();
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_eq!(summary.in_flight, 0);
        assert_eq!(journal.count("end a"), 0);
        let record = store.inner().get(&key("a")).await.unwrap().unwrap();
        assert_eq!(record.phase_name(), "released");
        assert_eq!((record.counters.failures, record.counters.interruptions), (0, 0), "{lanes:?}");

        doors.open("a");
        let mut next = start(store.clone(), gated(&journal, &doors), settings_of(), config(lanes));
        let handle = next.hand.push(delivery(0, "a"));
        assert_eq!(within(handle.wait()).await, Fate::Settled, "at once: no lease has to end");
    }
}

#[tokio::test]
async fn scenario_16_a_closing_assignment_starts_nothing_and_settles_what_runs() {
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        let limits = Limits { handlers: 1, ..Limits::default() };
        doors.close("a");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            with_limits(lanes, limits),
        );
        let runs = running.hand.push(delivery(0, "a"));
        journal.wait_count("run a", 1).await;
        let waits = running.hand.push(delivery(1, "b"));
        within(running.hand.wait_taken(2)).await;
        running.hand.close();
        settle_down().await;
        doors.open("a");
        assert_eq!(drive(&clock, runs.wait()).await, Fate::Settled, "{lanes:?}");
        assert_eq!(drive(&clock, waits.wait()).await, Fate::Dropped, "{lanes:?}");
        assert_eq!(journal.count("run b"), 0);
        // The worker goes on with what it is assigned next.
        running.hand.reassign();
        let next = running.hand.push(delivery(1, "b"));
        assert_eq!(drive(&clock, next.wait()).await, Fate::Settled);
        assert_adds_up(running.worker.summary());
    }
}

#[tokio::test]
async fn scenario_14_nothing_is_settled_once_the_assignment_is_lost() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("b");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            config(lanes),
        );
        // The handler of a is done, and its outcome on its way; the handler of b runs.
        store.faults().at(Method::SettleMany, 1, Fault::HangBefore);
        let done = running.hand.push(delivery(0, "a"));
        within(store.faults().wait_hanging(1)).await;
        let runs = running.hand.push(delivery_from(1, 0, "b"));
        journal.wait_count("run b", 1).await;
        running.hand.lose();
        settle_down().await;
        store.faults().release();
        assert_eq!(drive(&clock, done.wait()).await, Fate::Dropped, "{lanes:?}");
        assert_eq!(drive(&clock, runs.wait()).await, Fate::Dropped, "{lanes:?}");
        assert_eq!(journal.count("end b"), 0, "what ran is cancelled");
        // The outcome that was on its way is kept all the same, and answers the next delivery.
        assert_eq!(store.inner().outcomes(), ["a"]);
        running.hand.reassign();
        doors.open("b");
        let again = [running.hand.push(delivery(0, "a")), running.hand.push(delivery_from(1, 0, "b"))];
        for handle in again {
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        }
        let summary = running.worker.summary();
        assert_eq!((summary.ran_ok, summary.duplicate, summary.unsettled), (1, 1, 2), "{lanes:?}");
        let record = store.inner().get(&key("b")).await.unwrap().unwrap();
        assert_eq!(record.counters.interruptions, 0);
    }
}

#[tokio::test]
async fn the_end_of_a_source_drains_everything_however_long_it_takes() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    doors.close("a");
    let store = store(&clock);
    let handler = gated(&journal, &doors);
    let mut running = start(store, handler, settings(&clock, &Letters::default()), config(Lanes::Partition));
    for (offset, id) in (0..).zip(["a", "b", "c"]) {
        running.hand.push(delivery(offset, id));
    }
    running.hand.end();
    pass(&clock, 60 * SECOND).await;
    doors.open("a");
    assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
    assert_eq!(drive(&clock, running.ended()).await.unwrap().ran_ok, 3);
}

/// Fails for good from the moment it is told to.
#[derive(Clone, Debug)]
struct Dying {
    inner: TestStore,
    dead: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Dying {
    fn answer<T>(&self, asked: usize) -> Option<Vec<Result<T, StoreError>>> {
        let error = || Err(StoreError::new(StoreErrorKind::Poisoned, "a write failed"));
        let dead = self.dead.load(std::sync::atomic::Ordering::SeqCst);
        dead.then(|| (0..asked).map(|_| error()).collect())
    }
}

#[async_trait::async_trait]
impl DedupStore for Dying {
    fn capabilities(&self) -> einmal::Capabilities {
        self.inner.capabilities()
    }
    async fn claim_many(
        &self,
        requests: Vec<einmal::claim::ClaimRequest>,
    ) -> Vec<Result<einmal::claim::ClaimAnswer, StoreError>> {
        match self.answer(requests.len()) {
            Some(errors) => errors,
            None => self.inner.claim_many(requests).await,
        }
    }
    async fn settle_many(
        &self,
        requests: Vec<einmal::claim::SettleRequest>,
    ) -> Vec<Result<einmal::claim::SettleAnswer, StoreError>> {
        match self.answer(requests.len()) {
            Some(errors) => errors,
            None => self.inner.settle_many(requests).await,
        }
    }
    async fn get(&self, key: &einmal::DedupKey) -> Result<Option<einmal::claim::Record>, StoreError> {
        self.inner.get(key).await
    }
    async fn forget(&self, key: &einmal::DedupKey) -> Result<einmal::claim::ForgetAnswer, StoreError> {
        self.inner.forget(key).await
    }
    async fn force(
        &self,
        key: &einmal::DedupKey,
        retention: std::time::Duration,
    ) -> Result<einmal::claim::ForceAnswer, StoreError> {
        self.inner.force(key, retention).await
    }
    async fn expired_claims(
        &self,
        limit: usize,
    ) -> Result<Vec<(einmal::DedupKey, einmal::claim::Record)>, StoreError> {
        self.inner.expired_claims(limit).await
    }
    async fn purge_expired(&self, limit: usize) -> Result<einmal::Purged, StoreError> {
        match self.answer(1).and_then(|mut errors: Vec<_>| errors.pop()) {
            Some(error) => error,
            None => self.inner.purge_expired(limit).await,
        }
    }
    async fn stats(&self) -> Result<einmal::Stats, StoreError> {
        self.inner.stats().await
    }
}

#[tokio::test]
async fn a_store_that_failed_for_good_ends_the_worker() {
    for (lanes, when) in [
        (Lanes::Partition, "claiming"),
        (Lanes::None, "claiming"),
        (Lanes::Partition, "completing"),
        (Lanes::None, "completing"),
        (Lanes::Partition, "idle"),
    ] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = Dying { inner: store(&clock), dead: Default::default() };
        doors.close("a");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            config(lanes),
        );
        if when == "completing" {
            running.hand.push(delivery(0, "a"));
            journal.wait_len(1).await;
        }
        store.dead.store(true, std::sync::atomic::Ordering::SeqCst);
        doors.open("a");
        if when == "claiming" {
            running.hand.push(delivery(0, "a"));
        }
        let worker = std::sync::Arc::clone(&running.worker);
        let error = drive(&clock, running.ended()).await.unwrap_err();
        assert!(
            matches!(&error, WorkerError::Fatal(Unsettled::Store(_) | Unsettled::OutcomeUnknown(Some(_)))),
            "{when}: {error:?}"
        );
        assert!(!worker.health().read().live);
        let summary = worker.summary();
        assert_eq!((summary.ran_ok, summary.in_flight), (0, 0), "{when}");
        assert_adds_up(summary);
    }
}
