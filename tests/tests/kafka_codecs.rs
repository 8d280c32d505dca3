//! A codec that not every build of the client has, on the real broker. Which of the two tests runs is up to the
//! features of this build; `cargo xtask test --services` runs both.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

use einmal_tests::kafka::Topic;
use einmal_tests::kafka_worker::{Running, ids_of};

/// Has the broker compress what comes from now on.
async fn compress(topic: &Topic, codec: &str) {
    use einmal_tests::kafka::options;
    use rdkafka::admin::{AlterConfig, ResourceSpecifier};
    let change = AlterConfig::new(ResourceSpecifier::Topic(&topic.name)).set("compression.type", codec);
    let answers = topic.admin().unwrap().alter_configs([&change], &options()).await.unwrap();
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

#[cfg(feature = "secure")]
#[tokio::test]
async fn zstd_comes_through_with_its_feature() {
    let test = "zstd_comes_through_with_its_feature";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let mut client = topic.client();
    client.set("compression.type", "zstd").set("linger.ms", "20");
    let more = " as before".repeat(20);
    topic.produce_with(&client, 0..500, &more).unwrap();
    compress(&topic, "zstd").await;
    topic.produce_with(&topic.client(), 1_000..1_100, &more).unwrap();
    let (worker, runs) = Running::by_header(&topic).unwrap();
    worker.until_committed(&topic, &[600]).await.unwrap();
    assert_eq!(runs.once().unwrap(), ids_of((0..500).chain(1_000..1_100)));
    worker.stop().await.unwrap();
}

/// Rule 8 with a batch that can't be read: it is said, and nothing is committed past it.
#[cfg(not(feature = "secure"))]
#[tokio::test]
async fn zstd_without_its_feature_is_said_and_not_passed_over() {
    use einmal_tests::kafka::until;
    use einmal_tests::kafka_worker::sorted;
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let recorder = DebuggingRecorder::new();
    let metrics = recorder.snapshotter();
    recorder.install().unwrap();
    let mut read_again = 0;
    let mut read_again_until = |least: u64| {
        let all = metrics.snapshot().into_vec();
        for (key, _, _, value) in all {
            if let (einmal_kafka::names::UNREADABLE, DebugValue::Counter(count)) = (key.key().name(), value) {
                // A snapshot takes the count away.
                read_again += count;
            }
        }
        Ok(read_again >= least)
    };

    let test = "zstd_without_its_feature_is_said_and_not_passed_over";
    let Some(topic) = Topic::for_test(test, 2, &[]).await.unwrap() else { return };
    // Numbers go to the partitions by turns, those of the first are even.
    topic.produce(0..20).unwrap();
    let (worker, runs) = Running::by_header(&topic).unwrap();
    worker.until_committed(&topic, &[10, 10]).await.unwrap();
    compress(&topic, "zstd").await;
    (20..30).step_by(2).for_each(|even| topic.produce(even..even + 1).unwrap());
    let said = worker.until_trouble("the feature `zstd` of einmal-kafka").await.unwrap();
    assert!(said.contains(" at 10 "), "{said}");
    compress(&topic, "uncompressed").await;
    topic.produce(30..50).unwrap();
    // The other partition goes on, and the trouble stays: the client keeps trying.
    worker.until_committed(&topic, &[10, 20]).await.unwrap();
    until("further attempts", || read_again_until(3)).await.unwrap();
    worker.until_trouble("the feature `zstd` of einmal-kafka").await.unwrap();
    assert_eq!(topic.committed().unwrap(), [10, 20]);
    let odd = (30..50).filter(|number| number % 2 == 1);
    assert_eq!(runs.once().unwrap(), sorted(ids_of((0..20).chain(odd))));
    worker.stop().await.unwrap();
    assert_eq!(topic.committed().unwrap(), [10, 20]);
}
