//! Ids that a framework writes as text, and that a converter may have put into JSON on their way.

use std::borrow::Cow;

use serde::Deserialize;

use super::Flaw;
use crate::cloud_event::media_type;
use crate::delivery::Delivery;
use crate::id::{InvalidId, MessageId};

/// The id in the header of Debezium's outbox router: text, a JSON string, or the value within its schema, as
/// the header converters of Kafka Connect write it.
pub(super) fn debezium(delivery: &Delivery, header: &str) -> Result<Option<MessageId>, Flaw> {
    one(delivery, header, |text| match text {
        // What a converter makes of a value that is missing. All such messages would share it.
        "null" => Err(Flaw::EMPTY),
        text if text.starts_with('{') => in_schema(text).map(Cow::Owned),
        text => unquoted(text),
    })
}

/// `MessageId` in the headers, or `messageId` in the envelope.
pub(super) fn mass_transit(delivery: &Delivery) -> Result<Option<MessageId>, Flaw> {
    #[derive(Deserialize)]
    struct Envelope {
        #[serde(rename = "messageId")]
        message_id: Option<String>,
    }
    if let Some(id) = one(delivery, "MessageId", unquoted)? {
        return Ok(Some(id));
    }
    let mut types = delivery.header("content-type").flatten();
    if !types.any(|value| media_type(value).eq_ignore_ascii_case(ENVELOPE)) {
        return Ok(None);
    }
    let payload = delivery.payload().ok_or(Flaw::Malformed("the envelope is missing"))?;
    let envelope: Envelope = serde_json::from_slice(payload)
        .map_err(|_| Flaw::Malformed("the envelope is no JSON object with one `messageId`, a text"))?;
    let id = envelope.message_id.ok_or(Flaw::Malformed("the envelope has no `messageId`"))?;
    Ok(Some(MessageId::new(id)?))
}

const ENVELOPE: &[u8] = b"application/vnd.masstransit+json";

/// The one id in the headers of this name. A header without a value is none.
fn one<'a>(
    delivery: &'a Delivery,
    header: &'a str,
    read: impl Fn(&'a str) -> Result<Cow<'a, str>, Flaw>,
) -> Result<Option<MessageId>, Flaw> {
    let mut found: Option<MessageId> = None;
    for value in delivery.header(header).flatten() {
        let text = std::str::from_utf8(value)
            .map_err(|error| InvalidId::NotUtf8 { what: "message id", at: error.valid_up_to() })?;
        let id = MessageId::new(read(text)?)?;
        if found.as_ref().is_some_and(|before| *before != id) {
            return Err(Flaw::Ambiguous);
        }
        found = Some(id);
    }
    Ok(found)
}

fn unquoted(text: &str) -> Result<Cow<'_, str>, Flaw> {
    if !text.starts_with('"') {
        return Ok(Cow::Borrowed(text));
    }
    let text = serde_json::from_str(text)
        .map_err(|_| Flaw::Malformed("it begins like a JSON string and is none"))?;
    Ok(Cow::Owned(text))
}

fn in_schema(text: &str) -> Result<String, Flaw> {
    #[derive(Deserialize)]
    struct InSchema {
        payload: Option<Payload>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Payload {
        Text(String),
        Number(i64),
    }
    let value: InSchema = serde_json::from_str(text).map_err(|_| {
        Flaw::Malformed("it begins like a JSON object and is none with a `payload`, a text or a whole number")
    })?;
    match value.payload {
        Some(Payload::Text(text)) => Ok(text),
        Some(Payload::Number(number)) => Ok(number.to_string()),
        None => Err(Flaw::EMPTY),
    }
}
