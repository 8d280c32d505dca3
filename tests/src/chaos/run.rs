//! One fault after the other, and the count at the end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use einmal::{Clock, SystemClock};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rdkafka::Message;
use rdkafka::message::Headers;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::fault::Fault;
use super::ledger::{Death, Ledger};
use super::producer::Producer;
use crate::kafka::{PATIENCE, Topic};
use crate::kafka_broker::OwnBroker;
use crate::proxy::{Direction, Flow};
use crate::witness::Place;

const PARTITIONS: usize = 6;
const LANES: [&str; 3] = ["partition", "key", "none"];

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long faults are made.
    pub time: Duration,
    /// Of the random choices.
    pub seed: u64,
    /// Messages a second.
    pub rate: usize,
    /// The program of the worker.
    pub worker: PathBuf,
}

/// A death of the worker.
#[derive(Clone, Debug, Serialize)]
pub struct Kill {
    /// Seconds from the start.
    pub at: u64,
    /// Runs that it cut off.
    pub in_flight: usize,
    /// What the worker kept in order.
    pub lanes: &'static str,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    seed: u64,
    minutes: f64,
    ok: bool,
    /// Nothing may be here.
    violations: Vec<String>,
    produced: usize,
    distinct: usize,
    settled: usize,
    /// Ids without a row in the inbox, and ids with more than one.
    lost: usize,
    doubled_in_the_inbox: usize,
    made_up: usize,
    /// Runs beyond the first of an id: the effects outside of the store that repeat.
    doubled_outside: usize,
    doubled_outside_unexplained: usize,
    cut_off_by_kills: usize,
    dead_letters_expected: usize,
    dead_letters: usize,
    dead_letters_doubled: usize,
    faults: BTreeMap<Fault, usize>,
    kills: Vec<Kill>,
    kills_with_work_in_flight: usize,
    /// Of the worker's process, over all its incarnations: the most in each tenth of the time.
    resident_mib: Vec<u64>,
}

impl Report {
    /// Whether all is as it must be.
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        self.ok
    }
}

struct Worker {
    child: Child,
    lanes: &'static str,
}

struct Chaos {
    settings: Settings,
    random: StdRng,
    broker: OwnBroker,
    topic: Topic,
    producer: Option<Producer>,
    place: Place,
    ledger: Ledger,
    worker: Worker,
    began: Duration,
    faults: BTreeMap<Fault, usize>,
    kills: Vec<Kill>,
    resident: Vec<u64>,
}

/// Makes faults for the time that is asked for, lets the worker come to the end, and counts.
///
/// # Errors
/// When something fails that none of the faults explains.
pub async fn run(settings: Settings) -> Result<Report> {
    let broker = OwnBroker::start().await?.context(
        "no Kafka of its own can be had: it needs `cargo xtask services up --only kafka --from programs`",
    )?;
    let topic = Topic::create(broker.proxy.address().to_string(), "chaos", PARTITIONS, &[]).await?;
    topic.dead_letters().await?;
    let directory = tempfile::tempdir()?;
    let place = Place(directory.path().to_owned());
    fs::write(place.pause(), "10")?;
    let mut random = StdRng::seed_from_u64(settings.seed);
    let producer = Producer::start(&topic, settings.rate)?;
    let worker = spawn(&settings, &topic, &place, &mut random)?;
    let mut chaos = Chaos {
        ledger: Ledger::new(place.clone(), PARTITIONS),
        random,
        broker,
        topic,
        producer: Some(producer),
        place,
        worker,
        began: SystemClock.monotonic(),
        faults: BTreeMap::new(),
        kills: Vec::new(),
        resident: vec![0; 10],
        settings,
    };
    while chaos.since() < chaos.settings.time && chaos.ledger.violations.is_empty() {
        chaos.work().await?;
        // A short run has a kill too.
        let fault = if chaos.faults.is_empty() { Fault::KillWorker } else { Fault::draw(&mut chaos.random) };
        chaos.fault(fault).await?;
    }
    chaos.end().await
}

fn spawn(settings: &Settings, topic: &Topic, place: &Place, random: &mut StdRng) -> Result<Worker> {
    let lanes = LANES.get(random.random_range(0..LANES.len())).copied().unwrap_or("partition");
    let child = Command::new(&settings.worker)
        .arg(&place.0)
        .arg(format!("{}/{}", topic.brokers, topic.name))
        .args([lanes, "strict"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Worker { child, lanes })
}

impl Chaos {
    fn since(&self) -> Duration {
        SystemClock.monotonic() - self.began
    }

    /// Waits until the worker has settled something since the last fault, and then a little longer.
    async fn work(&mut self) -> Result<()> {
        let before = self.ledger.settled();
        let until = self.since() + PATIENCE;
        let mut longer = None;
        loop {
            self.look()?;
            let now = self.since();
            if self.ledger.settled() > before && longer.is_none() {
                longer = Some(now + Duration::from_millis(self.random.random_range(0..3_000)));
            }
            match longer {
                Some(longer) if now >= longer => return Ok(()),
                None if now >= until => {
                    bail!("nothing was settled for {PATIENCE:?}, after {:?}", self.faults)
                }
                _ => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    fn look(&mut self) -> Result<()> {
        let status = self.worker.child.try_wait()?;
        ensure!(status.is_none(), "the worker ended by itself: {status:?}");
        self.ledger.read()?;
        let tenth = self.since().as_millis() * 10 / self.settings.time.as_millis().max(1);
        let at = usize::try_from(tenth)?.min(self.resident.len() - 1);
        let now = resident_mib(self.worker.child.id());
        if let Some(most) = self.resident.get_mut(at) {
            *most = now.max(*most);
        }
        Ok(())
    }

    async fn fault(&mut self, fault: Fault) -> Result<()> {
        *self.faults.entry(fault).or_default() += 1;
        let lasts = Duration::from_millis(self.random.random_range(200..9_000));
        match fault {
            Fault::KillWorker => {
                self.worker.child.kill()?;
                self.worker.child.wait()?;
                let at = self.since().as_secs();
                let in_flight = self.ledger.after(Death::Killed).await?;
                self.kills.push(Kill { at, in_flight, lanes: self.worker.lanes });
                self.worker = spawn(&self.settings, &self.topic, &self.place, &mut self.random)?;
            }
            Fault::TerminateWorker => {
                self.terminate().await?;
                self.worker = spawn(&self.settings, &self.topic, &self.place, &mut self.random)?;
            }
            Fault::StopWorker => {
                self.signal_worker(Signal::STOP)?;
                tokio::time::sleep(lasts).await;
                self.signal_worker(Signal::CONT)?;
            }
            Fault::Cut => self.broker.proxy.cut(),
            Fault::Stall => {
                self.broker.proxy.stall();
                tokio::time::sleep(lasts).await;
                self.broker.proxy.resume();
            }
            Fault::Swallow => {
                self.broker.proxy.set(Direction::ToClient, Flow::Swallow);
                tokio::time::sleep(lasts).await;
                self.broker.proxy.cut();
                self.broker.proxy.resume();
            }
            Fault::StopBroker => {
                self.broker.signal(Signal::STOP)?;
                tokio::time::sleep(lasts).await;
                self.broker.signal(Signal::CONT)?;
            }
            Fault::TerminateBroker | Fault::KillBroker => {
                let kills = fault == Fault::KillBroker;
                self.broker.signal(if kills { Signal::KILL } else { Signal::TERM })?;
                self.broker.wait()?;
                self.broker.run().await?;
            }
        }
        self.commits()
    }

    /// The broker may be busy with coming back: then the next look will do.
    fn commits(&mut self) -> Result<()> {
        // First the offsets: what is settled after them is none of theirs.
        let committed = self.topic.committed();
        self.ledger.read()?;
        if let Ok(committed) = committed {
            self.ledger.commits(&committed);
        }
        Ok(())
    }

    fn signal_worker(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.worker.child.id())?).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    async fn terminate(&mut self) -> Result<()> {
        self.signal_worker(Signal::TERM)?;
        let status = self.worker.child.wait()?;
        if !status.success() {
            self.ledger.violations.push(format!("told to terminate, the worker ended with {status}"));
        }
        self.ledger.after(Death::InOrder).await?;
        Ok(())
    }

    async fn end(mut self) -> Result<Report> {
        let minutes = self.since().as_secs_f64() / 60.0;
        let producer = self.producer.take().context("no producer")?;
        eprintln!("{minutes:.1} min, {} sent, {:?}", producer.sent(), self.faults);
        let produced = tokio::task::spawn_blocking(move || producer.finish()).await??;
        // However far the worker is behind: it must go on.
        let (mut last, mut progress) = (0, self.since());
        while last < produced {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let status = self.worker.child.try_wait()?;
            ensure!(status.is_none(), "the worker ended by itself: {status:?}");
            let committed: usize = self.topic.committed().map_or(0, |all| all.iter().sum());
            if committed > last {
                (last, progress) = (committed, self.since());
            }
            let still = self.since() - progress;
            ensure!(
                still < PATIENCE,
                "{last} of {produced} are committed, and nothing more for {PATIENCE:?}"
            );
        }
        self.commits()?;
        self.terminate().await?;

        let rows = self.ledger.rows(produced).await?;
        let mut letters: HashMap<String, HashSet<String>> = HashMap::new();
        let arrived = self.topic.read(&format!("{}.dead-letter", self.topic.name))?;
        for letter in &arrived {
            let header = |name| {
                let mut headers = letter.headers().into_iter().flat_map(Headers::iter);
                let value = headers.find(|header| header.key == name)?.value?;
                Some(String::from_utf8_lossy(value).into_owned())
            };
            let id = header("einmal-id").context("a letter without an id")?;
            letters
                .entry(id)
                .or_default()
                .insert(header("einmal-letter-id").context("a letter without its own id")?);
        }
        let dead_letters = letters.values().map(HashSet::len).sum();
        let as_expected = letters.keys().cloned().collect::<HashSet<_>>() == rows.rejected
            && dead_letters == rows.rejected.len();
        let (doubled_outside, doubled_outside_unexplained) = self.ledger.again();
        let settled = self.ledger.settled();
        let ok = self.ledger.violations.is_empty()
            && (rows.lost, rows.doubled, rows.made_up, doubled_outside_unexplained) == (0, 0, 0, 0)
            && as_expected
            && settled == produced;
        Ok(Report {
            seed: self.settings.seed,
            minutes,
            ok,
            violations: self.ledger.violations,
            produced,
            distinct: rows.distinct,
            settled,
            lost: rows.lost,
            doubled_in_the_inbox: rows.doubled,
            made_up: rows.made_up,
            doubled_outside,
            doubled_outside_unexplained,
            cut_off_by_kills: self.ledger.cut_by_kills,
            dead_letters_expected: rows.rejected.len(),
            dead_letters,
            dead_letters_doubled: arrived.len().saturating_sub(dead_letters),
            faults: self.faults,
            kills_with_work_in_flight: self.kills.iter().filter(|kill| kill.in_flight > 0).count(),
            kills: self.kills,
            resident_mib: self.resident,
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resident_mib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.unwrap_or_default() / 1_024
}
