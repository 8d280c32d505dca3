//! Members of one group come, go and die in one process, on one store, while messages keep coming.

use std::collections::VecDeque;
use std::time::Duration;

use async_trait::async_trait;
use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, Policy, Reply, SledConfig, SledStore, SledTx, TxHandler};
use einmal_kafka::KafkaWorker;
use einmal_tests::kafka::Topic;
use einmal_tests::kafka_worker::{Running, Runs};
use einmal_tests::log_broker::id_of;

const PARTITIONS: usize = 6;
const INCARNATIONS: usize = 20;
const MESSAGES: usize = 10_000;
const AT_ONCE: usize = 3;

/// Writes a row in the outcome's transaction.
struct Row(Runs);

#[async_trait]
impl TxHandler<SledStore> for Row {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        let id = context.key().id().as_str();
        self.0.note(id);
        let rows = tx.get("rows", id.as_bytes())?.map_or(0, |row| row[0]);
        tx.put("rows", id.as_bytes(), [rows + 1])?;
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(Reply::none())
    }
}

fn join(topic: &Topic, strategy: &str, lease: Duration, store: &SledStore, runs: &Runs) -> Running {
    let mut client = topic.member();
    client.set("partition.assignment.strategy", strategy);
    let policy = Policy::builder().lease(lease).build().unwrap();
    let worker = KafkaWorker::builder(topic.config(client).build().unwrap())
        .policy(policy)
        .worker(WorkerConfig { lanes: Lanes::Key, ..WorkerConfig::default() })
        .dead_letters(None)
        .build_in_tx(store.clone(), Row(runs.clone()))
        .unwrap();
    Running::start(worker)
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

/// Each new member is waited for until it has settled something, and meanwhile the oldest leaves; every
/// `dying`-th is dropped instead, with work in flight.
async fn come_and_go(test: &str, strategy: &str, dying: usize) {
    let Some(topic) = Topic::for_test(test, PARTITIONS, &[]).await.unwrap() else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = SledStore::open(SledConfig::new(directory.path().join("store")).unwrap()).await.unwrap();
    let runs = Runs::default();
    // Who dies holds its claims so long; nobody else may lose a lease.
    let lease = Duration::from_secs(if dying > INCARNATIONS { 30 } else { 5 });
    let (mut before, mut produced, mut deaths, mut cut_off) = (vec![0; PARTITIONS], 0, 0, 0);
    let mut members = VecDeque::new();
    for nth in 1..=INCARNATIONS {
        let member = join(&topic, strategy, lease, &store, &runs);
        let settled = member.until("a settle by the newest member", || {
            topic.produce(produced..produced + 120)?;
            produced += 120;
            check(&topic, &store, &mut before);
            let summary = member.worker().summary();
            Ok(summary.ran_ok + summary.duplicate > 0)
        });
        settled.await.unwrap();
        members.push_back(member);
        if nth % dying == 0 {
            // The youngest dies: it is the one that surely has work.
            let member = members.pop_back().unwrap();
            let busy = member.until("work in flight", || {
                topic.produce(produced..produced + 120)?;
                produced += 120;
                Ok(member.worker().summary().in_flight > 0)
            });
            busy.await.unwrap();
            cut_off += member.abandon().await;
            deaths += 1;
        } else if members.len() > AT_ONCE {
            members.pop_front().unwrap().stop().await.unwrap();
        }
        check(&topic, &store, &mut before);
    }
    // A multiple of the partitions, so that all end alike.
    let total = produced.max(MESSAGES).next_multiple_of(PARTITIONS);
    topic.produce(produced..total).unwrap();
    let last = members.back().unwrap();
    let all = last.until("the commit of everything", || {
        check(&topic, &store, &mut before);
        Ok(before.iter().sum::<usize>() == total)
    });
    all.await.unwrap();
    for member in members {
        member.stop().await.unwrap();
    }
    check(&topic, &store, &mut before);
    assert_eq!(before, vec![total / PARTITIONS; PARTITIONS]);

    let rows = store.view("rows").unwrap();
    for number in 0..total {
        let id = id_of(number);
        assert_eq!(rows.get(id.as_bytes()).unwrap().as_deref(), Some(&[1][..]), "{id} has not one row");
    }
    let again = runs.again() as u64;
    assert!(again <= cut_off, "{again} runs again, and deaths cut off {cut_off} deliveries");
    store.close().await.unwrap();
    println!(
        "{strategy}: {INCARNATIONS} members settled something, {deaths} died with {cut_off} deliveries in flight; \
         {total} messages, {} ids, each once, {again} runs again",
        runs.ids()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_14_members_come_and_go_in_an_eager_group() {
    let test = "scenario_14_members_come_and_go_in_an_eager_group";
    come_and_go(test, "range", usize::MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_14_members_come_and_go_in_a_cooperative_group() {
    let test = "scenario_14_members_come_and_go_in_a_cooperative_group";
    come_and_go(test, "cooperative-sticky", usize::MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_die_leave_their_work_to_the_others_eager() {
    let test = "members_that_die_leave_their_work_to_the_others_eager";
    come_and_go(test, "range", 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_die_leave_their_work_to_the_others_cooperative() {
    let test = "members_that_die_leave_their_work_to_the_others_cooperative";
    come_and_go(test, "cooperative-sticky", 3).await;
}
