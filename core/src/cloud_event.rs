//! A delivery that is a CloudEvent, in either content mode and under the names of every binding.
//!
//! Version 1.0 of the specification; what is read here is the same in earlier ones.

mod data;
mod http;

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;

pub(crate) use self::data::fingerprint;
use crate::delivery::Delivery;
use crate::identify::Flaw;

/// How the name of an attribute's header begins, and how its value is written.
const PREFIXES: [(&str, Spelling); 4] = [
    // Kafka.
    ("ce_", Spelling::Plain),
    // HTTP.
    ("ce-", Spelling::Http),
    // AMQP 1.0, in its older and its newer form, which RabbitMQ also shows in the headers of 0-9-1.
    ("cloudEvents:", Spelling::Plain),
    ("cloudEvents_", Spelling::Plain),
];

#[derive(Clone, Copy)]
enum Spelling {
    Plain,
    Http,
}

/// Where the attributes of an event are.
enum Mode<'a> {
    /// In headers.
    Binary(Binary<'a>),
    /// In the payload, which is JSON.
    Structured(&'a [u8]),
}

/// The attributes that are looked at. Each is required of an event, so that one of them tells that the message
/// is one.
#[derive(Default)]
struct Binary<'a> {
    id: Option<Cow<'a, str>>,
    source: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    specversion: Option<Cow<'a, str>>,
}

/// What identifies an event, both parts as their producer wrote them.
pub(crate) struct Identity<'a> {
    pub(crate) source: Cow<'a, str>,
    pub(crate) id: Cow<'a, str>,
}

/// What identifies the event that `delivery` is; `None` when it is none.
pub(crate) fn identity(delivery: &Delivery) -> Result<Option<Identity<'_>>, Flaw> {
    /// Members that are given twice are an error of serde's.
    #[derive(Deserialize)]
    struct Head {
        id: Option<String>,
        source: Option<String>,
    }
    let (source, id) = match mode(delivery)? {
        None => return Ok(None),
        Some(Mode::Binary(event)) => (event.source, event.id),
        Some(Mode::Structured(payload)) => {
            let head: Head = serde_json::from_slice(payload).map_err(|_| {
                Flaw::Malformed("it is no JSON object with one `id` and one `source`, both texts")
            })?;
            (head.source.map(Cow::Owned), head.id.map(Cow::Owned))
        }
    };
    match (source, id) {
        (Some(source), Some(id)) => Ok(Some(Identity { source, id })),
        (_, None) => Err(Flaw::Malformed("the event has no `id`")),
        (None, _) => Err(Flaw::Malformed("the event has an `id` and no `source`, and only both identify it")),
    }
}

fn mode(delivery: &Delivery) -> Result<Option<Mode<'_>>, Flaw> {
    let mut formats = delivery.header("content-type").flatten().map(|value| Format::of(media_type(value)));
    let format = formats.next().flatten();
    if formats.any(|other| other != format) {
        return Err(Flaw::Ambiguous);
    }
    match (format, delivery.payload()) {
        (Some(Format::Json), Some(payload)) => Ok(Some(Mode::Structured(payload))),
        (Some(Format::Json), None) => {
            Err(Flaw::Malformed("the event should be in the payload, and there is none"))
        }
        (Some(Format::Batch), _) => {
            Err(Flaw::Malformed("it is a batch of events, which has no one id: they must be sent one by one"))
        }
        (Some(Format::Other), _) => {
            Err(Flaw::Malformed("the event is in a format that is not read; only JSON and binary mode are"))
        }
        (None, _) => binary(delivery),
    }
}

/// A format of whole events, as the content type names it.
#[derive(PartialEq, Eq)]
enum Format {
    Json,
    Batch,
    Other,
}

impl Format {
    fn of(media_type: &[u8]) -> Option<Self> {
        let begins =
            |name: &[u8]| media_type.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
        match () {
            () if media_type.eq_ignore_ascii_case(b"application/cloudevents+json") => Some(Self::Json),
            () if begins(b"application/cloudevents-batch") => Some(Self::Batch),
            () if begins(b"application/cloudevents") => Some(Self::Other),
            () => None,
        }
    }
}

/// A content type without its parameters.
pub(crate) fn media_type(content_type: &[u8]) -> &[u8] {
    content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

fn binary(delivery: &Delivery) -> Result<Option<Mode<'_>>, Flaw> {
    let (mut event, mut any) = (Binary::default(), false);
    for (name, value) in delivery.headers() {
        let Some((attribute, spelling)) = attribute(name) else { continue };
        let place = match attribute.to_ascii_lowercase().as_str() {
            "id" => &mut event.id,
            "source" => &mut event.source,
            "type" => &mut event.kind,
            "specversion" => &mut event.specversion,
            _ => continue,
        };
        let value = read(value.as_ref(), spelling)?;
        match place {
            Some(before) if *before != value => return Err(Flaw::Ambiguous),
            place => *place = Some(value),
        }
        any = true;
    }
    Ok(any.then_some(Mode::Binary(event)))
}

fn attribute(header: &str) -> Option<(&str, Spelling)> {
    PREFIXES.iter().find_map(|(prefix, spelling)| {
        let (head, rest) = header.split_at_checked(prefix.len())?;
        head.eq_ignore_ascii_case(prefix).then_some((rest, *spelling))
    })
}

fn read(value: Option<&Bytes>, spelling: Spelling) -> Result<Cow<'_, str>, Flaw> {
    let value = value.ok_or(Flaw::Malformed("an attribute of the event has no value"))?;
    let text =
        std::str::from_utf8(value).map_err(|_| Flaw::Malformed("an attribute of the event is not UTF-8"))?;
    match spelling {
        Spelling::Plain => Ok(Cow::Borrowed(text)),
        Spelling::Http => http::decode(text),
    }
}
