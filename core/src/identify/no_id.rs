//! Why a message has no usable id.

use crate::id::{InvalidId, MAX_LEN};

/// Why a message has no usable id. It never repeats the id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoId {
    /// No place held one.
    #[error("no message id was found in {looked_in}")]
    Missing {
        /// The places.
        looked_in: String,
    },
    /// A place held something that can't be an id. It is not passed over in silence: the next place could
    /// make another operation of it.
    #[error("the message id in {place} can't be used: {problem}")]
    Invalid {
        /// The place.
        place: String,
        /// What is wrong with it.
        problem: InvalidId,
    },
    /// A place held only a part of an id, or something that can't be read as one.
    #[error("the message id in {place} can't be read: {problem}")]
    Malformed {
        /// The place.
        place: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The function that looks for one panicked on this message.
    #[error("the function that finds the message id panicked")]
    Panicked,
    /// A header is given more than once, with different values.
    #[error("the message id in {place} is given more than once, with different values")]
    Ambiguous {
        /// The place.
        place: String,
    },
}

/// What is wrong with the id in a place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    Invalid(InvalidId),
    Malformed(&'static str),
    Panicked,
    Ambiguous,
}

impl Flaw {
    /// Something is there, and it is empty.
    pub(crate) const EMPTY: Self = Self::Invalid(InvalidId::Empty { what: "message id", max: MAX_LEN });

    pub(super) fn at(self, place: String) -> NoId {
        match self {
            Self::Invalid(problem) => NoId::Invalid { place, problem },
            Self::Malformed(problem) => NoId::Malformed { place, problem },
            Self::Panicked => NoId::Panicked,
            Self::Ambiguous => NoId::Ambiguous { place },
        }
    }
}

impl From<InvalidId> for Flaw {
    fn from(problem: InvalidId) -> Self {
        Self::Invalid(problem)
    }
}
