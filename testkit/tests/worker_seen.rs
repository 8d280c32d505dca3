//! What operators see: counters that add up, logs that name the message and never its content, spans.

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
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use common::watching::Spoil;
use common::*;
use einmal::worker::{Assignment, Incoming, Lanes, Limits};
use einmal::{
    Backoff, Context, DeadLetter, DeadLetterReason, Delivery, Disposition, FailReason, Failure, Idempotent,
    Outcome, Position, Reply, Settled, StoredResult, Timestamp,
};
use einmal_testkit::{Fate, Fault, ManualClock, Method};
use futures_util::future::BoxFuture;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context as Place, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<String, String>;

/// Everything that is traced: events with the fields of their spans, and spans.
#[derive(Clone, Debug, Default)]
struct Traced {
    events: Arc<Mutex<Vec<Fields>>>,
    spans: Arc<Mutex<Vec<(&'static str, Fields)>>>,
}

thread_local! {
    /// Each test has a thread of its own, and all of its tasks run there.
    static HERE: Traced = Traced::default();
}

/// One for the whole process: subscribers that come and go on several threads miss lines.
struct Listener;

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Listener {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, place: Place<'_, S>) {
        let mut fields = Fields::new();
        attributes.record(&mut Visitor(&mut fields));
        let span = (attributes.metadata().name(), fields.clone());
        HERE.with(|traced| traced.spans.lock().unwrap().push(span));
        place.span(id).unwrap().extensions_mut().insert(fields);
    }

    fn on_event(&self, event: &Event<'_>, place: Place<'_, S>) {
        let mut fields = Fields::new();
        for span in place.event_scope(event).into_iter().flatten() {
            fields.extend(span.extensions().get::<Fields>().cloned().unwrap_or_default());
        }
        event.record(&mut Visitor(&mut fields));
        if event.metadata().target().starts_with("einmal") {
            HERE.with(|traced| traced.events.lock().unwrap().push(fields));
        }
    }
}

impl Traced {
    fn listen() -> Self {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let subscriber = tracing_subscriber::registry().with(Listener);
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
        HERE.with(|traced| {
            traced.events.lock().unwrap().clear();
            traced.spans.lock().unwrap().clear();
            traced.clone()
        })
    }

    fn spans(&self, name: &str) -> Vec<Fields> {
        let spans = self.spans.lock().unwrap();
        spans.iter().filter(|(span, _)| *span == name).map(|(_, fields)| fields.clone()).collect()
    }
}

/// Does what its id says.
fn mixed(
    doors: &Doors,
) -> impl Fn(Context) -> BoxFuture<'static, Result<Reply, Failure>> + Send + Sync + 'static {
    let doors = doors.clone();
    move |context: Context| {
        let doors = doors.clone();
        Box::pin(async move {
            let id = context.key().id().as_str().to_owned();
            doors.pass(&id).await;
            match id.trim_end_matches(|c: char| c.is_numeric() || !c.is_ascii()) {
                "retry" if context.attempt() == 1 => Err(Failure::retry("a cause")),
                "fails" => Err(Failure::retry("a cause")),
                "reject" => Err(Failure::reject("a reason")),
                "park" => Err(Failure::park("a reason")),
                "ignore" => Err(Failure::ignore()),
                "panic" => panic!("the handler's fault"),
                "long" => Ok(Reply::bytes(vec![b'x'; 9000])),
                "slow" if context.attempt() == 1 => std::future::pending().await,
                _ => Ok(Reply::bytes(context.payload().to_vec())),
            }
        })
    }
}

#[tokio::test]
async fn scenario_41_the_counters_add_up() {
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let recorder = DebuggingRecorder::new();
        let seen = recorder.snapshotter();
        let _metrics = metrics::set_default_local_recorder(&recorder);
        let (clock, doors, letters) = (ManualClock::new(), Doors::default(), Letters::default());
        let store = store(&clock);
        store.faults().seeded(1, 0.1, &Fault::ALL);
        letters.fail(3);
        doors.close("held0");
        let limits = Limits { handlers: 4, deliveries: 40, ..Limits::default() };
        let settings_of = || settings(&clock, &letters);
        let mut running = start(store.clone(), mixed(&doors), settings_of(), with_limits(lanes, limits));
        let kinds = ["ok", "retry", "fails", "reject", "park", "ignore", "panic", "slow", "long", "ok"];
        let mut handles = Vec::new();
        for round in 0..2 {
            for (offset, kind) in (0..).zip(kinds) {
                let message = |id: &str, payload: &str| {
                    Delivery::new(
                        Position::in_log("topic", offset % 3, i64::from(offset + 20 * round)),
                        Some(Bytes::copy_from_slice(payload.as_bytes())),
                    )
                    .with_key(Some(Bytes::copy_from_slice(id.as_bytes())))
                    .with_headers(vec![header("message-id", id)])
                };
                let id = format!("{kind}{offset}");
                handles.push(running.hand.push(message(&id, "content")));
                if offset == 0 {
                    handles.push(running.hand.push(message(&id, "another content")));
                }
                if offset == 1 {
                    handles.push(running.hand.push(message("", "no id")));
                }
            }
        }
        for handle in &handles {
            drive(&clock, async {
                // At every moment, not only in the end.
                assert_adds_up(running.worker.summary());
                handle.wait().await
            })
            .await;
        }
        // A stop leaves the rest unsettled: one runs past the time to drain, others wait for it or behind it.
        store.faults().clear();
        let held = running.hand.push(delivery(100, "held0"));
        let copies = [running.hand.push(delivery(101, "held0")), running.hand.push(delivery(102, "held0"))];
        drive(&clock, running.hand.wait_taken(handles.len() + 3)).await;
        settle_down().await;
        running.shutdown.cancel();
        let summary = drive(&clock, running.ended()).await.unwrap();
        assert_adds_up(summary);
        assert_eq!((held.fate(), summary.in_flight), (Fate::Dropped, 0));
        assert!(copies.iter().all(|copy| copy.fate() == Fate::Dropped));
        assert_eq!((summary.received, summary.unsettled), (handles.len() as u64 + 3, 3), "{lanes:?}");
        assert_eq!((summary.conflict, summary.rejected_before_claim, summary.ignored), (2, 2, 2));
        // ok, retry, long, ok and, once it is not pending any more, slow.
        assert_eq!((summary.ran_ok, summary.duplicate), (5, 9), "{lanes:?}");
        let given_up = summary.ran_failed + summary.parked + summary.dead_lettered_without_run;
        assert_eq!(given_up, 4, "{summary:?}");

        // The metrics say the same.
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for (key, _, _, value) in seen.snapshot().into_vec() {
            if let DebugValue::Counter(count) = value {
                let answer = key.key().labels().find(|label| label.key() == "answer");
                let answer = answer.map(|label| label.value().to_owned()).unwrap_or_default();
                *counted.entry(format!("{}{answer}", key.key().name())).or_default() += count;
            }
        }
        assert_eq!(counted["einmal_received_total"], summary.received);
        assert_eq!(counted["einmal_answered_totalran_ok"], summary.ran_ok);
        assert_eq!(counted["einmal_answered_totalunsettled"], 3);
        let answered = counted.iter().filter(|(name, _)| name.starts_with("einmal_answered")).map(|(_, n)| n);
        assert_eq!(answered.sum::<u64>(), summary.received, "one final answer a delivery");
    }
}

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

#[tokio::test]
async fn scenario_42_logs_name_the_message_and_show_none_of_its_content() {
    for lanes in [Lanes::Partition, Lanes::None] {
        let traced = Traced::listen();
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
            assert!(said(words), "a line with \"{words}\": {lanes:?}");
        }
        for event in &events {
            let message = &event["message"];
            if OF_THE_WORKER.iter().any(|words| message.starts_with(words)) {
                continue;
            }
            assert!(event.contains_key("position"), "no position: {event:?}");
            let named =
                event.contains_key("key") || (event.contains_key("scope") && event.contains_key("id"));
            let has_none = message.contains("no usable id")
                || event
                    .get("reason")
                    .is_some_and(|reason| ["bad_id", "conflict"].contains(&reason.as_str()));
            assert!(named || has_none, "no key: {event:?}");
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
        let settings = settings(&clock, &Letters::default());
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
    }
}
