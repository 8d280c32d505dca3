//! Dead letters: published on the real broker, never lost, and sent again.

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;

use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, DedupKey, DedupStore, Failure, MessageId, Scope, SledConfig, SledStore};
use einmal_kafka::KafkaWorker;
use einmal_tests::kafka::{Special, Topic};
use einmal_tests::kafka_worker::{Running, Runs};
use einmal_tests::log_broker::{id_of, is_rejected};
use einmal_tests::points::Point;
use einmal_tests::trial::{Trial, wait_while};
use rdkafka::Message;
use rdkafka::message::{Headers, OwnedMessage};

const HOUR: std::time::Duration = std::time::Duration::from_secs(3_600);

/// The text of a header; `None` when it is not there.
fn header(message: &OwnedMessage, name: &str) -> Option<String> {
    let value = message.headers()?.iter().find(|header| header.key == name)?.value?;
    Some(String::from_utf8(value.to_vec()).unwrap())
}

/// Killed again and again around the publishing of a letter. The one lane lets nothing else run meanwhile.
#[tokio::test]
async fn scenario_36b_killed_around_the_publish_each_letter_arrives_and_nothing_runs_again() {
    const MESSAGES: usize = 2_000;
    let test = "scenario_36b_killed_around_the_publish_each_letter_arrives_and_nothing_runs_again";
    for point in Point::OF_LETTERS {
        let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
        let letters = topic.dead_letters().await.unwrap();
        topic.produce(0..MESSAGES).unwrap();
        let source = format!("{}/{}", topic.brokers, topic.name);
        let program = env!("CARGO_BIN_EXE_kill-worker");
        let trial = Trial::new(program, source, MESSAGES, "partition", "strict").unwrap();
        for nth in [1, 4, 6] {
            let mut child = trial.spawn(Some((point, nth))).unwrap();
            let _stdin = child.stdin.take();
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(9), "{point:?}: {status}");
        }
        let mut last = trial.spawn(None).unwrap();
        wait_while(&mut last, "everything", || Ok(topic.committed()? == [MESSAGES])).unwrap();
        drop(last.stdin.take());
        assert!(last.wait().unwrap().success());

        let expected: HashSet<_> = (0..MESSAGES).map(id_of).filter(|id| is_rejected(id)).collect();
        let mut of: HashMap<String, HashSet<String>> = HashMap::new();
        let arrived = topic.read(&letters).unwrap();
        for letter in &arrived {
            assert_eq!(header(letter, "einmal-reason").unwrap(), "rejected");
            let id = header(letter, "einmal-id").unwrap();
            of.entry(id).or_default().insert(header(letter, "einmal-letter-id").unwrap());
        }
        assert_eq!(of.keys().cloned().collect::<HashSet<_>>(), expected, "exactly those, {point:?}");
        assert!(of.values().all(|ids| ids.len() == 1), "each under one id: {of:?}");
        // A death before the publish doubles nothing; each of those after it doubles its letter.
        let doubled = if point == Point::AfterPublish { 3 } else { 0 };
        assert_eq!(arrived.len(), expected.len() + doubled, "{point:?}");
        let mut runs: HashMap<String, usize> = HashMap::new();
        for start in trial.place.read_starts().unwrap() {
            *runs.entry(start.id).or_default() += 1;
        }
        assert!(expected.iter().all(|id| runs[id] == 1), "{point:?}: a handler ran again");
        let rows = trial.rows().unwrap();
        assert!(rows.values().all(|count| *count == 1));
        assert_eq!(rows.len(), Trial::distinct(MESSAGES) - expected.len());
    }
}

/// No JSON, among messages that are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_37_and_38_what_does_not_parse_is_put_aside_as_it_came() {
    let test = "scenario_37_and_38_what_does_not_parse_is_put_aside_as_it_came";
    for lanes in [Lanes::Partition, Lanes::None] {
        let Some(topic) = Topic::for_test(test, 2, &[]).await.unwrap() else { return };
        let letters = topic.dead_letters().await.unwrap();
        let garbage: Vec<u8> = (0..=255).cycle().take(1_000).collect();
        let one = |id, payload| Special { partition: 1, id: Some(id), payload, ..Special::default() };
        let headers = vec![("x", Some(&b"1"[..])), ("x", Some(b"\xff")), ("none", None)];
        topic
            .send(&[
                one("before", Some(b"{}")),
                Special { key: Some(b"k\0y"), headers, ..one("garbage", Some(&garbage)) },
                one("null", None),
                one("after", Some(b"{}")),
            ])
            .unwrap();
        let directory = tempfile::tempdir().unwrap();
        let config = SledConfig::new(directory.path().join("store")).unwrap();
        let store = SledStore::open(config).await.unwrap();
        let runs = Runs::default();
        let handler = {
            let runs = runs.clone();
            move |context: Context| {
                runs.note(context.key().id().as_str());
                std::future::ready(context.json::<serde_json::Value>().map(drop))
            }
        };
        let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap())
            .worker(WorkerConfig { lanes, ..WorkerConfig::default() })
            .build(store.clone(), handler);
        let running = Running::start(worker.unwrap());
        running.until_committed(&topic, &[0, 4]).await.unwrap();
        let summary = running.stop().await.unwrap();
        assert_eq!((summary.ran_ok, summary.ran_failed), (2, 2), "{summary:?}");
        assert_eq!(runs.once().unwrap(), ["after", "before", "garbage", "null"]);

        let mut arrived = topic.read(&letters).unwrap();
        arrived.sort_by_key(|letter| header(letter, "einmal-offset"));
        assert_eq!(arrived.len(), 2);
        let (first, second) = (&arrived[0], &arrived[1]);
        assert_eq!((first.payload(), first.key()), (Some(&garbage[..]), Some(&b"k\0y"[..])));
        assert_eq!((second.payload(), second.key()), (None, None), "null stays null");
        let given: Vec<_> =
            first.headers().unwrap().iter().map(|header| (header.key, header.value)).collect();
        let own =
            [("message-id", Some(&b"garbage"[..])), ("x", Some(b"1")), ("x", Some(b"\xff")), ("none", None)];
        assert_eq!(given[..4], own);
        for (letter, id, offset) in [(first, "garbage", "1"), (second, "null", "2")] {
            let told = |name| header(letter, name).unwrap_or_else(|| panic!("no {name}"));
            assert_eq!(told("einmal-id"), id);
            assert_eq!(told("einmal-scope"), topic.name);
            assert_eq!(told("einmal-topic"), topic.name);
            assert_eq!(
                (told("einmal-partition"), told("einmal-offset")),
                ("1".to_owned(), offset.to_owned())
            );
            assert_eq!(
                (told("einmal-reason"), told("einmal-attempts")),
                ("rejected".to_owned(), "1".to_owned())
            );
            let at = |name| told(name).parse::<i64>().unwrap();
            assert!(
                at("einmal-sent-at") <= at("einmal-last-at") && at("einmal-first-at") <= at("einmal-last-at")
            );
        }
        store.close().await.unwrap();
    }
}

/// Sent again as it lies in the topic of the dead letters, and then forced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scenario_24_a_dead_letter_that_is_sent_again_goes_through_the_claim() {
    let test = "scenario_24_a_dead_letter_that_is_sent_again_goes_through_the_claim";
    let Some(topic) = Topic::for_test(test, 1, &[]).await.unwrap() else { return };
    let letters = topic.dead_letters().await.unwrap();
    topic.send(&[Special { id: Some("order"), payload: Some(b"{"), ..Special::default() }]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let store = SledStore::open(SledConfig::new(directory.path().join("store")).unwrap()).await.unwrap();
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |context: Context| {
            // The bug is found after the first run.
            runs.note(context.key().id().as_str());
            let nth = runs.of(context.key().id().as_str());
            std::future::ready(if nth == 1 { Err(Failure::reject("a bug")) } else { Ok::<(), Failure>(()) })
        }
    };
    let worker = KafkaWorker::builder(topic.config(topic.member()).build().unwrap());
    let running = Running::start(worker.build(store.clone(), handler).unwrap());
    running.until_committed(&topic, &[1]).await.unwrap();
    let letter = topic.read(&letters).unwrap().pop().unwrap();
    let replay = |count: usize| {
        let headers = letter.headers().unwrap().iter().map(|header| (header.key, header.value)).collect();
        let again = Special { payload: letter.payload(), headers, ..Special::default() };
        topic.send(&vec![again; count]).unwrap();
    };
    // Not forced, it is a repeat of what has failed.
    replay(2);
    running.until_committed(&topic, &[3]).await.unwrap();
    let summary = running.worker().summary();
    assert_eq!((runs.of("order"), summary.duplicate), (1, 2), "{summary:?}");

    let key = DedupKey::new(Scope::new(&topic.name).unwrap(), MessageId::new("order").unwrap());
    let before = store.get(&key).await.unwrap().unwrap();
    store.force(&key, HOUR).await.unwrap();
    replay(2);
    running.until_committed(&topic, &[5]).await.unwrap();
    let summary = running.stop().await.unwrap();
    assert_eq!((runs.of("order"), summary.ran_ok, summary.duplicate), (2, 1, 3), "{summary:?}");
    let after = store.get(&key).await.unwrap().unwrap();
    assert!(after.generation > before.generation, "a new operation");
    assert_eq!(topic.read(&letters).unwrap().len(), 1, "no other letter");
    store.close().await.unwrap();
}
