//! What became of a delivery, and with that whether its broker may be told that it is done.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::claim::Refusal;
use crate::dead_letter::{DeadLetterError, DeadLetterReason};
use crate::error::StoreError;
use crate::identify::NoId;
use crate::outcome::{Failed, Outcome};

/// What became of one delivery.
#[derive(Debug)]
#[must_use]
pub enum Disposition {
    /// Settle it: what is said here is durable. Not so in [`Observe` and `Off`](crate::Mode): there it is what
    /// the handler said.
    Settle(Settled),
    /// Don't settle it; process it again.
    Later {
        /// Why not now.
        why: Later,
        /// After what time asking again makes sense.
        retry_after: Duration,
    },
    /// Don't settle it: the broker will deliver it again, or it is processed again when the cause is gone.
    Unsettled(Unsettled),
}

/// The answers that settle a delivery.
#[non_exhaustive]
pub enum Settled {
    /// The handler ran to its end, and its outcome is stored; in [`Observe`](crate::Mode::Observe) only if its
    /// message was the first of its key to come.
    Ran {
        /// What the handler returned, kept for the repeats or not.
        result: Option<Bytes>,
    },
    /// The handler ran to its end, or did not want it, and the store had no part in it: in the mode
    /// [`Off`](crate::Mode::Off), or in `Observe` without a message id.
    Passed {
        /// What the handler returned.
        result: Option<Bytes>,
    },
    /// The handler did not want it. The key is free.
    Ignored,
    /// It was done before.
    Duplicate(Outcome),
    /// It was given up before, and lies with the dead letters.
    FailedBefore(Failed),
    /// It lies with the dead letters now.
    DeadLettered {
        /// Why.
        reason: DeadLetterReason,
        /// Whether the handler ran in this very processing.
        ran: bool,
    },
}

/// A result can hold what the payload held: only its length is shown.
impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ran { result } => write!(f, "Ran({} bytes)", result.as_ref().map_or(0, Bytes::len)),
            Self::Passed { result } => write!(f, "Passed({} bytes)", result.as_ref().map_or(0, Bytes::len)),
            Self::Ignored => f.write_str("Ignored"),
            Self::Duplicate(outcome) => f.debug_tuple("Duplicate").field(outcome).finish(),
            Self::FailedBefore(failed) => f.debug_tuple("FailedBefore").field(failed).finish(),
            Self::DeadLettered { reason, ran } => {
                f.debug_struct("DeadLettered").field("reason", reason).field("ran", ran).finish()
            }
        }
    }
}

/// Why a delivery can't be answered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// A copy of it is being handled.
    InProgress,
    /// It failed before and waits for its next attempt.
    NotYet,
    /// It has just failed, and waits for its next attempt.
    Failed,
    /// It has just failed in [`Observe` or `Off`](crate::Mode), where nothing is charged and no back-off kept:
    /// `retry_after` is what the handler asked for, or zero. Do what your loop does with a failed message, and
    /// don't spin.
    FailedUncharged,
}

/// Why a delivery stays unsettled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsettled {
    /// The store failed.
    #[error("the store failed: {0}")]
    Store(#[source] StoreError),
    /// The lease ended while the handler ran.
    #[error("the lease was lost while the handler ran")]
    LeaseLost,
    /// The store refused the outcome: another claim was made meanwhile, or the key was forgotten.
    #[error("the outcome was refused: {0}")]
    Refused(Refusal),
    /// The effect is done, and it is not known whether its outcome was stored.
    #[error("the effect is done, but it is not known whether its outcome was stored")]
    OutcomeUnknown(#[source] Option<StoreError>),
    /// The dead letter was not confirmed.
    #[error(transparent)]
    DeadLetter(DeadLetterError),
    /// The worker stops, or the partition was taken away.
    #[error("the processing was cancelled")]
    Cancelled,
    /// It has no message id, and the policy is to stop.
    #[error("{0}")]
    NoId(#[source] NoId),
}

impl Unsettled {
    /// Whether processing more messages makes no sense until the process is started again.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        match self {
            Self::Store(error) | Self::OutcomeUnknown(Some(error)) => error.is_fatal(),
            Self::NoId(_) => true,
            _ => false,
        }
    }
}
