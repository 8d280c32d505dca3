//! Where a message's id is found.

mod event_id;
mod no_id;
mod text;

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

pub(crate) use self::no_id::Flaw;
pub use self::no_id::NoId;
use crate::cloud_event;
use crate::delivery::Delivery;
use crate::id::MessageId;
use crate::quiet::caught_at;

/// A place to look for a message's id.
#[derive(Clone)]
#[non_exhaustive]
pub enum IdSource {
    /// `source` and `id` of a CloudEvent, in either content mode: see [`IdSource::cloud_events`].
    CloudEvents,
    /// The header of this name, letter case ignored, as it is. Given more than once, its values must be equal.
    Header(Arc<str>),
    /// The id that Debezium's outbox router puts into the header of this name: see
    /// [`IdSource::debezium_outbox`].
    DebeziumOutbox(Arc<str>),
    /// MassTransit's id: see [`IdSource::mass_transit`].
    MassTransit,
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
            Self::CloudEvents => f.write_str("CloudEvents"),
            Self::Header(name) => write!(f, "Header({name:?})"),
            Self::DebeziumOutbox(name) => write!(f, "DebeziumOutbox({name:?})"),
            Self::MassTransit => f.write_str("MassTransit"),
            Self::JsonPointer(pointer) => write!(f, "JsonPointer({pointer:?})"),
            Self::RecordKey => f.write_str("RecordKey"),
            Self::Position => f.write_str("Position"),
            Self::Custom(_) => f.write_str("Custom"),
        }
    }
}

impl IdSource {
    /// `source` and `id` of a [CloudEvent](https://cloudevents.io), which only together identify it.
    ///
    /// In **binary** mode they are headers: `ce_id` (Kafka), `ce-id` (HTTP, percent-decoded),
    /// `cloudEvents:id` or `cloudEvents_id` (AMQP), and `…source` likewise. In **structured** mode, which is
    /// known by the content type `application/cloudevents+json`, they are in the payload, and headers that say
    /// the same or something else don't count. An event has one id in both modes.
    ///
    /// A message that is an event and has not both (or twice, or unreadable, or in a batch, or in a format
    /// other than JSON) has no id, and no other place is looked at. What is known to be no event is passed over.
    ///
    /// The message id is `ce:`, the length of the source in bytes, `:`, the source, `:`, the id, as in
    /// `ce:7:/orders:42`; of a pair that is too long for 255 bytes, `ce-sha256:` with its hash, `:`, and as much
    /// of the source as there is room for. No two events have one. A producer that writes the same text into
    /// another header that is looked at means the same operation: an id is always what its producer says.
    ///
    /// An event that can arrive in either mode needs [`FingerprintPolicy::CloudEvent`]: its payload's bytes
    /// differ from one to the other, which is a conflict otherwise.
    ///
    /// [`FingerprintPolicy::CloudEvent`]: crate::FingerprintPolicy::CloudEvent
    #[must_use]
    pub const fn cloud_events() -> Self {
        Self::CloudEvents
    }

    /// The header `id` of [Debezium's outbox event router][router]: the key of the outbox's row.
    ///
    /// Text, or what the header converters of Kafka Connect make of text: a JSON string, or
    /// `{"schema":…,"payload":…}`. All are the same id. A key that is written as bytes (`BINARY(16)`) is not
    /// text: look for it with [`IdSource::custom`]. For a header of another name there is
    /// [`IdSource::DebeziumOutbox`].
    ///
    /// [router]: https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html
    #[must_use]
    pub fn debezium_outbox() -> Self {
        Self::DebeziumOutbox("id".into())
    }

    /// MassTransit's header `MessageId`, or else `messageId` in an envelope, which is known by the content type
    /// `application/vnd.masstransit+json`. The same for each redelivery of a message, and new for each publish.
    #[must_use]
    pub const fn mass_transit() -> Self {
        Self::MassTransit
    }

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

/// Finds message ids: the first place that holds one decides.
///
/// A place that holds something which is no usable id decides as well: the message then has none. The next
/// place could make another operation of it, and so could a default that many messages share. Where the id is
/// there and empty, the policy for missing ids decides.
#[derive(Clone, Debug)]
pub struct Identify {
    sources: Vec<IdSource>,
    missing: MissingIdPolicy,
}

/// The places where producers put an id without being asked to, and nothing else:
///
/// 1. [CloudEvents](IdSource::cloud_events): a standard says that these two are the identity.
/// 2. The header `message-id`: a name that means nothing else.
/// 3. [MassTransit](IdSource::mass_transit), which means the same by its own name.
/// 4. [Debezium's outbox](IdSource::debezium_outbox): last, for a header called `id` can be anything. Should it
///    name a customer rather than a message, the second message of that customer is a conflict, which is loud.
///
/// A record's key and position are never taken: the one orders messages, and the other is new when a producer
/// sends again. Nor is `idempotency-key`: services pass a request's key on to every message that it causes.
/// A message with none of these becomes a dead letter ([`MissingIdPolicy::DeadLetter`]).
impl Default for Identify {
    fn default() -> Self {
        Self::new([
            IdSource::cloud_events(),
            IdSource::header("message-id"),
            IdSource::mass_transit(),
            IdSource::debezium_outbox(),
        ])
    }
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
        let mut empty = None;
        for source in &self.sources {
            let flaw = match look(source, delivery) {
                Ok(Some(id)) => return Ok(id),
                Ok(None) => continue,
                Err(flaw) => flaw,
            };
            let is_empty = flaw == Flaw::EMPTY;
            let no_id = flaw.at(format!("{source:?}"));
            if !is_empty {
                return Err(no_id);
            }
            empty = Some(no_id);
            break;
        }
        match (self.missing, at_position(delivery)) {
            (MissingIdPolicy::Position, Some(Ok(id))) => Ok(id),
            _ => Err(empty.unwrap_or_else(|| NoId::Missing { looked_in: format!("{:?}", self.sources) })),
        }
    }
}

fn look(source: &IdSource, delivery: &Delivery) -> Result<Option<MessageId>, Flaw> {
    match source {
        IdSource::CloudEvents => match cloud_event::identity(delivery)? {
            Some(event) => Ok(Some(event_id::event_id(&event)?)),
            None => Ok(None),
        },
        IdSource::Header(name) => {
            let mut values = delivery.header(name).flatten();
            let first = values.next();
            if values.any(|other| Some(other) != first) {
                return Err(Flaw::Ambiguous);
            }
            of_bytes(first.map(AsRef::as_ref))
        }
        IdSource::DebeziumOutbox(name) => text::debezium(delivery, name),
        IdSource::MassTransit => text::mass_transit(delivery),
        IdSource::JsonPointer(pointer) => in_json(delivery, pointer),
        IdSource::RecordKey => of_bytes(delivery.key().map(AsRef::as_ref)),
        IdSource::Position => at_position(delivery).transpose(),
        IdSource::Custom(function) => {
            let found = caught_at(delivery.position(), || function(delivery)).ok_or(Flaw::Panicked)?;
            Ok(found.map(MessageId::new).transpose()?)
        }
    }
}

fn of_bytes(bytes: Option<&[u8]>) -> Result<Option<MessageId>, Flaw> {
    Ok(bytes.map(MessageId::from_bytes).transpose()?)
}

fn in_json(delivery: &Delivery, pointer: &str) -> Result<Option<MessageId>, Flaw> {
    let payload = delivery.payload().map(AsRef::as_ref).unwrap_or_default();
    let Ok(value) = serde_json::from_slice::<Value>(payload) else { return Ok(None) };
    match value.pointer(pointer) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(MessageId::new(text)?)),
        // Only whole numbers: 1.0 and 1 would be two ids of one number.
        Some(Value::Number(number)) if number.is_u64() || number.is_i64() => {
            Ok(Some(MessageId::new(number.to_string())?))
        }
        Some(_) => Err(Flaw::Malformed("it is neither a text nor a whole number")),
    }
}

fn at_position(delivery: &Delivery) -> Option<Result<MessageId, Flaw>> {
    let position = delivery.position();
    position.offset()?;
    // Escaped as it is printed, a topic's name can't forge another's place.
    Some(MessageId::new(position.to_string()).map_err(Flaw::from))
}

#[cfg(test)]
mod tests;
