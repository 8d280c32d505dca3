//! One final answer a delivery, so that the counters add up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dead_letter::DeadLetterReason;
use crate::names;
use crate::observe::Observed;
use crate::outcome::FailReason;
use crate::settle::Settled;

/// The final answers that a delivery can come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Final {
    RanOk,
    RanFailed,
    Ignored,
    Duplicate,
    Conflict,
    Parked,
    DeadLetteredWithoutRun,
    RejectedBeforeClaim,
    Passed,
    Unsettled,
}

impl Final {
    const ALL: [(Self, &'static str); 10] = [
        (Self::RanOk, "ran_ok"),
        (Self::RanFailed, "ran_failed"),
        (Self::Ignored, "ignored"),
        (Self::Duplicate, "duplicate"),
        (Self::Conflict, "conflict"),
        (Self::Parked, "parked"),
        (Self::DeadLetteredWithoutRun, "dead_lettered_without_run"),
        (Self::RejectedBeforeClaim, "rejected_before_claim"),
        (Self::Passed, "passed"),
        (Self::Unsettled, "unsettled"),
    ];

    pub(crate) const fn of(settled: &Settled) -> Self {
        match settled {
            Settled::Ran { .. } => Self::RanOk,
            Settled::Passed { .. } => Self::Passed,
            Settled::Ignored => Self::Ignored,
            Settled::Duplicate(_) | Settled::FailedBefore(_) => Self::Duplicate,
            Settled::DeadLettered { reason: DeadLetterReason::Conflict, .. } => Self::Conflict,
            Settled::DeadLettered { reason: DeadLetterReason::BadId(_), .. } => Self::RejectedBeforeClaim,
            Settled::DeadLettered {
                reason: DeadLetterReason::Failed(FailReason::Parked(_)),
                ran: true,
                ..
            } => Self::Parked,
            Settled::DeadLettered { ran: true, .. } => Self::RanFailed,
            Settled::DeadLettered { ran: false, .. } => Self::DeadLetteredWithoutRun,
        }
    }
}

/// What a worker has answered since it was made. `received` is the sum of all the other numbers, without
/// those of `observed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Deliveries taken in.
    pub received: u64,
    /// Taken in and not answered yet.
    pub in_flight: u64,
    /// The handler ran to its end and the outcome is stored; in the mode `Observe`, the handler of any copy.
    pub ran_ok: u64,
    /// The handler ran, and the operation was given up after it.
    pub ran_failed: u64,
    /// The handler did not want it.
    pub ignored: u64,
    /// Answered by a stored outcome.
    pub duplicate: u64,
    /// Same id, other content: dead-lettered.
    pub conflict: u64,
    /// Put aside at the handler's wish.
    pub parked: u64,
    /// Given up before: dead-lettered, not run.
    pub dead_lettered_without_run: u64,
    /// No usable id: dead-lettered.
    pub rejected_before_claim: u64,
    /// Handled and settled without the store: in the mode `Off`, or in `Observe` without a usable id.
    pub passed: u64,
    /// Left to be delivered again: store error, lost lease, shutdown, revoked.
    pub unsettled: u64,
    /// What the mode `Observe` saw, here and wherever else the same [`Idempotent`](crate::Idempotent) works.
    /// No part of the sum.
    pub observed: Observed,
}

#[derive(Debug)]
pub(crate) struct Tally {
    scope: Arc<str>,
    received: AtomicU64,
    answers: [AtomicU64; Final::ALL.len()],
}

impl Tally {
    pub(crate) fn new(scope: Arc<str>) -> Self {
        Self { scope, received: AtomicU64::new(0), answers: Default::default() }
    }

    pub(crate) fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(names::RECEIVED, "scope" => Arc::clone(&self.scope)).increment(1);
    }

    pub(crate) fn answered(&self, answer: Final) {
        for (count, (kind, label)) in self.answers.iter().zip(Final::ALL) {
            if kind == answer {
                count.fetch_add(1, Ordering::Relaxed);
                metrics::counter!(names::ANSWERED, "scope" => Arc::clone(&self.scope), "answer" => label)
                    .increment(1);
            }
        }
    }

    pub(crate) fn summary(&self, observed: Observed) -> Summary {
        // The answers first: a delivery that is received meanwhile is then in flight, never missing.
        let [
            ran_ok,
            ran_failed,
            ignored,
            duplicate,
            conflict,
            parked,
            without_run,
            rejected,
            passed,
            unsettled,
        ] = std::array::from_fn(|at| self.answers.get(at).map_or(0, |count| count.load(Ordering::Relaxed)));
        let received = self.received.load(Ordering::Relaxed);
        let answered = ran_ok + ran_failed + ignored + duplicate + conflict + parked;
        let answered = answered + without_run + rejected + passed + unsettled;
        Summary {
            received,
            in_flight: received.saturating_sub(answered),
            ran_ok,
            ran_failed,
            ignored,
            duplicate,
            conflict,
            parked,
            dead_lettered_without_run: without_run,
            rejected_before_claim: rejected,
            passed,
            unsettled,
            observed,
        }
    }
}
