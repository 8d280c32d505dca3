//! A worker on the sled store is killed with SIGKILL, at named points and at random, and started again. What it
//! did is counted in files that it appended to before and after, and in its store.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::panic,
    reason = "a test says what is wrong by failing"
)]

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use einmal::{SledConfig, SledStore};
use einmal_tests::log_broker::{PARTITIONS, id_of};
use einmal_tests::points::Point;
use einmal_tests::witness::{Place, lines, started_by};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SIGKILL: i32 = 9;
/// The default of the policy: the effects of a lane that can repeat after a crash.
const PIPELINE: usize = 64;

struct Trial {
    place: Place,
    messages: usize,
    lanes: &'static str,
    effect: &'static str,
    _directory: tempfile::TempDir,
}

impl Trial {
    fn new(messages: usize, lanes: &'static str, effect: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let place = Place(directory.path().to_owned());
        Self { place, messages, lanes, effect, _directory: directory }
    }

    fn spawn(&self, kill: Option<(Point, usize)>) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kill-worker"));
        command.arg(&self.place.0).arg(self.messages.to_string()).args([self.lanes, self.effect]);
        if let Some((point, nth)) = kill {
            command.args([format!("{point:?}"), nth.to_string()]);
        }
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    /// Runs a worker to its end; whether it was killed.
    fn run(&self, kill: Option<(Point, usize)>) -> bool {
        let ended = self.spawn(kill).wait().unwrap();
        assert!(ended.success() || ended.signal() == Some(SIGKILL), "{ended}");
        !ended.success()
    }

    /// The rows of the ledger, by id.
    fn rows(&self) -> HashMap<String, usize> {
        let store = SledStore::open_blocking(SledConfig::new(self.place.store()).unwrap()).unwrap();
        let view = store.view("ledger").unwrap();
        let mut rows = HashMap::new();
        let mut after = None;
        loop {
            let page = view.scan(after.as_deref(), 10_000).unwrap();
            let Some((last, _)) = page.last() else { return rows };
            after = Some(last.clone());
            for (_, id) in page {
                *rows.entry(String::from_utf8(id.to_vec()).unwrap()).or_default() += 1;
            }
        }
    }

    fn ids(&self) -> HashSet<String> {
        (0..self.messages).map(id_of).collect()
    }

    /// Handlers that `pid` started and that left no row: what its death cut off.
    fn cut_off(&self, pid: u32) -> usize {
        let (rows, starts) = (self.rows(), self.place.read_starts().unwrap());
        started_by(&starts, pid).into_iter().filter(|id| !rows.contains_key(*id)).count()
    }

    /// No message was started by a process after another one had settled it.
    fn no_settled_message_ran_again(&self) {
        // The first settle of each id, in the order of the file.
        let mut settled_ids: HashMap<String, u32> = HashMap::new();
        for line in lines(&self.place.settled()).unwrap() {
            let mut words = line.split(' ').map(|word| word.parse::<u32>().unwrap());
            let (number, pid) = (words.next().unwrap(), words.next().unwrap());
            settled_ids.entry(id_of(number as usize)).or_insert(pid);
        }
        let starts = self.place.read_starts().unwrap();
        let mut order: Vec<u32> = Vec::new();
        for start in &starts {
            if !order.contains(&start.pid) {
                order.push(start.pid);
            }
        }
        let turn = |pid: u32| order.iter().position(|other| *other == pid);
        for start in &starts {
            if let Some(settled_by) = settled_ids.get(&start.id) {
                let ran_again = turn(start.pid) > turn(*settled_by) && turn(*settled_by).is_some();
                assert!(
                    !ran_again,
                    "{} was settled by {settled_by} and run again by {}",
                    start.id, start.pid
                );
            }
        }
    }

    /// Every id has one row, every delivery is settled, and no more runs were made than deaths explain.
    fn all_done_once(&self, cut_off: usize) {
        let rows = self.rows();
        assert_eq!(rows.keys().cloned().collect::<HashSet<_>>(), self.ids(), "lost or made up");
        assert!(rows.values().all(|count| *count == 1), "doubled");
        assert_eq!(self.place.read_settled().unwrap().len(), self.messages);
        let starts = self.place.read_starts().unwrap();
        let claims: HashSet<(&str, u64)> = starts.iter().map(|s| (s.id.as_str(), s.fence)).collect();
        assert_eq!(claims.len(), self.ids().len() + cut_off, "runs that no death explains");
        self.no_settled_message_ran_again();
    }
}

/// Killed at `point` a few times in a row, and then left alone.
fn killed_at(point: Point, lanes: &'static str) {
    // At most 1,024 messages are in flight, so that many batches are needed for this many.
    let trial = Trial::new(4_000, lanes, "inbox");
    let mut cut_off = 0;
    // The more waits, the fewer and the larger are the batches. The first is written when the store is opened.
    let batches = matches!(point, Point::BeforeFlush | Point::AfterFlush | Point::AfterSync);
    for nth in if batches { [1, 2, 3] } else { [1, 7, 40] } {
        let mut child = trial.spawn(Some((point, nth)));
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(SIGKILL), "{point:?} was not passed {nth} times: {ended}");
        cut_off += trial.cut_off(child.id());
        // What is settled has its row: the settled file is written after the answer.
        let (rows, settled) = (trial.rows(), trial.place.read_settled().unwrap());
        assert!(
            settled.keys().all(|number| rows.contains_key(&id_of(*number))),
            "settled without an outcome"
        );
    }
    assert!(!trial.run(None));
    trial.all_done_once(cut_off);
}

macro_rules! killed {
    ($($name:ident: $point:ident;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn ordered() {
                killed_at(Point::$point, "partition");
            }

            #[test]
            fn unordered() {
                killed_at(Point::$point, "none");
            }
        }
    )*};
}

killed! {
    killed_after_the_claim: AfterClaim;
    killed_in_the_handler: InHandler;
    killed_after_the_effect: AfterEffect;
    killed_before_the_flush: BeforeFlush;
    killed_between_flush_and_sync: AfterFlush;
    killed_between_sync_and_answer: AfterSync;
    killed_before_the_settle: BeforeSettle;
    killed_after_the_settle: AfterSettle;
}

/// Twenty kills from outside, each with claims in flight, at random times.
#[test]
fn twenty_kills_at_random_run_nothing_again_that_was_settled() {
    let trial = Trial::new(400_000, "none", "inbox");
    let mut random = StdRng::seed_from_u64(20);
    let (mut kills, mut cut_off) = (0, 0);
    while kills < 20 {
        let already = lines(&trial.place.starts()).unwrap().len();
        let mut child = trial.spawn(None);
        // At work: it has started handlers of its own.
        while lines(&trial.place.starts()).unwrap().len() == already {
            assert!(
                child.try_wait().unwrap().is_none(),
                "the worker ended before it was killed {kills} times"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL));
        let cut = trial.cut_off(child.id());
        kills += usize::from(cut > 0);
        cut_off += cut;
        trial.no_settled_message_ran_again();
    }
    println!("{kills} kills cut off {cut_off} handlers");
}

/// Without a transaction an effect can repeat, but only of handlers that a death cut off, and in a lane no
/// more of them than the pipeline is deep.
#[test]
fn outside_of_the_transaction_at_most_the_pipeline_repeats() {
    let trial = Trial::new(4_000, "partition", "file");
    let mut killed = 0;
    for nth in [30, 60, 90] {
        killed += usize::from(trial.run(Some((Point::AfterEffect, nth * 5))));
    }
    assert_eq!(killed, 3);
    assert!(!trial.run(None));
    let mut effects: HashMap<String, usize> = HashMap::new();
    for line in lines(&trial.place.0.join("effects.log")).unwrap() {
        *effects.entry(line.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(effects.keys().cloned().collect::<HashSet<_>>(), trial.ids());
    let repeated: usize = effects.values().map(|count| count - 1).sum();
    assert!(repeated <= killed * PIPELINE * PARTITIONS, "{repeated} effects repeated");
    assert_eq!(trial.place.read_settled().unwrap().len(), trial.messages);
    trial.no_settled_message_ran_again();
}
