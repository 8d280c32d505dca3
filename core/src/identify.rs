//! Where a message's id is found.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::delivery::Delivery;
use crate::id::{InvalidId, MessageId};
use crate::quiet::caught;

/// A place to look for a message's id.
#[derive(Clone)]
#[non_exhaustive]
pub enum IdSource {
    /// The header of this name, letter case ignored. Given more than once, its values must be equal.
    Header(Arc<str>),
    /// The member of a JSON payload that this pointer (RFC 6901) names: a string or an integer.
    JsonPointer(Arc<str>),
    /// The record's key. Only where every message has a key of its own.
    RecordKey,
    /// Topic, partition and offset. It answers redeliveries only: a producer that sends the same operation
    /// twice gives it two places, and a topic that is deleted and made again, or mirrored, gives old places
    /// to new messages, which would then be taken for repeats.
    Position,
    /// A function of the delivery; `None` when it finds none.
    Custom(CustomId),
}

/// See [`IdSource::Custom`].
pub type CustomId = Arc<dyn Fn(&Delivery) -> Option<String> + Send + Sync>;

impl fmt::Debug for IdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "Header({name:?})"),
            Self::JsonPointer(pointer) => write!(f, "JsonPointer({pointer:?})"),
            Self::RecordKey => f.write_str("RecordKey"),
            Self::Position => f.write_str("Position"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

impl IdSource {
    /// The header called `name`.
    #[must_use]
    pub fn header(name: impl Into<Arc<str>>) -> Self {
        Self::Header(name.into())
    }

    /// The member of a JSON payload at `pointer`, such as `/event/id`.
    #[must_use]
    pub fn json_pointer(pointer: impl Into<Arc<str>>) -> Self {
        Self::JsonPointer(pointer.into())
    }

    /// What `function` finds.
    #[must_use]
    pub fn custom(function: impl Fn(&Delivery) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(function))
    }
}

/// What to do with a message that has no id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingIdPolicy {
    /// It becomes a dead letter, without a run. The default.
    #[default]
    DeadLetter,
    /// Its position is its id: see [`IdSource::Position`] for what that can't do.
    Position,
    /// The worker stops with an error, and the message stays unsettled.
    Fail,
}

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

/// Finds message ids: the first place that holds one decides.
#[derive(Clone, Debug)]
pub struct Identify {
    sources: Vec<IdSource>,
    missing: MissingIdPolicy,
}

impl Identify {
    /// Looks in `sources`, in their order.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = IdSource>) -> Self {
        Self { sources: sources.into_iter().collect(), missing: MissingIdPolicy::default() }
    }

    /// With a policy for messages that have none.
    #[must_use]
    pub const fn or(mut self, missing: MissingIdPolicy) -> Self {
        self.missing = missing;
        self
    }

    /// What to do with a message that has none.
    #[must_use]
    pub const fn missing(&self) -> MissingIdPolicy {
        self.missing
    }

    /// The id of `delivery`.
    ///
    /// # Errors
    /// When no place holds one and the policy is not the position, or when a place holds one that can't be
    /// used.
    pub fn identify(&self, delivery: &Delivery) -> Result<MessageId, NoId> {
        for source in &self.sources {
            if let Some(found) = look(source, delivery)? {
                return found.map_err(|problem| NoId::Invalid { place: format!("{source:?}"), problem });
            }
        }
        match (self.missing, at_position(delivery)) {
            (MissingIdPolicy::Position, Some(Ok(id))) => Ok(id),
            _ => Err(NoId::Missing { looked_in: format!("{:?}", self.sources) }),
        }
    }
}

type Found = Option<Result<MessageId, InvalidId>>;

fn look(source: &IdSource, delivery: &Delivery) -> Result<Found, NoId> {
    Ok(match source {
        IdSource::Header(name) => {
            let mut values = delivery.header(name).flatten();
            let first = values.next();
            if values.any(|other| Some(other) != first) {
                return Err(NoId::Ambiguous { place: format!("{source:?}") });
            }
            nonempty(first.map(AsRef::as_ref)).map(MessageId::from_bytes)
        }
        IdSource::JsonPointer(pointer) => in_json(delivery, pointer),
        IdSource::RecordKey => nonempty(delivery.key().map(AsRef::as_ref)).map(MessageId::from_bytes),
        IdSource::Position => at_position(delivery),
        IdSource::Custom(function) => match caught(|| function(delivery)) {
            Some(found) => found.filter(|id| !id.is_empty()).map(MessageId::new),
            None => return Err(NoId::Panicked),
        },
    })
}

/// An empty id is a missing one: it goes to the policy, never to a constant that all such messages share.
fn nonempty(bytes: Option<&[u8]>) -> Option<&[u8]> {
    bytes.filter(|bytes| !bytes.is_empty())
}

fn in_json(delivery: &Delivery, pointer: &str) -> Found {
    let value: Value = serde_json::from_slice(delivery.payload()?).ok()?;
    match value.pointer(pointer)? {
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(MessageId::new(text)),
        // Only whole numbers: 1.0 and 1 would be two ids of one number.
        Value::Number(number) if number.is_u64() || number.is_i64() => {
            Some(MessageId::new(number.to_string()))
        }
        _ => None,
    }
}

fn at_position(delivery: &Delivery) -> Found {
    let position = delivery.position();
    position.offset()?;
    // Escaped as it is printed, a topic's name can't forge another's place.
    Some(MessageId::new(position.to_string()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::delivery::{Header, Position};

    fn delivery(payload: &'static str, headers: &[(&str, Option<&'static [u8]>)]) -> Delivery {
        let headers = headers.iter().map(|(name, value)| ((*name).into(), value.map(Bytes::from_static)));
        Delivery::new(Position::in_log("t", 2, 9), Some(Bytes::from_static(payload.as_bytes())))
            .with_headers(headers.collect::<Vec<Header>>())
    }

    fn id(of: &Identify, delivery: &Delivery) -> Result<String, NoId> {
        of.identify(delivery).map(|id| id.as_str().to_owned())
    }

    #[test]
    fn the_first_place_that_holds_one_decides() {
        let chain = Identify::new([IdSource::header("Event-Id"), IdSource::json_pointer("/id")]);
        assert_eq!(id(&chain, &delivery(r#"{"id":"b"}"#, &[("event-id", Some(b"a"))])).unwrap(), "a");
        assert_eq!(id(&chain, &delivery(r#"{"id":"b"}"#, &[("event-id", Some(b""))])).unwrap(), "b");
        assert_eq!(id(&chain, &delivery(r#"{"id":42}"#, &[("event-id", None)])).unwrap(), "42");
        assert!(matches!(id(&chain, &delivery(r#"{"id":4.5}"#, &[])), Err(NoId::Missing { .. })));
        assert!(matches!(id(&chain, &delivery("not json", &[])), Err(NoId::Missing { .. })));
    }

    #[test]
    fn a_place_with_garbage_is_not_passed_over() {
        let chain = Identify::new([IdSource::header("id"), IdSource::Position]);
        let error = id(&chain, &delivery("", &[("id", Some(b"a\xffhidden"))])).unwrap_err();
        assert!(matches!(error, NoId::Invalid { .. }));
        assert!(!error.to_string().contains("hidden"));
        let twice = delivery("", &[("id", Some(b"a")), ("id", Some(b"b"))]);
        assert!(matches!(id(&chain, &twice), Err(NoId::Ambiguous { .. })));
        assert_eq!(id(&chain, &delivery("", &[("id", Some(b"a")), ("ID", Some(b"a"))])).unwrap(), "a");
    }

    #[test]
    fn messages_without_an_id_go_to_the_policy() {
        let none = delivery("", &[]);
        let header = || Identify::new([IdSource::header("id"), IdSource::RecordKey]);
        assert!(matches!(id(&header(), &none), Err(NoId::Missing { .. })));
        assert_eq!(id(&header().or(MissingIdPolicy::Position), &none).unwrap(), "t[2]@9");
        assert_eq!(id(&header(), &none.with_key(Some(Bytes::from_static(b"k")))).unwrap(), "k");
    }
}
