//! One arrival of a message, as an adapter hands it on.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::trace_context;

/// Where a delivery stands in its source. Enough to find it again, and to name a dead letter by.
#[derive(Clone, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Position {
    source: Arc<str>,
    partition: Option<i32>,
    offset: Option<i64>,
}

impl Position {
    /// Of a log: topic, partition and offset. Stable: the same message is there again.
    #[must_use]
    pub fn in_log(topic: impl Into<Arc<str>>, partition: i32, offset: i64) -> Self {
        Self { source: topic.into(), partition: Some(partition), offset: Some(offset) }
    }

    /// Of a queue, whose messages have no place of their own.
    #[must_use]
    pub fn in_queue(queue: impl Into<Arc<str>>) -> Self {
        Self { source: queue.into(), partition: None, offset: None }
    }

    /// Topic or queue.
    #[must_use]
    pub fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// The partition, in a log.
    #[must_use]
    pub const fn partition(&self) -> Option<i32> {
        self.partition
    }

    /// The offset, in a log.
    #[must_use]
    pub const fn offset(&self) -> Option<i64> {
        self.offset
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source.escape_debug())?;
        if let Some(partition) = self.partition {
            write!(f, "[{partition}]")?;
        }
        match self.offset {
            Some(offset) => write!(f, "@{offset}"),
            None => Ok(()),
        }
    }
}

/// A header: name and value. A name may occur more than once, a value may be missing or not UTF-8.
pub type Header = (Arc<str>, Option<Bytes>);

/// One arrival of a message. Cheap to clone.
///
/// `Debug` shows where it stands and how large it is, never its payload, key or header values.
#[derive(Clone)]
pub struct Delivery(Arc<Parts>);

#[derive(Clone)]
struct Parts {
    payload: Option<Bytes>,
    key: Option<Bytes>,
    headers: Vec<Header>,
    position: Position,
    attempt_hint: Option<u32>,
    sent_at: Option<Timestamp>,
}

impl Delivery {
    /// A delivery of `payload` at `position`, without key and headers.
    ///
    /// `None` is "no payload" (a Kafka tombstone), which is not the same as an empty one.
    #[must_use]
    pub fn new(position: Position, payload: Option<Bytes>) -> Self {
        let (key, headers, attempt_hint, sent_at) = (None, Vec::new(), None, None);
        Self(Arc::new(Parts { payload, key, headers, position, attempt_hint, sent_at }))
    }

    /// With the record's key.
    #[must_use]
    pub fn with_key(self, key: Option<Bytes>) -> Self {
        self.change(|parts| parts.key = key)
    }

    /// With headers, in their order.
    #[must_use]
    pub fn with_headers(self, headers: Vec<Header>) -> Self {
        self.change(|parts| parts.headers = headers)
    }

    /// With the broker's count of attempts, from 1. A hint for people: Einmal counts for itself.
    #[must_use]
    pub fn with_attempt_hint(self, attempt: Option<u32>) -> Self {
        self.change(|parts| parts.attempt_hint = attempt)
    }

    /// With the time at which the producer, or the broker, says that it was sent.
    #[must_use]
    pub fn with_sent_at(self, at: Option<Timestamp>) -> Self {
        self.change(|parts| parts.sent_at = at)
    }

    fn change(mut self, change: impl FnOnce(&mut Parts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The message's bytes; `None` when it has none.
    #[must_use]
    pub fn payload(&self) -> Option<&Bytes> {
        self.0.payload.as_ref()
    }

    /// The record's key, which orders it among others. Not its identity.
    #[must_use]
    pub fn key(&self) -> Option<&Bytes> {
        self.0.key.as_ref()
    }

    /// All headers, in their order.
    #[must_use]
    pub fn headers(&self) -> &[Header] {
        &self.0.headers
    }

    /// The values of the headers called `name` (letter case ignored), in their order.
    pub fn header<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Option<&'a Bytes>> {
        let named = self.0.headers.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_ref())
    }

    /// The producer's trace context, of the header `traceparent` (W3C); `None` where it has not that form, or
    /// is given twice and differs. Of a later version than 00, the part that is known.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        trace_context::parent(self)
    }

    /// What belongs to [`traceparent`](Delivery::traceparent), of the headers `tracestate`; `None` without one,
    /// where it is not printable ASCII, and beyond 512 bytes. It is in no span: who knows what vendors put there.
    #[must_use]
    pub fn tracestate(&self) -> Option<String> {
        trace_context::state(self)
    }

    /// Both, under their names, as a propagator of OpenTelemetry extracts them. Empty where there are none.
    #[must_use]
    pub fn trace_context(&self) -> HashMap<String, String> {
        trace_context::carrier(self)
    }

    /// Where it stands.
    #[must_use]
    pub fn position(&self) -> &Position {
        &self.0.position
    }

    /// The broker's count of attempts.
    #[must_use]
    pub fn attempt_hint(&self) -> Option<u32> {
        self.0.attempt_hint
    }

    /// When it was sent, as its producer or the broker says.
    #[must_use]
    pub fn sent_at(&self) -> Option<Timestamp> {
        self.0.sent_at
    }

    /// What it weighs against the bound on bytes in flight: payload, key and headers.
    #[must_use]
    pub fn size(&self) -> usize {
        let len = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers = self.0.headers.iter().map(|(name, value)| name.len() + len(value));
        len(&self.0.payload) + len(&self.0.key) + headers.sum::<usize>()
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Delivery");
        debug.field("position", &format_args!("{}", self.0.position));
        debug.field("payload_len", &self.0.payload.as_ref().map(Bytes::len));
        debug.field("headers", &self.0.headers.len());
        debug.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_content() {
        let delivery = Delivery::new(Position::in_log("t", 1, 7), Some(Bytes::from_static(b"secret")))
            .with_key(Some(Bytes::from_static(b"hush")))
            .with_headers(vec![("authorization".into(), Some(Bytes::from_static(b"token")))]);
        let shown = format!("{delivery:?}");
        assert!(shown.contains("t[1]@7") && shown.contains("payload_len: Some(6)"), "{shown}");
        assert!(!["secret", "hush", "token"].iter().any(|text| shown.contains(text)), "{shown}");
        assert_eq!(delivery.size(), 6 + 4 + 13 + 5);
    }

    #[test]
    fn repeated_headers_keep_their_order() {
        let header = |value: &'static [u8]| ("Id".into(), Some(Bytes::from_static(value)));
        let delivery =
            Delivery::new(Position::in_queue("q"), None).with_headers(vec![header(b"1"), header(b"2")]);
        let values: Vec<_> = delivery.header("id").flatten().map(AsRef::as_ref).collect();
        assert_eq!(values, [b"1", b"2"]);
    }
}
