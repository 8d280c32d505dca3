//! Members of one group come and go in one process, on one store, while messages keep coming.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test says what is wrong by failing"
)]

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use einmal::worker::{Lanes, Summary, WorkerConfig};
use einmal::{Context, Failure, Reply, SledConfig, SledStore, SledTx, TxHandler};
use einmal_kafka::{KafkaWorker, KafkaWorkerError};
use einmal_tests::kafka::{Topic, until};
use einmal_tests::log_broker::id_of;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PARTITIONS: usize = 6;
const INCARNATIONS: usize = 20;
const MESSAGES: usize = 10_000;
const AT_ONCE: usize = 3;

type Runs = Arc<Mutex<HashMap<String, usize>>>;

/// Writes a row in the outcome's transaction.
struct Row(Runs);

#[async_trait]
impl TxHandler<SledStore> for Row {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        let id = context.key().id().as_str();
        *self.0.lock().unwrap().entry(id.to_owned()).or_default() += 1;
        let rows = tx.get("rows", id.as_bytes())?.map_or(0, |row| row[0]);
        tx.put("rows", id.as_bytes(), [rows + 1])?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(Reply::none())
    }
}

struct Member {
    worker: Arc<KafkaWorker>,
    shutdown: CancellationToken,
    work: JoinHandle<Result<Summary, KafkaWorkerError>>,
}

impl Member {
    fn join(topic: &Topic, strategy: &str, store: &SledStore, runs: &Runs) -> Self {
        let mut client = topic.member();
        client.set("partition.assignment.strategy", strategy);
        let worker = KafkaWorker::builder(topic.config(client).build().unwrap())
            .worker(WorkerConfig { lanes: Lanes::Key, ..WorkerConfig::default() })
            .dead_letters(None)
            .build_in_tx(store.clone(), Row(runs.clone()))
            .unwrap();
        let (worker, shutdown) = (Arc::new(worker), CancellationToken::new());
        let (running, stop) = (worker.clone(), shutdown.clone());
        let work = tokio::spawn(async move { running.run(stop).await });
        Self { worker, shutdown, work }
    }

    fn has_settled(&self) -> bool {
        assert!(!self.work.is_finished(), "a member ended by itself");
        let summary = self.worker.summary();
        summary.ran_ok + summary.duplicate > 0
    }

    async fn leave(self) {
        self.shutdown.cancel();
        self.work.await.unwrap().unwrap();
    }
}

/// Whatever is committed has its row, and no offset goes back.
fn check(topic: &Topic, store: &SledStore, before: &mut [usize]) {
    let committed = topic.committed().unwrap();
    let rows = store.view("rows").unwrap();
    for (partition, end) in committed.into_iter().enumerate() {
        assert!(
            before[partition] <= end,
            "partition {partition} went back from {} to {end}",
            before[partition]
        );
        for offset in before[partition]..end {
            let id = id_of(offset * PARTITIONS + partition);
            assert!(rows.get(id.as_bytes()).unwrap().is_some(), "{id} is committed without a row");
        }
        before[partition] = end;
    }
}

async fn come_and_go(test: &str, strategy: &str) {
    let Some(topic) = Topic::for_test(test, PARTITIONS, &[]).await.unwrap() else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = SledStore::open(SledConfig::new(directory.path().join("store")).unwrap()).await.unwrap();
    let runs = Runs::default();
    let (mut before, mut produced, mut settled) = (vec![0; PARTITIONS], 0, 0);
    let mut members = VecDeque::new();
    while settled < INCARNATIONS {
        members.push_back(Member::join(&topic, strategy, &store, &runs));
        until("a settle by the newest member", || {
            topic.produce(produced..produced + 120)?;
            produced += 120;
            check(&topic, &store, &mut before);
            Ok(members.back().unwrap().has_settled())
        })
        .await
        .unwrap();
        settled += 1;
        if members.len() > AT_ONCE {
            members.pop_front().unwrap().leave().await;
            check(&topic, &store, &mut before);
        }
    }
    // A multiple of the partitions, so that all end alike.
    let total = produced.max(MESSAGES).next_multiple_of(PARTITIONS);
    topic.produce(produced..total).unwrap();
    until("the commit of everything", || {
        check(&topic, &store, &mut before);
        Ok(before.iter().sum::<usize>() == total)
    })
    .await
    .unwrap();
    for member in members {
        member.leave().await;
    }
    check(&topic, &store, &mut before);
    assert_eq!(before, vec![total / PARTITIONS; PARTITIONS]);

    let rows = store.view("rows").unwrap();
    let runs = runs.lock().unwrap().clone();
    for number in 0..total {
        let id = id_of(number);
        assert_eq!(rows.get(id.as_bytes()).unwrap().as_deref(), Some(&[1][..]), "{id} has not one row");
        assert_eq!(runs[&id], 1, "{id} did not run once");
    }
    store.close().await.unwrap();
    println!(
        "{strategy}: {settled} members settled something; {total} messages, {} ids, each once",
        runs.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_in_an_eager_group() {
    come_and_go("members_come_and_go_in_an_eager_group", "range").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_in_a_cooperative_group() {
    come_and_go("members_come_and_go_in_a_cooperative_group", "cooperative-sticky").await;
}
