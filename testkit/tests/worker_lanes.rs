//! Deliveries in order: what is durable is a prefix, and nothing in a lane is lost or held up by another.

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

use bytes::Bytes;
use common::watching::Spoil;
use common::*;
use einmal::claim::Refusal;
use einmal::worker::{Lanes, Limits};
use einmal::{Clock, Context, DedupStore, Delivery, Failure, Settings};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

struct Bench {
    clock: ManualClock,
    journal: Journal,
    doors: Doors,
    letters: Letters,
}

impl Bench {
    fn new() -> Self {
        let (clock, journal, doors, letters) = Default::default();
        Self { clock, journal, doors, letters }
    }

    fn settings(&self) -> Settings {
        settings(&self.clock, &self.letters)
    }

    fn start<S: DedupStore>(&self, store: &Arc<S>, lanes: Lanes) -> Running {
        start(Arc::clone(store), gated(&self.journal, &self.doors), self.settings(), config(lanes))
    }
}

#[tokio::test]
async fn scenario_36c_lanes_with_copies_of_each_others_messages_both_finish() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    let mut running = bench.start(&store, Lanes::Partition);
    for (offset, [one, two]) in [["y", "x"], ["x", "y"], ["x2", "y2"], ["y2", "x2"]].into_iter().enumerate() {
        let partition = i32::try_from(offset % 2).unwrap();
        running.hand.push(delivery_from(partition, 2 * offset as i64, one));
        running.hand.push(delivery_from(partition, 2 * offset as i64 + 1, two));
    }
    assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 8]);
    for id in ["x", "y", "x2", "y2"] {
        assert_eq!(bench.journal.count(&format!("run {id}")), 1, "{id}");
    }
    let summary = running.worker.summary();
    assert_eq!((summary.ran_ok, summary.duplicate), (4, 4));
}

#[tokio::test]
async fn scenario_36d_when_a_completion_fails_the_lane_is_replayed_in_order() {
    let ways = [Spoil::Unknown, Spoil::UnknownApplied, Spoil::Refused(Refusal::AlreadyEnded)];
    for (how, second_runs) in ways.into_iter().flat_map(|how| [(how, true), (how, false)]) {
        let clock = ManualClock::new();
        let (journal, doors) = (Journal::default(), Doors::default());
        let store = Arc::new(store(&clock));
        let state = Arc::new(Mutex::new(String::new()));
        store.inner().spoil("1", how);
        // The second handler runs while the first's completion fails, or has ended before.
        if second_runs {
            doors.close("2 before");
        }
        let handler = {
            let (journal, doors, state) = (journal.clone(), doors.clone(), Arc::clone(&state));
            move |context: Context| {
                let (journal, doors, state) = (journal.clone(), doors.clone(), Arc::clone(&state));
                async move {
                    let id = context.key().id().as_str().to_owned();
                    journal.note(format!("run {id}"));
                    doors.pass(&format!("{id} before")).await;
                    *state.lock().unwrap() = String::from_utf8_lossy(context.payload()).into_owned();
                    journal.note(format!("end {id}"));
                    Ok::<_, Failure>(())
                }
            }
        };
        let mut running = start(
            Arc::clone(&store),
            handler,
            settings(&clock, &Letters::default()),
            config(Lanes::Partition),
        );
        for (offset, status) in [(1, "pending"), (2, "paid"), (3, "shipped")] {
            let id = offset.to_string();
            let delivery = Delivery::new(delivery(offset, "").position().clone(), Some(Bytes::from(status)));
            running.hand.push(delivery.with_headers(vec![header("message-id", &id)]));
        }
        running.hand.end();
        if second_runs {
            let began = clock.monotonic();
            drive(&clock, journal.wait_count("run 2", 2)).await;
            let took = clock.monotonic() - began;
            assert!(took < 60 * SECOND, "cancelled at once, and not by max_run: {took:?}");
            doors.open("2 before");
        }
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
        assert_eq!(*state.lock().unwrap(), "shipped", "{how:?}");
        assert_eq!(store.inner().outcomes(), ["1", "2", "3"], "{how:?}");
        assert_eq!(running.hand.settled(), [0, 1, 2]);
        // In order also the second time: the first is run again unless it had been stored after all.
        let ran: Vec<_> = journal.lines().into_iter().filter(|line| line.starts_with("run")).collect();
        let after = ran.iter().rposition(|line| line == "run 2").unwrap();
        assert_eq!(ran[after..], ["run 2", "run 3"], "{ran:?}");
        for id in ["1", "2", "3"] {
            let counters = store.get(&key(id)).await.unwrap().unwrap().counters;
            assert_eq!((counters.failures, counters.interruptions), (0, 0), "{how:?} charges nobody");
        }
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_adds_up(summary);
    }
}

/// Whatever fails, and whenever: what is durable of a lane is a prefix, and everything is settled in the end.
#[tokio::test]
async fn rule_9_durable_outcomes_are_a_prefix_of_their_lane() {
    for seed in 0..30 {
        let bench = Bench::new();
        let store = Arc::new(store(&bench.clock));
        let handler = move |context: Context| async move {
            let number: u64 = context.key().id().as_str().split('.').next_back().unwrap().parse().unwrap();
            match (number * 7 + seed) % 11 {
                0 if context.attempt() == 1 => Err(Failure::retry("first")),
                1 => Err(Failure::reject("no")),
                2 if context.attempt() == 1 => panic!("the handler's fault"),
                3 => {
                    tokio::task::yield_now().await;
                    Ok(())
                }
                _ => Ok(()),
            }
        };
        let mut running = start(Arc::clone(&store), handler, bench.settings(), config(Lanes::Partition));
        let mut random = StdRng::seed_from_u64(seed);
        store.faults().seeded(seed, 0.15, &Fault::ALL);
        bench.letters.fail(2);
        let mut spoilt = 0;
        for number in 0..60 {
            let partition = number % 2;
            running.hand.push(delivery_from(partition, number.into(), &format!("{partition}.{number}")));
            if random.random_bool(0.1) && spoilt < 3 {
                spoilt += 1;
                store.inner().spoil(&format!("{partition}.{number}"), Spoil::Unknown);
            }
        }
        assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 60], "seed {seed}");
        for partition in 0..2 {
            let lane: Vec<String> =
                (0..60).filter(|n| n % 2 == partition).map(|n| format!("{partition}.{n}")).collect();
            let outcomes =
                store.inner().outcomes().into_iter().filter(|id| id.starts_with(&format!("{partition}.")));
            assert_eq!(outcomes.collect::<Vec<_>>(), lane, "seed {seed}");
        }
        assert_adds_up(running.worker.summary());
    }
}

#[tokio::test]
async fn nothing_is_lost_when_a_message_arrives_while_a_lane_is_put_back() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    let mut running = bench.start(&store, Lanes::Partition);
    store.inner().spoil("a", Spoil::Unknown);
    // The completion comes first; the claim is given back then, which takes its time.
    store.faults().at(Method::SettleMany, 2, Fault::HangBefore);
    let first = running.hand.push(delivery(0, "a"));
    within(store.faults().wait_hanging(1)).await;
    let second = running.hand.push(delivery(1, "b"));
    within(running.hand.wait_taken(2)).await;
    settle_down().await;
    assert_eq!(first.fate(), Fate::Pending, "its worker is alive: it is not given up");
    assert_eq!(drive(&bench.clock, first.wait()).await, Fate::Settled);
    assert_eq!(drive(&bench.clock, second.wait()).await, Fate::Settled);
    assert_eq!(store.inner().outcomes(), ["a", "b"]);
}

#[tokio::test]
async fn an_owed_dead_letter_is_recorded_after_what_came_before_it() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    bench.letters.fail(1);
    let rejecting = |_: Context| async { Err::<(), _>(Failure::reject("no")) };
    let mut first = start(Arc::clone(&store), rejecting, bench.settings(), config(Lanes::Partition));
    first.hand.push(delivery(1, "owed"));
    until(|| bench.letters.tried() > 0).await;
    settle_down().await;
    first.kill().await;

    let mut second = bench.start(&store, Lanes::Partition);
    store.faults().at(Method::SettleMany, 1, Fault::ErrorBefore);
    store.faults().at(Method::SettleMany, 2, Fault::ErrorBefore);
    second.hand.push(delivery(0, "a"));
    second.hand.push(delivery(1, "owed"));
    assert_eq!(drive(&bench.clock, second.hand.wait_all()).await, [Fate::Settled; 2]);
    assert_eq!(store.inner().outcomes(), ["a", "owed"]);
    assert_eq!(bench.letters.arrived().len(), 1);
}

#[tokio::test]
async fn a_retry_holds_its_lane() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    let journal = bench.journal.clone();
    let handler = move |context: Context| {
        let journal = journal.clone();
        async move {
            journal.note(format!("{} {}", context.key().id(), context.attempt()));
            if context.key().id().as_str() == "1" && context.attempt() < 3 {
                return Err(Failure::retry_after(10 * SECOND));
            }
            Ok(())
        }
    };
    let mut running = start(Arc::clone(&store), handler, bench.settings(), config(Lanes::Partition));
    for offset in 0..3 {
        running.hand.push(delivery(offset, &offset.to_string()));
    }
    assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
    assert_eq!(bench.journal.lines(), ["0 1", "1 1", "1 2", "1 3", "2 1"]);
}

#[tokio::test]
async fn rule_9_nothing_is_claimed_behind_a_head_that_waits() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    bench.doors.close("head");
    let mut other = bench.start(&store, Lanes::Partition);
    other.hand.push(delivery_from(7, 0, "head"));
    bench.journal.wait_len(1).await;
    let mut running = bench.start(&store, Lanes::Partition);
    running.hand.push(delivery_from(0, 0, "head"));
    running.hand.push(delivery_from(0, 1, "behind"));
    within(running.hand.wait_taken(2)).await;
    pass(&bench.clock, 10 * SECOND).await;
    assert_eq!(store.inner().get(&key("behind")).await.unwrap(), None, "never claimed");
    bench.doors.open("head");
    assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
    assert_eq!(bench.journal.count("run head"), 1);
}

#[tokio::test]
async fn copies_in_a_row_wait_for_nothing() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    let mut running = bench.start(&store, Lanes::Partition);
    for (offset, id) in ["a", "a", "b", "a", "b", "c"].into_iter().enumerate() {
        running.hand.push(delivery(offset as i64, id));
    }
    // No time passes.
    assert_eq!(within(running.hand.wait_all()).await, [Fate::Settled; 6]);
    assert_eq!(running.worker.summary().duplicate, 3);
}

#[tokio::test]
async fn outcomes_are_stored_while_their_lane_waits_for_a_slot() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    let limits = Limits { handlers: 1, ..Limits::default() };
    let handler = gated(&bench.journal, &bench.doors);
    let mut running =
        start(Arc::clone(&store), handler, bench.settings(), with_limits(Lanes::Partition, limits));
    bench.doors.close("b");
    store.faults().at(Method::SettleMany, 1, Fault::ErrorBefore);
    let first = running.hand.push(delivery_from(0, 0, "a"));
    bench.journal.wait_count("end a", 1).await;
    running.hand.push(delivery_from(1, 0, "b"));
    bench.journal.wait_count("run b", 1).await;
    running.hand.push(delivery_from(0, 1, "c"));
    assert_eq!(drive(&bench.clock, first.wait()).await, Fate::Settled);
    assert_eq!(bench.journal.count("run c"), 0, "the slot is another's");
    bench.doors.open("b");
    assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
}

#[tokio::test]
async fn no_more_effects_than_the_pipeline_is_deep_are_not_durable() {
    let bench = Bench::new();
    let store = Arc::new(store(&bench.clock));
    let policy = policy().pipeline(3).build().unwrap();
    let settings = bench.settings().policy(policy);
    let handler = gated(&bench.journal, &bench.doors);
    let mut running = start(Arc::clone(&store), handler, settings, config(Lanes::Partition));
    store.inner().stall(true);
    for offset in 0..10 {
        running.hand.push(delivery(offset, &offset.to_string()));
    }
    settle_down().await;
    let ended = bench.journal.lines().iter().filter(|line| line.starts_with("end")).count();
    assert_eq!(ended, 3, "effects that are not durable");
    store.inner().stall(false);
    assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 10]);
}

#[tokio::test]
async fn scenario_40_one_slow_key_holds_back_neither_the_others_nor_the_bound_on_memory() {
    for lanes in [Lanes::Key, Lanes::None] {
        let bench = Bench::new();
        let store = Arc::new(store(&bench.clock));
        bench.doors.close("slow");
        let limits = Limits { deliveries: 8, ..Limits::default() };
        let handler = gated(&bench.journal, &bench.doors);
        let mut running = start(Arc::clone(&store), handler, bench.settings(), with_limits(lanes, limits));
        let of_key = |offset, record_key: &'static str, id: &str, payload: &'static str| {
            Delivery::new(delivery(offset, "").position().clone(), Some(Bytes::from(payload)))
                .with_key(Some(Bytes::from(record_key)))
                .with_headers(vec![header("message-id", id)])
        };
        let mut slow = Vec::new();
        for offset in 0..4 {
            slow.push(running.hand.push(of_key(offset, "slow", &format!("slow {offset}"), "slow")));
        }
        let mut others = Vec::new();
        for (offset, record_key) in (4..104).zip(["a", "b", "c"].into_iter().cycle()) {
            others.push(running.hand.push(of_key(offset, record_key, &offset.to_string(), "other")));
        }
        for other in &others {
            assert_eq!(drive(&bench.clock, other.wait()).await, Fate::Settled);
            let held = running.hand.taken() - running.hand.settled().len();
            assert!(held <= 8, "{held} in flight");
        }
        assert!(slow.iter().all(|handle| handle.fate() == Fate::Pending), "{lanes:?}");
        let at_once = if lanes == Lanes::Key { 1 } else { 4 };
        assert_eq!(bench.journal.count("run slow"), at_once, "{lanes:?}");
        bench.doors.open("slow");
        for handle in slow {
            assert_eq!(drive(&bench.clock, handle.wait()).await, Fate::Settled);
        }
    }
}

#[tokio::test]
async fn scenario_20_time_in_a_local_buffer_uses_up_no_lease() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let bench = Bench::new();
        let store = Arc::new(store(&bench.clock));
        let limits = Limits { handlers: 1, ..Limits::default() };
        bench.doors.close("a");
        let handler = gated(&bench.journal, &bench.doors);
        let mut running = start(Arc::clone(&store), handler, bench.settings(), with_limits(lanes, limits));
        running.hand.push(delivery_from(0, 0, "a"));
        running.hand.push(delivery_from(1, 0, "b"));
        bench.journal.wait_len(1).await;
        pass(&bench.clock, 2 * LEASE).await;
        assert!(store.inner().get(&key("b")).await.unwrap().is_none(), "no claim without a slot");
        bench.doors.open("a");
        assert_eq!(drive(&bench.clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
        assert_eq!(bench.journal.lines(), ["run a", "end a", "run b", "end b"]);
    }
}
