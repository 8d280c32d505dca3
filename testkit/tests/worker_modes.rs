//! Modes that are switched while messages are on their way, and the ways in besides the worker.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::collections::BTreeMap;

use bytes::Bytes;
use common::*;
use einmal::worker::Lanes;
use einmal::{
    Answer, Context, DedupStore, Delivery, Disposition, Failure, Idempotent, Later, Mode, ModeSwitch, Reply,
    RunError, Settled,
};
use einmal_testkit::{Fate, Fault, Handle, ManualClock, Method};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio_util::sync::CancellationToken;

const LANES: [Lanes; 3] = [Lanes::Partition, Lanes::Key, Lanes::None];

struct Bench {
    clock: ManualClock,
    store: TestStore,
    journal: Journal,
    doors: Doors,
    mode: ModeSwitch,
    running: Running,
}

impl Bench {
    fn new(lanes: Lanes, mode: Mode) -> Self {
        let (clock, mode) = (ManualClock::new(), ModeSwitch::new(mode));
        let (store, journal, doors) = (store(&clock), Journal::default(), Doors::default());
        let settings = settings(&clock, &Letters::default()).mode(mode.clone());
        let running = start(store.clone(), gated(&journal, &doors), settings, config(lanes));
        Self { clock, store, journal, doors, mode, running }
    }

    fn push(&mut self, partition: i32, offset: i64, id: &str) -> Handle {
        let key = Bytes::copy_from_slice(id.as_bytes());
        self.running.hand.push(delivery_from(partition, offset, id).with_key(Some(key)))
    }

    async fn phase(&self, id: &str) -> &'static str {
        self.store.inner().get(&key(id)).await.unwrap().map_or("absent", |record| record.phase_name())
    }
}

#[tokio::test]
async fn what_was_claimed_under_enforce_ends_under_enforce() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Enforce);
        bench.doors.close("a");
        let first = bench.push(0, 0, "a");
        bench.journal.wait_count("run a", 1).await;
        bench.mode.set(Mode::Observe);
        bench.store.inner().stall(true);
        let copy = bench.push(1, 0, "a");
        bench.journal.wait_count("run a", 2).await;
        let behind = bench.push(0, 1, "b");
        bench.doors.open("a");
        assert_eq!(within(copy.wait()).await, Fate::Settled, "{lanes:?}");
        bench.journal.wait_count("end a", 2).await;
        settle_down().await;
        let runs = usize::from(lanes != Lanes::Partition);
        assert_eq!(
            bench.journal.count("run b"),
            runs,
            "not before what was claimed first in its lane: {lanes:?}"
        );
        assert_eq!(first.fate(), Fate::Pending, "not settled before its outcome is stored: {lanes:?}");
        bench.store.inner().stall(false);
        assert_eq!(within(first.wait()).await, Fate::Settled, "{lanes:?}");
        assert_eq!(within(behind.wait()).await, Fate::Settled, "{lanes:?}");
        assert_eq!(bench.phase("a").await, "completed");
        let summary = bench.running.worker.summary();
        assert_adds_up(summary);
        assert_eq!((summary.ran_ok, summary.observed.would_in_progress), (3, 1), "{lanes:?}");
    }
}

#[tokio::test]
async fn what_runs_in_observe_answers_its_copies_under_enforce() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.doors.close("a");
        let first = bench.push(0, 0, "a");
        bench.journal.wait_count("run a", 1).await;
        bench.mode.set(Mode::Enforce);
        let copy = bench.push(1, 0, "a");
        pass(&bench.clock, 2 * LEASE).await;
        assert_eq!(bench.journal.count("run a"), 1, "the copy waits: {lanes:?}");
        bench.doors.open("a");
        assert_eq!(drive(&bench.clock, first.wait()).await, Fate::Settled, "{lanes:?}");
        assert_eq!(drive(&bench.clock, copy.wait()).await, Fate::Settled, "{lanes:?}");
        let summary = bench.running.worker.summary();
        assert_eq!((summary.ran_ok, summary.duplicate), (1, 1), "{lanes:?}");
        assert_adds_up(summary);
    }
}

/// The way out when the store does not come back.
#[tokio::test]
async fn a_switch_to_observe_or_off_frees_what_waits_for_the_store() {
    for (lanes, mode) in LANES.into_iter().flat_map(|lanes| [(lanes, Mode::Observe), (lanes, Mode::Off)]) {
        let case = format!("{lanes:?} {mode}");
        let mut bench = Bench::new(lanes, Mode::Enforce);
        bench.doors.close("done 0");
        let done = bench.push(9, 0, "done 0");
        bench.journal.wait_count("run done 0", 1).await;
        bench.store.faults().down(true);
        // Its effect is done, and its outcome can't be stored.
        bench.doors.open("done 0");
        let handles: Vec<_> = (0..9).map(|n| bench.push(n % 3, i64::from(n), &format!("id {n}"))).collect();
        pass(&bench.clock, 5 * SECOND).await;
        assert!(bench.running.hand.settled().is_empty() && !bench.running.worker.health().read().ready);
        bench.doors.close("id 8");
        bench.mode.set(mode);
        for handle in handles[..8].iter().chain([&done]) {
            assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled, "{case}");
        }
        bench.journal.wait_count("run id 8", 1).await;
        assert!(bench.running.worker.health().read().ready, "however long a handler takes: {case}");
        bench.doors.open("id 8");
        assert_eq!(drive(&bench.clock, handles[8].wait()).await, Fate::Settled, "{case}");
        assert!((0..9).all(|n| bench.journal.count(&format!("run id {n}")) == 1), "{case}");
        // What was claimed under `Enforce` counted on its lease for as long as it had it.
        assert_eq!(bench.journal.count("run done 0"), 2, "{case}");
        pass(&bench.clock, 2 * SECOND).await;
        assert!(bench.running.worker.health().read().ready, "{case}");
        assert_adds_up(bench.running.worker.summary());
    }
}

#[tokio::test]
async fn a_stop_leaves_what_waits_in_observe_unsettled_and_its_claim_free() {
    for lanes in LANES {
        let mut bench = Bench::new(lanes, Mode::Observe);
        bench.doors.close("a");
        let (running, behind) = (bench.push(0, 0, "a"), bench.push(0, 1, "a"));
        bench.journal.wait_count("run a", 1).await;
        bench.running.shutdown.cancel();
        let Bench { clock, store, running: worker, .. } = bench;
        let summary = drive(&clock, worker.ended()).await.unwrap();
        assert_adds_up(summary);
        assert_eq!((running.fate(), behind.fate(), summary.unsettled), (Fate::Dropped, Fate::Dropped, 2));
        let record = store.inner().get(&key("a")).await.unwrap().unwrap();
        assert_eq!((record.phase_name(), record.counters.attempts()), ("released", 0), "{lanes:?}");
    }
}

/// Rule 12, whatever the mode and whenever it is switched.
#[tokio::test]
async fn scenario_41_the_counters_add_up_across_switches() {
    let (mut passed, mut judged) = (0, 0);
    for seed in 0..30 {
        let recorder = DebuggingRecorder::new();
        let seen = recorder.snapshotter();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let mut random = StdRng::seed_from_u64(seed);
        let lanes = LANES[usize::try_from(seed % 3).unwrap()];
        let (clock, letters, mode) = (ManualClock::new(), Letters::default(), ModeSwitch::default());
        let store = store(&clock);
        store.faults().seeded(seed, 0.1, &Fault::ALL);
        letters.fail(3);
        let handler = |context: Context| async move {
            match context.key().id().as_str().trim_end_matches(char::is_numeric) {
                "fails" => Err(Failure::retry("a cause")),
                "rejects" => Err(Failure::reject("a reason")),
                "parks" => Err(Failure::park("a reason")),
                "ignores" => Err(Failure::ignore()),
                _ => Ok(()),
            }
        };
        let settings = settings(&clock, &letters).mode(mode.clone());
        let mut running = start(store.clone(), handler, settings, config(lanes));
        let kinds = ["ok", "ok", "ok", "fails", "rejects", "parks", "ignores", ""];
        let modes = [Mode::Off, Mode::Observe, Mode::Enforce];
        for offset in 0..80 {
            if random.random_bool(0.2) {
                mode.set(*modes.choose(&mut random).unwrap());
            }
            let kind = kinds.choose(&mut random).unwrap();
            let id =
                if kind.is_empty() { String::new() } else { format!("{kind}{}", random.random_range(0..6)) };
            let payload = if random.random_bool(0.1) { "another" } else { "content" };
            let position = einmal::Position::in_log("topic", random.random_range(0..3), offset);
            let message =
                Delivery::new(position, Some(Bytes::from(payload))).with_key(Some(id.clone().into()));
            running.hand.push(message.with_headers(vec![header("message-id", &id)]));
            if random.random_bool(0.3) {
                pass(&clock, SECOND).await;
            }
            assert_adds_up(running.worker.summary());
        }
        store.faults().clear();
        mode.set(Mode::Enforce);
        let fates = drive(&clock, running.hand.wait_all()).await;
        assert_eq!(fates, [Fate::Settled; 80], "seed {seed}");
        running.shutdown.cancel();
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_adds_up(summary);
        assert_eq!((summary.received, summary.in_flight, summary.unsettled), (80, 0, 0), "seed {seed}");
        passed += summary.passed;
        judged += summary.observed.would_run + summary.observed.would_duplicate;

        // The metrics say the same.
        let mut counted: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (key, _, _, value) in seen.snapshot().into_vec() {
            if let DebugValue::Counter(count) = value {
                for label in key.key().labels().filter(|label| label.key() != "scope") {
                    let place = (key.key().name().to_owned(), label.value().to_owned());
                    *counted.entry(place).or_default() += count;
                }
            }
        }
        let at = |name: &str, label: &str| {
            counted.get(&(name.to_owned(), label.to_owned())).copied().unwrap_or_default()
        };
        assert_eq!(at("einmal_answered_total", "passed"), summary.passed);
        let observed = summary.observed;
        for (label, count) in [
            ("run", observed.would_run),
            ("duplicate", observed.would_duplicate),
            ("conflict", observed.would_conflict),
            ("in_progress", observed.would_in_progress),
            ("not_yet", observed.would_not_yet),
            ("dead_letter", observed.would_dead_letter),
            ("reject", observed.would_reject),
            ("unknown", observed.unknown),
            ("fail", observed.would_fail),
            ("give_up", observed.would_give_up),
            ("not_stored", observed.not_stored),
        ] {
            assert_eq!(at("einmal_observed_total", label), count, "{label}: seed {seed}");
        }
    }
    assert!(passed > 100 && judged > 100, "every mode had its part: {passed} passed, {judged} judged");
}

#[tokio::test]
async fn the_mode_is_a_gauge() {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    let _metrics = metrics::set_default_local_recorder(&recorder);
    let bench = Bench::new(Lanes::Partition, Mode::Observe);
    for (mode, number) in [(Mode::Observe, 1.0), (Mode::Off, 0.0), (Mode::Enforce, 2.0)] {
        bench.mode.set(mode);
        pass(&bench.clock, 2 * SECOND).await;
        let mut metrics = seen.snapshot().into_vec().into_iter();
        let (_, _, _, value) = metrics.find(|(key, ..)| key.key().name() == "einmal_mode").unwrap();
        assert_eq!(value, DebugValue::Gauge(number.into()), "{mode}");
    }
}

#[tokio::test]
async fn process_settles_by_its_handler_in_observe() {
    let (clock, journal, mode) = (ManualClock::new(), Journal::default(), ModeSwitch::new(Mode::Observe));
    let store = store(&clock);
    let notes = journal.clone();
    let handler = move |context: Context| {
        let notes = notes.clone();
        async move {
            notes.note("run");
            let after = notes.clone();
            context.after_completion(async move { after.note("after") });
            match context.payload() {
                b"reject" => Err(Failure::reject("no")),
                b"later" => Err(Failure::retry_after(7 * SECOND)),
                _ => Ok(Reply::bytes("mine")),
            }
        }
    };
    let settings = settings(&clock, &Letters::default()).mode(mode.clone());
    let idempotent = Idempotent::new(store.clone(), handler, settings).unwrap();
    let cancel = CancellationToken::new();
    for down in [false, false, true] {
        store.faults().down(down);
        let answer = within(idempotent.process(&delivery(0, "a"), &cancel)).await;
        assert!(matches!(answer, Disposition::Settle(Settled::Ran { result: Some(_) })), "{answer:?}");
    }
    settle_down().await;
    assert_eq!((journal.count("run"), journal.count("after")), (3, 3));
    let observed = idempotent.observed();
    assert_eq!((observed.would_run, observed.would_duplicate, observed.unknown), (1, 1, 1));
    store.faults().down(false);
    clock.advance(10 * SECOND);
    for (id, wait) in [("reject", 0), ("later", 7)] {
        let answer = within(idempotent.process(&delivery(1, id), &cancel)).await;
        let Disposition::Later { why: Later::FailedUncharged, retry_after } = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(retry_after, wait * SECOND);
        let record = store.inner().get(&key(id)).await.unwrap().unwrap();
        assert_eq!((record.phase_name(), record.counters.failures), ("released", 0));
    }
    mode.set(Mode::Off);
    let answer = within(idempotent.process(&delivery(0, "a"), &cancel)).await;
    assert!(matches!(answer, Disposition::Settle(Settled::Passed { result: Some(_) })), "{answer:?}");
    mode.set(Mode::Enforce);
    let answer = within(idempotent.process(&delivery(0, "a"), &cancel)).await;
    assert!(matches!(answer, Disposition::Settle(Settled::Duplicate(_))), "{answer:?}");
}

#[tokio::test]
async fn run_runs_always_in_observe_and_answers_under_enforce() {
    let (clock, mode) = (ManualClock::new(), ModeSwitch::new(Mode::Observe));
    let store = store(&clock);
    let settings = settings(&clock, &Letters::default()).mode(mode.clone());
    let idempotent = Idempotent::without_handler(store.clone(), settings).unwrap();
    let ok = |value: u32| move || async move { Ok::<_, std::io::Error>(value) };
    let failed = idempotent.run(&key("a"), None, || async { Err::<u32, _>("no") }).await;
    assert!(matches!(failed, Err(RunError::Work("no"))));
    for value in [1, 2] {
        assert_eq!(idempotent.run(&key("a"), None, ok(value)).await.unwrap(), Answer::Ran(value));
    }
    store.faults().down(true);
    assert_eq!(idempotent.run(&key("b"), None, ok(3)).await.unwrap(), Answer::Ran(3));
    store.faults().down(false);
    let calls = store.faults().calls(Method::ClaimMany);
    mode.set(Mode::Off);
    assert_eq!(idempotent.run(&key("a"), None, ok(4)).await.unwrap(), Answer::Ran(4));
    assert_eq!(store.faults().calls(Method::ClaimMany), calls);
    mode.set(Mode::Enforce);
    assert_eq!(idempotent.run(&key("a"), None, ok(5)).await.unwrap(), Answer::Replayed(1));
    let observed = idempotent.observed();
    assert_eq!((observed.would_run, observed.would_duplicate, observed.unknown), (2, 1, 1));
}
