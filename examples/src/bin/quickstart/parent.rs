//! The one who produces, kills and counts.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rdkafka::ClientConfig;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};

use crate::Args;
use crate::interrupt::Interrupt;
use crate::journal::Seen;
use crate::ledger::Ledger;
use crate::plan::{PARTITIONS, Plan};
use crate::report::Report;
use crate::status::{Latest, Status};
use crate::worker::{DEAD_LETTERS, GROUP, ID_HEADER, TOPIC};

const LOOK_EVERY: Duration = Duration::from_millis(5);
const BROKER_TIMEOUT: Duration = Duration::from_secs(10);
/// A killed member blocks its group for about two session timeouts: far longer than that, and nothing moves.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    ensure!(
        args.kills == 0 || args.messages >= 2000 * (args.kills + 1),
        "--messages {} is too few to catch a worker at work {} times; at least {} are needed",
        args.messages,
        args.kills,
        2000 * (args.kills + 1)
    );
    let plan = Plan::new(args.messages, usize::from(args.duplicates), args.seed)?;
    // Before there is anything to be left behind.
    let interrupt = Interrupt::catch()?;
    let place = Place::new(args)?;
    println!(
        "producing {} payment events with {} different ids (seed {}); the store is in {}",
        plan.records.len(),
        plan.ids.len(),
        args.seed,
        place.path.display()
    );
    let cluster = MockCluster::new(1).context("could not start the mock cluster")?;
    for topic in [TOPIC, DEAD_LETTERS] {
        cluster
            .create_topic(topic, PARTITIONS, 1)
            .with_context(|| format!("could not make topic {topic}"))?;
    }
    let brokers = cluster.bootstrap_servers();
    produce(&brokers, &plan)?;
    interrupt.check()?;

    let mut show = Show::new(args.messages as u64);
    let ran = Course::run(args, &place.path, &brokers, &plan, &interrupt, &mut show);
    show.bar.finish_and_clear();
    let course = match ran {
        Ok(course) => course,
        // What is not kept goes with `place`.
        Err(error) if args.keep => {
            place.keep_or_drop(true);
            return Err(error);
        }
        Err(error) => return Err(error),
    };

    let report = count(args, &place.path, &plan, &course)?;
    let broken = report.broken_promises(args.kills);
    if !args.json {
        print!("{}", report.table());
        if broken.is_empty() {
            println!("nothing was lost, and no effect happened twice");
        }
    }
    broken.iter().for_each(|words| eprintln!("NOT AS PROMISED: {words}"));
    if let Some(path) = place.keep_or_drop(args.keep || !broken.is_empty()) {
        println!("the store and the journal are kept in {}", path.display());
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Where the worker's files lie.
struct Place {
    path: PathBuf,
    temporary: Option<tempfile::TempDir>,
}

impl Place {
    fn new(args: &Args) -> Result<Self> {
        let Some(path) = args.store.clone() else {
            let temporary = tempfile::tempdir().context("could not make a temporary directory")?;
            return Ok(Self { path: temporary.path().to_owned(), temporary: Some(temporary) });
        };
        std::fs::create_dir_all(&path).with_context(|| format!("could not make {}", path.display()))?;
        let used = std::fs::read_dir(&path)?.next().is_some();
        ensure!(
            !used,
            "--store {} is not empty: its outcomes would answer this run's events",
            path.display()
        );
        Ok(Self { path, temporary: None })
    }

    fn keep_or_drop(self, keep: bool) -> Option<PathBuf> {
        match self.temporary {
            Some(temporary) if keep => Some(temporary.keep()),
            Some(_) => None,
            None if keep => Some(self.path),
            None => {
                // Emptied, and left as it was found.
                let entries = std::fs::read_dir(&self.path).ok()?;
                for entry in entries.flatten() {
                    let path = entry.path();
                    let removed = if path.is_dir() {
                        std::fs::remove_dir_all(&path)
                    } else {
                        std::fs::remove_file(&path)
                    };
                    if let Err(error) = removed {
                        eprintln!("could not remove {}: {error}", path.display());
                    }
                }
                None
            }
        }
    }
}

fn produce(brokers: &str, plan: &Plan) -> Result<()> {
    let producer: ThreadedProducer<DefaultProducerContext> = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("queue.buffering.max.messages", "1000000")
        .create()
        .context("could not start the producer")?;
    for record in &plan.records {
        let payload = record.payload()?;
        let key = record.payment.account.to_string();
        let headers = OwnedHeaders::new().insert(Header { key: ID_HEADER, value: Some(&record.id) });
        let to_send = BaseRecord::to(TOPIC).partition(record.partition).key(&key).payload(&payload);
        producer.send(to_send.headers(headers)).map_err(|(error, _)| error).context("could not produce")?;
    }
    producer.flush(Duration::from_secs(60)).context("the mock cluster did not take all events")?;
    let reader = observer(brokers)?;
    for (partition, end) in (0..).zip(plan.ends()) {
        let (low, high) = reader.fetch_watermarks(TOPIC, partition, BROKER_TIMEOUT)?;
        ensure!((low, high) == (0, end), "partition {partition} holds {low}..{high} instead of 0..{end}");
    }
    Ok(())
}

/// Reads what the group has committed, without being a member of it.
fn observer(brokers: &str) -> Result<BaseConsumer> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("group.id", GROUP).set("enable.auto.commit", "false");
    config.create().context("could not start the observer")
}

fn committed(observer: &BaseConsumer) -> Result<u64> {
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_range(TOPIC, 0, PARTITIONS - 1);
    let offsets = observer.committed_offsets(partitions, BROKER_TIMEOUT)?;
    let offset = |element: rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset() {
        rdkafka::Offset::Offset(offset) => u64::try_from(offset).unwrap_or_default(),
        _ => 0,
    };
    Ok(offsets.elements().into_iter().map(offset).sum())
}

/// A bar on a terminal, plain lines elsewhere.
struct Show {
    bar: ProgressBar,
    plain: bool,
    last: String,
}

impl Show {
    fn new(total: u64) -> Self {
        let plain = !std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} settled  {msg}") {
            bar.set_style(style);
        }
        Self { bar, plain, last: String::new() }
    }

    fn say(&mut self, settled: u64, words: &str) {
        if self.plain {
            if self.last != words {
                eprintln!("{settled} settled: {words}");
            }
        } else {
            self.bar.set_position(settled);
            self.bar.set_message(words.to_owned());
        }
        words.clone_into(&mut self.last);
    }
}

/// What the workers went through.
#[derive(Default)]
struct Course {
    kills: usize,
    in_flight_at_kills: usize,
    duplicates: u64,
    settled: u64,
    active_ms: u64,
}

impl Course {
    fn run(
        args: &Args,
        store: &Path,
        brokers: &str,
        plan: &Plan,
        interrupt: &Interrupt,
        show: &mut Show,
    ) -> Result<Self> {
        let observer = observer(brokers)?;
        let total = plan.records.len() as u64;
        let mut course = Self::default();
        let mut kill_at = total / (args.kills as u64 + 1);
        loop {
            let before = committed(&observer)?;
            let kill_at_now = (course.kills < args.kills).then_some(kill_at);
            let mut worker = WorkerProcess::start(store, brokers)?;
            let killed = worker.watch(&observer, before, total, kill_at_now, interrupt, show)?;
            course.add(worker.latest.get());
            if !killed {
                return Ok(course);
            }
            // The killed worker's lock is gone with it: what it left can be counted.
            let cut_off = cut_off(store, worker.child.id())?;
            if cut_off > 0 {
                course.kills += 1;
                course.in_flight_at_kills += cut_off;
                kill_at = total * (course.kills as u64 + 1) / (args.kills as u64 + 1);
            } else {
                kill_at += total / 50;
            }
            let settled = committed(&observer)?;
            show.say(settled, &format!("worker killed in the middle of {cut_off} handlers"));
        }
    }

    fn add(&mut self, status: Status) {
        self.duplicates += status.duplicate;
        self.settled += status.settled;
        self.active_ms += status.active_ms;
    }
}

/// Handlers that this process started and that left no row.
fn cut_off(store: &Path, pid: u32) -> Result<usize> {
    let seen = Seen::read(store)?;
    let ledger = Ledger::read(store)?;
    let done: HashSet<&str> = ledger.rows.iter().map(|row| row.id.as_str()).collect();
    Ok(seen.started_by(pid).iter().filter(|id| !done.contains(id.as_str())).count())
}

struct WorkerProcess {
    child: Child,
    latest: Latest,
}

impl WorkerProcess {
    fn start(store: &Path, brokers: &str) -> Result<Self> {
        let program = std::env::current_exe().context("could not find this program's file")?;
        let mut command = Command::new(program);
        command.arg("--worker").arg(brokers).arg("--store").arg(store);
        // The worker ends when its standard input does, so that it never outlives its parent.
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("could not start the worker")?;
        let pipe = child.stdout.take().context("the worker has no standard output")?;
        let (latest, _) = Latest::follow(pipe);
        Ok(Self { child, latest })
    }

    /// Watches the worker until all is settled (`false`) or it has been killed (`true`).
    fn watch(
        &mut self,
        observer: &BaseConsumer,
        before: u64,
        total: u64,
        kill_at: Option<u64>,
        interrupt: &Interrupt,
        show: &mut Show,
    ) -> Result<bool> {
        let mut still = Still::default();
        loop {
            std::thread::sleep(LOOK_EVERY);
            interrupt.check()?;
            let status = self.latest.get();
            let settled = before + status.settled;
            if let Some(ended) = self.child.try_wait()? {
                // Ctrl-C on a terminal ends the worker too.
                interrupt.check()?;
                bail!("the worker ended by itself: {ended}");
            }
            let joining = status.settled == 0 && status.in_flight == 0;
            let waiting = "waiting for the group (about 3 s, and about 7 s after a kill, until it has missed the killed one)";
            show.say(settled.min(total), if joining { waiting } else { "working" });
            if kill_at.is_some_and(|at| settled >= at) && status.in_flight > 0 {
                return self.kill().map(|()| true);
            }
            // Everything was delivered at least once, so only the committed offsets say that it is done.
            if settled >= total && committed(observer)? == total {
                return self.stop().map(|()| false);
            }
            still.check(status)?;
        }
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill().context("could not kill the worker")?;
        let ended = self.child.wait()?;
        ensure!(ended.signal() == Some(9), "the worker ended before it was killed: {ended}");
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let ended = self.child.wait()?;
        ensure!(ended.success(), "the worker did not end well: {ended}");
        Ok(())
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Notices when nothing moves any more.
#[derive(Default)]
struct Still {
    settled: u64,
    looks: u32,
}

impl Still {
    fn check(&mut self, status: Status) -> Result<()> {
        self.looks = if status.settled == self.settled { self.looks + 1 } else { 0 };
        self.settled = status.settled;
        ensure!(LOOK_EVERY * self.looks < PATIENCE, "nothing was settled for {PATIENCE:?}");
        Ok(())
    }
}

fn count(args: &Args, store: &Path, plan: &Plan, course: &Course) -> Result<Report> {
    let seen = Seen::read(store)?;
    let ledger = Ledger::read(store)?;
    let rows: HashSet<&str> = ledger.rows.iter().map(|row| row.id.as_str()).collect();
    let strangers = rows.iter().filter(|id| !plan.ids.contains(**id)).count();
    ensure!(strangers == 0, "the ledger has {strangers} ids that were never produced");
    let seconds = course.active_ms.max(1);
    Ok(Report {
        deliveries: seen.deliveries,
        distinct: plan.ids.len(),
        handled: seen.starts,
        effects: ledger.rows.len(),
        duplicates: course.duplicates,
        redelivered: seen.redelivered,
        kills: course.kills,
        lost: plan.ids.len() - rows.len(),
        doubled: ledger.rows.len() - rows.len(),
        msgs_per_s: course.settled * 1000 / seconds,
        mismatch_reruns: seen.mismatch_reruns,
        in_flight_at_kills: course.in_flight_at_kills,
        wrong_balances: ledger.wrong_balances(),
        seed: args.seed,
    })
}
