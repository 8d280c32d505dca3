//! Messages that are not tried any more, and where they go.
//!
//! The order is what keeps them: the store says "dead letter owed" (durable), the letter is published and
//! confirmed, the store says "dead-lettered", and only then is the message settled. A crash in between can
//! publish it twice, under the same id, and never lose it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sha2::{Digest, Sha256};

use crate::claim::Fence;
use crate::clock::Timestamp;
use crate::delivery::Delivery;
use crate::id::DedupKey;
use crate::outcome::FailReason;

/// Why a message became a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetterReason {
    /// Its operation was given up.
    Failed(FailReason),
    /// Its id came back with another content.
    Conflict,
    /// It has no message id, or none that is allowed; the text says which and why, and not the id.
    BadId(String),
    /// The store's record of its key can't be read.
    Undecodable,
}

impl DeadLetterReason {
    /// The reason's code, as in metrics and headers.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Failed(reason) => reason.code(),
            Self::Conflict => "conflict",
            Self::BadId(_) => "bad_id",
            Self::Undecodable => "undecodable",
        }
    }

    /// What more is known, in words.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Failed(reason) => reason.detail(),
            Self::BadId(words) => Some(words),
            Self::Conflict | Self::Undecodable => None,
        }
    }
}

/// A message to put aside, with all that is needed to look into it and to send it again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The letter's own id: the same each time that this letter is published.
    pub id: String,
    /// The message as it came: bytes, key, headers, position.
    pub delivery: Delivery,
    /// Its operation, if it has one.
    pub key: Option<DedupKey>,
    /// Why.
    pub reason: DeadLetterReason,
    /// The attempts that the operation was given.
    pub attempts: u32,
    /// When the operation was first claimed, in the store's time.
    pub first_at: Option<Timestamp>,
    /// When it was given up, by this machine's clock.
    pub last_at: Timestamp,
}

impl DeadLetter {
    /// The letter of an operation that was given up: its id is made of key and generation.
    #[must_use]
    pub fn of_operation(
        delivery: Delivery,
        key: DedupKey,
        generation: Fence,
        reason: FailReason,
        at: Timestamp,
    ) -> Self {
        let hash = Sha256::new().chain_update(b"operation\0").chain_update(key.encode());
        let id = hex(&hash.chain_update(generation.get().to_be_bytes()).finalize());
        let reason = DeadLetterReason::Failed(reason);
        Self { id, delivery, key: Some(key), reason, attempts: 0, first_at: None, last_at: at }
    }

    /// The letter of a message that has no operation of its own: its id is made of its position, and of its
    /// bytes where that is not stable.
    #[must_use]
    pub fn of_message(delivery: Delivery, reason: DeadLetterReason, at: Timestamp) -> Self {
        let position = delivery.position();
        let hash = Sha256::new().chain_update(b"message\0").chain_update(position.to_string());
        let hash = match (position.offset(), delivery.payload()) {
            (None, payload) => hash
                .chain_update([0, u8::from(payload.is_some())])
                .chain_update(payload.map(AsRef::as_ref).unwrap_or_default()),
            (Some(_), _) => hash,
        };
        let id = hex(&hash.finalize());
        Self { id, delivery, key: None, reason, attempts: 0, first_at: None, last_at: at }
    }

    /// With what is known of its attempts.
    #[must_use]
    pub const fn with_history(mut self, attempts: u32, first_at: Timestamp) -> Self {
        self.attempts = attempts;
        self.first_at = Some(first_at);
        self
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A dead letter could not be published, or it is not known whether it was.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the dead letter was not confirmed: {message}; its message stays unsettled and is tried again")]
pub struct DeadLetterError {
    message: String,
    #[source]
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl DeadLetterError {
    /// An error that says what happened.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// With its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into().into());
        self
    }
}

/// Where dead letters go.
#[async_trait]
pub trait DeadLetters: fmt::Debug + Send + Sync + 'static {
    /// Publishes `letter` and waits until it is confirmed to be kept.
    ///
    /// # Errors
    /// In every other case, also when it is not known. The letter is then published again, under its id.
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError>;
}

#[async_trait]
impl<D: DeadLetters + ?Sized> DeadLetters for Arc<D> {
    async fn publish(&self, letter: DeadLetter) -> Result<(), DeadLetterError> {
        (**self).publish(letter).await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::delivery::Position;
    use crate::id::{MessageId, Scope};

    const EARLY: Timestamp = Timestamp::from_micros(1);
    const LATE: Timestamp = Timestamp::from_micros(u64::MAX);

    fn of_message(position: Position, payload: Option<&'static str>, at: Timestamp) -> String {
        let delivery = Delivery::new(position, payload.map(Bytes::from));
        DeadLetter::of_message(delivery, DeadLetterReason::Conflict, at).id
    }

    fn of_operation(id: &str, generation: u64, offset: i64, at: Timestamp) -> String {
        let delivery = Delivery::new(Position::in_log("topic", 0, offset), None);
        let key = DedupKey::new(Scope::new("orders").unwrap(), MessageId::new(id).unwrap());
        DeadLetter::of_operation(delivery, key, Fence::new(generation), FailReason::Attempts, at).id
    }

    #[test]
    fn a_message_in_a_log_has_one_letter_whenever_it_is_published() {
        let place = || Position::in_log("topic", 3, 7);
        let letter = of_message(place(), Some("a"), EARLY);
        assert_eq!(of_message(place(), Some("a"), LATE), letter);
        let elsewhere = [
            Position::in_log("topic", 3, 8),
            Position::in_log("topic", 4, 7),
            Position::in_log("other", 3, 7),
            Position::in_queue("topic"),
        ];
        for other in elsewhere {
            assert_ne!(of_message(other.clone(), Some("a"), EARLY), letter, "{other}");
        }
    }

    #[test]
    fn a_message_in_a_queue_is_told_from_another_by_its_bytes() {
        let letter = |payload, at| of_message(Position::in_queue("queue"), payload, at);
        let all = [Some("a"), Some("b"), Some(""), None];
        for (number, payload) in all.into_iter().enumerate() {
            assert_eq!(letter(payload, EARLY), letter(payload, LATE));
            for other in all.into_iter().skip(number + 1) {
                assert_ne!(letter(payload, EARLY), letter(other, EARLY), "{payload:?}, {other:?}");
            }
        }
        assert_ne!(of_message(Position::in_queue("other"), Some("a"), EARLY), letter(Some("a"), EARLY));
    }

    #[test]
    fn an_operation_has_one_letter_in_each_generation() {
        let letter = of_operation("a", 1, 0, EARLY);
        assert_eq!(of_operation("a", 1, 0, LATE), letter);
        assert_eq!(of_operation("a", 1, 5, LATE), letter, "whichever copy is put aside");
        assert_ne!(of_operation("a", 2, 0, EARLY), letter);
        assert_ne!(of_operation("b", 1, 0, EARLY), letter);
    }
}
