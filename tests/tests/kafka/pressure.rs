//! Handlers that take longer than the group's patience, and a message that does not end, on the real broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use einmal::worker::{Ack, HealthCell, Lanes, Source, WorkerConfig};
use einmal::{Context, Failure, MemoryStore};
use einmal_kafka::{KafkaConsumer, KafkaWorker};
use einmal_tests::kafka::{PATIENCE, Topic, until};
use tokio_util::sync::CancellationToken;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_message_holds_back_its_partition_within_a_bound_and_no_other() {
    const MESSAGES: usize = 60_000;
    const SPAN: usize = 1_000;
    let test = "a_stuck_message_holds_back_its_partition_within_a_bound_and_no_other";
    let Some(topic) = Topic::for_test(test, 2, &[]).await.unwrap() else { return };
    topic.produce_with(&topic.client(), 0..MESSAGES, &"x".repeat(1_000)).unwrap();

    let (release, behind) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (release, behind) = (release.clone(), behind.clone());
        move |context: Context| {
            let (release, behind) = (release.clone(), behind.clone());
            async move {
                if context.delivery().position().partition() == Some(0) {
                    behind.fetch_add(1, Ordering::SeqCst);
                }
                if context.key().id().as_str() == "m0" {
                    release.cancelled().await;
                }
                Ok::<(), Failure>(())
            }
        }
    };
    let config = topic.config(topic.member()).max_span(SPAN).build().unwrap();
    let worker = KafkaWorker::builder(config)
        .worker(WorkerConfig { lanes: Lanes::None, ..WorkerConfig::default() })
        .dead_letters(None)
        .build(MemoryStore::default(), handler)
        .unwrap();
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    let work = tokio::spawn(async move { worker.run(stop).await });

    until("the end of the other partition", || Ok(topic.committed()? == [0, MESSAGES / 2])).await.unwrap();
    let ran = behind.load(Ordering::SeqCst);
    assert!(ran <= SPAN, "{ran} ran of the stuck one's partition");
    println!("{ran} of {} messages ran behind the stuck one; {} KiB resident", MESSAGES / 2, resident());
    release.cancel();
    until("the commit of everything", || Ok(topic.committed()? == [MESSAGES / 2; 2])).await.unwrap();
    println!("{} KiB resident at the end", resident());
    shutdown.cancel();
    work.await.unwrap().unwrap();
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("?");
    line.trim().trim_end_matches("kB").trim().to_owned()
}
