//! What a handler wants done after its completion: once, and not before the outcome is durable.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

mod common;

use common::watching::Spoil;
use common::*;
use einmal::claim::Refusal;
use einmal::worker::Lanes;
use einmal::{Context, Failure};
use einmal_testkit::{Fate, ManualClock};
use futures_util::future::BoxFuture;

const LANES: [Lanes; 2] = [Lanes::Partition, Lanes::None];

/// Notes how often it runs, and what is done after which run.
fn noting(
    journal: &Journal,
) -> impl Fn(Context) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync + 'static {
    let journal = journal.clone();
    move |context: Context| {
        let journal = journal.clone();
        Box::pin(async move {
            journal.note("run");
            let run = journal.count("run");
            context.after_completion(async move { journal.note(format!("after run {run}")) });
            Ok(())
        })
    }
}

#[tokio::test]
async fn what_comes_after_completion_waits_until_the_outcome_is_durable() {
    for lanes in LANES {
        let (clock, journal) = (ManualClock::new(), Journal::default());
        let store = store(&clock);
        store.inner().stall(true);
        let handler = noting(&journal);
        let mut running = start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
        let handle = running.hand.push(delivery(0, "a"));
        journal.wait_count("run", 1).await;
        settle_down().await;
        assert_eq!(journal.lines(), ["run"], "{lanes:?}: the outcome is on its way");
        assert_eq!(handle.fate(), Fate::Pending);

        store.inner().stall(false);
        assert_eq!(within(handle.wait()).await, Fate::Settled);
        settle_down().await;
        assert_eq!(journal.count("after run 1"), 1, "{lanes:?}: the outcome is durable");
        let copy = running.hand.push(delivery(1, "a"));
        assert_eq!(drive(&clock, copy.wait()).await, Fate::Settled);
        settle_down().await;
        assert_eq!(running.worker.summary().duplicate, 1);
        assert_eq!(journal.lines(), ["run", "after run 1"], "{lanes:?}: once, and not for a copy");
    }
}

#[tokio::test]
async fn nothing_comes_after_a_completion_that_was_not_stored() {
    for lanes in LANES {
        for how in [Spoil::Refused(Refusal::TakenOver), Spoil::Unknown] {
            let (clock, journal) = (ManualClock::new(), Journal::default());
            let store = store(&clock);
            store.inner().spoil("a", how);
            let handler = noting(&journal);
            let mut running =
                start(store.clone(), handler, settings(&clock, &Letters::default()), config(lanes));
            let handle = running.hand.push(delivery(0, "a"));
            journal.wait_count("run", 1).await;
            settle_down().await;
            assert_eq!(journal.lines(), ["run"], "{lanes:?}, {how:?}");
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
            settle_down().await;
            assert_eq!(journal.lines(), ["run", "run", "after run 2"], "{lanes:?}, {how:?}");
        }
    }
}
