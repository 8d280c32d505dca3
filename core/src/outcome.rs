//! What is remembered of an operation that has ended.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// The longest reason that is kept, in bytes. A longer one is cut.
pub const MAX_REASON_LEN: usize = 512;

/// An operation that was done: the handler ran to its end and said so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What the handler returned for repeats.
    pub result: StoredResult,
    /// When the outcome was stored, in the store's time.
    pub at: Timestamp,
    /// The attempt that did it, from 1.
    pub attempt: u32,
}

/// The result that a handler left for the repeats.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredResult {
    /// The handler returned none.
    None,
    /// These bytes.
    Kept(Bytes),
    /// The handler returned more bytes than the store or the policy takes. The operation is done and is
    /// not run again; repeats get no result.
    NotKept {
        /// How many bytes it had.
        len: u64,
    },
}

impl StoredResult {
    /// `result`, unless it has more than `max` bytes.
    #[must_use]
    pub fn within(result: Option<Bytes>, max: usize) -> Self {
        match result {
            None => Self::None,
            Some(bytes) if bytes.len() > max => Self::NotKept { len: bytes.len() as u64 },
            Some(bytes) => Self::Kept(bytes),
        }
    }

    /// The bytes, if any were kept.
    #[must_use]
    pub const fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Kept(bytes) => Some(bytes),
            Self::None | Self::NotKept { .. } => None,
        }
    }
}

/// A result can hold what the payload held: only its length is shown.
impl fmt::Debug for StoredResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Kept(bytes) => write!(f, "Kept({} bytes)", bytes.len()),
            Self::NotKept { len } => write!(f, "NotKept({len} bytes)"),
        }
    }
}

/// An operation that was given up, and whose message lies with the dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Why.
    pub reason: FailReason,
    /// When its dead letter was recorded as published, in the store's time.
    pub at: Timestamp,
    /// The attempts that it was given.
    pub attempts: u32,
}

/// Why an operation is not tried any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailReason {
    /// Its retryable failures reached the limit.
    Attempts,
    /// It took its process with it each time that it ran alone.
    CrashLoop,
    /// The handler refused it, in these words.
    Rejected(String),
    /// The handler or an operator put it aside, in these words.
    Parked(String),
}

impl FailReason {
    /// The reason's code, as in metrics and dead letters.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::CrashLoop => "crash_loop",
            Self::Rejected(_) => "rejected",
            Self::Parked(_) => "parked",
        }
    }

    /// The handler's words, if it had any.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Rejected(words) | Self::Parked(words) => Some(words),
            Self::Attempts | Self::CrashLoop => None,
        }
    }

    pub(crate) fn cut(self) -> Self {
        match self {
            Self::Rejected(words) => Self::Rejected(cut(words)),
            Self::Parked(words) => Self::Parked(cut(words)),
            other => other,
        }
    }
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail() {
            Some(words) => write!(f, "{}: {}", self.code(), words.escape_debug()),
            None => f.write_str(self.code()),
        }
    }
}

fn cut(mut words: String) -> String {
    if words.len() > MAX_REASON_LEN {
        let boundary = (0..=MAX_REASON_LEN).rev().find(|at| words.is_char_boundary(*at));
        words.truncate(boundary.unwrap_or_default());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reasons_are_cut_between_characters() {
        let FailReason::Rejected(words) = FailReason::Rejected("ä".repeat(400)).cut() else {
            unreachable!()
        };
        assert_eq!(words.len(), MAX_REASON_LEN);
        let FailReason::Parked(words) = FailReason::Parked(format!("x{}", "ä".repeat(400))).cut() else {
            unreachable!()
        };
        assert_eq!(words.len(), MAX_REASON_LEN - 1);
    }

    #[test]
    fn results_over_the_bound_are_not_kept_and_none_is_shown() {
        let kept = StoredResult::within(Some(Bytes::from_static(b"pin")), 3);
        assert_eq!(format!("{kept:?}"), "Kept(3 bytes)");
        assert_eq!(
            StoredResult::within(Some(Bytes::from_static(b"pins")), 3),
            StoredResult::NotKept { len: 4 }
        );
    }
}
