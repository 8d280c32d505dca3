//! What a worker takes in, and what goes on beside the messages.

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::*;
use einmal::worker::{Ack, Assignment, Incoming, Lanes, Limits, Source, Worker};
use einmal::{Context, DedupStore, Delivery, Failure, Idempotent};
use einmal_testkit::{Fate, Faults, ManualClock, Method};
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn rule_10_the_bound_on_bytes_is_passed_by_one_delivery_at_most() {
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let limits = Limits { bytes: 1000, ..Limits::default() };
        doors.close(&"x".repeat(400));
        let mut running = start(
            store(&clock),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            with_limits(lanes, limits),
        );
        for offset in 0..20 {
            let payload = Bytes::from("x".repeat(400));
            let message = Delivery::new(delivery(offset, "").position().clone(), Some(payload));
            running.hand.push(message.with_headers(vec![header("message-id", &offset.to_string())]));
        }
        within(running.hand.wait_taken(3)).await;
        pass(&clock, 5 * SECOND).await;
        assert_eq!(running.hand.taken(), 3, "1,000 bytes are passed by the third: {lanes:?}");
        doors.open(&"x".repeat(400));
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 20]);
    }
}

#[tokio::test]
async fn rule_10_no_more_deliveries_are_taken_in_than_the_bound_says() {
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
        let limits = Limits { deliveries: 5, handlers: 2, ..Limits::default() };
        doors.close("0");
        doors.close("1");
        let mut running = start(
            store(&clock),
            gated(&journal, &doors),
            settings(&clock, &Letters::default()),
            with_limits(lanes, limits),
        );
        for offset in 0..20 {
            running.hand.push(delivery(offset, &offset.to_string()));
        }
        within(running.hand.wait_taken(5)).await;
        pass(&clock, 5 * SECOND).await;
        let running_now = journal.lines().len();
        assert!(running_now <= 2, "no more handlers at once than slots: {lanes:?}");
        assert_eq!(running.hand.taken(), 5, "{lanes:?}");
        doors.open("0");
        doors.open("1");
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 20]);
    }
}

#[tokio::test]
async fn rule_11_expired_records_go_by_themselves_and_a_repeat_is_a_new_operation() {
    let (clock, journal) = (ManualClock::new(), Journal::default());
    let store = store(&clock);
    let policy = policy().retention(60 * SECOND).build().unwrap();
    let settings = settings(&clock, &Letters::default()).policy(policy);
    let mut running =
        start(store.clone(), gated(&journal, &Doors::default()), settings, config(Lanes::Partition));
    for offset in 0..2500 {
        running.hand.push(delivery(offset, &offset.to_string()));
    }
    drive(&clock, running.hand.wait_all()).await;
    assert_eq!(store.inner().stats().await.unwrap().keys, 2500);
    pass(&clock, 59 * SECOND).await;
    assert_eq!(store.inner().stats().await.unwrap().keys, 2500, "not before their time");
    pass(&clock, 5 * SECOND).await;
    assert_eq!(store.inner().stats().await.unwrap().keys, 0, "nobody asked for them");
    assert!(store.faults().calls(Method::PurgeExpired) > 3, "in batches");
    let again = running.hand.push(delivery(3000, "7"));
    assert_eq!(drive(&clock, again.wait()).await, Fate::Settled);
    assert_eq!(journal.count("run 7"), 2);
}

/// Always has another delivery, and lets time pass with each.
struct Endless {
    clock: ManualClock,
    faults: Faults,
    left: i64,
    purges: Arc<AtomicU64>,
}

struct NoAck;

impl Ack for NoAck {
    fn settle(self) {}
}

#[async_trait]
impl Source for Endless {
    type Ack = NoAck;

    async fn next(&mut self) -> Option<Incoming<NoAck>> {
        self.clock.advance(Duration::from_millis(100));
        self.purges.store(self.faults.calls(Method::PurgeExpired), Ordering::SeqCst);
        self.left -= 1;
        let delivery = delivery(self.left, &self.left.to_string());
        (self.left >= 0).then(|| Incoming { delivery, assignment: Assignment::default(), ack: NoAck })
    }
}

#[tokio::test]
async fn rule_11_there_is_time_for_expiry_also_when_deliveries_never_cease() {
    let clock = ManualClock::new();
    let store = store(&clock);
    let handler = |_: Context| async { Ok::<_, Failure>(()) };
    let settings = settings(&clock, &Letters::default());
    let idempotent = Idempotent::new(store.clone(), handler, settings).unwrap();
    let worker = Worker::new(&idempotent, config(Lanes::None)).unwrap();
    let purges = Arc::new(AtomicU64::new(0));
    let source =
        Endless { clock: clock.clone(), faults: store.faults(), left: 500, purges: Arc::clone(&purges) };
    let summary = within(worker.run(source, CancellationToken::new())).await.unwrap();
    assert_eq!(summary.ran_ok, 500);
    assert!(purges.load(Ordering::SeqCst) > 5, "{purges:?} rounds in 50 s");
}

#[tokio::test]
async fn a_delivery_that_does_not_move_is_said_to_stall() {
    let (clock, journal, doors) = (ManualClock::new(), Journal::default(), Doors::default());
    doors.close("a");
    let policy = policy().max_run(3600 * SECOND).build().unwrap();
    let settings = settings(&clock, &Letters::default()).policy(policy);
    let mut running = start(store(&clock), gated(&journal, &doors), settings, config(Lanes::Partition));
    let handle = running.hand.push(delivery(3, "a"));
    pass(&clock, 890 * SECOND).await;
    assert!(running.worker.health().read().ready);
    pass(&clock, 20 * SECOND).await;
    let health = running.worker.health().read();
    assert!(health.live && !health.ready && health.reasons[0].contains("topic[0]@3"), "{health:?}");
    doors.open("a");
    assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
    pass(&clock, 2 * SECOND).await;
    assert!(running.worker.health().read().ready);
}
