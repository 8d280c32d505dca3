//! A message of the broker as Einmal's delivery.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use einmal::{Delivery, Header, Position, Timestamp};
use rdkafka::message::{BorrowedMessage, Headers, Message};

/// What stands for the name of a header whose name is not UTF-8.
pub(crate) const UNREADABLE: &str = "\u{fffd}";

/// Copies `message` of `topic` at once: held as it is, it would pin the whole fetch it came in.
pub(crate) fn detach(topic: Arc<str>, message: &BorrowedMessage<'_>) -> Delivery {
    let bytes = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
    let position = Position::in_log(topic, message.partition(), message.offset());
    // A tombstone has no payload, which is not an empty one: the one deletes, the other is a value.
    Delivery::new(position, message.payload().map(bytes))
        .with_key(message.key().map(bytes))
        .with_headers(message.headers().map(headers).unwrap_or_default())
        .with_sent_at(message.timestamp().to_millis().and_then(sent_at))
}

fn headers(of: &impl Headers) -> Vec<Header> {
    (0..of.count()).map(|at| header(of, at)).collect()
}

/// The client panics on a header whose *name* is not UTF-8, and offers no other way to read it. One such
/// message must not end the thread that all partitions depend on; and no id is looked for under such a name.
fn header(of: &impl Headers, at: usize) -> Header {
    let read =
        || of.try_get(at).map(|header| (Arc::from(header.key), header.value.map(Bytes::copy_from_slice)));
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Some(header)) => header,
        Ok(None) | Err(_) => (UNREADABLE.into(), None),
    }
}

fn sent_at(millis: i64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(u64::try_from(millis).ok()?.saturating_mul(1_000)))
}

#[cfg(test)]
mod tests {
    use rdkafka::message::{Header as Native, OwnedHeaders};

    use super::*;

    /// Panics for the second header, as the client does for a name that is not UTF-8.
    struct Unreadable(OwnedHeaders);

    impl Headers for Unreadable {
        fn count(&self) -> usize {
            self.0.count()
        }

        fn try_get(&self, at: usize) -> Option<Native<'_, &[u8]>> {
            assert_ne!(at, 1, "a panic that this test is about");
            self.0.try_get(at)
        }
    }

    #[test]
    fn a_header_that_the_client_panics_on_is_marked_and_harms_no_other() {
        let add = |all: OwnedHeaders, key| all.insert(Native { key, value: Some(key) });
        let all = Unreadable(["a", "b", "c"].into_iter().fold(OwnedHeaders::new(), add));
        let read = headers(&all);
        let value = |text: &'static str| Some(Bytes::from_static(text.as_bytes()));
        assert_eq!(read, [("a".into(), value("a")), (UNREADABLE.into(), None), ("c".into(), value("c"))]);
    }
}
