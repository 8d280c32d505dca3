//! The user's code panics where nobody expects it, and the worker goes on with the others (rule 15).

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use einmal::worker::{Ack, Assignment, Incoming, Lanes, Summary, Worker, WorkerConfig};
use einmal::{
    Context, DeadLetter, DeadLetterError, DeadLetters, Delivery, Failure, IdSource, Idempotent, Identify,
    MemoryStore, Policy, Position, Scope, Settings,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const POISON: &[u8] = b"poison";

#[derive(Debug)]
struct Letters {
    /// How often publishing panics before it works.
    panics: AtomicUsize,
}

#[async_trait]
impl DeadLetters for Letters {
    async fn publish(&self, _: DeadLetter) -> Result<(), DeadLetterError> {
        let left = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        assert!(left.is_err(), "the destination panics");
        Ok(())
    }
}

struct MayPanic(bool);

impl Ack for MayPanic {
    fn settle(self) {
        assert!(!self.0, "the ack panics");
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("the handler's value panics when it is dropped");
    }
}

#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("the error panics when it is shown")
    }
}

impl std::error::Error for Unspeakable {}

fn is_poison(context: &Context) -> bool {
    context.payload() == POISON
}

async fn plain(_: Context) -> Result<(), Failure> {
    Ok(())
}

async fn fails_unspeakably(context: Context) -> Result<(), Failure> {
    if is_poison(&context) { Err(Unspeakable.into()) } else { Ok(()) }
}

async fn never_ends_and_panics_when_dropped(context: Context) -> Result<(), Failure> {
    if is_poison(&context) {
        let _held = PanicsWhenDropped;
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn panics_with_a_payload_that_panics(context: Context) -> Result<(), Failure> {
    if is_poison(&context) {
        std::panic::panic_any(PanicsWhenDropped);
    }
    Ok(())
}

/// Two good messages around one that makes the user's code panic.
async fn around<H: einmal::Handler>(
    handler: H,
    lanes: Lanes,
    ids: IdSource,
    letters: usize,
    ack: bool,
) -> Summary {
    let policy = Policy::builder().max_failures(1).max_run(Duration::from_millis(20)).build().unwrap();
    let settings = Settings::new(Scope::new("panics").unwrap())
        .identify(Identify::new([ids]))
        .policy(policy)
        .dead_letters(Arc::new(Letters { panics: AtomicUsize::new(letters) }));
    let idempotent = Idempotent::new(MemoryStore::default(), handler, settings).unwrap();
    let worker = Worker::new(&idempotent, WorkerConfig { lanes, ..WorkerConfig::default() }).unwrap();
    let (send, receive) = mpsc::channel(4);
    for (offset, payload) in [b"before", POISON, b"behind"].into_iter().enumerate() {
        let position = Position::in_log("t", 0, i64::try_from(offset).unwrap());
        let delivery = Delivery::new(position, Some(Bytes::from_static(payload)));
        let ack = MayPanic(ack && payload == POISON);
        send.send(Incoming { delivery, assignment: Assignment::default(), ack }).await.unwrap();
    }
    drop(send);
    worker.run(receive, CancellationToken::new()).await.unwrap()
}

async fn in_both<H: einmal::Handler + Copy>(
    handler: H,
    ids: IdSource,
    letters: usize,
    ack: bool,
) -> [Summary; 2] {
    [
        around(handler, Lanes::Partition, ids.clone(), letters, ack).await,
        around(handler, Lanes::None, ids, letters, ack).await,
    ]
}

#[tokio::test]
async fn in_an_errors_display() {
    for summary in in_both(fails_unspeakably, IdSource::Position, 0, false).await {
        assert_eq!((summary.ran_ok, summary.ran_failed, summary.received), (2, 1, 3));
    }
}

#[tokio::test]
async fn in_the_drop_of_a_handler_that_is_cut_off() {
    for summary in in_both(never_ends_and_panics_when_dropped, IdSource::Position, 0, false).await {
        assert_eq!((summary.ran_ok, summary.ran_failed, summary.received), (2, 1, 3));
    }
}

#[tokio::test]
async fn in_the_drop_of_a_panics_payload() {
    for summary in in_both(panics_with_a_payload_that_panics, IdSource::Position, 0, false).await {
        assert_eq!((summary.ran_ok, summary.ran_failed, summary.received), (2, 1, 3));
    }
}

#[tokio::test]
async fn in_the_function_that_finds_ids() {
    let ids = IdSource::custom(|delivery| {
        assert!(delivery.payload().is_some_and(|payload| &payload[..] != POISON), "no id");
        Some(delivery.position().to_string())
    });
    for summary in in_both(plain, ids, 0, false).await {
        assert_eq!((summary.ran_ok, summary.rejected_before_claim, summary.received), (2, 1, 3));
    }
}

#[tokio::test]
async fn in_the_destination_of_dead_letters() {
    for summary in in_both(fails_unspeakably, IdSource::Position, 1, false).await {
        // Published at the second try, and not run again for it.
        assert_eq!((summary.ran_ok, summary.dead_lettered_without_run, summary.received), (2, 1, 3));
    }
}

#[tokio::test]
async fn in_an_ack() {
    for summary in in_both(plain, IdSource::Position, 0, true).await {
        assert_eq!((summary.ran_ok, summary.received, summary.in_flight), (3, 3, 0));
    }
}
