//! Puts messages aside: dead letters, published first and recorded then.
//!
//! This is rare, and its futures are large. They are in boxes, or the future of every message would have room
//! for one, and be moved about with it.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tracing::Instrument;

use crate::claim::Verb;
use crate::dead_letter::{DeadLetter, DeadLetterError, DeadLetterReason};
use crate::delivery::Delivery;
use crate::engine::Engine;
use crate::id::DedupKey;
use crate::lease::Lease;
use crate::names;
use crate::outcome::FailReason;
use crate::quiet::{Quiet, drop_quietly};
use crate::settle::{Disposition, Settled, Unsettled};

impl Engine {
    /// Publishes the dead letter that the store says is owed, and records it. Whatever goes wrong, it stays
    /// owed.
    pub(crate) fn publish<'a>(
        &'a self,
        lease: Lease,
        delivery: &'a Delivery,
        reason: FailReason,
        ran: bool,
    ) -> BoxFuture<'a, Disposition> {
        Box::pin(self.publish_in_place(lease, delivery, reason, ran))
    }

    async fn publish_in_place(
        &self,
        lease: Lease,
        delivery: &Delivery,
        reason: FailReason,
        ran: bool,
    ) -> Disposition {
        let claim = &lease.claim;
        let now = self.clock.wall();
        let letter = DeadLetter::of_operation(
            delivery.clone(),
            claim.key.clone(),
            claim.generation,
            reason.clone(),
            now,
        );
        // An attempt that ended in these words is in no counter: it was not charged.
        let uncounted = ran || matches!(reason, FailReason::Rejected(_) | FailReason::Parked(_));
        let attempts = claim.counters.attempts().saturating_add(u32::from(uncounted));
        let published = tokio::select! {
            biased;
            published = self.send(letter.with_history(attempts, claim.first_at), Some(&claim.key)) => published,
            () = lease.lost.cancelled() => return self.leave(&lease, Unsettled::LeaseLost).await,
        };
        if let Err(error) = published {
            return self.leave(&lease, Unsettled::DeadLetter(error)).await;
        }
        match self.settle(&lease, Verb::DeadLettered).await {
            Ok(_) => {
                let reason = DeadLetterReason::Failed(reason);
                Disposition::Settle(Settled::DeadLettered { reason, ran })
            }
            Err(unsettled) => self.leave(&lease, unsettled).await,
        }
    }

    /// Publishes the dead letter of a message that has no operation of its own. Its `key`, if it has one, is
    /// another message's, or can't be read: it is for the log.
    pub(crate) fn put_aside<'a>(
        &'a self,
        delivery: &'a Delivery,
        reason: DeadLetterReason,
        key: Option<&'a DedupKey>,
    ) -> BoxFuture<'a, Disposition> {
        Box::pin(self.put_aside_in_place(delivery, reason, key))
    }

    async fn put_aside_in_place(
        &self,
        delivery: &Delivery,
        reason: DeadLetterReason,
        key: Option<&DedupKey>,
    ) -> Disposition {
        let letter = DeadLetter::of_message(delivery.clone(), reason.clone(), self.clock.wall());
        match self.send(letter, key).await {
            Ok(()) => Disposition::Settle(Settled::DeadLettered { reason, ran: false }),
            Err(error) => Disposition::Unsettled(Unsettled::DeadLetter(error)),
        }
    }

    async fn send(&self, letter: DeadLetter, key: Option<&DedupKey>) -> Result<(), DeadLetterError> {
        let span = self.spans.dead_letter(&self.scope, key, &letter);
        self.send_in_span(letter, key.map(ToString::to_string)).instrument(span).await
    }

    async fn send_in_span(&self, letter: DeadLetter, key: Option<String>) -> Result<(), DeadLetterError> {
        let (code, position) = (letter.reason.code(), letter.delivery.position().clone());
        let attempts = letter.attempts;
        let sent = match &self.dead_letters {
            Some(dead_letters) => {
                let published =
                    AssertUnwindSafe(Quiet::new(dead_letters.publish(letter))).catch_unwind().await;
                published.unwrap_or_else(|panic| {
                    drop_quietly(panic);
                    Err(DeadLetterError::new("its destination panicked"))
                })
            }
            None => Err(DeadLetterError::new("no destination for dead letters is set")),
        };
        match &sent {
            Ok(()) => {
                tracing::warn!(key, %position, attempts, reason = code, "dead letter published");
                metrics::counter!(names::DEAD_LETTERED, "scope" => self.scope_label.clone(), "reason" => code)
                    .increment(1);
            }
            Err(error) => {
                tracing::error!(key, %position, attempts, reason = code, %error, "dead letter not confirmed");
                metrics::counter!(names::DEAD_LETTER_ERRORS, "scope" => self.scope_label.clone())
                    .increment(1);
            }
        }
        sent
    }
}
