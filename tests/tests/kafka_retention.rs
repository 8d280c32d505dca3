//! Rule 11: a worker whose outcomes are forgotten before the broker's messages says so at its start.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

use std::time::Duration;

use einmal::Policy;
use einmal_kafka::{KafkaConfig, KafkaWorker};
use einmal_tests::kafka::{Topic, until};
use einmal_tests::kafka_worker::Running;
use einmal_tests::logs::Logs;
use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;

const WARNING: &str = "runs again. Give the worker's policy";

fn worker_of(config: KafkaConfig) -> Running {
    let policy = Policy::builder().retention(Duration::from_secs(3_600)).build().unwrap();
    Running::counting(KafkaWorker::builder(config).policy(policy)).unwrap().0
}

#[tokio::test]
async fn topics_that_keep_messages_longer_than_outcomes_are_warned_of_once() {
    let logs = Logs::keep();
    let kinds: [(&str, &[(&str, &str)]); 6] = [
        ("longer", &[("retention.ms", "3600001")]),
        ("no-limit", &[("retention.ms", "-1")]),
        ("compact", &[("cleanup.policy", "compact"), ("retention.ms", "1000")]),
        // A week.
        ("broker-default", &[]),
        ("as-long", &[("retention.ms", "3600000")]),
        ("both", &[("cleanup.policy", "compact,delete"), ("retention.ms", "1800000")]),
    ];
    let mut topics = Vec::new();
    for (kind, settings) in kinds {
        let name = format!("topics_that_keep_messages_longer_than_outcomes_are_warned_of_once-{kind}");
        let Some(topic) = Topic::for_test(&name, 2, settings).await.unwrap() else { return };
        topics.push(topic);
    }
    let [longer, no_limit, compact, default, as_long, both] = &topics[..] else { panic!() };
    let names = topics.iter().map(|topic| topic.name.clone());
    let config = KafkaConfig::builder(longer.member()).topics(names).drain(Duration::from_secs(3));
    let worker = worker_of(config.build().unwrap());
    let warnings = |topic: &Topic| logs.lines(&["WARN", WARNING, &topic.name]);
    let accepted = |topic: &Topic| logs.lines(&["DEBUG", "no longer than outcomes", &topic.name]);

    // Past the assignment, which names the topics again.
    longer.produce(0..4).unwrap();
    worker.until_committed(longer, &[2, 2]).await.unwrap();
    until("a word on each topic", || {
        Ok(topics.iter().all(|topic| warnings(topic).len() + accepted(topic).len() > 0))
    })
    .await
    .unwrap();
    worker.stop().await.unwrap();
    for (topic, says) in [
        (longer, "keeps messages for 3600.001s"),
        (no_limit, "keeps messages for ever"),
        (compact, "keeps messages for ever"),
        (default, "keeps messages for 604800s"),
    ] {
        let warnings = warnings(topic);
        assert!(warnings.len() == 1 && warnings[0].contains(says), "{says}: {warnings:?}");
        assert!(warnings[0].contains("outcomes are remembered for 3600s"), "{warnings:?}");
    }
    for topic in [as_long, both] {
        assert_eq!(warnings(topic), Vec::<String>::new());
    }
}

#[tokio::test]
async fn topics_that_a_pattern_finds_are_warned_of_too() {
    let logs = Logs::keep();
    let test = "topics_that_a_pattern_finds_are_warned_of_too";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let pattern = format!("^{}$", topic.name);
    let config = KafkaConfig::builder(topic.member()).topics([pattern]).drain(Duration::from_secs(3));
    let worker = worker_of(config.build().unwrap());
    until("the warning", || Ok(!logs.lines(&["WARN", WARNING, &topic.name]).is_empty())).await.unwrap();
    worker.stop().await.unwrap();
}

/// The mock knows no settings of topics.
#[tokio::test]
async fn a_broker_that_does_not_tell_holds_nothing_up() {
    let logs = Logs::keep();
    let mock = MockCluster::new(1).unwrap();
    let name = format!("a_broker_that_does_not_tell_holds_nothing_up-{:016x}", rand::random::<u64>());
    mock.create_topic(&name, 1, 1).unwrap();
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", mock.bootstrap_servers()).set("group.id", "g");
    let worker = worker_of(KafkaConfig::builder(client).topics([&name]).build().unwrap());
    until("a word", || Ok(!logs.lines(&["INFO", "does not tell how long", &name]).is_empty())).await.unwrap();
    assert!(worker.worker().health().read().live);
    worker.stop().await.unwrap();
}
