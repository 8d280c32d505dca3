//! On librdkafka's mock cluster.

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Group, PARTITIONS, Worker, ledger, produce, program, ran};

const TOPIC: &str = "payments";

struct Place {
    _cluster: MockCluster<'static, DefaultProducerContext>,
    brokers: String,
    group: Group,
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        for topic in [TOPIC, "payments.dead-letter"] {
            cluster.create_topic(topic, PARTITIONS, 1).unwrap();
        }
        let brokers = cluster.bootstrap_servers();
        let group = Group::of(&brokers, TOPIC);
        Self { _cluster: cluster, brokers, group, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn start(&self, more: &[&str]) -> Worker {
        Worker::start(&self.brokers, TOPIC, self.folder.path(), more)
    }

    fn until_committed(&self, worker: &mut Worker, messages: usize) {
        worker.until("the commit of everything", |_| self.group.committed() == messages);
    }
}

#[test]
fn each_payment_is_booked_once_and_what_fails_is_told() {
    let place = Place::new();
    let produced = produce(&place.brokers, TOPIC, &["--count", "2000", "--bad", "2", "--seed", "5"]);
    let bookings = produced["bookings"].as_u64().unwrap();
    assert!(bookings < 1400, "some are refused: {produced}");
    let ledger_file = place.path("ledger");
    let more = ["--ledger", &ledger_file, "--fail-rate", "5", "--attempts", "50", "--backoff", "10ms"];
    let mut worker = place.start(&more);
    place.until_committed(&mut worker, 2000);
    worker.until("a quiet page", |worker| worker.metrics().sum("einmal_in_flight", "") == 0);
    worker.until("a line of counters", |worker| worker.says("received 2000 | "));
    assert_eq!(worker.get("/health").unwrap().0, 200);
    let page = worker.metrics();
    assert!(page.sum("einmal_runs_total", "") > 1400, "none failed:\n{}", page.0);
    assert_eq!(page.sum("einmal_dead_lettered_total", "reason=\"rejected\""), 1400 - bookings);

    let counts = worker.drain(Signal::TERM);
    page.add_up_to(&counts);
    assert_eq!((&counts["received"], &counts["ran_ok"]), (&2000.into(), &bookings.into()), "{counts}");
    let (ids, cents) = ledger(ledger_file.as_ref());
    assert!(ids.values().all(|times| *times == 1), "{ids:?}");
    assert_eq!((ids.len() as u64, Some(cents)), (bookings, produced["cents"].as_i64()));
}

#[test]
fn the_inbox_doubles_nothing_when_it_is_killed() {
    let place = Place::new();
    let produced = produce(&place.brokers, TOPIC, &["--count", "2000"]);
    let mut worker = place.start(&["--inbox", "--slow", "5ms"]);
    worker.until("work in flight", |worker| {
        let page = worker.metrics();
        page.answered() > 200 && page.received() > page.answered()
    });
    worker.signal(Signal::KILL);
    assert_eq!(worker.end().0, None);

    let mut worker = place.start(&["--inbox"]);
    place.until_committed(&mut worker, 2000);
    let store = place.path("store");
    let running = ran(&["accounts", "--store", &store]);
    assert_eq!(running.status.code(), Some(1), "one process at a time has the store");
    worker.drain(Signal::INT);
    let output = ran(&["accounts", "--store", &store]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sum = |name| lines.iter().map(|line| line[name].as_i64().unwrap()).sum::<i64>();
    assert_eq!(produced["bookings"], sum("bookings"));
    assert_eq!(produced["cents"], sum("cents"));
}

#[test]
fn a_second_signal_ends_at_once() {
    let place = Place::new();
    produce(&place.brokers, TOPIC, &["--count", "10"]);
    let mut worker = place.start(&["--slow", "1h", "--drain", "1h"]);
    worker.until("a handler", |worker| worker.metrics().sum("einmal_runs_total", "") > 0);
    worker.signal(Signal::INT);
    worker.until("the first to be told", |worker| worker.says("a second signal ends at once"));
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().0, Some(130));
}

/// Nobody listens there. So it is not ready, but alive: the client tries again.
#[test]
fn secrets_are_shown_nowhere_and_a_missing_broker_is_no_reason_to_restart() {
    let folder = tempfile::tempdir().unwrap();
    let properties = folder.path().join("client.properties");
    let secrets = "security.protocol=sasl_plaintext\nsasl.mechanism=PLAIN\nsasl.password=hunter2\n";
    std::fs::write(&properties, secrets).unwrap();
    let mut command = program();
    command.args(["consume", "--brokers", "127.0.0.1:1", "--json", "--metrics", "127.0.0.1:0"]);
    command.args(["--report-every", "1s", "--set", "sasl.username=hunter2"]);
    command.arg("--store").arg(folder.path().join("store")).arg("--properties").arg(&properties);
    let mut worker = Worker::spawn(command.env("RUST_LOG", "debug"));
    worker.until("the settings in the log", |worker| worker.says("sasl.password"));
    let mut last = String::new();
    worker.until("the broker to be missed", |worker| {
        last = format!("{:?}", worker.get("/health"));
        last.starts_with("Some((503")
    });
    assert!(last.contains("Kafka"), "{last}");
    assert_eq!(worker.get("/live").unwrap().0, 200);
    worker.until("a line that says so", |worker| {
        let log = worker.log.lock().unwrap();
        log.lines()
            .any(|line| line.starts_with("the Kafka client reports") && line.contains("| received 0 |"))
    });
    let log = worker.log.clone();
    worker.signal(Signal::TERM);
    let (code, out) = worker.end();
    let log = log.lock().unwrap();
    assert!(log.contains("sasl.password") && !log.contains("hunter2") && !out.contains("hunter2"));
    assert_eq!(code, Some(0), "{out}");
}

#[test]
fn settings_that_can_not_be_used_are_another_exit_code_than_failures() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store").to_str().unwrap().to_owned();
    let consume = |more: &[&str]| {
        let output = ran(&[&["consume", "--brokers", "127.0.0.1:1", "--store", &store], more].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (more, words) in [
        (["--set", "enable.auto.commit=true"], "enable.auto.commit"),
        (["--set", "sasl.pasword=hunter2"], "`sasl.pasword`"),
        (["--set", "hunter2"], "--set number 1"),
        (["--lease", "0s"], "lease"),
        (["--group", ""], "group"),
        (["--slow", "1"], "a unit"),
        (["--fail-rate", "101"], "0..=100"),
    ] {
        let (code, told) = consume(&more);
        assert!(code == Some(2) && told.contains(words) && !told.contains("hunter2"), "{more:?}: {told}");
    }
    let (code, told) = consume(&["--ledger", "/nowhere/ledger"]);
    assert!(code == Some(1) && told.contains("the ledger /nowhere/ledger"), "{told}");
}
