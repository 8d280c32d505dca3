//! Repeats, retries and endings of every kind.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Backoff, Context, DedupKey, DedupStore, Failure, MemoryStore, MessageId, Policy, Reply, Scope};
use einmal::{SledConfig, SledStore};
use einmal_kafka::{DeadLetterTopic, KafkaWorker, KafkaWorkerBuilder};
use einmal_tests::kafka::{Special, Topic};
use einmal_tests::kafka_worker::{Running, Runs};
use einmal_tests::log_broker::{id_of, is_rejected};
use einmal_tests::trial::{Trial, wait_while};

const SECOND: Duration = Duration::from_secs(1);

fn builder(topic: &Topic, lanes: Lanes) -> KafkaWorkerBuilder {
    KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
        .worker(WorkerConfig { lanes, ..WorkerConfig::default() })
        .dead_letters(None)
}

fn key(topic: &Topic, id: &str) -> DedupKey {
    DedupKey::new(Scope::new(&topic.name).unwrap(), MessageId::new(id).unwrap())
}

/// Ten messages behind one that takes longer than the lease of a claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_20_time_in_a_local_buffer_uses_up_no_lease() {
    let test = "scenario_20_time_in_a_local_buffer_uses_up_no_lease";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.produce(0..11).unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |context: Context| {
            let id = context.key().id().as_str().to_owned();
            runs.note(&id);
            async move {
                assert_eq!((context.attempt(), context.interrupted()), (1, false), "{id}");
                if id == "m0" {
                    tokio::time::sleep(3 * SECOND).await;
                }
                Ok::<(), Failure>(())
            }
        }
    };
    let policy = Policy::builder().lease(SECOND).build().unwrap();
    let worker = builder(&topic, Lanes::Partition).policy(policy).build(MemoryStore::default(), handler);
    let running = Running::start(worker.unwrap());
    running.until_committed(&topic, &[11]).await.unwrap();
    let summary = running.stop().await.unwrap();
    assert_eq!(runs.once().unwrap().len(), Trial::distinct(11));
    assert_eq!((summary.ran_failed, summary.unsettled), (0, 0), "{summary:?}");
}

/// Also when the delivery on which it is tried again is one to another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_23_a_message_to_be_retried_later_runs_on_its_next_delivery() {
    let test = "scenario_23_a_message_to_be_retried_later_runs_on_its_next_delivery";
    for lanes in [Lanes::Partition, Lanes::None] {
        let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
        topic.send(&[Special { id: Some("later"), ..Special::default() }]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let config = SledConfig::new(directory.path().join("store")).unwrap();
        let store = SledStore::open(config).await.unwrap();
        let runs = Runs::default();
        let start = || {
            let runs = runs.clone();
            let handler = move |context: Context| {
                runs.note(context.key().id().as_str());
                let nth = runs.of(context.key().id().as_str());
                std::future::ready(match nth {
                    1 => Err(Failure::retry_after(Duration::from_millis(100))),
                    2 => Err(Failure::retry_after(3 * SECOND)),
                    _ => Ok::<(), Failure>(()),
                })
            };
            Running::start(builder(&topic, lanes).build(store.clone(), handler).unwrap())
        };
        let first = start();
        first.until("two runs", || Ok(runs.of("later") == 2)).await.unwrap();
        let summary = first.stop().await.unwrap();
        assert_eq!((summary.ran_ok, summary.unsettled, topic.committed().unwrap()), (0, 1, vec![0]));
        let second = start();
        second.until_committed(&topic, &[1]).await.unwrap();
        let summary = second.stop().await.unwrap();
        assert_eq!((runs.of("later"), summary.ran_ok, summary.duplicate), (3, 1, 0));
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_39_a_result_over_the_bound_is_not_kept_and_its_message_not_run_again() {
    let test = "scenario_39_a_result_over_the_bound_is_not_kept_and_its_message_not_run_again";
    for lanes in [Lanes::Partition, Lanes::None] {
        let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
        let large = Special { id: Some("large"), ..Special::default() };
        topic.send(&[large.clone(), Special { id: Some("small"), ..Special::default() }, large]).unwrap();
        let (runs, store) = (Runs::default(), Arc::new(MemoryStore::default()));
        let handler = {
            let runs = runs.clone();
            move |context: Context| {
                let id = context.key().id().as_str();
                runs.note(id);
                let len = if id == "large" { 8 * 1024 + 1 } else { 8 * 1024 };
                std::future::ready(Ok::<_, Failure>(Reply::bytes(vec![7; len])))
            }
        };
        let running = Running::start(builder(&topic, lanes).build(Arc::clone(&store), handler).unwrap());
        running.until_committed(&topic, &[3]).await.unwrap();
        let summary = running.stop().await.unwrap();
        assert_eq!(runs.once().unwrap(), ["large", "small"]);
        assert_eq!((summary.ran_ok, summary.duplicate), (2, 1));
        for (id, kept) in [("large", "NotKept"), ("small", "Kept(8192 bytes)")] {
            let record = store.get(&key(&topic, id)).await.unwrap().unwrap();
            let shown = format!("{:?}", record.phase);
            assert!(shown.contains("Completed") && shown.contains(kept), "{shown}");
        }
    }
}

/// Every ending that a message can have, and each is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_41_the_counters_add_up() {
    const EACH: usize = 50;
    let test = "scenario_41_the_counters_add_up";
    for lanes in [Lanes::Partition, Lanes::Key, Lanes::None] {
        let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
        let letters = topic.dead_letters().await.unwrap();
        let kinds = ["done", "rejected", "parked", "ignored", "failing", "flaky"];
        let ids: Vec<_> = (0..EACH).flat_map(|n| kinds.map(|kind| format!("{kind}-{n}"))).collect();
        let one = |id| Special { id: Some(id), payload: Some(b"first"), ..Special::default() };
        let mut messages: Vec<_> = ids.iter().map(|id| one(id)).collect();
        // A copy of each, something else under an id that is done, and one without an id.
        messages.extend(ids.iter().map(|id| one(id)));
        let conflicts = ids.iter().filter(|id| id.starts_with("done"));
        messages.extend(conflicts.map(|id| Special { payload: Some(b"second"), ..one(id) }));
        messages.extend((0..EACH).map(|_| Special::default()));
        let count = messages.len();
        topic.send(&messages).unwrap();

        let (runs, ran) = (Runs::default(), Arc::new(AtomicUsize::new(0)));
        let handler = {
            let (runs, ran) = (runs.clone(), Arc::clone(&ran));
            move |context: Context| {
                let id = context.key().id().as_str();
                runs.note(id);
                let nth = runs.of(id);
                ran.fetch_add(1, Ordering::SeqCst);
                std::future::ready(match id.split('-').next() {
                    Some("rejected") => Err(Failure::reject("no")),
                    Some("parked") => Err(Failure::park("look at it")),
                    Some("ignored") => Err(Failure::ignore()),
                    Some("failing") => Err(Failure::retry("again")),
                    Some("flaky") if nth == 1 => Err(Failure::retry("once")),
                    _ => Ok::<(), Failure>(()),
                })
            }
        };
        let backoff = Backoff { initial: Duration::from_millis(2), ..Backoff::default() };
        let policy = Policy::builder().max_failures(3).backoff(backoff).build().unwrap();
        let builder = builder(&topic, lanes).policy(policy).dead_letters(Some(DeadLetterTopic::default()));
        let running = Running::start(builder.build(MemoryStore::default(), handler).unwrap());
        running.until_committed(&topic, &[count]).await.unwrap();
        let summary = running.stop().await.unwrap();
        let n = EACH as u64;
        assert_eq!(summary.received, count as u64, "{summary:?}");
        assert_eq!((summary.ran_ok, summary.ran_failed), (2 * n, 2 * n), "{summary:?}");
        // What is ignored leaves no outcome: its copy is ignored as well.
        assert_eq!((summary.ignored, summary.parked), (2 * n, n), "{summary:?}");
        assert_eq!((summary.duplicate, summary.conflict), (5 * n, n), "{summary:?}");
        assert_eq!((summary.rejected_before_claim, summary.unsettled), (n, 0), "{summary:?}");
        // done, rejected, parked once; ignored and flaky twice; failing three times.
        assert_eq!(ran.load(Ordering::SeqCst), EACH * 10);
        // rejected, parked, failing; conflicts; without an id.
        assert_eq!(topic.read(&letters).unwrap().len(), 5 * EACH);
    }
}

/// What a process writes to its log at the finest level, of messages that are handled, repeated and rejected.
#[tokio::test]
async fn scenario_42_the_log_names_messages_and_shows_nothing_of_their_content() {
    const MESSAGES: usize = 400;
    let test = "scenario_42_the_log_names_messages_and_shows_nothing_of_their_content";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    topic.dead_letters().await.unwrap();
    topic.produce(0..MESSAGES).unwrap();
    let source = format!("{}/{}", topic.brokers, topic.name);
    let trial = Trial::new(env!("CARGO_BIN_EXE_kill-worker"), source, MESSAGES, "partition", "strict");
    let trial = trial.unwrap();
    let log = trial.place.0.join("log");
    // sled's own trace shows what it stores, as the README says.
    let told = ("trace,sled=warn", File::create(&log).unwrap());
    let mut child = trial.spawn_telling(None, Some(told)).unwrap();
    wait_while(&mut child, "everything", || Ok(topic.committed()? == [MESSAGES])).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("DEBUG") && log.contains("einmal_kafka"), "the log is there");
    assert!(!log.contains("payload of"), "a payload is in the log");
    let rejected: Vec<_> = (0..MESSAGES).map(id_of).filter(|id| is_rejected(id)).collect();
    for id in rejected {
        for text in ["the handler rejected the message", "dead letter published"] {
            let of = |line: &&str| line.contains(text) && line.contains(&id);
            let line = log.lines().find(of).unwrap_or_else(|| panic!("{id}: no line \"{text}\""));
            let tells = |what| line.contains(what);
            assert!(["kill", "position=", "attempt"].into_iter().all(tells), "{line}");
        }
    }
}
