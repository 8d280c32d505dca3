//! The spans of Einmal as OpenTelemetry exports them.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test uses a part, and a test may panic"
)]

use std::sync::OnceLock;

use einmal::Delivery;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry::{Key, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

/// A producer's trace, and the span in which it sent its message.
pub const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
pub const PARENT: &str = "00f067aa0ba902b7";

/// The header of a message that was sent in the span `parent` of `trace`.
pub fn traceparent(trace: &str, parent: &str) -> String {
    format!("00-{trace}-{parent}-01")
}

/// Where spans arrive: one place for the process, for subscribers that come and go miss spans.
pub fn exported() -> &'static InMemorySpanExporter {
    static EXPORTED: OnceLock<InMemorySpanExporter> = OnceLock::new();
    EXPORTED.get_or_init(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
        // Kept alive for as long as spans are.
        std::mem::forget(provider);
        exporter
    })
}

/// What the documentation tells users to write: a span continues its producer's trace.
pub fn continue_trace(span: &tracing::Span, delivery: &Delivery) {
    let producer = TraceContextPropagator::new().extract(&delivery.trace_context());
    let _ = span.set_parent(producer);
}

/// The other way: a repeat keeps a trace of its own, and is linked to its producer's.
pub fn continue_or_link(span: &tracing::Span, delivery: &Delivery) {
    if span.metadata().is_some_and(|span| span.name() == "einmal.duplicate") {
        let producer = TraceContextPropagator::new().extract(&delivery.trace_context());
        span.add_link(producer.span().span_context().clone());
    } else {
        continue_trace(span, delivery);
    }
}

/// The finished spans called `name` of the message at `position`.
pub fn spans(name: &str, position: &str) -> Vec<SpanData> {
    let all = exported().get_finished_spans().unwrap();
    let is_it =
        |span: &SpanData| span.name == name && attribute(span, "position").as_deref() == Some(position);
    all.into_iter().filter(is_it).collect()
}

pub fn attribute(span: &SpanData, name: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == Key::from(name.to_owned()))?;
    Some(match &attribute.value {
        Value::String(text) => text.as_str().to_owned(),
        other => other.to_string(),
    })
}

/// Trace and parent of a span.
pub fn place(span: &SpanData) -> (String, String) {
    (span.span_context.trace_id().to_string(), span.parent_span_id.to_string())
}
