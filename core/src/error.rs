//! Errors of stores and of settings.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::id::{DedupKey, Scope};

/// What kind of thing went wrong in a store, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store can't be reached, or failed for a while. The call may or may not have been applied: send
    /// the same call again (with the same token).
    Unavailable,
    /// A bound is reached; the message names it. Nothing was written. A later call may find room.
    Full,
    /// The record of this one key can't be read. Other keys are not affected, and the record stays.
    Undecodable,
    /// An earlier write failed, so that nothing the store says can be trusted to be durable. Only a restart
    /// of the process helps.
    Poisoned,
    /// Another process, or another handle, has the store's files open.
    Locked,
    /// The store's files are damaged. They are neither changed nor deleted.
    Corrupt,
    /// The store has been closed.
    Closed,
    /// The call is not one that the contract allows.
    Misuse,
}

/// A store's failure. Never a success in disguise, and never a duplicate: whoever gets one settles nothing.
#[derive(Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    at: Option<String>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error that says, in one sentence, what happened.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), at: None, source: None }
    }

    /// With the key that it happened to.
    #[must_use]
    pub fn with_key(mut self, key: &DedupKey) -> Self {
        self.at = Some(key.to_string());
        self
    }

    /// With the scope that it happened to.
    #[must_use]
    pub fn with_scope(mut self, scope: &Scope) -> Self {
        self.at = Some(scope.to_string());
        self
    }

    /// With its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into().into());
        self
    }

    /// What kind of thing went wrong.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call, sent again later, can succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Full)
    }

    /// Whether the whole store has failed for good, so that its consumer must stop.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(
            self.kind,
            StoreErrorKind::Poisoned
                | StoreErrorKind::Locked
                | StoreErrorKind::Corrupt
                | StoreErrorKind::Closed
        )
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(at) = &self.at {
            write!(f, " (at {at})")?;
        }
        f.write_str(match self.kind {
            StoreErrorKind::Unavailable => "; try again",
            StoreErrorKind::Full => "; try again when records have expired, or raise the bound",
            StoreErrorKind::Undecodable => "; the record is left as it is",
            StoreErrorKind::Poisoned => "; restart the process",
            StoreErrorKind::Locked => "; stop the other one first",
            StoreErrorKind::Corrupt => "; nothing was deleted: restore it or set it aside by hand",
            StoreErrorKind::Closed | StoreErrorKind::Misuse => "",
        })
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreError({:?}: {self}", self.kind)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        f.write_str(")")
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn Error + 'static))
    }
}

/// A setting outside its bounds. Found when the thing is built, not when a message meets it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct InvalidSetting {
    field: &'static str,
    problem: String,
}

impl InvalidSetting {
    /// Says of `field` what is wrong with it, naming the bound: "must be at least 1 s, not 0 ns".
    #[must_use]
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }

    /// The setting's name.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }
}

/// `Ok` when `value` lies in `bounds`, both ends included.
pub(crate) fn within<T: PartialOrd + fmt::Debug>(
    field: &'static str,
    value: &T,
    bounds: std::ops::RangeInclusive<T>,
) -> Result<(), InvalidSetting> {
    if bounds.contains(value) {
        return Ok(());
    }
    let (low, high) = bounds.into_inner();
    Err(InvalidSetting::new(field, format!("must lie between {low:?} and {high:?}, not {value:?}")))
}
