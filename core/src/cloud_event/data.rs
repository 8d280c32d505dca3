//! What must be equal in two deliveries of one event, whatever carried them.

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Mode, media_type, mode};
use crate::delivery::Delivery;

enum Data {
    Nothing,
    Json(Vec<u8>),
    Bytes(Vec<u8>),
}

/// A digest of the type and the data of the event that `delivery` is; `None` when it is none that can be read.
pub(crate) fn fingerprint(delivery: &Delivery) -> Option<[u8; 32]> {
    let (kind, data) = match mode(delivery).ok()?? {
        Mode::Binary(event) => {
            let content_type = delivery.header("content-type").flatten().next();
            let data = match delivery.payload() {
                // An empty payload is how a binding without a null says that there is no data.
                Some(payload) if !payload.is_empty() => of_bytes(payload, content_type.map(AsRef::as_ref)),
                _ => Data::Nothing,
            };
            (event.kind.map(String::from), data)
        }
        Mode::Structured(payload) => structured(payload)?,
    };
    let kind = kind.unwrap_or_default();
    let len = u64::try_from(kind.len()).unwrap_or(u64::MAX).to_be_bytes();
    let hash = Sha256::new().chain_update(len).chain_update(kind);
    let hash = match data {
        Data::Nothing => hash.chain_update([0]),
        Data::Json(canonical) => hash.chain_update([1]).chain_update(canonical),
        Data::Bytes(bytes) => hash.chain_update([2]).chain_update(bytes),
    };
    Some(hash.finalize().into())
}

fn structured(payload: &[u8]) -> Option<(Option<String>, Data)> {
    #[derive(Deserialize)]
    struct Event {
        r#type: Option<String>,
        datacontenttype: Option<String>,
        data: Option<Value>,
        data_base64: Option<String>,
    }
    let event: Event = serde_json::from_slice(payload).ok()?;
    let content_type = event.datacontenttype.as_deref().map(str::as_bytes);
    let data = match (event.data, event.data_base64) {
        (None, None) => Data::Nothing,
        (None, Some(text)) => of_bytes(&base64(&text)?, content_type),
        (Some(Value::String(text)), None) if !is_json(content_type) => Data::Bytes(text.into_bytes()),
        (Some(value), None) => Data::Json(serde_json_canonicalizer::to_vec(&value).ok()?),
        // The format forbids both.
        (Some(_), Some(_)) => return None,
    };
    Some((event.r#type, data))
}

fn of_bytes(bytes: &[u8], content_type: Option<&[u8]>) -> Data {
    let canonical = || {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        serde_json_canonicalizer::to_vec(&value).ok()
    };
    let json = if is_json(content_type) { canonical() } else { None };
    json.map_or_else(|| Data::Bytes(bytes.to_vec()), Data::Json)
}

/// JSON is what data without a content type is.
fn is_json(content_type: Option<&[u8]>) -> bool {
    content_type.is_none_or(|value| {
        let name = media_type(value).to_ascii_lowercase();
        name.ends_with(b"/json") || name.ends_with(b"+json")
    })
}

/// The standard alphabet, with or without its padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(digits.len()), 0_u32, 0_u32);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, held) = ((bits & 0xff) << 6 | u32::from(value), held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::delivery::{Header, Position};

    fn event(payload: Option<&'static str>, headers: &[(&str, &'static str)]) -> Option<[u8; 32]> {
        let headers =
            headers.iter().map(|(name, value)| ((*name).into(), Some(Bytes::from_static(value.as_bytes()))));
        let delivery =
            Delivery::new(Position::in_queue("q"), payload.map(|text| Bytes::from_static(text.as_bytes())));
        fingerprint(&delivery.with_headers(headers.collect::<Vec<Header>>()))
    }

    fn whole(payload: &'static str) -> Option<[u8; 32]> {
        event(Some(payload), &[("content-type", "application/cloudevents+json")])
    }

    fn binary(payload: Option<&'static str>, content_type: &'static str) -> Option<[u8; 32]> {
        event(payload, &[("ce_type", "t"), ("content-type", content_type)])
    }

    #[test]
    fn both_modes_have_one_fingerprint() {
        let json = binary(Some(r#"{"b": 1.0, "a": "x"}"#), "application/json; charset=utf-8");
        assert!(json.is_some());
        assert_eq!(json, whole(r#"{"type":"t","data":{"a":"x","b":1}}"#));
        assert_eq!(json, whole(r#"{"type":"t","data_base64":"eyJhIjoieCIsImIiOjF9"}"#));
        let text = binary(Some("hello"), "text/plain");
        assert_eq!(text, whole(r#"{"type":"t","datacontenttype":"text/plain","data":"hello"}"#));
        assert_eq!(text, whole(r#"{"type":"t","datacontenttype":"text/plain","data_base64":"aGVsbG8="}"#));
        let nothing = binary(None, "application/json");
        assert_eq!(nothing, whole(r#"{"type":"t"}"#));
        assert_eq!(nothing, binary(Some(""), "application/json"));
    }

    #[test]
    fn another_type_or_other_data_is_another_event() {
        let event = whole(r#"{"type":"t","data":1}"#);
        assert_ne!(event, whole(r#"{"type":"u","data":1}"#));
        assert_ne!(event, whole(r#"{"type":"t","data":2}"#));
        assert_ne!(event, whole(r#"{"type":"t"}"#));
        assert_eq!(event, whole(r#"{"type":"t","data":1,"time":"2018-04-05T03:56:24Z","id":"1"}"#));
    }

    #[test]
    fn what_is_no_event_has_none() {
        assert_eq!(event(Some("{}"), &[]), None);
        assert_eq!(whole("no JSON"), None);
        assert_eq!(whole(r#"{"type":"t","data_base64":"%"}"#), None);
        assert_eq!(whole(r#"{"type":"t","data":1,"data_base64":"MQ=="}"#), None);
    }
}
