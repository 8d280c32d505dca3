//! From when a holder counts its lease: never from later than the store does.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

mod common;

use std::time::Duration;

use common::*;
use einmal::worker::Lanes;
use einmal::{Answer, Idempotent, RunError, Unsettled};
use einmal_testkit::{Fate, Fault, ManualClock, Method};

/// How long an answer is held back: shorter than a call may take.
const LATE: Duration = Duration::from_secs(8);
/// How often it is looked whether a renewal is due: a twelfth of the lease.
const TICK: Duration = Duration::from_millis(2_500);

/// The next call of `method` is applied at once, and answered when `LATE` has passed.
async fn answer_late(clock: &ManualClock, store: &TestStore) {
    within(store.faults().wait_hanging(1)).await;
    clock.advance(LATE);
    store.faults().release();
}

fn no_renewal_arrives(store: &TestStore) {
    (1..=40).for_each(|nth| store.faults().at(Method::SettleMany, nth, Fault::ErrorBefore));
}

#[tokio::test]
async fn a_lease_is_counted_from_before_its_claim_was_sent() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("a");
        store.faults().at(Method::ClaimMany, 1, Fault::ReplyLost);
        no_renewal_arrives(&store);
        let handler = gated(&journal, &doors);
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        let handle = running.hand.push(delivery(0, "a"));
        answer_late(&clock, &store).await;
        journal.wait_len(1).await;
        pass(&clock, TICK).await;
        assert_eq!(store.faults().calls(Method::SettleMany), 1, "{lanes:?}: a third is over");

        // In the store the lease ends in a second. Its holder has stopped before.
        pass(&clock, LEASE - SECOND - LATE - TICK).await;
        doors.open("a");
        settle_down().await;
        assert_eq!(journal.lines(), ["run a"], "{lanes:?}: the handler was cancelled in time");
        store.faults().clear();
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        assert_eq!(journal.lines(), ["run a", "run a", "end a"]);
    }
}

#[tokio::test]
async fn a_lease_is_counted_from_before_its_renewal_was_sent() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let store = store(&clock);
        doors.close("a");
        let handler = gated(&journal, &doors);
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        let handle = running.hand.push(delivery(0, "a"));
        journal.wait_len(1).await;
        no_renewal_arrives(&store);
        store.faults().at(Method::SettleMany, 1, Fault::ReplyLost);
        drive(&clock, store.faults().wait_hanging(1)).await;
        answer_late(&clock, &store).await;
        pass(&clock, LEASE - SECOND - LATE).await;
        doors.open("a");
        settle_down().await;
        assert_eq!(journal.lines(), ["run a"], "{lanes:?}: the handler was cancelled in time");
        store.faults().clear();
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
    }
}

#[tokio::test]
async fn the_lease_of_a_run_without_a_message_is_counted_so_too() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    let store = store(&clock);
    doors.close("a");
    store.faults().at(Method::ClaimMany, 1, Fault::ReplyLost);
    no_renewal_arrives(&store);
    let idempotent =
        Idempotent::without_handler(store.clone(), settings(&clock, &Letters::default())).unwrap();
    let run = tokio::spawn({
        let (journal, doors) = (journal.clone(), doors.clone());
        async move {
            let work = || async {
                journal.note("run a");
                doors.pass("a").await;
                Ok::<(), RunError<()>>(())
            };
            idempotent.run(&key("a"), None, work).await
        }
    });
    answer_late(&clock, &store).await;
    journal.wait_len(1).await;
    pass(&clock, LEASE - SECOND - LATE).await;
    doors.open("a");
    let answer: Result<Answer<()>, _> = drive(&clock, run).await.unwrap();
    assert!(matches!(answer, Err(RunError::Unsettled(Unsettled::LeaseLost))), "{answer:?}");
}
