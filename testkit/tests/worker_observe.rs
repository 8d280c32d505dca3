//! The modes that obey no answer of the store: every copy runs, whatever the store says or does not say.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use common::bench::{Bench, numbered, result};
use common::*;
use einmal::claim::{Claim, Failing, Phase, Verb};
use einmal::worker::Lanes;
use einmal::{
    Clock, Context, DedupStoreExt, Delivery, FailReason, Failure, IdSource, Identify, MissingIdPolicy, Mode,
    ModeSwitch, Observed, Position, SledConfig, SledStore,
};
use einmal_testkit::{Fate, Fault, ManualClock, Method};

const LANES: [Lanes; 3] = [Lanes::Partition, Lanes::Key, Lanes::None];

#[tokio::test]
async fn observe_runs_every_copy_and_counts_what_enforce_would_have_done() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        for id in ["a", "b", "c", "a", "c", "a"] {
            bench.settled(id).await;
        }
        assert_eq!(bench.journal.lines(), ["a", "b", "c", "a", "c", "a"], "{lanes:?}");
        let summary = bench.summary();
        let mut expected = Observed::default();
        (expected.would_run, expected.would_duplicate) = (3, 3);
        assert_eq!((summary.ran_ok, summary.duplicate, summary.observed), (6, 0, expected), "{lanes:?}");

        // What was stored answers, as soon as answers are obeyed.
        bench.mode.set(Mode::Enforce);
        for id in ["a", "b", "c", "d"] {
            bench.settled(id).await;
        }
        assert_eq!(bench.journal.lines().len(), 7, "{lanes:?}");
        let summary = bench.summary();
        assert_eq!((summary.ran_ok, summary.duplicate, summary.observed), (7, 3, expected), "{lanes:?}");
    }
}

#[tokio::test]
async fn an_unclaimed_copy_writes_nothing_and_overwrites_no_outcome() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.settled("a").await;
        let calls = |bench: &Bench| bench.store.faults().calls(Method::SettleMany);
        let (first, settles) = (bench.record("a").await, calls(&bench));
        assert_eq!(result(&first), "run 1");
        bench.settled("a").await;
        assert_eq!((bench.journal.count("a"), bench.record("a").await), (2, first), "{lanes:?}");
        assert_eq!(calls(&bench), settles, "{lanes:?}");
    }
}

/// Rule 3 is suspended.
#[tokio::test]
async fn observe_runs_a_copy_while_another_runs() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.doors.close("a");
        let first = bench.push_to(0, "a");
        bench.journal.wait_count("a", 1).await;
        let copy = bench.push_to(1, "a");
        bench.journal.wait_count("a", 2).await;
        bench.doors.open("a");
        assert_eq!(drive(&bench.clock, first.wait()).await, Fate::Settled);
        assert_eq!(drive(&bench.clock, copy.wait()).await, Fate::Settled);
        settle_down().await;
        let observed = bench.observed();
        assert_eq!((observed.would_run, observed.would_in_progress), (1, 1), "{lanes:?}");
        assert_eq!(result(&bench.record("a").await), "run 1", "{lanes:?}");
    }
}

/// A lane's next handler waits for no outcome, except for that of its own key: the count would be wrong.
#[tokio::test]
async fn an_observed_lane_goes_on_while_outcomes_are_stored() {
    for lanes in [Lanes::Partition, Lanes::Key] {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.store.inner().stall(true);
        let mut push = |id: &str| {
            bench.offset += 1;
            let message = delivery_from(0, bench.offset, id).with_key(Some(Bytes::from("one lane")));
            bench.running.hand.push(message)
        };
        let handles = ["a", "b", "c"].map(&mut push);
        let again = push("b");
        for handle in &handles {
            assert_eq!(within(handle.wait()).await, Fate::Settled, "{lanes:?}");
        }
        settle_down().await;
        assert_eq!((bench.journal.lines().len(), again.fate()), (3, Fate::Pending), "{lanes:?}");
        assert!(bench.store.inner().outcomes().is_empty());
        bench.store.inner().stall(false);
        assert_eq!(within(again.wait()).await, Fate::Settled, "{lanes:?}");
        settle_down().await;
        assert_eq!(bench.store.inner().outcomes(), ["a", "b", "c"], "{lanes:?}");
        let observed = bench.observed();
        assert_eq!((observed.would_run, observed.would_duplicate, observed.would_in_progress), (3, 1, 0));
    }
}

#[tokio::test]
async fn observe_runs_and_settles_while_the_store_is_down() {
    for lanes in LANES {
        for fault in [Fault::ErrorBefore, Fault::ErrorAfter, Fault::HangBefore, Fault::ReplyLost] {
            let mut bench = Bench::new(lanes, Mode::Observe);
            bench.store.faults().seeded(1, 1.0, &[fault]);
            let handles: Vec<_> = (0..60).map(|n| bench.push_to(n % 3, &format!("id {}", n % 20))).collect();
            for handle in &handles {
                assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{lanes:?} {fault:?}");
            }
            assert_eq!(bench.journal.lines().len(), 60);
            let summary = bench.summary();
            assert_eq!((summary.ran_ok, summary.observed.unknown), (60, 60), "{lanes:?} {fault:?}");
            assert!(bench.running.worker.health().read().ready, "{lanes:?} {fault:?}");
            let waited = bench.clock.monotonic();
            assert!(waited < 20 * SECOND, "{waited:?} waited for it: {lanes:?} {fault:?}");

            // It is back, and asked again.
            bench.store.faults().clear();
            pass(&bench.clock, LEASE + 10 * SECOND).await;
            bench.settled("id 3").await;
            assert_eq!(bench.observed().unknown, 60, "{lanes:?} {fault:?}");
            settle_down().await;
            assert_eq!(bench.record("id 3").await.phase_name(), "completed", "{lanes:?} {fault:?}");
        }
    }
}

/// `Enforce` would stop: only a restart helps.
#[tokio::test]
async fn observe_goes_on_without_a_store_that_has_failed_for_good() {
    for lanes in LANES {
        let dir = tempfile::tempdir().unwrap();
        let store = SledStore::open(SledConfig::new(dir.path().join("store")).unwrap()).await.unwrap();
        let (clock, journal, mode) = (ManualClock::new(), Journal::default(), ModeSwitch::new(Mode::Observe));
        let handler = numbered(&journal, &Doors::default());
        let settings = settings(&clock, &Letters::default()).mode(mode.clone());
        let mut running = start(store.clone(), handler, settings, config(lanes));
        store.close().await.unwrap();
        for offset in 0..3 {
            let handle = running.hand.push(delivery(offset, "a"));
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
            pass(&clock, 10 * SECOND).await;
        }
        assert_eq!((journal.count("a"), running.worker.summary().observed.unknown), (3, 3), "{lanes:?}");
        mode.set(Mode::Enforce);
        running.hand.push(delivery(4, "a"));
        assert!(drive(&clock, running.ended()).await.is_err(), "{lanes:?}");
    }
}

#[tokio::test]
async fn what_fails_in_observe_is_neither_charged_nor_dead_lettered_nor_spun() {
    for lanes in LANES {
        for (id, gives_up) in [("fails", false), ("panics", false), ("rejects", true), ("parks", true)] {
            let mut bench = Bench::new(lanes, Mode::Observe);
            let handle = bench.push(id);
            pass(&bench.clock, 60 * SECOND).await;
            let runs = bench.journal.count(id) as u64;
            // More often than `Enforce` would; no more than about twice a second.
            assert!((20..=140).contains(&runs), "{runs} runs of {id}: {lanes:?}");
            assert_eq!(handle.fate(), Fate::Pending, "{id}: {lanes:?}");
            let observed = bench.observed();
            let (fails, gave_up) = if gives_up { (0, runs) } else { (runs, 0) };
            assert_eq!((observed.would_fail, observed.would_give_up), (fails, gave_up), "{id}: {lanes:?}");
            assert_eq!(observed.would_run, 1, "a delivery is counted once: {id}, {lanes:?}");
            let record = bench.record(id).await;
            assert_eq!((record.phase_name(), record.counters.failures), ("released", 0), "{id}: {lanes:?}");
            assert_eq!((bench.letters.tried(), bench.running.worker.health().read().ready), (0, true));

            // Nothing of that stays: five attempts are left.
            bench.mode.set(Mode::Enforce);
            assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{id}: {lanes:?}");
            let more = if gives_up { 1 } else { 5 };
            assert_eq!(bench.journal.count(id) as u64, runs + more, "{id}: {lanes:?}");
            assert_eq!((bench.letters.arrived().len(), bench.summary().in_flight), (1, 0));
        }
    }
}

#[tokio::test]
async fn in_observe_a_handler_is_left_alone_for_as_long_as_it_asks() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.push("waits");
        bench.journal.wait_count("waits", 1).await;
        pass(&bench.clock, 29 * SECOND).await;
        assert_eq!(bench.journal.count("waits"), 1, "{lanes:?}");
        pass(&bench.clock, 2 * SECOND).await;
        assert_eq!(bench.journal.count("waits"), 2, "{lanes:?}");
    }
}

#[tokio::test]
async fn what_is_ignored_in_observe_is_settled_and_its_key_free() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.settled("ignores").await;
        settle_down().await;
        assert_eq!(bench.record("ignores").await.phase_name(), "released");
        assert_eq!((bench.summary().ignored, bench.summary().observed.would_run), (1, 1), "{lanes:?}");
    }
}

#[tokio::test]
async fn observe_obeys_no_answer() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        let settle = |claim: Claim, verb: Verb| {
            let store = bench.store.clone();
            async move { store.inner().settle(&claim, verb).await.unwrap() }
        };
        let for_good = || Verb::Fail(Failing::ForGood(FailReason::Rejected("no".into())));
        let release = || Verb::Release { delay: Duration::ZERO };
        // Waiting for its back-off.
        let claim = bench.claim("not yet").await;
        settle(claim, Verb::Release { delay: 200 * SECOND }).await;
        // Given up, its dead letter owed, and dead-lettered.
        let claim = bench.claim("owed").await;
        settle(claim.clone(), for_good()).await;
        settle(claim, release()).await;
        let claim = bench.claim("failed").await;
        settle(claim.clone(), for_good()).await;
        settle(claim, Verb::DeadLettered).await;
        // Another's.
        bench.claim("held").await;
        // Of another content.
        bench.settled("a").await;
        let mut before = Vec::new();
        for id in ["not yet", "failed", "held", "a"] {
            before.push((id, bench.record(id).await));
        }

        for id in ["not yet", "owed", "failed", "held"] {
            bench.settled(id).await;
        }
        let other = delivery(50, "other content").with_headers(vec![header("message-id", "a")]);
        let handle = bench.running.hand.push(other);
        assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
        assert_eq!(bench.journal.lines(), ["a", "not yet", "owed", "failed", "held", "a"], "{lanes:?}");

        let observed = bench.observed();
        let seen = (observed.would_run, observed.would_duplicate, observed.would_conflict);
        assert_eq!(seen, (1, 1, 1), "{lanes:?}");
        let seen = (observed.would_not_yet, observed.would_dead_letter, observed.would_in_progress);
        assert_eq!(seen, (1, 1, 1), "{lanes:?}");
        assert_eq!(bench.letters.tried(), 0);
        for (id, before) in before {
            assert_eq!(bench.record(id).await, before, "{id}: {lanes:?}");
        }
        let owed = bench.record("owed").await;
        assert!(matches!(owed.phase, Phase::Owed(_)), "still owed, and nobody's: {owed:?}");
    }
}

#[tokio::test]
async fn observe_runs_messages_without_an_id_and_never_under_a_key_of_others() {
    for lanes in LANES {
        for policy in [MissingIdPolicy::DeadLetter, MissingIdPolicy::Fail] {
            let (clock, letters) = (ManualClock::new(), Letters::default());
            let store = store(&clock);
            let keys = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&keys);
            let handler = move |context: Context| {
                let key = context.downstream_key("call", 64).unwrap();
                let (attempt, fence) = (context.attempt(), context.fence().get());
                assert_eq!((attempt, fence, context.interrupted()), (1, 0, false));
                let mut seen = seen.lock().unwrap();
                seen.push(key);
                let first = seen.len() == 1;
                async move { if first { Err(Failure::retry("once")) } else { Ok(()) } }
            };
            let identify = Identify::new([IdSource::header("message-id")]).or(policy);
            let settings = settings(&clock, &letters).identify(identify).mode(Mode::Observe);
            let mut running = start(store.clone(), handler, settings, config(lanes));
            for offset in 0..2 {
                let message = Delivery::new(Position::in_log("topic", 0, offset), Some(Bytes::from("same")));
                let handle = running.hand.push(message);
                assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
            }
            let keys = keys.lock().unwrap().clone();
            assert_eq!(keys[0], keys[1], "the same on every attempt");
            assert_ne!(keys[0], keys[2], "and of no other message");
            let summary = running.worker.summary();
            assert_adds_up(summary);
            assert_eq!(
                (summary.passed, summary.observed.would_reject, letters.tried()),
                (2, 2, 0),
                "{lanes:?}"
            );
            assert_eq!(store.faults().calls(Method::ClaimMany), 0);
        }
    }
}

#[tokio::test]
async fn in_observe_a_lost_lease_cancels_nothing() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.doors.close("a");
        let handle = bench.push("a");
        bench.journal.wait_count("a", 1).await;
        bench.store.faults().down(true);
        pass(&bench.clock, 2 * LEASE).await;
        // Lapsed, and another's by now.
        bench.store.faults().down(false);
        bench.claim("a").await;
        bench.doors.open("a");
        assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
        settle_down().await;
        let (summary, record) = (bench.summary(), bench.record("a").await);
        assert_eq!((bench.journal.count("a"), summary.ran_ok, summary.observed.not_stored), (1, 1, 1));
        assert_eq!(record.phase_name(), "in_progress", "the other's");
        assert_eq!(record.counters.interruptions, 0, "not charged: {lanes:?}");
    }
}

#[tokio::test]
async fn off_asks_the_store_nothing() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Off);
        for id in ["a", "b", "a", "ignores"] {
            bench.settled(id).await;
        }
        let message = Delivery::new(Position::in_log("topic", 0, 70), Some(Bytes::from("no id")));
        let nameless = bench.running.hand.push(message);
        assert_eq!(drive(&bench.clock, nameless.wait()).await, Fate::Settled);
        let failing = bench.push("rejects");
        pass(&bench.clock, 10 * SECOND).await;
        assert_eq!((bench.journal.count("a"), failing.fate()), (2, Fate::Pending), "{lanes:?}");
        let summary = bench.summary();
        assert_eq!((summary.passed, summary.observed), (5, Observed::default()), "{lanes:?}");
        let asked = [Method::ClaimMany, Method::SettleMany, Method::Get, Method::PurgeExpired, Method::Stats];
        assert_eq!(asked.map(|method| bench.store.faults().calls(method)), [0; 5], "{lanes:?}");
        assert_eq!(bench.letters.tried(), 0);
    }
}
