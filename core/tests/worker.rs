//! The worker over a channel and the reference store.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "a test says what is wrong by failing"
)]

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use einmal::worker::{Ack, Assignment, Incoming, Lanes, Worker, WorkerConfig};
use einmal::{
    Context, Delivery, Failure, IdSource, Idempotent, Identify, MemoryStore, Position, Scope, Settings,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

struct Count(Arc<AtomicUsize>);

impl Ack for Count {
    fn settle(self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn delivery(partition: i32, offset: i64, id: u64) -> Delivery {
    Delivery::new(Position::in_log("t", partition, offset), Some(Bytes::from(format!("payload of {id}"))))
        .with_key(Some(Bytes::from(format!("key {}", id % 7))))
        .with_headers(vec![("message-id".into(), Some(Bytes::from(id.to_string())))])
}

const fn id_of(at: u64) -> u64 {
    if at % 10 < 3 { at / 2 } else { at }
}

async fn every_id_runs_once(lanes: Lanes) {
    const COUNT: u64 = 6000;
    let runs: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let seen = Arc::clone(&runs);
    let handler = move |context: Context| {
        let seen = Arc::clone(&seen);
        async move {
            tokio::task::yield_now().await;
            *seen.lock().unwrap().entry(context.key().id().as_str().to_owned()).or_default() += 1;
            Ok::<_, Failure>(())
        }
    };
    let settings =
        Settings::new(Scope::new("test").unwrap()).identify(Identify::new([IdSource::header("message-id")]));
    let idempotent = Idempotent::new(MemoryStore::default(), handler, settings).unwrap();
    let worker = Worker::new(&idempotent, WorkerConfig { lanes, ..WorkerConfig::default() }).unwrap();
    let (send, receive) = mpsc::channel(64);
    let settled = Arc::new(AtomicUsize::new(0));
    let acks = Arc::clone(&settled);
    let producer = tokio::spawn(async move {
        for at in 0..COUNT {
            let delivery = delivery((at % 5) as i32, (at / 5) as i64, id_of(at));
            let ack = Count(Arc::clone(&acks));
            send.send(Incoming { delivery, assignment: Assignment::default(), ack }).await.unwrap();
        }
    });
    let summary = worker.run(receive, CancellationToken::new()).await.unwrap();
    producer.await.unwrap();
    let distinct = (0..COUNT).map(id_of).collect::<HashSet<_>>().len() as u64;
    let runs = runs.lock().unwrap();
    assert_eq!(runs.len() as u64, distinct);
    assert!(runs.values().all(|count| *count == 1));
    assert_eq!(settled.load(Ordering::Relaxed) as u64, COUNT);
    assert_eq!((summary.received, summary.in_flight), (COUNT, 0));
    assert_eq!((summary.ran_ok, summary.duplicate), (distinct, COUNT - distinct));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_runs_once_by_partition() {
    every_id_runs_once(Lanes::Partition).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_runs_once_by_key() {
    every_id_runs_once(Lanes::Key).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_runs_once_without_order() {
    every_id_runs_once(Lanes::None).await;
}
