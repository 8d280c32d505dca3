//! The headers of a letter.

use einmal::{DeadLetter, Timestamp};
use rdkafka::message::{Header, OwnedHeaders};

use crate::message::UNREADABLE;

/// All of Einmal's own headers begin so.
const OWN: &str = "einmal-";

/// Those of the message as they are, then Einmal's own.
pub(super) fn headers(letter: &DeadLetter) -> OwnedHeaders {
    let delivery = &letter.delivery;
    let mut headers = OwnedHeaders::new();
    for (name, value) in delivery.headers() {
        // Nothing is known of an unreadable one but that it was there.
        if &**name != UNREADABLE && !name.starts_with(OWN) {
            headers = headers.insert(Header { key: name, value: value.as_deref() });
        }
    }
    for (name, value) in own(letter) {
        headers = headers.insert(Header { key: name, value: Some(value.as_bytes()) });
    }
    headers
}

fn own(letter: &DeadLetter) -> Vec<(&'static str, String)> {
    let position = letter.delivery.position();
    let micros = |at: Timestamp| at.as_micros().to_string();
    let all = [
        ("einmal-letter-id", Some(letter.id.clone())),
        ("einmal-reason", Some(letter.reason.code().to_owned())),
        ("einmal-detail", letter.reason.detail().map(str::to_owned)),
        ("einmal-scope", letter.key.as_ref().map(|key| key.scope().as_str().to_owned())),
        ("einmal-id", letter.key.as_ref().map(|key| key.id().as_str().to_owned())),
        ("einmal-topic", Some(position.source().as_ref().to_owned())),
        ("einmal-partition", position.partition().map(|number| number.to_string())),
        ("einmal-offset", position.offset().map(|offset| offset.to_string())),
        ("einmal-attempts", Some(letter.attempts.to_string())),
        ("einmal-sent-at", letter.delivery.sent_at().map(micros)),
        ("einmal-first-at", letter.first_at.map(micros)),
        ("einmal-last-at", Some(micros(letter.last_at))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
