//! A worker on the sled store is killed with SIGKILL, at named points and at random, and started again. What it
//! did is counted in files that it appended to before and after, and in its store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by failing")]

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use einmal_tests::log_broker::PARTITIONS;
use einmal_tests::points::Point;
use einmal_tests::trial::Trial;
use einmal_tests::witness::lines;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SIGKILL: i32 = 9;
/// The default of the policy: the effects of a lane that can repeat after a crash.
const PIPELINE: usize = 64;

fn trial(messages: usize, lanes: &'static str, effect: &'static str) -> Trial {
    Trial::new(env!("CARGO_BIN_EXE_kill-worker"), messages.to_string(), messages, lanes, effect).unwrap()
}

/// Lets a worker go on to its end.
fn left_alone(trial: &Trial) {
    let ended = trial.spawn(None).unwrap().wait().unwrap();
    assert!(ended.success(), "{ended}");
}

/// Killed at `point` a few times in a row, and then left alone.
fn killed_at(point: Point, lanes: &'static str) {
    // At most 1,024 messages are in flight, so that many batches are needed for this many.
    let trial = trial(4_000, lanes, "inbox");
    let mut cut_off = 0;
    // The more waits, the fewer and the larger are the batches. The first is written when the store is opened.
    let batches = matches!(point, Point::BeforeFlush | Point::AfterFlush | Point::AfterSync);
    for nth in if batches { [1, 2, 3] } else { [1, 7, 40] } {
        let mut child = trial.spawn(Some((point, nth))).unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(SIGKILL), "{point:?} was not passed {nth} times: {ended}");
        cut_off += trial.cut_off(child.id()).unwrap();
        trial.settled_have_rows().unwrap();
    }
    left_alone(&trial);
    trial.all_done_once(cut_off).unwrap();
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
    let trial = trial(400_000, "none", "inbox");
    let mut random = StdRng::seed_from_u64(20);
    let (mut kills, mut cut_off) = (0, 0);
    while kills < 20 {
        let already = lines(&trial.place.starts()).unwrap().len();
        let mut child = trial.spawn(None).unwrap();
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
        let cut = trial.cut_off(child.id()).unwrap();
        kills += usize::from(cut > 0);
        cut_off += cut;
        trial.settled_have_rows().unwrap();
        trial.no_settled_message_ran_again().unwrap();
    }
    println!("{kills} kills cut off {cut_off} handlers");
}

/// Without a transaction an effect can repeat, but only of handlers that a death cut off, and in a lane no
/// more of them than the pipeline is deep.
#[test]
fn outside_of_the_transaction_at_most_the_pipeline_repeats() {
    let trial = trial(4_000, "partition", "file");
    let kills = [150, 300, 450];
    for nth in kills {
        let ended = trial.spawn(Some((Point::AfterEffect, nth))).unwrap().wait().unwrap();
        assert_eq!(ended.signal(), Some(SIGKILL));
    }
    left_alone(&trial);
    let mut effects: HashMap<String, usize> = HashMap::new();
    for line in lines(&trial.place.0.join("effects.log")).unwrap() {
        *effects.entry(line.split(' ').next().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(effects.keys().cloned().collect::<HashSet<_>>(), trial.ids());
    let repeated: usize = effects.values().map(|count| count - 1).sum();
    assert!(repeated <= kills.len() * PIPELINE * PARTITIONS, "{repeated} effects repeated");
    assert_eq!(trial.place.read_settled().unwrap().len(), 4_000);
    trial.no_settled_message_ran_again().unwrap();
}
