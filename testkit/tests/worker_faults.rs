//! A store that fails: nothing is settled on its word, nothing is lost, and nobody is charged.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::collections::HashMap;

use common::*;
use einmal::worker::{Lanes, Limits};
use einmal::{Context, DedupStore, Failure};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use futures_util::future::BoxFuture;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const METHODS: [Method; 5] =
    [Method::ClaimMany, Method::SettleMany, Method::Get, Method::PurgeExpired, Method::Stats];

#[tokio::test]
async fn scenario_10_while_the_store_is_down_nothing_is_settled_and_intake_pauses() {
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        let limits = Limits { handlers: 4, ..Limits::default() };
        for id in 30..34 {
            doors.close(&id.to_string());
        }
        let mut running = start(
            store.clone(),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            with_limits(lanes, limits),
        );
        let push = |running: &mut Running, number: i64| {
            let partition = i32::try_from(number % 4).unwrap();
            running.hand.push(delivery_from(partition, number / 4, &number.to_string()))
        };
        let early: Vec<_> = (0..60).map(|number| push(&mut running, number)).collect();
        drive(&clock, running.hand.wait_taken(60)).await;
        for id in 30..34 {
            journal.wait_count(&format!("run {id}"), 1).await;
        }
        // It goes down while four handlers run.
        store.faults().down(true);
        for id in 30..34 {
            doors.open(&id.to_string());
        }
        settle_down().await;
        let (settled, taken) = (running.hand.settled().len(), running.hand.taken());
        let late: Vec<_> = (60..200).map(|number| push(&mut running, number)).collect();
        pass(&clock, 60 * SECOND).await;
        assert_eq!(running.hand.settled().len(), settled, "nothing is settled while the store is down");
        assert!(running.hand.taken() <= taken + 1, "intake pauses: {lanes:?}");
        assert!(!running.worker.health().read().ready);

        store.faults().down(false);
        for handle in early.iter().chain(&late) {
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        }
        let mut outcomes = store.inner().outcomes();
        outcomes.sort_by_key(|id| id.parse::<u32>().unwrap());
        assert_eq!(outcomes, (0..200).map(|id| id.to_string()).collect::<Vec<_>>(), "0 lost, 0 doubled");
        assert!(running.worker.health().read().ready, "the trouble is over: {lanes:?}");
        for id in 0..200 {
            let record = store.inner().get(&key(&id.to_string())).await.unwrap().unwrap();
            assert_eq!(record.counters.failures, 0, "a store error charges nobody");
        }
        assert_adds_up(running.worker.summary());
    }
}

/// Once the store has answered, intake goes on: also while the handler that waited for it takes long.
#[tokio::test]
async fn intake_goes_on_when_the_store_is_back_though_a_handler_takes_long() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("long");
        let handler = gated(&journal, &doors);
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        store.faults().down(true);
        running.hand.push(delivery_from(0, 0, "long"));
        pass(&clock, 2 * SECOND).await;
        store.faults().down(false);
        drive(&clock, journal.wait_count("run long", 1)).await;
        assert!(running.worker.health().read().ready, "{lanes:?}");
        for partition in 1..4 {
            let handle = running.hand.push(delivery_from(partition, 0, &format!("next {partition}")));
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled, "{lanes:?}");
        }
        doors.open("long");
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 4]);
    }
}

/// Troubles are over when what they held up is gone, also if nothing else arrives.
#[tokio::test]
async fn health_is_clear_when_what_was_held_up_has_been_revoked() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let clock = ManualClock::new();
        let store = store(&clock);
        let handler = |_: Context| async { Ok::<_, Failure>(()) };
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        store.faults().down(true);
        let handle = running.hand.push(delivery(0, "a"));
        pass(&clock, 2 * SECOND).await;
        assert!(!running.worker.health().read().ready);
        running.hand.lose();
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Dropped);
        store.faults().down(false);
        pass(&clock, 2 * SECOND).await;
        assert!(running.worker.health().read().ready, "{lanes:?}");
    }
}

/// Does what its id says: `ok`, `retry` (fails once), `reject`, `ignore`.
fn obedient(
    journal: &Journal,
) -> impl Fn(Context) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static {
    let journal = journal.clone();
    move |context: Context| {
        let journal = journal.clone();
        Box::pin(async move {
            let id = context.key().id().as_str().to_owned();
            journal.note(&id);
            match id.trim_end_matches(char::is_numeric) {
                "retry" if context.attempt() == 1 => Err(Failure::retry_after(SECOND)),
                "reject" => Err(Failure::reject("no")),
                "ignore" => Err(Failure::ignore()),
                _ => Ok(()),
            }
        })
    }
}

/// What a settled message of this id must have left in the store.
fn expected(id: &str) -> &'static str {
    match id.trim_end_matches(char::is_numeric) {
        "reject" => "failed",
        "ignore" => "released",
        _ => "completed",
    }
}

async fn phase(store: &TestStore, id: &str) -> &'static str {
    let record = store.inner().get(&key(id)).await.unwrap();
    record.map_or("absent", |record| record.phase_name())
}

#[tokio::test]
async fn scenario_34_one_fault_at_any_call_costs_no_run_and_no_attempt() {
    let ids = ["ok1", "retry1", "reject1", "ok2", "ignore1", "ok3"];
    for lanes in [Lanes::Partition, Lanes::None] {
        for (method, fault) in METHODS.into_iter().flat_map(|method| Fault::ALL.map(|fault| (method, fault)))
        {
            for nth in 1..=10 {
                let case = format!("{lanes:?}, {nth}. {method:?}: {fault:?}");
                let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
                let store = store(&clock);
                store.faults().at(method, nth, fault);
                let handler = obedient(&journal);
                let mut running = start(store.clone(), handler, settings(&clock, &letters), config(lanes));
                for (offset, id) in (0..).zip(ids) {
                    running.hand.push(delivery(offset, id));
                }
                let fates = drive(&clock, running.hand.wait_all()).await;
                assert_eq!(fates, [Fate::Settled; 6], "{case}");
                for id in ids {
                    assert_eq!(phase(&store, id).await, expected(id), "{id}: {case}");
                    let runs = if id == "retry1" { 2 } else { 1 };
                    assert_eq!(journal.count(id), runs, "runs of {id}: {case}");
                    let record = store.inner().get(&key(id)).await.unwrap().unwrap();
                    let failures = u32::from(id == "retry1");
                    assert_eq!(
                        (record.counters.failures, record.counters.interruptions),
                        (failures, 0),
                        "{case}"
                    );
                }
                assert_eq!(letters.arrived().len(), 1, "{case}");
                assert_adds_up(running.worker.summary());
            }
        }
    }
}

/// Many faults at once, and a stop in the middle: who is settled is recorded, and who is not is delivered
/// again; in the end there is one outcome for each.
#[tokio::test]
async fn scenario_34_whatever_fails_a_message_ends_recorded_or_unsettled() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        let lanes = [Lanes::Partition, Lanes::Key, Lanes::None][usize::try_from(seed % 3).unwrap()];
        let (clock, journal, letters) = (ManualClock::new(), Journal::default(), Letters::default());
        let store = store(&clock);
        store.faults().seeded(seed, random.random_range(0.05..0.4), &Fault::ALL);
        letters.fail(random.random_range(0..3));
        let ids: Vec<String> = (0..24)
            .map(|n| format!("{}{n}", ["ok", "retry", "reject", "ignore", "ok"][random.random_range(0..5)]))
            .collect();
        let push_all = |running: &mut Running| {
            for (offset, id) in (0..).zip(&ids) {
                let partition = i32::try_from(offset % 3).unwrap();
                running.hand.push(delivery_from(partition, offset, id).with_key(Some(id.clone().into())));
            }
        };
        let mut running = start(store.clone(), obedient(&journal), settings(&clock, &letters), config(lanes));
        push_all(&mut running);
        let progress = random.random_range(1..30);
        let some_are_settled = async {
            until(|| running.hand.settled().len() >= progress.min(24)).await;
        };
        drive(&clock, some_are_settled).await;
        running.shutdown.cancel();
        let fates = drive(&clock, running.hand.wait_all()).await;
        for (id, fate) in ids.iter().zip(&fates) {
            match fate {
                Fate::Settled => assert_eq!(phase(&store, id).await, expected(id), "{id}, seed {seed}"),
                Fate::Dropped => {}
                other => panic!("{other:?}"),
            }
        }
        let settled = fates.iter().filter(|fate| **fate == Fate::Settled).count() as u64;
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_eq!((summary.unsettled, summary.in_flight), (24 - settled, 0), "seed {seed}");
        assert_adds_up(summary);

        store.faults().clear();
        let mut next = start(store.clone(), obedient(&journal), settings(&clock, &letters), config(lanes));
        push_all(&mut next);
        assert_eq!(drive(&clock, next.hand.wait_all()).await, [Fate::Settled; 24], "seed {seed}");
        let mut outcomes: HashMap<String, usize> = HashMap::new();
        store.inner().outcomes().into_iter().for_each(|id| *outcomes.entry(id).or_default() += 1);
        for id in &ids {
            assert_eq!(phase(&store, id).await, expected(id), "{id}, seed {seed}");
            let times = usize::from(expected(id) != "released");
            assert_eq!(outcomes.get(id).copied().unwrap_or_default(), times, "{id}, seed {seed}");
        }
    }
}
