//! What is in a message, and what becomes of it as a dead letter.

use std::time::Duration;

use bytes::Bytes;
use einmal::claim::Fence;
use einmal::worker::Ack;
use einmal::{
    DeadLetter, DeadLetterReason, DeadLetters, DedupKey, Delivery, FailReason, MessageId, Scope, Timestamp,
};
use einmal_kafka::{DeadLetterTopic, KafkaDeadLetters};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer};

use crate::support::{Cluster, Member, PATIENCE, TOPIC};

const LETTERS: &str = "orders.dead-letter";

type Text = Option<&'static [u8]>;

/// Key, payload, headers.
type Message = (Text, Text, &'static [(&'static str, Text)]);

/// The same, as received.
type Received = (Option<Bytes>, Option<Bytes>, Vec<(String, Option<Bytes>)>);

const MESSAGES: [Message; 4] = [
    (
        Some(b"k\xff"),
        Some(b"\x00payload\xfe"),
        &[
            ("id", Some(b"1")),
            ("ID", Some(b"\xff\xfe")),
            ("id", None),
            ("id", Some(b"")),
            ("einmal-x", Some(b"old")),
        ],
    ),
    (None, None, &[]),
    (Some(b""), Some(b""), &[]),
    (Some(b"k"), None, &[]),
];

fn parts(delivery: &Delivery) -> Received {
    let headers = delivery.headers().iter().map(|(name, value)| (name.to_string(), value.clone()));
    (delivery.key().cloned(), delivery.payload().cloned(), headers.collect())
}

#[tokio::test]
async fn every_byte_comes_through_and_goes_on_to_the_dead_letters() {
    let cluster = Cluster::new(1);
    cluster.mock.create_topic(LETTERS, 1, 1).unwrap();
    for (key, payload, headers) in MESSAGES {
        let mut record: BaseRecord<'_, [u8], [u8]> =
            BaseRecord::to(TOPIC).partition(0).timestamp(1_700_000_000_123);
        (record.key, record.payload) = (key, payload);
        if !headers.is_empty() {
            let all = headers
                .iter()
                .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: *value }));
            record.headers = Some(all);
        }
        cluster.producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    cluster.producer.flush(PATIENCE).unwrap();

    let mut member = cluster.start(cluster.config("content"));
    let letters = KafkaDeadLetters::new(&cluster.client(), DeadLetterTopic::default()).unwrap();
    let taken = member.take(MESSAGES.len()).await;
    let last_at = Timestamp::from_micros(9);
    for (incoming, (key, payload, headers)) in taken.iter().zip(MESSAGES) {
        let own = |text: Text| text.map(Bytes::from_static);
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), own(*value))).collect::<Vec<_>>();
        assert_eq!(parts(&incoming.delivery), (own(key), own(payload), headers));
        assert_eq!(incoming.delivery.sent_at(), Some(Timestamp::from_micros(1_700_000_000_123_000)));
        let letter = DeadLetter::of_message(incoming.delivery.clone(), DeadLetterReason::Conflict, last_at);
        letters.publish(letter).await.unwrap();
    }
    let key = DedupKey::new(Scope::new("s").unwrap(), MessageId::new("\u{e9}1").unwrap());
    let reason = FailReason::Rejected("not today".to_owned());
    let letter = DeadLetter::of_operation(taken[0].delivery.clone(), key, Fence::default(), reason, last_at)
        .with_history(3, Timestamp::from_micros(5));
    let id = letter.id.clone();
    letters.publish(letter).await.unwrap();
    taken.into_iter().for_each(|incoming| incoming.ack.settle());
    member.close().await;

    // Confirmed is there: all five can be read.
    let mut reader = reader(&cluster);
    let read = reader.take(MESSAGES.len() + 1).await;
    for (letter, (key, payload, _)) in read.iter().zip(MESSAGES) {
        assert_eq!(letter.delivery.key().map(AsRef::as_ref), key);
        assert_eq!(
            letter.delivery.payload().map(AsRef::as_ref),
            payload,
            "none stays none, empty stays empty"
        );
        assert_ne!(letter.delivery.sent_at(), Some(Timestamp::from_micros(1_700_000_000_123_000)));
    }
    let text = |name: &str, value: &str| (name.to_owned(), Some(Bytes::copy_from_slice(value.as_bytes())));
    let (_, _, headers) = parts(&read[4].delivery);
    assert_eq!(
        headers,
        [
            text("id", "1"),
            ("ID".to_owned(), Some(Bytes::from_static(b"\xff\xfe"))),
            ("id".to_owned(), None),
            text("id", ""),
            text("einmal-letter-id", &id),
            text("einmal-reason", "rejected"),
            text("einmal-detail", "not today"),
            text("einmal-scope", "s"),
            text("einmal-id", "\u{e9}1"),
            text("einmal-topic", "orders"),
            text("einmal-partition", "0"),
            text("einmal-offset", "0"),
            text("einmal-attempts", "3"),
            text("einmal-sent-at", "1700000000123000"),
            text("einmal-first-at", "5"),
            text("einmal-last-at", "9"),
        ]
    );
    reader.close().await;

    // Not confirmed is an error, within the bound and without a panic.
    let mut client = cluster.client();
    client.set("delivery.timeout.ms", "1000");
    let letters = KafkaDeadLetters::new(&client, DeadLetterTopic::Fixed("no.such.topic".to_owned())).unwrap();
    cluster.mock.broker_down(-1).unwrap();
    let letter = DeadLetter::of_message(read[0].delivery.clone(), DeadLetterReason::Conflict, last_at);
    let error =
        tokio::time::timeout(PATIENCE, letters.publish(letter)).await.expect("an answer").unwrap_err();
    assert!(error.to_string().contains("no.such.topic"), "{error}");
}

fn reader(cluster: &Cluster) -> Member {
    let mut client = cluster.client();
    client.set("group.id", "reader").set("session.timeout.ms", "4000");
    cluster.start(einmal_kafka::KafkaConfig::builder(client).topics([LETTERS]).drain(Duration::from_secs(1)))
}
