//! The spans of a message, and how the user's own tracing hears of them.

use std::fmt;
use std::sync::Arc;

use tracing::{Span, error_span, info_span};

use crate::claim::Claim;
use crate::dead_letter::DeadLetter;
use crate::delivery::Delivery;
use crate::id::{DedupKey, Scope};
use crate::quiet::caught_at;

/// Makes the spans, and shows each to the user's hook before anything happens in it.
///
/// A span's level is that of the gravest line in it: a filter that lets the line pass must not take away the
/// span that says which message it is about.
#[derive(Clone, Default)]
pub(crate) struct Spans(Option<Arc<OnSpan>>);

type OnSpan = dyn Fn(&Span, &Delivery) + Send + Sync;

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spans").field(&self.0.is_some()).finish()
    }
}

impl Spans {
    pub(crate) fn shown_to(hook: impl Fn(&Span, &Delivery) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// Of one run of the handler.
    pub(crate) fn attempt(&self, claim: &Claim, delivery: &Delivery) -> Span {
        let span = error_span!(
            "einmal.attempt",
            scope = %claim.key.scope(),
            id = %claim.key.id(),
            position = %delivery.position(),
            attempt = claim.attempt(),
            fence = claim.fence.get(),
            traceparent = delivery.traceparent(),
        );
        self.show(span, delivery)
    }

    /// Of a repeat, which says what answered it.
    pub(crate) fn duplicate(&self, key: &DedupKey, delivery: &Delivery, answered_by_attempt: u32) -> Span {
        let span = info_span!(
            "einmal.duplicate",
            scope = %key.scope(),
            id = %key.id(),
            position = %delivery.position(),
            answered_by_attempt,
            traceparent = delivery.traceparent(),
        );
        self.show(span, delivery)
    }

    /// Of the publishing of a dead letter.
    pub(crate) fn dead_letter(&self, scope: &Scope, key: Option<&DedupKey>, letter: &DeadLetter) -> Span {
        let span = error_span!(
            "einmal.dead_letter",
            %scope,
            id = key.map(|key| tracing::field::display(key.id())),
            position = %letter.delivery.position(),
            attempts = letter.attempts,
            reason = letter.reason.code(),
            traceparent = letter.delivery.traceparent(),
        );
        self.show(span, &letter.delivery)
    }

    fn show(&self, span: Span, delivery: &Delivery) -> Span {
        if let Some(hook) = self.0.as_ref().filter(|_| !span.is_disabled()) {
            let _ = caught_at(delivery.position(), || hook(&span, delivery));
        }
        span
    }
}
