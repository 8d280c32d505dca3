//! What an idempotent handler is told besides its store and its work.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::dead_letter::DeadLetters;
use crate::delivery::Delivery;
use crate::engine::Engine;
use crate::error::InvalidSetting;
use crate::fingerprint::FingerprintPolicy;
use crate::id::Scope;
use crate::identify::Identify;
use crate::lease::Leases;
use crate::mode::{Mode, ModeSwitch};
use crate::observe::Observer;
use crate::policy::Policy;
use crate::span::Spans;
use crate::store::DedupStore;

/// What an idempotent handler is told besides its store and its work.
#[derive(Clone, Debug)]
#[must_use]
pub struct Settings {
    scope: Scope,
    identify: Identify,
    fingerprint: FingerprintPolicy,
    policy: Policy,
    clock: Arc<dyn Clock>,
    dead_letters: Option<Arc<dyn DeadLetters>>,
    spans: Spans,
    mode: ModeSwitch,
}

impl Settings {
    /// In `scope`, with ids from the places of [`Identify::default`], a fingerprint of the raw payload, the
    /// default [`Policy`], nowhere to put dead letters, in the mode [`Enforce`](crate::Mode::Enforce).
    pub fn new(scope: Scope) -> Self {
        Self {
            scope,
            identify: Identify::default(),
            fingerprint: FingerprintPolicy::default(),
            policy: Policy::default(),
            clock: Arc::new(SystemClock),
            dead_letters: None,
            spans: Spans::default(),
            mode: ModeSwitch::default(),
        }
    }

    /// Where message ids are found.
    pub fn identify(mut self, identify: Identify) -> Self {
        self.identify = identify;
        self
    }

    /// What must be equal in a true repeat.
    pub fn fingerprint(mut self, fingerprint: FingerprintPolicy) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Times and limits.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Where dead letters go. Without it a message that is given up stays owed and unsettled.
    pub fn dead_letters(mut self, dead_letters: impl DeadLetters) -> Self {
        self.dead_letters = Some(Arc::new(dead_letters));
        self
    }

    /// Shows each span of a message to `hook`, before anything happens in it: `einmal.attempt` (a run of the
    /// handler), `einmal.duplicate` (a repeat, with `answered_by_attempt`), `einmal.dead_letter` (one that is
    /// published). By default nobody is shown them.
    ///
    /// This is how a span continues its producer's trace. With `tracing-opentelemetry`:
    ///
    /// ```ignore
    /// .on_span(|span, delivery| {
    ///     let producer = TraceContextPropagator::new().extract(&delivery.trace_context());
    ///     let _ = span.set_parent(producer); // or span.add_link(…)
    /// })
    /// ```
    ///
    /// `span.metadata()` tells which one it is. A span that no subscriber wants is not shown. A hook that panics
    /// is logged, and the message goes on.
    pub fn on_span(mut self, hook: impl Fn(&tracing::Span, &Delivery) + Send + Sync + 'static) -> Self {
        self.spans = Spans::shown_to(hook);
        self
    }

    /// How far the answers of the store are obeyed: a [`Mode`](crate::Mode), or a [`ModeSwitch`] that can be
    /// set while messages are processed.
    pub fn mode(mut self, mode: impl Into<ModeSwitch>) -> Self {
        self.mode = mode.into();
        self
    }

    /// Where time comes from.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    pub(crate) fn engine(self, store: Arc<dyn DedupStore>) -> Result<Engine, InvalidSetting> {
        let (max, store_max) = (self.policy.max_result(), store.capabilities().max_value);
        if max > store_max {
            let problem = format!("is {max} bytes, but the store keeps at most {store_max}");
            return Err(InvalidSetting::new("max_result", problem));
        }
        let (scope, mode) = (&self.scope, self.mode.get());
        if mode != Mode::Enforce {
            tracing::warn!(%scope, %mode, "in this mode repeats are run");
        }
        let leases = Leases::new(Arc::clone(&store), Arc::clone(&self.clock), self.policy.rules().lease);
        Ok(Engine {
            store,
            clock: self.clock,
            policy: self.policy,
            leases,
            scope_label: self.scope.to_string().into(),
            scope: self.scope,
            identify: self.identify,
            fingerprint: self.fingerprint,
            dead_letters: self.dead_letters,
            spans: self.spans,
            observer: Observer::default(),
            mode: self.mode,
        })
    }
}
