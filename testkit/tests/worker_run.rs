//! `run`: the promise for any code, and what frees its key.

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

use common::*;
use einmal::claim::Counters;
use einmal::{Answer, DedupStore, Fingerprint, Idempotent, RunError, Unsettled};
use einmal_testkit::{Fault, ManualClock, Method};
use serde_json::{Value, json};

struct Bench {
    clock: ManualClock,
    store: TestStore,
    idempotent: Idempotent<TestStore>,
    runs: Arc<AtomicUsize>,
}

impl Bench {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = store(&clock);
        let settings = settings(&clock, &Letters::default());
        let idempotent = Idempotent::without_handler(store.clone(), settings).unwrap();
        Self { clock, store, idempotent, runs: Arc::default() }
    }

    /// Runs work that ends with `outcome`.
    async fn run(
        &self,
        outcome: Result<Value, &'static str>,
    ) -> Result<Answer<Value>, RunError<&'static str>> {
        let work = || async {
            self.runs.fetch_add(1, Ordering::SeqCst);
            outcome
        };
        self.idempotent.run(&key("a"), None, work).await
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn phase(&self) -> &'static str {
        self.store.inner().get(&key("a")).await.unwrap().map_or("absent", |record| record.phase_name())
    }

    async fn counters(&self) -> Counters {
        self.store.inner().get(&key("a")).await.unwrap().unwrap().counters
    }
}

#[tokio::test]
async fn a_typed_result_is_replayed() {
    let bench = Bench::new();
    assert_eq!(bench.run(Ok(json!({"charge": 7}))).await.unwrap(), Answer::Ran(json!({"charge": 7})));
    assert_eq!(bench.run(Ok(json!("other"))).await.unwrap(), Answer::Replayed(json!({"charge": 7})));
    assert_eq!(bench.runs(), 1);
    // A type that the stored result has not is an error, and nothing runs.
    let wrong = bench.idempotent.run(&key("a"), None, || async { Ok::<u32, ()>(1) }).await;
    assert!(matches!(wrong, Err(RunError::Result(_))), "{wrong:?}");
    // Nothing to return is something to replay.
    let unit = || async { Ok::<(), ()>(()) };
    assert_eq!(bench.idempotent.run(&key("unit"), None, unit).await.unwrap(), Answer::Ran(()));
    assert_eq!(bench.idempotent.run(&key("unit"), None, unit).await.unwrap(), Answer::Replayed(()));
}

#[tokio::test]
async fn an_error_and_a_panic_free_the_key_and_charge_nothing() {
    let bench = Bench::new();
    for _ in 0..10 {
        assert!(matches!(bench.run(Err("no")).await, Err(RunError::Work("no"))));
    }
    assert_eq!((bench.phase().await, bench.counters().await), ("released", Counters::default()));

    let panics = std::panic::AssertUnwindSafe(async {
        let work = || async { panic!("the work's fault") };
        let _ = bench.idempotent.run::<Value, (), _, _>(&key("a"), None, work).await;
    });
    assert!(futures_util::FutureExt::catch_unwind(panics).await.is_err(), "it is the caller's panic");
    assert_eq!((bench.phase().await, bench.counters().await), ("released", Counters::default()));

    // Also one that panics before there is a future.
    let panics = std::panic::AssertUnwindSafe(async {
        let work = || -> std::future::Ready<Result<Value, ()>> { panic!("the work's fault") };
        let _ = bench.idempotent.run(&key("a"), None, work).await;
    });
    assert!(futures_util::FutureExt::catch_unwind(panics).await.is_err());
    assert_eq!(bench.phase().await, "released");
    assert_eq!(bench.run(Ok(json!(1))).await.unwrap(), Answer::Ran(json!(1)));
}

#[tokio::test]
async fn another_content_is_a_conflict_and_a_running_one_in_progress() {
    let bench = Bench::new();
    let print = |content: &str| Some(Fingerprint::raw(Some(content.as_bytes())));
    let work = || async { Ok::<u32, ()>(1) };
    assert_eq!(bench.idempotent.run(&key("a"), print("one"), work).await.unwrap(), Answer::Ran(1));
    assert_eq!(bench.idempotent.run(&key("a"), print("other"), work).await.unwrap(), Answer::Conflict);
    assert_eq!(bench.idempotent.run(&key("a"), print("one"), work).await.unwrap(), Answer::Replayed(1));

    let outer = || async {
        match bench.idempotent.run(&key("b"), None, work).await.unwrap() {
            Answer::InProgress { retry_after } => assert!(retry_after > SECOND && retry_after <= LEASE),
            other => panic!("{other:?}"),
        }
        Ok::<u32, ()>(2)
    };
    assert_eq!(bench.idempotent.run(&key("b"), None, outer).await.unwrap(), Answer::Ran(2));
}

#[tokio::test]
async fn a_result_over_the_bound_is_not_kept_and_the_work_not_run_again() {
    let bench = Bench::new();
    let long = json!("x".repeat(9000));
    assert_eq!(bench.run(Ok(long.clone())).await.unwrap(), Answer::Ran(long));
    assert_eq!(bench.run(Ok(json!(1))).await.unwrap(), Answer::ReplayedWithoutResult);
    assert_eq!(bench.runs(), 1);
}

#[tokio::test]
async fn callers_who_go_away_condemn_nothing() {
    let bench = Bench::new();
    for _ in 0..20 {
        let hanging = || async { std::future::pending::<Result<Value, ()>>().await };
        let key = key("a");
        tokio::select! {
            biased;
            answer = bench.idempotent.run(&key, None, hanging) => panic!("{answer:?}"),
            () = tokio::task::yield_now() => {}
        }
        bench.clock.advance(LEASE);
    }
    assert_eq!(bench.run(Ok(json!(1))).await.unwrap(), Answer::Ran(json!(1)));
    assert_eq!(bench.counters().await, Counters::default());
}

#[tokio::test]
async fn a_failing_store_is_told_before_the_work_runs_and_never_doubles_it() {
    for fault in Fault::ALL {
        let bench = Bench::new();
        bench.store.faults().at(Method::ClaimMany, 1, fault);
        let first = drive(&bench.clock, bench.run(Ok(json!(1)))).await;
        assert!(matches!(first, Err(RunError::Store(_))), "{fault:?}: {first:?}");
        assert_eq!(bench.runs(), 0);
        bench.store.faults().clear();
        let again = drive(&bench.clock, async {
            loop {
                match bench.run(Ok(json!(1))).await.unwrap() {
                    // A claim whose answer was lost ends with its lease.
                    Answer::InProgress { retry_after } => {
                        einmal::Clock::sleep(&bench.clock, retry_after).await;
                    }
                    other => return other,
                }
            }
        });
        assert_eq!(again.await, Answer::Ran(json!(1)));

        let bench = Bench::new();
        bench.store.faults().at(Method::SettleMany, 1, fault);
        assert_eq!(drive(&bench.clock, bench.run(Ok(json!(1)))).await.unwrap(), Answer::Ran(json!(1)));
        assert_eq!(bench.run(Ok(json!(2))).await.unwrap(), Answer::Replayed(json!(1)));
        assert_eq!((bench.runs(), bench.phase().await), (1, "completed"));
    }
}

#[tokio::test]
async fn a_lost_lease_stops_the_work_and_says_so() {
    let bench = Bench::new();
    let began = Arc::new(AtomicUsize::new(0));
    let work = || {
        began.fetch_add(1, Ordering::SeqCst);
        bench.store.faults().down(true);
        std::future::pending::<Result<Value, ()>>()
    };
    let answer = drive(&bench.clock, bench.idempotent.run(&key("a"), None, work)).await;
    assert!(matches!(answer, Err(RunError::Unsettled(Unsettled::LeaseLost))), "{answer:?}");
    assert_eq!(began.load(Ordering::SeqCst), 1);
}
