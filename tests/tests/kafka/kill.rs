//! A worker on the real broker is killed with SIGKILL at random with work in flight, and stopped in order. The
//! ledger and the committed offsets are checked from outside after each death.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use einmal_tests::kafka::Topic;
use einmal_tests::log_broker::id_of;
use einmal_tests::points::Point;
use einmal_tests::trial::{Trial, wait_while};
use einmal_tests::witness::lines;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SIGKILL: i32 = 9;
const PARTITIONS: usize = 4;

async fn start(test: &str, messages: usize, lanes: &'static str) -> Option<(Topic, Trial)> {
    let topic = Topic::for_test(test, PARTITIONS, &[]).await.unwrap()?;
    topic.produce(0..messages).unwrap();
    let source = format!("{}/{}", topic.brokers, topic.name);
    let program = env!("CARGO_BIN_EXE_kill-worker");
    Some((topic, Trial::new(program, source, messages, lanes, "inbox").unwrap()))
}

/// Whatever is committed has been settled, whatever is settled has its row, and no offset goes back.
fn check(trial: &Trial, topic: &Topic, before: &mut Vec<usize>) {
    trial.settled_have_rows().unwrap();
    trial.no_settled_message_ran_again().unwrap();
    let settled = trial.place.read_settled().unwrap();
    let committed = topic.committed().unwrap();
    for (partition, end) in committed.iter().enumerate() {
        assert!(
            before[partition] <= *end,
            "partition {partition} went back from {} to {end}",
            before[partition]
        );
        let unsettled = (0..*end).find(|offset| !settled.contains_key(&(offset * PARTITIONS + partition)));
        assert_eq!(unsettled, None, "partition {partition} is committed up to {end}");
    }
    *before = committed;
}

/// Lets a worker go on until all is committed, and then ends its input, which stops it in order.
fn to_the_end(trial: &Trial, topic: &Topic, messages: usize) {
    let mut child = trial.spawn(None).unwrap();
    let all = || Ok(topic.committed()?.iter().sum::<usize>() == messages);
    wait_while(&mut child, "the commit of everything", all).unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}

async fn killed(test: &str, lanes: &'static str, kills: usize) {
    const MESSAGES: usize = 30_000;
    let Some((topic, trial)) = start(test, MESSAGES, lanes).await else { return };
    let mut random = StdRng::seed_from_u64(21);
    let (mut done, mut cut_off, mut before) = (0, 0, vec![0; PARTITIONS]);
    while done < kills {
        let already = lines(&trial.place.starts()).unwrap().len();
        let mut child = trial.spawn(None).unwrap();
        let _stdin = child.stdin.take();
        let started = || Ok(lines(&trial.place.starts())?.len() > already);
        wait_while(&mut child, "a handler", started).unwrap();
        std::thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
        let cut = trial.cut_off(child.id()).unwrap();
        done += usize::from(cut > 0);
        cut_off += cut;
        check(&trial, &topic, &mut before);
    }
    let left = MESSAGES - before.iter().sum::<usize>();
    to_the_end(&trial, &topic, MESSAGES);
    check(&trial, &topic, &mut before);
    trial.all_done_once(cut_off).unwrap();
    println!("{done} kills cut off {cut_off} handlers; {left} messages were uncommitted after the last");
}

#[tokio::test]
async fn twenty_kills_at_random_on_the_real_broker() {
    killed("twenty_kills_at_random_on_the_real_broker", "none", 20).await;
}

#[tokio::test]
async fn kills_in_ordered_lanes_on_the_real_broker() {
    killed("kills_in_ordered_lanes_on_the_real_broker", "partition", 5).await;
}

/// Killed where nothing has been committed yet of what is settled.
#[tokio::test]
async fn killed_between_settle_and_commit_on_the_real_broker() {
    const MESSAGES: usize = 10_000;
    let test = "killed_between_settle_and_commit_on_the_real_broker";
    let Some((topic, trial)) = start(test, MESSAGES, "partition").await else { return };
    let (mut cut_off, mut before) = (0, vec![0; PARTITIONS]);
    for nth in [1, 700, 1_500] {
        let mut child = trial.spawn(Some((Point::AfterSettle, nth))).unwrap();
        let _stdin = child.stdin.take();
        assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
        cut_off += trial.cut_off(child.id()).unwrap();
        check(&trial, &topic, &mut before);
    }
    to_the_end(&trial, &topic, MESSAGES);
    trial.all_done_once(cut_off).unwrap();
}

/// A worker that is stopped in order commits what it has processed: nothing of it runs again.
#[tokio::test]
async fn scenario_17_stopped_in_order_nothing_processed_is_even_delivered_again() {
    const MESSAGES: usize = 10_000;
    let test = "scenario_17_stopped_in_order_nothing_processed_is_even_delivered_again";
    let Some((topic, trial)) = start(test, MESSAGES, "partition").await else { return };
    let mut before = vec![0; PARTITIONS];
    for _ in 0..5 {
        let already = lines(&trial.place.starts()).unwrap().len();
        let mut child = trial.spawn(None).unwrap();
        let started = || Ok(lines(&trial.place.starts())?.len() > already + 100);
        wait_while(&mut child, "work", started).unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        assert_eq!(trial.cut_off(child.id()).unwrap(), 0, "what runs may end");
        check(&trial, &topic, &mut before);
        let settled = trial.place.read_settled().unwrap().len();
        assert_eq!(before.iter().sum::<usize>(), settled, "in order, so that all of it can be committed");
    }
    to_the_end(&trial, &topic, MESSAGES);
    trial.all_done_once(0).unwrap();
    let mut runs: HashMap<String, usize> = HashMap::new();
    for start in trial.place.read_starts().unwrap() {
        *runs.entry(start.id).or_default() += 1;
    }
    assert!((0..MESSAGES).all(|number| runs.get(&id_of(number)) == Some(&1)), "each id ran once");
}
