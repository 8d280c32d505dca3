//! The README's first command, smaller.

#![allow(clippy::unwrap_used, reason = "a test says what is wrong by failing")]

use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

fn quickstart(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quickstart")).args(args).output().unwrap()
}

#[test]
fn a_worker_killed_twice_loses_nothing_and_doubles_nothing() {
    let output = quickstart(&["--json", "--messages", "6000", "--kills", "2", "--seed", "7"]);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let report: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let number = |name: &str| report[name].as_u64().unwrap();
    assert_eq!((number("lost"), number("doubled"), number("kills")), (0, 0, 2), "{report}");
    assert_eq!((number("distinct"), number("effects")), (4200, 4200), "{report}");
    assert!(number("redelivered") > 0 && number("duplicates") > 0, "{report}");
    assert!(number("deliveries") >= 6000 + number("redelivered"), "{report}");
}

#[test]
fn what_can_not_work_is_refused_with_the_bound() {
    let refused = |args: &[&str], words: &str| {
        let output = quickstart(args);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && err.contains(words), "{args:?}: {err}");
    };
    refused(&["--messages", "300000"], "at most about");
    refused(&["--messages", "100"], "at least 6000");
    refused(&["--duplicates", "91"], "0..=90");
    let used = tempfile::tempdir().unwrap();
    std::fs::write(used.path().join("mine"), "").unwrap();
    refused(&["--store", used.path().to_str().unwrap()], "is not empty");
    assert!(used.path().join("mine").exists());
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let here = || std::fs::read_dir(temporary.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
    command.env("TMPDIR", temporary.path()).stdout(Stdio::null()).stderr(Stdio::null());
    // A group of its own, since a terminal tells all of the group.
    let mut child = command.process_group(0).spawn().unwrap();
    let group = Pid::from_child(&child);
    let place = loop {
        if let Some(place) = here().find(|place| place.join("store").exists()) {
            break place;
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    };
    kill_process_group(group, Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!place.exists() && here().next().is_none());
    assert!(test_kill_process_group(group).is_err(), "a worker is left");
}
