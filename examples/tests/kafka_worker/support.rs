//! The program as a child process, and what it leaves.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) const PARTITIONS: i32 = 6;
const TICK: Duration = Duration::from_millis(10);
/// No test waits longer than this for one condition; none expects anything to be faster.
const TICKS: usize = 12_000;

pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..TICKS {
        if condition() {
            return;
        }
        std::thread::sleep(TICK);
    }
    panic!("never came: {what}");
}

/// The program without what the environment of a test says.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kafka_worker"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("EINMAL_")) {
        command.env_remove(name);
    }
    command.env_remove("RUST_LOG");
    command
}

pub(crate) fn ran(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// Produces, and says what a worker must come to.
pub(crate) fn produce(brokers: &str, topic: &str, more: &[&str]) -> Value {
    let args = [&["produce", "--brokers", brokers, "--topic", topic, "--json"], more].concat();
    let output = ran(&args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `consume`, running.
pub(crate) struct Worker {
    child: Child,
    /// All that it said on its standard error.
    pub(crate) log: Arc<Mutex<String>>,
    reading: Option<JoinHandle<()>>,
}

impl Worker {
    /// With `folder` for its store, and members that are missed after seconds.
    pub(crate) fn start(brokers: &str, topic: &str, folder: &Path, more: &[&str]) -> Self {
        let store = folder.join("store");
        let mut command = program();
        command.args(["consume", "--brokers", brokers, "--topic", topic, "--group", topic, "--json"]);
        command.args(["--metrics", "127.0.0.1:0", "--revoke-drain", "2s", "--report-every", "1s"]);
        command.args(["--set", "session.timeout.ms=6000", "--set", "heartbeat.interval.ms=500"]);
        command.arg("--store").arg(store).args(more);
        Self::spawn(&mut command)
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pipe = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::<Mutex<String>>::default();
        let lines = Arc::clone(&log);
        let reading = std::thread::spawn(move || {
            for line in pipe.lines().map_while(Result::ok) {
                // Shown for a failed test only.
                println!("{line}");
                lines.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, log, reading: Some(reading) }
    }

    pub(crate) fn says(&self, words: &str) -> bool {
        self.log.lock().unwrap().contains(words)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for a condition while it runs.
    pub(crate) fn until(&mut self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        until(what, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the worker ended by itself before {what}: {ended:?}");
            condition(self)
        });
    }

    /// Waits for its end: exit code, none after a signal, and standard output.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        until("the end of the worker", || self.child.try_wait().unwrap().is_some());
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        self.reading.take().unwrap().join().unwrap();
        (self.child.wait().unwrap().code(), out)
    }

    /// Stops it with a signal, and reads the counts of its last line.
    pub(crate) fn drain(self, signal: Signal) -> Value {
        self.signal(signal);
        let (code, out) = self.end();
        assert_eq!(code, Some(0), "{out}");
        serde_json::from_str(out.lines().last().unwrap()).unwrap()
    }

    /// Status and body of a page of its endpoint; `None` while there is none.
    pub(crate) fn get(&self, page: &str) -> Option<(u16, String)> {
        let log = self.log.lock().unwrap().clone();
        let address = log.split("metrics at http://").nth(1)?.split("/metrics").next()?;
        let mut stream = TcpStream::connect(address).ok()?;
        write!(stream, "GET {page} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    pub(crate) fn metrics(&self) -> Metrics {
        Metrics(self.get("/metrics").map(|(_, body)| body).unwrap_or_default())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A page of metrics.
pub(crate) struct Metrics(pub(crate) String);

impl Metrics {
    /// The sum over all labels that hold `label`.
    pub(crate) fn sum(&self, name: &str, label: &str) -> u64 {
        let samples = self.0.lines().filter_map(|line| line.strip_prefix(name));
        let samples = samples.filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label));
        samples.map(|rest| rest.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    pub(crate) fn received(&self) -> u64 {
        self.sum("einmal_received_total", "")
    }

    pub(crate) fn answered(&self) -> u64 {
        self.sum("einmal_answered_total", "")
    }

    /// Rule 12, when nothing is in flight: on the page, and between the page and the counts at the end.
    pub(crate) fn add_up_to(&self, counts: &Value) {
        assert_eq!((self.received(), self.sum("einmal_in_flight", "")), (self.answered(), 0), "{}", self.0);
        assert_eq!(counts["in_flight"], 0, "{counts}");
        for (name, count) in counts.as_object().unwrap() {
            let here = match name.as_str() {
                "received" => self.received(),
                "in_flight" => continue,
                answer => self.sum("einmal_answered_total", &format!("answer=\"{answer}\"")),
            };
            assert_eq!(*count, here, "{name}: {counts}\n{}", self.0);
        }
    }
}

/// How often each id stands in the ledger, and the sum of its cents. Every line must be whole.
pub(crate) fn ledger(path: &Path) -> (HashMap<String, usize>, i64) {
    let (mut ids, mut cents) = (HashMap::new(), 0);
    for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        *ids.entry(line["id"].as_str().unwrap().to_owned()).or_default() += 1;
        cents += line["cents"].as_i64().unwrap();
    }
    (ids, cents)
}

/// Lines of the ledger, while it is written.
pub(crate) fn lines(path: &Path) -> usize {
    std::fs::read(path).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count()
}

/// Looks at the group of a topic's name, without being a member of it.
pub(crate) struct Group {
    observer: BaseConsumer,
    topic: String,
}

impl Group {
    pub(crate) fn of(brokers: &str, topic: &str) -> Self {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", brokers).set("group.id", topic);
        Self { observer: client.create().unwrap(), topic: topic.to_owned() }
    }

    /// The sum of what is committed in all partitions.
    pub(crate) fn committed(&self) -> usize {
        let mut list = TopicPartitionList::new();
        list.add_partition_range(&self.topic, 0, PARTITIONS - 1);
        let list = self.observer.committed_offsets(list, Duration::from_secs(30)).unwrap();
        let offset = |offset| match offset {
            Offset::Offset(offset) => usize::try_from(offset).unwrap(),
            _ => 0,
        };
        list.elements().iter().map(|element| offset(element.offset())).sum()
    }
}
