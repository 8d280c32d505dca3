//! One live claim for a key, and what becomes of it: copies, take-overs, renewal, retries, poison.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use einmal::claim::Phase;
use einmal::worker::{Lanes, Limits};
use einmal::{Context, DedupStore, Failure, Policy};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};

#[tokio::test]
async fn scenario_3_a_copy_waits_for_the_one_that_runs_and_settles_with_its_outcome() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = store(&clock);
    let limits = Limits { handlers: 2, waiting: 2, ..Limits::default() };
    doors.close("a");
    let mut running = start(
        store.clone(),
        gated(&journal, &doors),
        settings(&clock, &Letters::default()),
        with_limits(Lanes::None, limits),
    );
    let first = running.hand.push(delivery(0, "a"));
    journal.wait_len(1).await;
    let copies = [running.hand.push(delivery(1, "a")), running.hand.push(delivery(2, "b"))];
    // The copy waits without a slot: the other slot is free for b.
    assert_eq!(drive(&clock, copies[1].wait()).await, Fate::Settled);
    let third = running.hand.push(delivery(3, "a"));
    drive(&clock, running.hand.wait_taken(4)).await;
    settle_down().await;
    // Two copies wait: at this bound nothing more is taken in, but for the one that was asked for before.
    running.hand.push(delivery(4, "a"));
    let late = running.hand.push(delivery(5, "c"));
    pass(&clock, 20 * SECOND).await;
    assert_eq!((first.fate(), copies[0].fate(), third.fate()), (Fate::Pending, Fate::Pending, Fate::Pending));
    assert_eq!(running.hand.taken(), 5, "the bound on waiting holds");

    doors.open("a");
    running.hand.end();
    assert_eq!(drive(&clock, late.wait()).await, Fate::Settled);
    assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 6]);
    assert_eq!((journal.count("run a"), journal.count("run c")), (1, 1));
    let record = store.inner().get(&key("a")).await.unwrap().unwrap();
    assert!(matches!(record.phase, Phase::Completed(outcome) if outcome.attempt == 1));
    let summary = drive(&clock, running.ended()).await.unwrap();
    assert_eq!((summary.ran_ok, summary.duplicate), (3, 3));
    assert_adds_up(summary);
}

#[tokio::test]
async fn scenario_4_a_stale_owner_changes_nothing_and_settles_nothing() {
    for lanes in [Lanes::Partition, Lanes::None] {
        a_stale_owner(lanes).await;
    }
}

async fn a_stale_owner(lanes: Lanes) {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    // The first worker's thread is blocked: no time passes for it.
    let (blocked, clock) = (ManualClock::new(), ManualClock::new());
    let (journal, doors) = (Journal::default(), Doors::default());
    let store = store(&clock);
    doors.close("a");
    let mut first =
        start(store.clone(), gated(&journal, &doors), settings(&blocked, &Letters::default()), config(lanes));
    let stale = first.hand.push(delivery(0, "a"));
    journal.wait_len(1).await;
    clock.advance(LEASE + SECOND);

    let done = Journal::default();
    let mut second = start(
        store.clone(),
        gated(&done, &Doors::default()),
        settings(&clock, &Letters::default()),
        config(lanes),
    );
    let taken_over = second.hand.push(delivery(0, "a"));
    assert_eq!(drive(&clock, taken_over.wait()).await, Fate::Settled);

    doors.open("a");
    journal.wait_count("end a", 1).await;
    settle_down().await;
    assert_eq!(stale.fate(), Fate::Pending, "its own completion was refused and settles nothing");
    assert_eq!(store.inner().outcomes(), ["a"], "one outcome");
    assert!(counter(&seen, "einmal_settle_refused_total") >= 1, "a refusal is counted");
    // It asks again, and is answered by the other's outcome.
    assert_eq!(drive(&blocked, stale.wait()).await, Fate::Settled);
    let summary = first.worker.summary();
    assert_eq!((summary.ran_ok, summary.duplicate), (0, 1));
}

fn counter(seen: &metrics_util::debugging::Snapshotter, name: &str) -> u64 {
    let all = seen.snapshot().into_vec();
    let mine = all.into_iter().filter(|(key, ..)| key.key().name() == name);
    let value = |value| if let DebugValue::Counter(count) = value { count } else { 0 };
    mine.map(|(_, _, _, counted)| value(counted)).sum()
}

#[tokio::test]
async fn scenario_6_a_handler_of_three_leases_is_renewed_and_runs_once() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("a");
        let handler = gated(&journal, &doors);
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        let handle = running.hand.push(delivery(0, "a"));
        journal.wait_len(1).await;
        // One renewal hangs and one fails: that is no reason to lose it.
        store.faults().at(Method::SettleMany, 1, Fault::HangBefore);
        store.faults().at(Method::SettleMany, 3, Fault::ErrorBefore);
        pass(&clock, 3 * LEASE).await;
        assert!(store.faults().calls(Method::SettleMany) >= 6, "renewals were sent");
        doors.open("a");
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        assert_eq!(journal.lines(), ["run a", "end a"], "{lanes:?}");
    }
}

#[tokio::test]
async fn scenario_6_renewal_stopped_leaves_one_recorded_completion() {
    for fault in [Fault::ErrorBefore, Fault::HangBefore] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("a");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            config(Lanes::Partition),
        );
        let handle = running.hand.push(delivery(0, "a"));
        journal.wait_len(1).await;
        (1..=20).for_each(|nth| store.faults().at(Method::SettleMany, nth, fault));
        // Up to its end the holder does not rely on the lease; then its handler is cancelled.
        pass(&clock, LEASE - SECOND).await;
        assert_eq!(handle.fate(), Fate::Pending);
        doors.open("a");
        settle_down().await;
        assert_eq!(journal.count("end a"), 0, "the handler was cancelled: {fault:?}");
        store.faults().clear();
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        assert_eq!(journal.lines(), ["run a", "run a", "end a"]);
        assert_eq!(store.inner().outcomes(), ["a"]);
    }
}

#[tokio::test]
async fn an_outcome_whose_answer_is_lost_while_its_lease_is_renewed_is_no_lost_lease() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = store(&clock);
    doors.close("b");
    let mut running = start(
        store.clone(),
        gated(&journal, &doors),
        settings(&clock, &Letters::default()),
        config(Lanes::Partition),
    );
    // `a` is claimed as started, `b` says so before it runs: that is the first settle.
    store.faults().at(Method::SettleMany, 1, Fault::ReplyLost);
    let first = running.hand.push(delivery(0, "a"));
    journal.wait_count("end a", 1).await;
    within(store.faults().wait_hanging(1)).await;
    let second = running.hand.push(delivery(1, "b"));
    assert_eq!(drive(&clock, first.wait()).await, Fate::Settled);
    doors.open("b");
    assert_eq!(drive(&clock, second.wait()).await, Fate::Settled);
    assert_eq!(journal.lines(), ["run a", "end a", "run b", "end b"]);
    assert_eq!(running.worker.summary().ran_ok, 2);
}

/// Fails the first `times` with `failure`, then is done.
fn failing(
    journal: &Journal,
    times: usize,
    failure: impl Fn() -> Failure + Send + Sync + 'static,
) -> impl Fn(Context) -> futures_util::future::BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static
{
    let (journal, runs) = (journal.clone(), Arc::new(AtomicUsize::new(0)));
    let failure = Arc::new(failure);
    move |context: Context| {
        let (journal, runs, failure) = (journal.clone(), Arc::clone(&runs), Arc::clone(&failure));
        Box::pin(async move {
            let name = String::from_utf8_lossy(context.payload()).into_owned();
            journal.note(format!("{name} {}", context.attempt()));
            if name.starts_with("bad") && runs.fetch_add(1, Ordering::SeqCst) < times {
                return Err(failure());
            }
            Ok(())
        })
    }
}

#[tokio::test]
async fn scenario_23_a_message_to_be_retried_later_runs_on_its_next_delivery() {
    let (clock, journal) = (ManualClock::new(), Journal::default());
    let store = store(&clock);
    let handler = || failing(&journal, 1, || Failure::retry_after(10 * SECOND));
    let first_handler = handler();
    let mut first =
        start(store.clone(), first_handler, settings(&clock, &Letters::default()), config(Lanes::None));
    let handle = first.hand.push(delivery(0, "bad"));
    journal.wait_len(1).await;
    settle_down().await;
    first.shutdown.cancel();
    let summary = drive(&clock, first.ended()).await.unwrap();
    assert_eq!((handle.fate(), summary.unsettled), (Fate::Dropped, 1));

    let mut second = start(
        store,
        failing(&journal, 0, Failure::ignore),
        settings(&clock, &Letters::default()),
        config(Lanes::None),
    );
    let again = second.hand.push(delivery(0, "bad"));
    assert_eq!(drive(&clock, again.wait()).await, Fate::Settled);
    assert_eq!(journal.lines(), ["bad 1", "bad 2"]);
    assert_eq!(second.worker.summary().duplicate, 0);
}

#[tokio::test]
async fn scenario_36_failures_reach_their_limit_and_the_message_is_put_aside() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let store = store(&clock);
        let handler = failing(&journal, usize::MAX, || Failure::retry("no"));
        let mut running = start(store.clone(), handler, settings(&clock, &letters), config(lanes));
        running.hand.push(delivery(0, "bad"));
        running.hand.push(delivery(1, "good"));
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
        assert_eq!(journal.lines().iter().filter(|line| line.starts_with("bad")).count(), 5);
        let arrived = letters.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!((arrived[0].reason.code(), arrived[0].attempts), ("attempts", 5));
        let copy = running.hand.push(delivery(2, "bad"));
        assert_eq!(drive(&clock, copy.wait()).await, Fate::Settled);
        let summary = running.worker.summary();
        assert_eq!((summary.ran_ok, summary.ran_failed, summary.duplicate), (1, 1, 1), "{lanes:?}");
    }
}

#[tokio::test]
async fn scenario_36_a_panic_is_the_failure_of_its_message_alone() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let store = store(&clock);
        let handler = failing(&journal, 2, || panic!("the handler's fault"));
        let mut running = start(store.clone(), handler, settings(&clock, &letters), config(lanes));
        let bad = running.hand.push(delivery(0, "bad"));
        let good = running.hand.push(delivery(1, "good"));
        assert_eq!(drive(&clock, bad.wait()).await, Fate::Settled);
        assert_eq!(drive(&clock, good.wait()).await, Fate::Settled);
        let record = store.inner().get(&key("bad")).await.unwrap().unwrap();
        assert_eq!((record.counters.failures, record.counters.interruptions), (2, 0));
        let record = store.inner().get(&key("good")).await.unwrap().unwrap();
        assert_eq!(record.counters.failures, 0);
        assert!(letters.arrived().is_empty());
    }
}

#[tokio::test]
async fn a_handler_past_max_run_is_cancelled_and_charged() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = store(&clock);
    doors.close("a");
    let policy: Policy = policy().max_run(Duration::from_secs(10)).build().unwrap();
    let mut running = start(
        store.clone(),
        gated(&journal, &doors),
        settings(&clock, &Letters::default()).policy(policy),
        config(Lanes::Partition),
    );
    let handle = running.hand.push(delivery(0, "a"));
    drive(&clock, journal.wait_count("run a", 2)).await;
    doors.open("a");
    assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
    assert_eq!(journal.count("end a"), 1);
    let record = store.inner().get(&key("a")).await.unwrap().unwrap();
    assert_eq!((record.counters.failures, record.counters.interruptions), (1, 0));
}

/// A handler that watches its cancellation and then returns an error is not charged for it.
#[tokio::test]
async fn a_handler_that_fails_because_its_lease_was_lost_is_not_charged() {
    let (clock, journal) = (ManualClock::new(), Journal::default());
    let store = store(&clock);
    let handler = {
        let journal = journal.clone();
        move |context: Context| {
            let journal = journal.clone();
            async move {
                journal.note("run");
                if journal.count("run") == 1 {
                    context.cancelled().cancelled().await;
                    return Err(Failure::retry("cancelled"));
                }
                Ok(())
            }
        }
    };
    let mut running =
        start(store.clone(), handler, settings(&clock, &Letters::default()), config(Lanes::None));
    let handle = running.hand.push(delivery(0, "a"));
    journal.wait_len(1).await;
    // Only the renewals up to the margin fail: a charge could be stored again.
    (1..=9).for_each(|nth| store.faults().at(Method::SettleMany, nth, Fault::ErrorBefore));
    drive(&clock, until(|| store.faults().calls(Method::SettleMany) >= 9)).await;
    assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
    let record = store.inner().get(&key("a")).await.unwrap().unwrap();
    assert_eq!(record.counters.failures, 0);
}
