//! The right to run the handler for a key: what is asked for, what is answered.
//!
//! [`state`] says how a key's record changes; it is the one place that knows.

mod record;
pub mod state;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::id::DedupKey;
use crate::outcome::{FailReason, Failed, Outcome};

pub use record::{Counters, Ended, EndedBy, Phase, Record};

/// Names one claim. Random, new for every claim, and reused only when the same call is sent again because
/// its answer was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token([u8; 16]);

impl Token {
    /// A token that no other claim has: 128 random bits.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// A token of chosen bytes, for tests that must be repeatable.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Shown in part: enough to tell two claims apart in a log, too little to settle with.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.0;
        write!(f, "Token({a:02x}{b:02x}…)")
    }
}

/// A number that only grows for a key: across restarts, forgetting, expiry and forced re-runs.
///
/// A callee that remembers the highest fence it has seen can refuse an owner that lost its claim. It is
/// no part of an idempotency key: that must be the same on every attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence(u64);

impl Fence {
    /// The fence with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    #[must_use]
    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The times and limits that a claim is judged by. They travel with the claim, so that a store has no
/// policy of its own. Made, and checked, by [`Policy`](crate::Policy).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// How long a claim lives without renewal.
    pub lease: Duration,
    /// How long an outcome, or an unfinished record that nobody touches, is remembered.
    pub retention: Duration,
    /// The number of failures at which an operation is given up.
    pub max_failures: u32,
    /// The number of crashes at which an operation is given up.
    pub max_crashes: u32,
    /// The longest time that a record may ask to be left alone.
    pub max_delay: Duration,
    /// The longest result that is kept, in bytes. A store may keep less.
    pub max_result: usize,
}

/// What a claim is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// To run the handler.
    Run,
    /// The operation has been given up for this reason: to publish its dead letter, and not to run the
    /// handler.
    DeadLetter(FailReason),
}

/// Asks for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// Which operation.
    pub key: DedupKey,
    /// Names the claim. The same call sent again carries the same token.
    pub token: Token,
    /// What must be equal in a true repeat; `None` is not compared.
    pub fingerprint: Option<Fingerprint>,
    /// The times and limits it is judged by.
    pub rules: Rules,
    /// The handler starts as soon as the claim is acquired, so that no separate `started` is needed. A claim
    /// whose handler must run [alone](Claim::alone) needs one all the same: it has to wait for the others.
    pub started: bool,
    /// The ordered group of the batch that this item belongs to.
    pub group: Option<u32>,
}

/// A held key. Needed for every settle of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Which operation.
    pub key: DedupKey,
    /// Names this claim.
    pub token: Token,
    /// This claim's fence.
    pub fence: Fence,
    /// The fence of the operation's first, or forced, claim.
    pub generation: Fence,
    /// What it is for.
    pub stage: Stage,
    /// The key's history.
    pub counters: Counters,
    /// An earlier attempt started and was cut off: its effect may have happened.
    pub interrupted: bool,
    /// The handler must run alone in its process, because this key has been cut off before.
    pub alone: bool,
    /// When the operation was first claimed, in the store's time.
    pub first_at: Timestamp,
    /// The times and limits it was claimed under.
    pub rules: Rules,
}

impl Claim {
    /// Which attempt this is, from 1.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.counters.attempts().saturating_add(1)
    }
}

/// Answers a [`ClaimRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The key is yours until the lease ends.
    Acquired(Claim),
    /// Another claim is live. It is not done on the holder's strength: ask again.
    InProgress {
        /// When the holder's lease ends if it is not renewed; above zero, at most the lease.
        retry_after: Duration,
    },
    /// Done before.
    Completed(Outcome),
    /// Given up before, and dead-lettered.
    Failed(Failed),
    /// The same key with another fingerprint: not a repeat.
    Conflict,
    /// The operation is waiting for its next attempt.
    NotYet {
        /// Until when, in the store's time.
        until: Timestamp,
        /// The same, from now.
        retry_after: Duration,
    },
    /// An earlier item of the same group stopped the group; nothing was looked up.
    Behind,
}

/// Asks for a change of a held key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleRequest {
    /// The claim that is held.
    pub claim: Claim,
    /// The change.
    pub verb: Verb,
    /// The ordered group of the batch that this item belongs to.
    pub group: Option<u32>,
}

/// What the owner of a claim can do with it.
#[derive(Clone, PartialEq, Eq)]
pub enum Verb {
    /// The handler is about to run: from here on a lapse is an interruption.
    Started,
    /// Go on holding, for another lease.
    Renew,
    /// The operation is done.
    Complete {
        /// What repeats are answered with.
        result: Option<Bytes>,
    },
    /// The attempt failed.
    Fail(Failing),
    /// The owed dead letter is published.
    DeadLettered,
    /// Give the key back. No attempt is charged.
    Release {
        /// How long nobody may claim it, clamped to the rules' maximum.
        delay: Duration,
    },
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failing {
    /// It may be tried again. Charged; at the limit the operation is given up.
    Retry {
        /// How long nobody may claim it, clamped to the rules' maximum.
        delay: Duration,
    },
    /// The operation is given up for this reason.
    ForGood(FailReason),
}

impl fmt::Debug for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("Started"),
            Self::Renew => f.write_str("Renew"),
            Self::Complete { result } => {
                write!(f, "Complete({} bytes)", result.as_ref().map_or(0, Bytes::len))
            }
            Self::Fail(failing) => write!(f, "Fail({failing:?})"),
            Self::DeadLettered => f.write_str("DeadLettered"),
            Self::Release { delay } => write!(f, "Release({delay:?})"),
        }
    }
}

/// Answers a [`SettleRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleAnswer {
    /// It holds, now or because the same call was applied before.
    Applied(Standing),
    /// Nothing was changed.
    Refused(Refusal),
}

/// How a key stands after an applied settle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Still held, until a lease from now.
    Held,
    /// Done.
    Completed,
    /// Free again, after a time.
    Released {
        /// From when on it can be claimed, in the store's time.
        until: Timestamp,
        /// The same, from now.
        retry_after: Duration,
    },
    /// Given up. The same claim goes on holding it, to publish its dead letter.
    Owed(FailReason),
    /// Given up, and its dead letter still owed; the claim has ended.
    OwedUnclaimed(FailReason),
    /// Given up, and its dead letter published.
    DeadLettered,
}

/// Why a settle changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The record is gone (forgotten, expired) or belongs to a later generation.
    Superseded,
    /// A later claim of the same operation holds the key or held it.
    TakenOver,
    /// This claim has been ended in another way, or is not in the stage that the verb needs.
    AlreadyEnded,
    /// An earlier item of the same group was not applied; nothing was looked up.
    Behind,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superseded => "superseded",
            Self::TakenOver => "taken over",
            Self::AlreadyEnded => "already ended",
            Self::Behind => "behind",
        })
    }
}

/// Answers a request to forget a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetAnswer {
    /// There is no record any more: the next delivery is a new operation.
    Forgotten,
    /// There was none.
    Absent,
    /// A claim is live: its handler may be running.
    RefusedLive,
    /// Its dead letter is not published yet.
    RefusedOwed,
}

/// Answers a request to run an operation again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForceAnswer {
    /// The next claim runs it, as this generation, with its counters at zero.
    Forced(Fence),
    /// There is no record: the next delivery runs anyway.
    Absent,
    /// A claim is live: its handler may be running.
    RefusedLive,
}
