//! What operators read: logs that name the message and never its content, and spans.

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
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use common::seen::{Fields, Traced, mixed};
use common::watching::Spoil;
use common::*;
use einmal::worker::{Assignment, Incoming, Lanes};
use einmal::{
    Backoff, Context, DeadLetter, DeadLetterError, DeadLetterReason, DeadLetters, Delivery, Disposition,
    FailReason, Failure, IdSource, Idempotent, Identify, MissingIdPolicy, Outcome, Position, Reply, Settled,
    StoredResult, Timestamp,
};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use tokio_util::sync::CancellationToken;
use tracing::Level;

const SECRETS: [&str; 4] = ["PAYLOAD-SECRET", "KEY-SECRET", "HEADER-SECRET", "%50AYLOAD"];
/// An id that is allowed, and that a log must not show as it is.
const HOSTILE: &str = "ok\u{202e}";

fn secret(offset: i64, id: &str) -> Delivery {
    Delivery::new(Position::in_log("topic", 0, offset), Some(Bytes::from("PAYLOAD-SECRET")))
        .with_key(Some(Bytes::from("KEY-SECRET")))
        .with_headers(vec![
            header("message-id", id),
            header("authorization", "HEADER-SECRET"),
            header("traceparent", "HEADER-SECRET"),
        ])
}

/// One line each of which everything in it is known to concern the whole worker.
const OF_THE_WORKER: [&str; 4] = [
    "the worker stops",
    "the time to drain is over",
    "expired records could not be purged",
    "a handler blocks its thread",
];

/// Lines about a delivery that no attempt is known for: before its claim, or without one.
const OF_NO_ATTEMPT: [&str; 8] = [
    "the record can't be read",
    "the message stays unsettled",
    "the message has no usable id",
    "the id came back with another content",
    "a copy still runs after the longest wait",
    "the store failed; the message waits for it",
    "not settled; it is processed again",
    "the user's code panicked",
];

fn assert_names_its_message(event: &Fields) {
    let message = &event["message"];
    assert!(event.contains_key("position"), "no position: {event:?}");
    let named = event.contains_key("key") || (event.contains_key("scope") && event.contains_key("id"));
    let has_none = message.contains("no usable id")
        || message.contains("the user's code panicked")
        || message.contains("the message stays unsettled")
        || event.get("reason").is_some_and(|reason| reason == "bad_id");
    assert!(named || has_none, "no key: {event:?}");
    let attempt =
        ["attempt", "attempts", "answered_by_attempt"].iter().any(|field| event.contains_key(*field));
    assert!(attempt || OF_NO_ATTEMPT.iter().any(|words| message.starts_with(words)), "no attempt: {event:?}");
}

#[tokio::test]
async fn scenario_42_logs_name_the_message_and_show_none_of_its_content() {
    let levels = [Level::TRACE, Level::WARN];
    for (lanes, level) in
        [Lanes::Partition, Lanes::None].into_iter().flat_map(|lanes| levels.map(|level| (lanes, level)))
    {
        let traced = Traced::listen_from(level);
        let (clock, doors, letters) = (ManualClock::new(), Doors::default(), Letters::default());
        let store = store(&clock);
        letters.fail(1);
        let slow = Backoff { initial: SECOND, factor: 2.0, max: 10 * SECOND };
        let policy = policy().max_run(60 * SECOND).backoff(slow).build().unwrap();
        let settings = settings(&clock, &letters).policy(policy);
        let mut running = start(store.clone(), mixed(&doors), settings, config(lanes));
        let ids =
            [HOSTILE, "retry", "fails", "reject", "park", "ignore", "panic", "slow", "long", HOSTILE, "ok"];
        for (offset, id) in (0..).zip(ids) {
            running.hand.push(secret(offset, id));
        }
        running.hand.push(secret(20, "bad\u{7}id"));
        let conflicting = Delivery::new(Position::in_log("topic", 0, 21), Some(Bytes::from("%50AYLOAD")));
        running.hand.push(conflicting.with_headers(vec![header("message-id", "ok")]));
        assert_eq!(drive(&clock, running.hand.wait_all()).await, [Fate::Settled; 13]);

        // Everything that can go wrong around it.
        for (nth, fault) in (1..).zip([Fault::ErrorBefore, Fault::ErrorAfter, Fault::ReplyLost]) {
            store.faults().at(Method::ClaimMany, nth, fault);
            store.faults().at(Method::SettleMany, nth, fault);
        }
        store.inner().spoil("ok2", Spoil::Unknown);
        let handle = running.hand.push(secret(22, "ok2"));
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        doors.close("lost");
        let lost = running.hand.push(secret(23, "lost"));
        let copy = running.hand.push(secret(24, "lost"));
        pass(&clock, 8 * SECOND).await;
        store.faults().down(true);
        pass(&clock, 60 * SECOND).await;
        doors.open("lost");
        store.faults().down(false);
        assert_eq!(drive(&clock, lost.wait()).await, Fate::Settled);
        assert_eq!(drive(&clock, copy.wait()).await, Fate::Settled);
        running.shutdown.cancel();
        drive(&clock, running.ended()).await.unwrap();

        let events = traced.events.lock().unwrap().clone();
        let said = |words: &str| events.iter().any(|event| event["message"].contains(words));
        for words in [
            "the handler failed",
            "rejected the message",
            "parked the message",
            "panicked",
            "ran too long",
            "result is too long",
            "another content",
            "no usable id",
            "dead letter published",
            "dead letter not confirmed",
            "the store failed; the message waits",
            "the lease was lost",
            "not settled; it is processed again",
            "could not be given back",
            "answered by the stored outcome",
            "sending it again",
        ] {
            let wanted = level == Level::TRACE || words != "answered by the stored outcome";
            assert_eq!(said(words), wanted, "a line with \"{words}\": {lanes:?}, {level}");
        }
        for event in &events {
            let message = &event["message"];
            if OF_THE_WORKER.iter().any(|words| message.starts_with(words)) {
                continue;
            }
            assert_names_its_message(event);
        }
        let all = format!("{events:?} {:?}", traced.spans.lock().unwrap());
        for secret in SECRETS {
            assert!(!all.contains(secret), "{secret} is shown");
        }
        for raw in ["\u{202e}", "\u{7}"] {
            let shown = events.iter().flat_map(BTreeMap::values).any(|value| value.contains(raw));
            assert!(!shown, "not escaped: {raw:?}");
        }
    }
}

/// Panics when it is shown, and when it is dropped.
#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("the error can't be shown")
    }
}

impl std::error::Error for Unspeakable {}

impl Drop for Unspeakable {
    fn drop(&mut self) {
        panic!("the error can't be dropped")
    }
}

#[derive(Debug)]
struct NoLetters(AtomicBool);

#[async_trait]
impl DeadLetters for NoLetters {
    async fn publish(&self, _: DeadLetter) -> Result<(), DeadLetterError> {
        assert!(self.0.swap(true, Ordering::SeqCst), "the destination panics once");
        Ok(())
    }
}

#[tokio::test]
async fn scenario_42_a_panic_outside_the_handler_names_its_message_too() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let traced = Traced::listen();
        let clock = ManualClock::new();
        let id = IdSource::custom(|delivery| {
            assert!(delivery.position().offset() != Some(0), "no id can be found");
            None
        });
        let settings = settings(&clock, &Letters::default())
            .identify(Identify::new([id, IdSource::header("message-id")]))
            .dead_letters(NoLetters(AtomicBool::new(false)))
            .on_span(|span, _| {
                assert!(span.metadata().unwrap().name() != "einmal.duplicate", "no span for these")
            });
        let handler = |context: Context| async move {
            match context.key().id().as_str() {
                "reject" => Err(Failure::reject("a reason").because(Unspeakable)),
                _ => Ok(()),
            }
        };
        let mut running = start(store(&clock), handler, settings, config(lanes));
        for (offset, id) in (0..).zip(["none", "reject", "ok", "ok"]) {
            let handle = running.hand.push(secret(offset, id));
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled, "{id}");
        }
        let events = traced.events.lock().unwrap().clone();
        let panics: Vec<_> =
            events.iter().filter_map(|event| Some((&*event["position"], &**event.get("panic")?))).collect();
        let expected = [
            ("topic[0]@0", "no id can be found"),
            ("topic[0]@1", "the error can't be shown"),
            ("topic[0]@1", "the error can't be dropped"),
            ("topic[0]@3", "no span for these"),
        ];
        for panic in expected {
            assert!(panics.contains(&panic), "{panic:?} of {panics:?}");
        }
        assert!(events.iter().any(|event| event["message"].contains("not confirmed")));
        events.iter().for_each(assert_names_its_message);
    }
}

#[tokio::test]
async fn scenario_42_a_worker_that_stops_names_the_message_that_it_stops_for() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let traced = Traced::listen();
        let clock = ManualClock::new();
        let store = store(&clock);
        store.inner().unreadable("unreadable");
        let identify = Identify::new([IdSource::header("message-id")]).or(MissingIdPolicy::Fail);
        let settings = settings(&clock, &Letters::default()).identify(identify);
        let mut running = start(store, mixed(&Doors::default()), settings, config(lanes));
        let unreadable = running.hand.push(secret(0, "unreadable"));
        assert_eq!(drive(&clock, unreadable.wait()).await, Fate::Settled);
        let fatal = running.hand.push(secret(1, ""));
        let error = drive(&clock, running.ended()).await.unwrap_err();
        assert_eq!(fatal.fate(), Fate::Dropped);

        let events = traced.events.lock().unwrap().clone();
        for (words, position) in [
            ("the record can't be read", "topic[0]@0"),
            ("dead letter published", "topic[0]@0"),
            ("no usable id", "topic[0]@1"),
            ("the message stays unsettled", "topic[0]@1"),
        ] {
            let here = |event: &Fields| event.get("position").is_some_and(|here| here == position);
            assert!(events.iter().any(|event| event["message"].contains(words) && here(event)), "{words}");
        }
        let of_the_worker =
            |event: &&Fields| OF_THE_WORKER.iter().any(|words| event["message"].starts_with(words));
        events.iter().filter(|event| !of_the_worker(event)).for_each(assert_names_its_message);
        let all = format!("{events:?} {:?} {error} {error:?}", traced.spans.lock().unwrap());
        assert!(!SECRETS.iter().any(|secret| all.contains(secret)), "{all}");
    }
}

#[tokio::test]
async fn scenario_42_debug_shows_no_content() {
    let clock = ManualClock::new();
    let message = || secret(0, "id");
    let contexts: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&contexts);
    let handler = move |context: Context| {
        let seen = Arc::clone(&seen);
        async move {
            seen.lock().unwrap().push(format!("{context:?} {:?}", Reply::bytes("PAYLOAD-SECRET")));
            Ok::<_, Failure>(Reply::bytes("PAYLOAD-SECRET"))
        }
    };
    let idempotent = Idempotent::new(store(&clock), handler, settings(&clock, &Letters::default())).unwrap();
    let cancel = CancellationToken::new();
    let ran = idempotent.process(&message(), &cancel).await;
    assert!(matches!(ran, Disposition::Settle(Settled::Ran { result: Some(_) })));
    let duplicate = idempotent.process(&message(), &cancel).await;
    let outcome =
        Outcome { result: StoredResult::Kept(Bytes::from("PAYLOAD-SECRET")), at: Timestamp::MIN, attempt: 1 };
    let letter = DeadLetter::of_message(message(), DeadLetterReason::Conflict, Timestamp::MIN);
    let failed = DeadLetterReason::Failed(FailReason::Attempts);
    let incoming = Incoming { delivery: message(), assignment: Assignment::default(), ack: () };
    let mut shown = format!("{ran:?} {duplicate:?} {outcome:?} {letter:?} {failed:?} {incoming:?}");
    shown.extend(contexts.lock().unwrap().drain(..));
    assert!(shown.contains("topic[0]@0"), "{shown}");
    for secret in SECRETS {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn scenario_43_each_attempt_has_a_span_and_a_duplicate_says_what_answered_it() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let traced = Traced::listen();
        let (clock, doors) = (ManualClock::new(), Doors::default());
        let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let with = |offset, id: &str, traceparent: &str| {
            let headers = vec![header("message-id", id), header("traceparent", traceparent)];
            delivery(offset, id).with_headers(headers)
        };
        let shown: Arc<Mutex<Vec<String>>> = Arc::default();
        let (letters, notes) = (Letters::default(), Arc::clone(&shown));
        let settings = settings(&clock, &letters).on_span(move |span, delivery| {
            let name = span.metadata().unwrap().name();
            notes.lock().unwrap().push(format!(
                "{name} {} {}",
                delivery.position(),
                delivery.traceparent().is_some()
            ));
        });
        let mut running = start(store(&clock), mixed(&doors), settings, config(lanes));
        for (offset, id) in [(4, "retry"), (5, "retry")] {
            let handle = running.hand.push(with(offset, id, context));
            assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        }
        let handle = running.hand.push(with(6, "ok", "no trace context"));
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);

        let attempts = traced.spans("einmal.attempt");
        let numbers: Vec<_> =
            attempts.iter().map(|span| (span["id"].as_str(), span["attempt"].as_str())).collect();
        assert_eq!(numbers, [("retry", "1"), ("retry", "2"), ("ok", "1")]);
        let first = &attempts[0];
        assert_eq!((first["scope"].as_str(), first["position"].as_str()), (SCOPE, "topic[0]@4"));
        assert_eq!(first["traceparent"], context);
        assert!(first.contains_key("fence"));
        assert!(!attempts[2].contains_key("traceparent"));
        let duplicates = traced.spans("einmal.duplicate");
        assert_eq!(duplicates.len(), 1, "{lanes:?}");
        assert_eq!(duplicates[0]["answered_by_attempt"], "2");
        assert_eq!(
            (duplicates[0]["id"].as_str(), duplicates[0]["position"].as_str()),
            ("retry", "topic[0]@5")
        );
        assert_eq!(duplicates[0]["traceparent"], context);

        let handle = running.hand.push(with(7, "reject", context));
        assert_eq!(drive(&clock, handle.wait()).await, Fate::Settled);
        let letter = traced.spans("einmal.dead_letter").pop().unwrap();
        let fields =
            ["scope", "id", "position", "attempts", "reason", "traceparent"].map(|field| &*letter[field]);
        assert_eq!(fields, [SCOPE, "reject", "topic[0]@7", "1", "rejected", context]);
        let arrived = letters.arrived().pop().unwrap();
        assert_eq!(arrived.delivery.traceparent(), Some(context), "it goes on with the letter");

        // Each is shown once to who asked, and before anything happens in it.
        let expected = [
            "einmal.attempt topic[0]@4 true",
            "einmal.attempt topic[0]@4 true",
            "einmal.duplicate topic[0]@5 true",
            "einmal.attempt topic[0]@6 false",
            "einmal.attempt topic[0]@7 true",
            "einmal.dead_letter topic[0]@7 true",
        ];
        assert_eq!(*shown.lock().unwrap(), expected);
    }
}
