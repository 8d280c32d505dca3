//! What is stored, what is committed, and in which order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, IdSource, Identify, MemoryStore};
use einmal_kafka::KafkaWorker;
use einmal_services::{Service, address_or_skip, skip};
use einmal_testkit::FaultyStore;
use einmal_tests::kafka::Topic;
use einmal_tests::kafka_broker::{NONE_OF_ITS_OWN, OwnBroker};
use einmal_tests::kafka_worker::{Running, Runs};
use einmal_tests::log_broker::id_of;
use einmal_tests::trial::{Trial, wait_while};
use tokio::sync::RwLock;

fn config(lanes: Lanes) -> WorkerConfig {
    WorkerConfig { lanes, ..WorkerConfig::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_10_while_the_store_is_down_nothing_is_committed_and_intake_pauses() {
    const MESSAGES: usize = 10_000;
    let test = "scenario_10_while_the_store_is_down_nothing_is_committed_and_intake_pauses";
    let Some(topic) = Topic::for_test(test, 4, &[]).await.unwrap() else { return };
    topic.produce(0..MESSAGES).unwrap();
    let (runs, store) = (Runs::default(), FaultyStore::new(MemoryStore::default()));
    let faults = store.faults();
    let handler = {
        let runs = runs.clone();
        move |context: Context| {
            runs.note(context.key().id().as_str());
            // So slow that much is left when the store goes down.
            async {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Ok::<(), Failure>(())
            }
        }
    };
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
        .worker(config(Lanes::Partition))
        .dead_letters(None)
        .build(store, handler)
        .unwrap();
    let running = Running::start(worker);
    let committed = || topic.committed().map(|all| all.iter().sum::<usize>());
    running.until("some commits", || Ok(committed()? > 400)).await.unwrap();

    faults.down(true);
    let health = running.worker().health();
    running.until("a word that the store is down", || Ok(!health.read().ready)).await.unwrap();
    let failed = faults.total();
    // What was stored before is committed by now: the store is asked again and again meanwhile.
    running.until("some more tries", || Ok(faults.total() > failed + 20)).await.unwrap();
    let (received, settled) = (running.worker().summary().received, committed().unwrap());
    running.until("many more tries", || Ok(faults.total() > failed + 60)).await.unwrap();
    assert_eq!(running.worker().summary().received, received, "intake pauses");
    assert_eq!(committed().unwrap(), settled, "nothing is settled");
    assert!(settled < MESSAGES, "the store went down too late");

    faults.down(false);
    running.until_committed(&topic, &[MESSAGES / 4; 4]).await.unwrap();
    running.until("good health", || Ok(health.read().ready)).await.unwrap();
    assert_eq!(runs.once().unwrap().len(), Trial::distinct(MESSAGES), "each once, none lost");
    let summary = running.stop().await.unwrap();
    assert_eq!((summary.ran_ok + summary.duplicate, summary.unsettled), (MESSAGES as u64, 0), "{summary:?}");
}

/// Offset 10 stalls, what comes after it is done, and the process is killed.
#[tokio::test]
async fn scenario_11_a_stalled_message_is_delivered_again_and_what_came_after_it_is_not_run() {
    const MESSAGES: usize = 21;
    let test = "scenario_11_a_stalled_message_is_delivered_again_and_what_came_after_it_is_not_run";
    for lanes in ["none", "key"] {
        let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
        topic.produce(0..MESSAGES).unwrap();
        let source = format!("{}/{}", topic.brokers, topic.name);
        let trial = Trial::new(env!("CARGO_BIN_EXE_kill-worker"), source, MESSAGES, lanes, "inbox").unwrap();
        std::fs::write(trial.place.stalled(), id_of(10)).unwrap();
        let mut child = trial.spawn(None).unwrap();
        let _stdin = child.stdin.take();
        wait_while(&mut child, "all but the stalled one", || {
            Ok(trial.place.read_settled()?.len() == MESSAGES - 1 && topic.committed()? == [10])
        })
        .unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(topic.committed().unwrap(), [10], "up to the stalled one, and no further");

        std::fs::remove_file(trial.place.stalled()).unwrap();
        let mut second = trial.spawn(None).unwrap();
        wait_while(&mut second, "everything", || Ok(topic.committed()? == [MESSAGES])).unwrap();
        drop(second.stdin.take());
        assert!(second.wait().unwrap().success());
        let mut runs: HashMap<String, usize> = HashMap::new();
        for start in trial.place.read_starts().unwrap() {
            *runs.entry(start.id).or_default() += 1;
        }
        for number in 0..MESSAGES {
            let id = id_of(number);
            assert_eq!(runs[&id], if number == 10 { 2 } else { 1 }, "{id}, {lanes}");
        }
        trial.all_done_once(1).unwrap();
    }
}

/// Commits are not answered for long, later ones are, and then the group forms anew. (The client itself may send
/// those again when it is back; what a commit that is refused does is shown on the mock.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_15_a_commit_that_fails_never_takes_a_later_one_back() {
    let test = "scenario_15_a_commit_that_fails_never_takes_a_later_one_back";
    if address_or_skip(Service::Kafka, test).is_none() {
        return;
    }
    let Some(broker) = OwnBroker::start().await.unwrap() else {
        return skip(test, Service::Kafka, NONE_OF_ITS_OWN);
    };
    let topic = Topic::create(broker.proxy.address().to_string(), test, 2, &[]).await.unwrap();
    let gate = Arc::new(RwLock::new(()));
    let join = || {
        let mut client = topic.member();
        client.set("socket.timeout.ms", "1500").set("session.timeout.ms", "20000");
        let config = topic.config(client).commit_trouble_after(Duration::from_secs(1)).build().unwrap();
        let gate = Arc::clone(&gate);
        let handler = move |_: Context| {
            let gate = Arc::clone(&gate);
            async move {
                drop(gate.read().await);
                Ok::<(), Failure>(())
            }
        };
        let worker = KafkaWorker::builder(config).dead_letters(None);
        Running::start(worker.build(MemoryStore::default(), handler).unwrap())
    };
    let (mut produced, mut floor) = (0, 0);
    let mut produce = |count| {
        produced += count;
        topic.produce(produced - count..produced).map(|()| produced)
    };
    let mut committed = || {
        let now = topic.committed()?.iter().sum::<usize>();
        assert!(floor <= now, "back from {floor} to {now}");
        floor = now;
        anyhow::Ok(now)
    };
    let first = join();
    let all = produce(100).unwrap();
    first.until("the first commit", || Ok(committed()? == all)).await.unwrap();

    // The commits of these go into a line on which nothing arrives.
    let closed = gate.write().await;
    produce(100).unwrap();
    first.until("work in flight", || Ok(first.worker().summary().in_flight > 0)).await.unwrap();
    broker.proxy.stall();
    drop(closed);
    let health = first.worker().health();
    let failing = || Ok(health.read().reasons.iter().any(|reason| reason.contains("could be committed")));
    first.until("a word of failing commits", failing).await.unwrap();
    broker.proxy.cut();
    broker.proxy.resume();
    let all = produce(100).unwrap();
    first.until("a later commit", || Ok(committed()? == all)).await.unwrap();

    let second = join();
    let shares = second.until("its share of the work", || {
        produce(2)?;
        committed()?;
        Ok(second.worker().summary().received > 0)
    });
    shares.await.unwrap();
    first.stop().await.unwrap();
    committed().unwrap();
    second.stop().await.unwrap();
    committed().unwrap();
}

/// Two members with a store each: whatever the second ran of what the first had processed would run twice.
async fn handed_over(test: &str, strategy: &str) {
    const PARTITIONS: usize = 4;
    let Some(topic) = Topic::for_test(test, PARTITIONS, &[]).await.unwrap() else { return };
    let (runs, cut, ended) = (Runs::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let join = || {
        let (runs, cut, ended) = (runs.clone(), Arc::clone(&cut), Arc::clone(&ended));
        let handler = move |context: Context| {
            let (runs, cut, ended) = (runs.clone(), Arc::clone(&cut), Arc::clone(&ended));
            async move {
                runs.note(context.key().id().as_str());
                cut.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(50)).await;
                cut.fetch_sub(1, Ordering::SeqCst);
                ended.fetch_add(1, Ordering::SeqCst);
                Ok::<(), Failure>(())
            }
        };
        let mut client = topic.member();
        client.set("partition.assignment.strategy", strategy);
        let worker = KafkaWorker::builder(topic.config(client).build().unwrap())
            // The ids of messages with copies would run in both stores.
            .identify(Identify::new([IdSource::Position]))
            .worker(config(Lanes::Partition))
            .dead_letters(None)
            .build(MemoryStore::default(), handler)
            .unwrap();
        Running::start(worker)
    };
    let mut produced = 0;
    let mut produce = |count| {
        produced += count;
        topic.produce(produced - count..produced).map(|()| produced)
    };
    let first = join();
    produce(200).unwrap();
    first.until("work", || Ok(ended.load(Ordering::SeqCst) > 20)).await.unwrap();
    for _ in 0..3 {
        let second = join();
        let shares = second.until("its share of the work", || {
            // There is always something under way when a partition is taken away.
            produce(4)?;
            Ok(second.worker().summary().ran_ok > 10)
        });
        shares.await.unwrap();
        second.stop().await.unwrap();
    }
    let all = produce(PARTITIONS).unwrap();
    let done = || Ok(topic.committed()?.iter().sum::<usize>() == all);
    first.until("the commit of everything", done).await.unwrap();
    first.stop().await.unwrap();
    assert_eq!(runs.once().unwrap().len(), all, "{strategy}");
    assert_eq!(cut.load(Ordering::SeqCst), 0, "handlers were cut off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_16_what_is_taken_away_is_handed_over_committed_eager() {
    let test = "scenario_16_what_is_taken_away_is_handed_over_committed_eager";
    handed_over(test, "range").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_16_what_is_taken_away_is_handed_over_committed_cooperative() {
    let test = "scenario_16_what_is_taken_away_is_handed_over_committed_cooperative";
    handed_over(test, "cooperative-sticky").await;
}
