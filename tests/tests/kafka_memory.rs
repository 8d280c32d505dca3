//! A message that does not end, with a million behind it, and the memory that takes. A program of its own, so that
//! no other test's memory is measured.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, IdSource, Identify, MemoryStore};
use einmal_kafka::KafkaWorker;
use einmal_tests::kafka::Topic;
use einmal_tests::kafka_worker::Running;
use tokio_util::sync::CancellationToken;

/// A million wait on the broker, and not in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_message_holds_back_its_partition_within_a_bound_and_no_other() {
    const BEHIND: usize = 1_000_000;
    const OTHERS: usize = 60_000;
    const SPAN: usize = 1_000;
    // The client's own queue holds up to 64 MiB, whatever its messages are; what Einmal holds is little next to it.
    const ROOM_KIB: usize = 160 * 1_024;
    let test = "a_stuck_message_holds_back_its_partition_within_a_bound_and_no_other";
    let Some(topic) = Topic::for_test(test, 2, &[]).await.unwrap() else { return };
    topic.fill(0, BEHIND, 100).unwrap();
    topic.fill(1, OTHERS, 100).unwrap();

    let (release, behind) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (release, behind) = (release.clone(), behind.clone());
        move |context: Context| {
            let (release, behind) = (release.clone(), behind.clone());
            async move {
                let position = context.delivery().position();
                if position.partition() == Some(0) {
                    behind.fetch_add(1, Ordering::SeqCst);
                    if position.offset() == Some(0) {
                        release.cancelled().await;
                    }
                }
                Ok::<(), Failure>(())
            }
        }
    };
    let config = topic.config(topic.member()).max_span(SPAN).build().unwrap();
    let worker = KafkaWorker::builder(config)
        .identify(Identify::new([IdSource::Position]))
        .worker(WorkerConfig { lanes: Lanes::None, ..WorkerConfig::default() })
        .dead_letters(None)
        .build(MemoryStore::default(), handler)
        .unwrap();
    let before = resident_kib();
    let running = Running::start(worker);
    let mut most = 0;
    let others = running.until("the end of the other partition", || {
        most = most.max(resident_kib());
        Ok(topic.committed()? == [0, OTHERS])
    });
    others.await.unwrap();
    let ran = behind.load(Ordering::SeqCst);
    assert!(ran <= SPAN, "{ran} ran of the stuck one's partition");
    println!("{ran} of {BEHIND} ran behind the stuck one; {before} KiB resident before, {most} at most");
    assert!(most < before + ROOM_KIB, "{before} KiB resident before, {most} at most");
    release.cancel();
    running.until("the partition to go on", || Ok(topic.committed()?[0] > 50 * SPAN)).await.unwrap();
    running.stop().await.unwrap();
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse().unwrap_or_default()
}
