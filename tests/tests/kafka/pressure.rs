//! Handlers that take longer than the group's patience.

use std::time::Duration;

use einmal::worker::{Ack, HealthCell, Source};
use einmal_kafka::KafkaConsumer;
use einmal_tests::kafka::{PATIENCE, Topic, until};

/// The consumer is polled on, whatever the handler does.
#[tokio::test]
async fn a_handler_longer_than_the_poll_interval_keeps_its_partition() {
    let test = "a_handler_longer_than_the_poll_interval_keeps_its_partition";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..2).unwrap();
    let mut client = topic.member();
    client.set("max.poll.interval.ms", "6500");
    let config = topic.config(client).build().unwrap();
    let (mut source, consumer) = KafkaConsumer::start(&config, HealthCell::default()).unwrap();
    let first = tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap();
    // The handler. How long it takes is the point.
    tokio::time::sleep(Duration::from_millis(9_000)).await;
    assert!(!first.assignment.closing.is_cancelled(), "the partition was given away");
    first.ack.settle();
    until("the commit", || Ok(topic.committed()? == [1])).await.unwrap();
    drop(source);
    consumer.close().await.unwrap();
}

/// So it is while nobody takes anything and its queue is full, with more waiting on the broker.
#[tokio::test]
async fn a_full_queue_for_longer_than_the_poll_interval_keeps_the_partition() {
    let test = "a_full_queue_for_longer_than_the_poll_interval_keeps_the_partition";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..20).unwrap();
    let mut client = topic.member();
    client.set("max.poll.interval.ms", "6500");
    let config = topic.config(client).queue(2, 1 << 20).build().unwrap();
    let (mut source, consumer) = KafkaConsumer::start(&config, HealthCell::default()).unwrap();
    let mut taken = vec![tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap()];
    // Nothing is taken. How long is the point.
    tokio::time::sleep(Duration::from_millis(9_000)).await;
    assert!(!taken[0].assignment.closing.is_cancelled(), "the partition was given away");
    for number in 1..20 {
        let next = tokio::time::timeout(PATIENCE, source.next()).await.unwrap().unwrap();
        assert_eq!(next.delivery.position().offset(), Some(number), "on where it was");
        taken.push(next);
    }
    taken.into_iter().for_each(|incoming| incoming.ack.settle());
    until("the commit", || Ok(topic.committed()? == [20])).await.unwrap();
    drop(source);
    consumer.close().await.unwrap();
}
