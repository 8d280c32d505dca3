//! What a store keeps of a key.

use serde::{Deserialize, Serialize};

use super::{Fence, Stage, Token};
use crate::clock::Timestamp;
use crate::fingerprint::Fingerprint;
use crate::outcome::{FailReason, Failed, Outcome};

/// What a store keeps of a key. Its serde form is what durable stores write: fields and variants are only
/// ever added at their ends, under a new version byte of the store's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Where the operation stands.
    pub phase: Phase,
    /// The fingerprint of the first claim that brought one.
    pub fingerprint: Option<Fingerprint>,
    /// The key's history since its generation began.
    pub counters: Counters,
    /// The fence of the first, or forced, claim.
    pub generation: Fence,
    /// The highest fence given for this key.
    pub fence: Fence,
    /// When the generation began.
    pub first_at: Timestamp,
    /// When the record ends, unless a claim is live then.
    pub expires_at: Timestamp,
    /// The last claim that its own holder ended, so that the same call sent again is told so.
    pub ended: Option<Ended>,
}

/// Where an operation stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Held by a claim, live or lapsed.
    InProgress {
        /// The holder.
        token: Token,
        /// Lives until then.
        lease_until: Timestamp,
        /// What it is held for.
        stage: Stage,
        /// The handler has been started under this claim.
        started: bool,
        /// The handler runs alone in its process.
        alone: bool,
    },
    /// Held by nobody.
    Released {
        /// Nobody may claim it before.
        not_before: Timestamp,
    },
    /// Given up, its dead letter not published yet, held by nobody.
    Owed(FailReason),
    /// Done.
    Completed(Outcome),
    /// Given up, its dead letter published.
    Failed(Failed),
}

/// A key's history. Survives release and restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Retryable errors, panics, and attempts over `max_run`.
    pub failures: u32,
    /// Claims that lapsed after the handler had started.
    pub interruptions: u32,
    /// Interruptions while the handler ran alone in its process.
    pub crashes: u32,
}

impl Counters {
    /// The attempts that came to some end.
    #[must_use]
    pub const fn attempts(&self) -> u32 {
        self.failures.saturating_add(self.interruptions)
    }
}

/// A claim that was ended by its own holder, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The claim.
    pub token: Token,
    /// Its fence.
    pub fence: Fence,
    /// How.
    pub by: EndedBy,
}

/// How a claim, or its `Run` stage, was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndedBy {
    /// `Complete`.
    Complete,
    /// `Fail`, to be tried again.
    Retry,
    /// `Fail`, for good.
    ForGood,
    /// `DeadLettered`.
    DeadLettered,
    /// `Release`.
    Release,
}

impl Record {
    /// The phase's name, as in logs and gauges.
    #[must_use]
    pub const fn phase_name(&self) -> &'static str {
        match self.phase {
            Phase::InProgress { stage: Stage::Run, .. } => "in_progress",
            Phase::InProgress { stage: Stage::DeadLetter(_), .. } | Phase::Owed(_) => "owed",
            Phase::Released { .. } => "released",
            Phase::Completed(_) => "completed",
            Phase::Failed(_) => "failed",
        }
    }

    /// Whether a claim holds the key and its lease has not ended.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        matches!(self.phase, Phase::InProgress { lease_until, .. } if now < lease_until)
    }

    /// Whether a claim holds the key though its lease has ended.
    #[must_use]
    pub fn is_lapsed(&self, now: Timestamp) -> bool {
        matches!(self.phase, Phase::InProgress { lease_until, .. } if lease_until <= now)
    }

    /// Whether the record counts as absent. A live claim never does.
    #[must_use]
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at <= now && !self.is_live(now)
    }
}
