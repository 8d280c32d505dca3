//! A delivery on its way through the worker.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::budget::Place;
use super::source::{Ack, Assignment, Incoming};
use super::tally::Final;
use crate::claim::Token;
use crate::delivery::Delivery;
use crate::names;
use crate::quiet::caught_at;
use crate::settle::Settled;
use crate::stop::Stop;

/// A delivery, the right to settle it, and its place in the budget. Dropped without an answer it counts as
/// unsettled.
pub(crate) struct Item<A: Ack> {
    pub(crate) delivery: Delivery,
    /// Names its next claim. Kept as long as the store answers claims with errors, so that a claim whose
    /// answer was lost is found again; a new one as soon as there was an answer.
    pub(crate) token: Token,
    /// Whether the mode `Observe` has counted it.
    pub(crate) counted: bool,
    assignment: Assignment,
    ack: Option<A>,
    shared: Arc<Shared>,
    received_at: Duration,
    _place: Place,
}

impl<A: Ack> Item<A> {
    pub(crate) fn new(incoming: Incoming<A>, shared: &Arc<Shared>) -> Self {
        let Incoming { delivery, assignment, ack } = incoming;
        let received_at = shared.engine.clock.monotonic();
        let place = shared.budget.take(received_at, delivery.position().clone(), delivery.size());
        shared.tally.received();
        let (token, shared) = (Token::random(), Arc::clone(shared));
        Self {
            delivery,
            token,
            counted: false,
            assignment,
            ack: Some(ack),
            shared,
            received_at,
            _place: place,
        }
    }

    /// Its key as logs show it; `None` when it has none.
    pub(crate) fn key(&self) -> Option<String> {
        self.shared.engine.identify(&self.delivery).ok().map(|key| key.to_string())
    }

    /// Asked for when nothing more should be started for this delivery.
    pub(crate) fn no_start(&self) -> Stop {
        Stop::either(&self.shared.closing, &self.assignment.closing)
    }

    /// Asked for when what runs for this delivery must end.
    pub(crate) fn no_more(&self) -> Stop {
        Stop::either(&self.shared.cancelled, &self.assignment.lost)
    }

    /// Settles it with its broker, unless it is another's by now. What `settled` says is durable.
    pub(crate) fn settle(mut self, settled: &Settled) {
        if self.assignment.lost.is_cancelled() {
            return;
        }
        if let Some(ack) = self.ack.take() {
            // An ack that is lost means another delivery, which the outcome answers.
            let _ = caught_at(self.delivery.position(), || ack.settle());
            let seconds = self.shared.engine.clock.monotonic().saturating_sub(self.received_at).as_secs_f64();
            let scope = Arc::clone(&self.shared.engine.scope_label);
            metrics::histogram!(names::SETTLE_SECONDS, "scope" => scope).record(seconds);
            self.shared.tally.answered(Final::of(settled));
        }
    }
}

impl<A: Ack> Drop for Item<A> {
    fn drop(&mut self) {
        if self.ack.is_some() {
            self.shared.tally.answered(Final::Unsettled);
        }
    }
}
