//! A key that was interrupted twice runs alone in its process. These tests are alone in theirs, for the same
//! reason, and run one after the other.

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
use einmal::claim::{ClaimAnswer, ClaimRequest, Counters, Token};
use einmal::worker::{Lanes, Limits};
use einmal::{Context, DedupStore, DedupStoreExt, Failure, Fingerprint, Mode};
use einmal_testkit::{Fate, ManualClock};
use tokio::sync::Mutex;

static ONE_BY_ONE: Mutex<()> = Mutex::const_new(());

/// As if a process had died in the handler of `id`, `times` times.
async fn interrupt(store: &TestStore, clock: &ManualClock, id: &str, times: u32) {
    for _ in 0..times {
        let request = ClaimRequest {
            key: key(id),
            token: Token::random(),
            fingerprint: Some(Fingerprint::raw(Some(id.as_bytes()))),
            rules: policy().build().unwrap().rules(),
            started: true,
            group: None,
        };
        let answer = store.claim(request).await.unwrap();
        assert!(matches!(answer, ClaimAnswer::Acquired(_)));
        clock.advance(LEASE);
    }
}

async fn counters(store: &TestStore, id: &str) -> Counters {
    store.inner().get(&key(id)).await.unwrap().unwrap().counters
}

#[tokio::test]
async fn scenario_36_a_key_interrupted_twice_runs_alone_in_its_process() {
    let _one = ONE_BY_ONE.lock().await;
    for (lanes, handlers) in
        [(Lanes::Partition, 8), (Lanes::Key, 8), (Lanes::None, 8), (Lanes::Partition, 1), (Lanes::None, 1)]
    {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        interrupt(&store, &clock, "poison", 2).await;
        let limits = Limits { handlers, ..Limits::default() };
        doors.close("neighbour");
        doors.close("poison");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            with_limits(lanes, limits),
        );
        running.hand.push(delivery_from(0, 0, "neighbour"));
        journal.wait_len(1).await;
        running.hand.push(delivery_from(1, 0, "poison"));
        within(running.hand.wait_taken(2)).await;
        settle_down().await;
        assert_eq!(journal.count("run poison"), 0, "another still runs: {lanes:?}");
        doors.open("neighbour");
        drive(&clock, journal.wait_count("run poison", 1)).await;
        for partition in 2..6 {
            running.hand.push(delivery_from(partition, 0, &format!("late {partition}")));
        }
        within(running.hand.wait_taken(6)).await;
        pass(&clock, 2 * LEASE).await;
        assert_eq!(journal.lines(), ["run neighbour", "end neighbour", "run poison"], "alone: {lanes:?}");
        doors.open("poison");
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 6]);
        assert_eq!(counters(&store, "poison").await, Counters { failures: 0, interruptions: 2, crashes: 0 });
    }
}

/// A neighbour's crash while the outcome is on its way would look like a crash of the one that ran alone.
#[tokio::test]
async fn who_runs_alone_stays_alone_until_its_outcome_is_stored() {
    let _one = ONE_BY_ONE.lock().await;
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        interrupt(&store, &clock, "poison", 2).await;
        store.inner().stall(true);
        let handler = gated(&journal, &doors);
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        running.hand.push(delivery_from(0, 0, "poison"));
        journal.wait_count("end poison", 1).await;
        running.hand.push(delivery_from(1, 0, "neighbour"));
        within(running.hand.wait_taken(2)).await;
        settle_down().await;
        assert_eq!(journal.count("run neighbour"), 0, "its outcome is on its way: {lanes:?}");
        store.inner().stall(false);
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 2]);
    }
}

#[tokio::test]
async fn scenario_36_each_death_of_one_that_runs_alone_counts_and_its_neighbours_are_not_charged() {
    let _one = ONE_BY_ONE.lock().await;
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let (store, letters) = (store(&clock), Letters::default());
        interrupt(&store, &clock, "poison", 2).await;
        doors.close("poison");
        let begin = || {
            let handler = gated(&journal, &doors);
            let mut running = start(store.clone(), handler, settings(&clock, &letters), config(lanes));
            running.hand.push(delivery_from(0, 0, "poison"));
            running
        };
        for death in 1..=5 {
            let mut running = begin();
            drive(&clock, journal.wait_count("run poison", death)).await;
            for partition in 1..6 {
                running.hand.push(delivery_from(partition, 0, &format!("neighbour {partition}")));
            }
            within(running.hand.wait_taken(6)).await;
            settle_down().await;
            running.kill().await;
            clock.advance(LEASE);
        }
        let mut running = begin();
        for partition in 1..6 {
            running.hand.push(delivery_from(partition, 0, &format!("neighbour {partition}")));
        }
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 6]);
        assert_eq!(journal.count("run poison"), 5, "not run at the limit: {lanes:?}");
        let arrived = letters.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].reason.code(), "crash_loop");
        for partition in 1..6 {
            let counters = counters(&store, &format!("neighbour {partition}")).await;
            assert_eq!(counters, Counters::default(), "{lanes:?}");
        }
        let summary = running.worker.summary();
        assert_eq!((summary.ran_ok, summary.dead_lettered_without_run), (5, 1));
        assert_adds_up(summary);
    }
}

/// What waits to run alone can be told to stop, and keeps nobody waiting then.
#[tokio::test]
async fn waiting_to_run_alone_heeds_a_stop() {
    let _one = ONE_BY_ONE.lock().await;
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        interrupt(&store, &clock, "poison", 2).await;
        doors.close("neighbour");
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            config(lanes),
        );
        running.hand.push(delivery_from(0, 0, "neighbour"));
        journal.wait_len(1).await;
        let waits = running.hand.push(delivery_from(1, 0, "poison"));
        within(running.hand.wait_taken(2)).await;
        settle_down().await;
        running.hand.lose();
        assert_eq!(drive(&clock, waits.wait()).await, Fate::Dropped, "{lanes:?}");
        running.hand.reassign();
        let next = running.hand.push(delivery_from(2, 0, "next"));
        assert_eq!(drive(&clock, next.wait()).await, Fate::Settled);
        // It had been given back, and is charged with nothing but what it was before.
        assert_eq!(counters(&store, "poison").await, Counters { failures: 0, interruptions: 2, crashes: 0 });
    }
}

#[tokio::test]
async fn failures_of_one_that_runs_alone_let_the_others_in_between() {
    let _one = ONE_BY_ONE.lock().await;
    let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
    let store = store(&clock);
    interrupt(&store, &clock, "poison", 2).await;
    let handler = {
        let journal = journal.clone();
        move |context: Context| {
            journal.note(context.key().id().as_str());
            async move { if context.interrupted() { Err(Failure::retry_after(SECOND)) } else { Ok(()) } }
        }
    };
    let mut running = start(store, handler, settings(&clock, &letters), config(Lanes::Partition));
    for partition in 0..3 {
        running.hand.push(delivery_from(partition, 0, ["poison", "a", "b"][partition as usize]));
    }
    assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
    assert_eq!((journal.count("poison"), journal.count("a"), journal.count("b")), (5, 1, 1));
    assert_eq!(letters.arrived()[0].reason.code(), "attempts");
}

#[tokio::test]
async fn what_is_observed_leaves_alone_who_runs_alone_under_enforce() {
    let _one = ONE_BY_ONE.lock().await;
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        interrupt(&store, &clock, "poison", 2).await;
        doors.close("poison");
        let start_in = |mode| {
            let settings = settings(&clock, &Letters::default()).mode(mode);
            start(store.clone(), gated(&journal, &doors), settings, config(lanes))
        };
        let (mut enforced, mut observed) = (start_in(Mode::Enforce), start_in(Mode::Observe));
        enforced.hand.push(delivery(0, "poison"));
        drive(&clock, journal.wait_count("run poison", 1)).await;
        observed.hand.push(delivery(0, "neighbour"));
        pass(&clock, SECOND).await;
        assert_eq!(journal.count("run neighbour"), 0, "{lanes:?}");
        doors.open("poison");
        drive(&clock, journal.wait_count("end neighbour", 1)).await;
    }
}
