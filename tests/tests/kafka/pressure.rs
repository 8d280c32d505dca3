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
