//! A producer's trace goes on in the spans of its message, with the real OpenTelemetry.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use common::{
    PARENT, TRACE, attribute, continue_or_link, continue_trace, exported, place, spans, traceparent,
};
use einmal::worker::{Lanes, Worker, WorkerConfig};
use einmal::{
    Backoff, Context, DeadLetter, DeadLetterError, DeadLetters, Delivery, Failure, Idempotent, MemoryStore,
    Policy, Position, Reply, Scope, Settings,
};
use einmal_testkit::{Fate, hand_source};
use opentelemetry::trace::TraceState;
use std::str::FromStr;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
struct Nowhere;

#[async_trait]
impl DeadLetters for Nowhere {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        let _inner =
            tracing::info_span!("of the destination", position = %letter.delivery.position()).entered();
        Ok(())
    }
}

async fn handle(context: Context) -> Result<Reply, Failure> {
    let _inner = tracing::info_span!("of the handler", position = %context.delivery().position()).entered();
    match (context.payload(), context.attempt()) {
        (b"again", 1) => Err(Failure::retry("not yet")),
        (b"never", _) => Err(Failure::reject("never")),
        _ => Ok(Reply::bytes(context.traceparent().unwrap_or_default().to_owned())),
    }
}

fn delivery(topic: &str, offset: i64, id: &str, payload: &'static str, trace: &str) -> Delivery {
    let header = |name: &str, value: &str| (name.into(), Some(Bytes::copy_from_slice(value.as_bytes())));
    let headers =
        vec![header("message-id", id), header("traceparent", trace), header("tracestate", "vendor=1")];
    Delivery::new(Position::in_log(topic, 0, offset), Some(Bytes::from_static(payload.as_bytes())))
        .with_headers(headers)
}

fn settings() -> Settings {
    let backoff = Backoff { initial: Duration::ZERO, factor: 1.0, max: Duration::ZERO };
    Settings::new(Scope::new("traces").unwrap())
        .policy(Policy::builder().backoff(backoff).build().unwrap())
        .dead_letters(Nowhere)
}

fn parent() -> (String, String) {
    (TRACE.to_owned(), PARENT.to_owned())
}

#[tokio::test]
async fn scenario_43_an_attempts_span_is_a_child_of_its_producers() {
    exported();
    for (topic, lanes) in [("in-lanes", Lanes::Partition), ("each-alone", Lanes::None)] {
        let settings = settings().on_span(continue_trace);
        let idempotent = Idempotent::new(MemoryStore::default(), handle, settings).unwrap();
        let worker =
            Arc::new(Worker::new(&idempotent, WorkerConfig { lanes, ..WorkerConfig::default() }).unwrap());
        let (mut hand, source) = hand_source();
        let shutdown = CancellationToken::new();
        let work = tokio::spawn({
            let (worker, shutdown) = (Arc::clone(&worker), shutdown.clone());
            async move { worker.run(source, shutdown).await }
        });
        // A repeat is sent in another span than the first.
        let again = "b7ad6b7169203331";
        for (offset, id, payload, span) in
            [(0, "a", "again", PARENT), (1, "a", "again", again), (2, "b", "never", PARENT)]
        {
            let handle = hand.push(delivery(topic, offset, id, payload, &traceparent(TRACE, span)));
            assert_eq!(handle.wait().await, Fate::Settled);
        }
        let handle = hand.push(delivery(topic, 3, "c", "ok", &traceparent(&"0".repeat(32), PARENT)));
        assert_eq!(handle.wait().await, Fate::Settled);
        shutdown.cancel();
        work.await.unwrap().unwrap();

        let attempts = spans("einmal.attempt", &format!("{topic}[0]@0"));
        let numbers: Vec<_> = attempts.iter().map(|span| attribute(span, "attempt").unwrap()).collect();
        assert_eq!(numbers, ["1", "2"]);
        for attempt in &attempts {
            assert_eq!(place(attempt), parent(), "{topic}");
            assert!(attempt.parent_span_is_remote);
            assert_eq!(attempt.span_context.trace_state(), &TraceState::from_str("vendor=1").unwrap());
        }
        // What the handler traces is within its attempt.
        let inner = spans("of the handler", &format!("{topic}[0]@0"));
        assert_eq!(inner.len(), 2);
        for (inner, attempt) in inner.iter().zip(&attempts) {
            assert_eq!(place(inner), (TRACE.to_owned(), attempt.span_context.span_id().to_string()));
        }

        let duplicate = spans("einmal.duplicate", &format!("{topic}[0]@1")).pop().unwrap();
        assert_eq!(place(&duplicate), (TRACE.to_owned(), again.to_owned()), "{topic}");
        assert_eq!(attribute(&duplicate, "answered_by_attempt").as_deref(), Some("2"));

        for name in ["einmal.attempt", "einmal.dead_letter"] {
            assert_eq!(place(&spans(name, &format!("{topic}[0]@2"))[0]), parent(), "{name}, {topic}");
        }
        // And what its destination traces, within the publishing.
        let (letter, inner) = ("einmal.dead_letter", "of the destination");
        let [letter, inner] = [letter, inner].map(|name| spans(name, &format!("{topic}[0]@2"))[0].clone());
        assert_eq!(place(&inner), (TRACE.to_owned(), letter.span_context.span_id().to_string()));
        // What is no trace context begins a trace of its own.
        let (trace, parent) = place(&spans("einmal.attempt", &format!("{topic}[0]@3"))[0]);
        assert!(trace != TRACE && trace != "0".repeat(32), "{trace}");
        assert_eq!(parent, "0".repeat(16));
    }
}

#[tokio::test]
async fn scenario_43_a_duplicates_span_can_be_linked_instead() {
    exported();
    let settings = settings().on_span(continue_or_link);
    let idempotent = Idempotent::new(MemoryStore::default(), handle, settings).unwrap();
    let cancel = CancellationToken::new();
    for offset in [0, 1] {
        let _ = idempotent
            .process(&delivery("linked", offset, "a", "ok", &traceparent(TRACE, PARENT)), &cancel)
            .await;
    }
    assert_eq!(place(&spans("einmal.attempt", "linked[0]@0")[0]), parent());
    let duplicate = spans("einmal.duplicate", "linked[0]@1").pop().unwrap();
    assert_eq!(attribute(&duplicate, "answered_by_attempt").as_deref(), Some("1"));
    assert_ne!(place(&duplicate).0, TRACE);
    let links: Vec<_> = duplicate.links.iter().map(|link| &link.span_context).collect();
    let links: Vec<_> =
        links.iter().map(|at| (at.trace_id().to_string(), at.span_id().to_string())).collect();
    assert_eq!(links, [parent()]);
}
