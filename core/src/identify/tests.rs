//! Ids are found where they are, and never made up.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::delivery::{Header, Position};
use crate::id::InvalidId;

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
    assert_eq!(id(&chain, &delivery(r#"{"id":42}"#, &[("event-id", None)])).unwrap(), "42");
    assert!(matches!(id(&chain, &delivery(r#"{"id":null}"#, &[])), Err(NoId::Missing { .. })));
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

fn of(source: IdSource, payload: &'static str, headers: &[(&str, &'static str)]) -> Result<String, NoId> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, Some(value.as_bytes()))).collect();
    // Behind it stands a place that always has one, so that what is passed over shows.
    id(&Identify::new([source, IdSource::Position]), &delivery(payload, &headers))
}

const NEXT: &str = "t[2]@9";

#[test]
fn an_empty_id_is_not_passed_over_and_goes_to_the_policy() {
    let empty = delivery(r#"{"id":"b"}"#, &[("id", Some(b""))]);
    for source in
        [IdSource::header("id"), IdSource::debezium_outbox(), IdSource::custom(|_| Some(String::new()))]
    {
        let chain = Identify::new([source, IdSource::json_pointer("/id")]);
        assert!(matches!(id(&chain, &empty), Err(NoId::Invalid { problem: InvalidId::Empty { .. }, .. })));
        assert_eq!(id(&chain.or(MissingIdPolicy::Position), &empty).unwrap(), NEXT);
    }
}

#[test]
fn an_event_with_an_empty_part_goes_to_the_policy_too() {
    for (event_id, source) in [("", "s"), ("1", "")] {
        let headers = [("ce_id", Some(event_id.as_bytes())), ("ce_source", Some(source.as_bytes()))];
        let (chain, event) = (Identify::default(), delivery("", &headers));
        let error = id(&chain, &event).unwrap_err().to_string();
        assert!(error.contains("is empty; it must have 1 to 255 bytes"), "{error}");
        assert_eq!(id(&chain.or(MissingIdPolicy::Position), &event).unwrap(), NEXT);
    }
}

#[test]
fn an_event_has_one_id_under_the_names_of_every_binding() {
    for (id, source) in [
        ("ce_id", "ce_source"),
        ("ce-id", "ce-source"),
        ("Ce-Id", "CE-SOURCE"),
        ("cloudEvents:id", "cloudEvents:source"),
        ("cloudEvents_id", "cloudEvents_source"),
    ] {
        let event = [(id, "42"), (source, "/orders"), ("content-type", "application/json")];
        assert_eq!(of(IdSource::CloudEvents, "{}", &event).unwrap(), "ce:7:/orders:42", "{id}");
    }
    let whole = r#"{"specversion":"1.0","id":"42","source":"/orders","data":{"id":"other"}}"#;
    for content_type in ["application/cloudevents+json", "Application/CloudEvents+JSON ; charset=utf-8"] {
        // In structured mode the headers may say it again. What counts is in the payload.
        let headers = [("content-type", content_type), ("ce_id", "another"), ("ce_source", "/orders")];
        assert_eq!(of(IdSource::CloudEvents, whole, &headers).unwrap(), "ce:7:/orders:42");
    }
    // Only HTTP's values are percent-encoded.
    let euro = [("ce-id", "%E2%82%AC"), ("ce-source", "\"/a\"")];
    assert_eq!(of(IdSource::CloudEvents, "", &euro).unwrap(), "ce:2:/a:€");
    let percent = [("ce_id", "%41"), ("ce_source", "\"/a\"")];
    assert_eq!(of(IdSource::CloudEvents, "", &percent).unwrap(), "ce:4:\"/a\":%41");
}

#[test]
fn half_an_event_has_no_id_and_is_not_passed_over() {
    const WHOLE: (&str, &str) = ("content-type", "application/cloudevents+json");
    let malformed: [(&'static str, &[(&str, &'static str)]); 15] = [
        ("", &[("ce_id", "42")]),
        ("", &[("ce_source", "/orders")]),
        ("", &[("ce_specversion", "1.0")]),
        ("", &[("ce-type", "t"), ("ce-id", "42")]),
        ("", &[("ce-id", "%4"), ("ce-source", "s")]),
        ("", &[("ce-id", "%ff"), ("ce-source", "s")]),
        ("", &[WHOLE]),
        ("no JSON", &[WHOLE]),
        ("[]", &[WHOLE]),
        (r#"{"id":"42"}"#, &[WHOLE, ("ce_id", "42"), ("ce_source", "s")]),
        (r#"{"source":"s"}"#, &[WHOLE]),
        (r#"{"id":42,"source":"s"}"#, &[WHOLE]),
        (r#"{"id":"1","source":"s","id":"2"}"#, &[WHOLE]),
        (r#"[{"id":"1","source":"s"}]"#, &[("content-type", "application/cloudevents-batch+json")]),
        (r#"{"id":"1","source":"s"}"#, &[("content-type", "application/cloudevents+avro")]),
    ];
    for (payload, headers) in malformed {
        let found = of(IdSource::CloudEvents, payload, headers);
        assert!(matches!(found, Err(NoId::Malformed { .. })), "{payload} {headers:?} {found:?}");
    }
    let ambiguous: [&[(&str, &'static str)]; 3] = [
        &[("ce_id", "1"), ("ce_id", "2"), ("ce_source", "s")],
        &[("ce_id", "1"), ("ce-id", "2"), ("ce_source", "s")],
        &[WHOLE, ("content-type", "application/json")],
    ];
    for headers in ambiguous {
        let found = of(IdSource::CloudEvents, r#"{"id":"1","source":"s"}"#, headers);
        assert!(matches!(found, Err(NoId::Ambiguous { .. })), "{headers:?} {found:?}");
    }
    let chain = Identify::new([IdSource::CloudEvents, IdSource::Position]);
    for bad in [Some(&b"\xff"[..]), None] {
        let found = id(&chain, &delivery("", &[("ce_id", bad), ("ce_source", Some(b"s"))]));
        assert!(matches!(found, Err(NoId::Malformed { .. })), "{found:?}");
    }
    for bad in ["", "a\nb"] {
        for event in [[("ce_id", bad), ("ce_source", "s")], [("ce_id", "1"), ("ce_source", bad)]] {
            let found = of(IdSource::CloudEvents, "", &event);
            assert!(matches!(found, Err(NoId::Invalid { .. })), "{event:?} {found:?}");
        }
    }
    // What is known to be none is passed over.
    for headers in [&[("content-type", "application/json")][..], &[("ce_traceparent", "x")], &[("ce", "x")]] {
        assert_eq!(of(IdSource::CloudEvents, r#"{"id":"1","source":"s"}"#, headers).unwrap(), NEXT);
    }
}

#[test]
fn debeziums_id_is_the_same_however_it_is_converted() {
    let debezium = |value: &'static str| of(IdSource::debezium_outbox(), "", &[("id", value)]);
    for value in [
        "b9b34a4b-1c3b",
        r#""b9b34a4b-1c3b""#,
        r#""\u00629b34a4b-1c3b""#,
        r#"{"schema":{"type":"string","optional":false},"payload":"b9b34a4b-1c3b"}"#,
    ] {
        assert_eq!(debezium(value).unwrap(), "b9b34a4b-1c3b", "{value}");
    }
    for value in ["42", r#""42""#, r#"{"schema":{"type":"int64"},"payload":42}"#] {
        assert_eq!(debezium(value).unwrap(), "42", "{value}");
    }
    for value in ["", r#""""#, "null", r#"{"schema":{},"payload":null}"#, r#""a\nb""#] {
        assert!(matches!(debezium(value), Err(NoId::Invalid { .. })), "{value}");
    }
    for value in [r#"""#, r#""a"#, r#""a"b"#, "{", "{}x", r#"{"payload":{"a":1}}"#, r#"{"payload":1.5}"#] {
        assert!(matches!(debezium(value), Err(NoId::Malformed { .. })), "{value}");
    }
    let named = |headers| of(IdSource::DebeziumOutbox("eventId".into()), "", headers);
    assert_eq!(named(&[("id", "1"), ("eventId", "2")]).unwrap(), "2");
    assert_eq!(named(&[("eventid", "2"), ("eventId", r#""2""#)]).unwrap(), "2");
    assert!(matches!(named(&[("eventId", "1"), ("eventId", "2")]), Err(NoId::Ambiguous { .. })));
    assert_eq!(named(&[("id", "1")]).unwrap(), NEXT);
    let bytes = delivery("", &[("id", Some(b"\x01\xff"))]);
    assert!(matches!(id(&Identify::default(), &bytes), Err(NoId::Invalid { .. })));
}

#[test]
fn mass_transits_id_is_in_the_header_or_in_the_envelope() {
    const ENVELOPE: (&str, &str) = ("Content-Type", "application/vnd.masstransit+json; charset=utf-8");
    let found = |payload, headers: &[_]| of(IdSource::mass_transit(), payload, headers);
    assert_eq!(found("", &[("MessageId", "0c2a-1")]).unwrap(), "0c2a-1");
    assert_eq!(found("", &[("messageId", r#""0c2a-1""#)]).unwrap(), "0c2a-1");
    assert_eq!(found(r#"{"messageId":"0c2a-1","message":{}}"#, &[ENVELOPE]).unwrap(), "0c2a-1");
    assert_eq!(found(r#"{"messageId":"0c2a-1"}"#, &[]).unwrap(), NEXT);
    for payload in ["{}", "", r#"{"messageId":1}"#, r#"{"messageId":"1","messageId":"2"}"#] {
        assert!(matches!(found(payload, &[ENVELOPE]), Err(NoId::Malformed { .. })), "{payload}");
    }
    assert!(matches!(found(r#"{"messageId":""}"#, &[ENVELOPE]), Err(NoId::Invalid { .. })));
    let twice = [("MessageId", "1"), ("MessageId", "2")];
    assert!(matches!(found("", &twice), Err(NoId::Ambiguous { .. })));
}

#[test]
fn the_default_places_in_their_order() {
    let all = [
        ("ce_id", "42"),
        ("ce_source", "/orders"),
        ("message-id", "named"),
        ("MessageId", "transit"),
        ("id", "outbox"),
        ("idempotency-key", "request"),
    ];
    let found = |skip: usize| {
        let headers: Vec<_> =
            all.iter().skip(skip).map(|(name, value)| (*name, Some(value.as_bytes()))).collect();
        id(
            &Identify::default(),
            &delivery("{\"id\":\"p\"}", &headers).with_key(Some(Bytes::from_static(b"k"))),
        )
    };
    assert_eq!(found(0).unwrap(), "ce:7:/orders:42");
    assert_eq!(found(2).unwrap(), "named");
    assert_eq!(found(3).unwrap(), "transit");
    assert_eq!(found(4).unwrap(), "outbox");
    // Neither the record's key nor its position, nor what a request left behind.
    assert!(matches!(found(5), Err(NoId::Missing { .. })));
    assert!(matches!(found(6), Err(NoId::Missing { .. })));
    assert!(matches!(found(1), Err(NoId::Malformed { .. })), "half an event is not passed over");
}

/// Bytes as they come, and those that make parsers go further.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let likely =
        proptest::sample::select(vec!["\"", "{", "}", "%", "\\", "id", ":", "payload", "é", "\0", "1", ","]);
    let likely = proptest::collection::vec(likely, 0..12).prop_map(|parts| parts.concat().into_bytes());
    prop_oneof![likely, proptest::collection::vec(any::<u8>(), 0..40)]
}

proptest! {
    /// Whatever comes, it is an id that may be printed and stored, or an error that shows nothing of it.
    #[test]
    fn arbitrary_headers_and_payloads_make_an_id_or_an_error(
        headers in proptest::collection::vec(
            (proptest::sample::select(vec![
                "ce_id", "ce-id", "ce_source", "ce-source", "cloudEvents:type", "id", "MessageId", "message-id",
            ]), proptest::option::of(bytes())),
            0..6,
        ),
        content_type in proptest::sample::select(vec![
            "", "application/json", "application/cloudevents+json", "application/vnd.masstransit+json",
        ]),
        payload in proptest::option::of(bytes()),
    ) {
        let content_type = ("content-type", Some(content_type.as_bytes().to_vec()));
        let headers = headers.into_iter().chain([content_type]);
        let headers = headers.map(|(name, value)| (name.into(), value.map(Bytes::from))).collect::<Vec<Header>>();
        let delivery = Delivery::new(Position::in_queue("q"), payload.map(Bytes::from)).with_headers(headers);
        let first = Identify::default().identify(&delivery);
        prop_assert_eq!(&first, &Identify::default().identify(&delivery));
        match first {
            Ok(id) => prop_assert!(MessageId::new(id.as_str()).is_ok()),
            Err(no_id) => prop_assert!(no_id.to_string().is_ascii()),
        }
        let _ = crate::FingerprintPolicy::CloudEvent.of(&delivery);
    }
}
