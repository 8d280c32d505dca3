//! Ids as producers write them, and their traces, through a real broker.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

mod common;

use std::sync::{Arc, Mutex};

use common::{PARENT, TRACE, attribute, continue_trace, exported, place, spans, traceparent};
use einmal::{Context, Failure, FingerprintPolicy, MemoryStore};
use einmal_kafka::{DeadLetterTopic, KafkaWorker};
use einmal_tests::kafka::{PATIENCE, Topic, until};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use rdkafka::{Message, Offset, TopicPartitionList};
use tokio_util::sync::CancellationToken;

const BINARY: &str = r#"{"message": "Hello World!"}"#;
const STRUCTURED: &str = r#"{
    "specversion": "1.0", "type": "com.example.someevent", "source": "/mycontext", "id": "1234",
    "datacontenttype": "application/json", "data": {"message":"Hello World!"}
}"#;

/// The id that a handler ran under, and the trace that it was told of.
type Run = (String, Option<String>);

type Headed = &'static [(&'static str, &'static str)];

/// What is sent, in this order, to one partition.
const MESSAGES: [(Headed, &str); 8] = [
    (
        &[
            ("ce_specversion", "1.0"),
            ("ce_id", "1234"),
            ("ce_source", "/mycontext"),
            ("ce_type", "com.example.someevent"),
            ("content-type", "application/json; charset=utf-8"),
        ],
        BINARY,
    ),
    // The same event in the other mode, and the same id from another source.
    (&[("content-type", "application/cloudevents+json; charset=utf-8")], STRUCTURED),
    (
        &[
            ("ce_specversion", "1.0"),
            ("ce_id", "1234"),
            ("ce_source", "/other"),
            ("ce_type", "com.example.someevent"),
        ],
        BINARY,
    ),
    // Through two header converters.
    (&[("id", "7b5d54ef")], "row"),
    (&[("id", r#""7b5d54ef""#)], "row"),
    (&[("MessageId", "0c2a0000-5d6e")], "{}"),
    // Half an event, for which no other place is looked at, and nothing at all.
    (&[("ce_id", "1234"), ("message-id", "1234")], BINARY),
    (&[("correlation-id", "1234")], BINARY),
];

fn send(topic: &Topic) {
    let producer: ThreadedProducer<DefaultProducerContext> = topic.client().create().unwrap();
    for (offset, (headers, payload)) in MESSAGES.iter().enumerate() {
        let trace = traceparent(TRACE, &parent(offset));
        let all = OwnedHeaders::new().insert(Header { key: "traceparent", value: Some(&trace) });
        let add =
            |all: OwnedHeaders, (key, value): &(&str, &str)| all.insert(Header { key, value: Some(*value) });
        let all = headers.iter().fold(all, add);
        // They share a key: it orders them, and is no identity.
        let record = BaseRecord::to(&topic.name).partition(0).key("customer").payload(*payload).headers(all);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

/// The producer's span of each message.
fn parent(offset: usize) -> String {
    if offset == 0 { PARENT.to_owned() } else { format!("{offset:016x}") }
}

/// The headers of the first `count` messages of a topic.
fn headers_in(topic: &Topic, count: usize) -> Vec<Vec<(String, String)>> {
    let mut client = topic.client();
    client.set("group.id", "nobody").set("enable.auto.commit", "false");
    let reader: BaseConsumer = client.create().unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(&topic.name, 0, Offset::Beginning).unwrap();
    reader.assign(&list).unwrap();
    let read = || {
        let message = reader.poll(PATIENCE).unwrap().unwrap();
        let text = |header: Header<'_, &[u8]>| {
            (header.key.to_owned(), String::from_utf8_lossy(header.value.unwrap_or_default()).into_owned())
        };
        message.headers().unwrap().iter().map(text).collect()
    };
    (0..count).map(|_| read()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_43_ids_are_found_where_producers_write_them_and_their_traces_go_on() {
    // First: who makes a topic sets up a subscriber if there is none.
    exported();
    let test = "scenario_43_ids_are_found_where_producers_write_them_and_their_traces_go_on";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let letters = Topic::create(topic.brokers.clone(), "letters", 1, &[]).await.unwrap();
    send(&topic);

    let runs: Arc<Mutex<Vec<Run>>> = Arc::default();
    let handler = {
        let runs = Arc::clone(&runs);
        move |context: Context| {
            let run = (context.key().id().as_str().to_owned(), context.traceparent().map(str::to_owned));
            runs.lock().unwrap().push(run);
            std::future::ready(Ok::<(), Failure>(()))
        }
    };
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
        .fingerprint(FingerprintPolicy::CloudEvent)
        .dead_letters(Some(DeadLetterTopic::Fixed(letters.name.clone())))
        .on_span(continue_trace)
        .build(MemoryStore::default(), handler)
        .unwrap();
    let (worker, shutdown) = (Arc::new(worker), CancellationToken::new());
    let work = tokio::spawn({
        let (worker, shutdown) = (Arc::clone(&worker), shutdown.clone());
        async move { worker.run(shutdown).await }
    });
    until("the commit of all", || {
        assert!(!work.is_finished(), "the worker ended by itself");
        Ok(topic.committed()? == [MESSAGES.len()])
    })
    .await
    .unwrap();
    shutdown.cancel();
    let summary = work.await.unwrap().unwrap();

    let run = |id: &str, offset| (id.to_owned(), Some(traceparent(TRACE, &parent(offset))));
    let expected = [
        run("ce:10:/mycontext:1234", 0),
        run("ce:6:/other:1234", 2),
        run("7b5d54ef", 3),
        run("0c2a0000-5d6e", 5),
    ];
    assert_eq!(*runs.lock().unwrap(), expected);
    assert_eq!((summary.ran_ok, summary.duplicate, summary.conflict), (4, 2, 0));
    assert_eq!(summary.rejected_before_claim, 2);

    // Each span is a child of the one that its own message was sent in.
    let names = [
        ("einmal.attempt", 0),
        ("einmal.duplicate", 1),
        ("einmal.attempt", 2),
        ("einmal.attempt", 3),
        ("einmal.duplicate", 4),
        ("einmal.attempt", 5),
        ("einmal.dead_letter", 6),
        ("einmal.dead_letter", 7),
    ];
    for (name, offset) in names {
        let spans = spans(name, &format!("{}[0]@{offset}", topic.name));
        assert_eq!(spans.len(), 1, "{name} of {offset}");
        assert_eq!(place(&spans[0]), (TRACE.to_owned(), parent(offset)), "{name} of {offset}");
        let answered_by = attribute(&spans[0], "answered_by_attempt");
        assert_eq!(answered_by.as_deref(), (name == "einmal.duplicate").then_some("1"));
    }

    let letters = headers_in(&letters, 2);
    for (letter, (offset, words)) in letters.iter().zip([(6, "no `source`"), (7, "no message id was found")])
    {
        let value = |name: &str| letter.iter().find(|header| header.0 == name).unwrap().1.as_str();
        assert_eq!(value("einmal-reason"), "bad_id");
        assert!(value("einmal-detail").contains(words), "{}", value("einmal-detail"));
        assert_eq!(value("traceparent"), traceparent(TRACE, &parent(offset)));
    }
}
