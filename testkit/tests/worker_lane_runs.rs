//! A lane's run of claims: what is behind its head is held, and no more than that.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

mod common;

use std::sync::Arc;

use common::watching::Spoil;
use common::*;
use einmal::claim::{Phase, Record};
use einmal::worker::Lanes;
use einmal::{Context, DedupStore, Failure};
use einmal_testkit::{Fate, ManualClock, Method};

async fn record(store: &TestStore, id: &str) -> Record {
    store.inner().get(&key(id)).await.unwrap().unwrap()
}

/// Whether the store knows of a claim that its handler was started.
fn is_started(record: &Record) -> Option<bool> {
    if let Phase::InProgress { started, .. } = record.phase { Some(started) } else { None }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stops {
    ItIsRetried,
    ItsDeadLetterIsNotConfirmed,
    AnEarlierOutcomeIsUnknown,
}

#[tokio::test]
async fn what_is_claimed_behind_a_head_that_stops_is_given_back_at_once() {
    for stops in [Stops::ItIsRetried, Stops::ItsDeadLetterIsNotConfirmed, Stops::AnEarlierOutcomeIsUnknown] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let (store, letters) = (Arc::new(store(&clock)), Letters::default());
        letters.fail(1);
        doors.close("head");
        let handler = {
            let (journal, doors) = (journal.clone(), doors.clone());
            move |context: Context| {
                let (journal, doors) = (journal.clone(), doors.clone());
                async move {
                    let id = context.key().id().as_str().to_owned();
                    journal.note(format!("run {id}"));
                    doors.pass(&id).await;
                    match stops {
                        _ if id != "head" || journal.count("run head") > 1 => Ok(()),
                        Stops::ItIsRetried => Err(Failure::retry_after(10 * SECOND)),
                        Stops::ItsDeadLetterIsNotConfirmed => Err(Failure::reject("no")),
                        Stops::AnEarlierOutcomeIsUnknown => Ok(()),
                    }
                }
            }
        };
        let mut running =
            start(Arc::clone(&store), handler, settings(&clock, &letters), config(Lanes::Partition));
        store.inner().stall(true);
        for (offset, id) in (0..).zip(["earlier", "head", "behind"]) {
            running.hand.push(delivery(offset, id));
        }
        journal.wait_count("run head", 1).await;
        assert_eq!(store.faults().calls(Method::ClaimMany), 1, "all in one run");
        assert_eq!(is_started(&record(&store, "behind").await), Some(false), "held, and not started");
        if stops == Stops::AnEarlierOutcomeIsUnknown {
            store.inner().spoil("earlier", Spoil::Unknown);
        } else {
            doors.open("head");
        }
        store.inner().stall(false);
        settle_down().await;
        let behind = record(&store, "behind").await;
        assert_eq!(behind.phase_name(), "released", "{stops:?}");
        assert_eq!((behind.counters.failures, behind.counters.interruptions), (0, 0), "{stops:?}");

        // Another has it without waiting: no time passes.
        let other = gated(&journal, &Doors::default());
        let mut other =
            start(Arc::clone(&store), other, settings(&clock, &letters), config(Lanes::Partition));
        let taken = other.hand.push(delivery_from(1, 0, "behind"));
        assert_eq!(within(taken.wait()).await, Fate::Settled, "{stops:?}");
        assert_eq!(other.worker.summary().ran_ok, 1);

        doors.open("head");
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 3], "{stops:?}");
        assert_eq!((journal.count("run behind"), running.worker.summary().duplicate), (1, 1), "{stops:?}");
    }
}

#[tokio::test]
async fn each_item_of_a_run_is_told_as_started_when_its_turn_comes() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = store(&clock);
    let ids = ["a", "b", "c"];
    ids.iter().for_each(|id| doors.close(id));
    let mut running = start(
        store.clone(),
        gated(&journal, &doors),
        settings(&clock, &Letters::default()),
        config(Lanes::Partition),
    );
    for (offset, id) in (0..).zip(ids) {
        running.hand.push(delivery(offset, id));
    }
    for (turn, id) in ids.into_iter().enumerate() {
        journal.wait_count(&format!("run {id}"), 1).await;
        assert_eq!(is_started(&record(&store, id).await), Some(true), "{id} runs");
        // A crash now is charged to the one that runs, and to none that waits for its turn.
        for waiting in &ids[turn + 1..] {
            assert_eq!(is_started(&record(&store, waiting).await), Some(false), "{waiting} waits");
        }
        doors.open(id);
    }
    assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
    assert_eq!(store.faults().calls(Method::ClaimMany), 1, "all in one run");
}

/// Its claim is renewed with the head's, however long that one takes, and not made anew.
#[tokio::test]
async fn what_is_claimed_behind_a_slow_head_keeps_its_lease() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = Arc::new(store(&clock));
    doors.close("head");
    let handler = gated(&journal, &doors);
    let settings = settings(&clock, &Letters::default());
    let mut running = start(Arc::clone(&store), handler, settings, config(Lanes::Partition));
    store.inner().stall(true);
    for (offset, id) in (0..).zip(["earlier", "head", "behind"]) {
        running.hand.push(delivery(offset, id));
    }
    journal.wait_count("run head", 1).await;
    store.inner().stall(false);
    let claimed = record(&store, "behind").await;
    assert_eq!(is_started(&claimed), Some(false), "held, and not started");
    pass(&clock, 3 * LEASE).await;
    doors.open("head");
    assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 3]);
    assert_eq!(record(&store, "behind").await.fence, claimed.fence, "under the claim it had from the first");
    assert_eq!(store.faults().calls(Method::ClaimMany), 1, "nothing was claimed again");
}
