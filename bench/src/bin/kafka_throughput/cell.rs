//! One cell: all of the topic, read once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use einmal::worker::{Lanes, WorkerConfig};
use einmal::{
    Context, DedupStore, Durability, Failure, MemoryConfig, MemoryStore, SledConfig, SledStore, SystemClock,
};
use einmal_bench::{now, rate};
use einmal_kafka::{KafkaConfig, KafkaWorker};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Headers, Message};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::observer::{Observer, PATIENCE};
use crate::witness::{ID, Witness, memory};
use crate::{Args, Class};

pub(crate) const REQUEST: Duration = Duration::from_secs(30);
const COMMIT_EVERY: Duration = Duration::from_millis(100);

/// What reads the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Cell {
    Bare,
    MemoryPartition,
    MemoryNone,
    FsyncPartition,
    FsyncNone,
    FlushPartition,
    FlushNone,
}

impl Cell {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Bare, "bare"),
        (Self::MemoryPartition, "memory-partition"),
        (Self::MemoryNone, "memory-none"),
        (Self::FsyncPartition, "fsync-partition"),
        (Self::FsyncNone, "fsync-none"),
        (Self::FlushPartition, "flush-partition"),
        (Self::FlushNone, "flush-none"),
    ];

    /// Those that are asked for.
    pub(crate) fn all(args: &Args) -> Vec<Self> {
        let wanted = |cell: &Self| match cell {
            Self::Bare => true,
            _ if !args.only.is_empty() => args.only.contains(cell),
            _ => cell.class().is_none_or(|class| args.durability.contains(&class)),
        };
        Self::ALL.into_iter().map(|(cell, _)| cell).filter(wanted).collect()
    }

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(cell, _)| *cell == self).map_or("", |(_, name)| name)
    }

    const fn class(self) -> Option<Class> {
        match self {
            Self::Bare | Self::MemoryPartition | Self::MemoryNone => None,
            Self::FsyncPartition | Self::FsyncNone => Some(Class::Fsync),
            Self::FlushPartition | Self::FlushNone => Some(Class::Flush),
        }
    }

    const fn lanes(self) -> Lanes {
        match self {
            Self::MemoryNone | Self::FsyncNone | Self::FlushNone => Lanes::None,
            _ => Lanes::Partition,
        }
    }

    /// What it is, in words.
    pub(crate) const fn what(self) -> &'static str {
        match self {
            Self::Bare => "bare consumer",
            Self::MemoryPartition => "Einmal, memory, ordered by partition",
            Self::MemoryNone => "Einmal, memory, unordered",
            Self::FsyncPartition | Self::FlushPartition => "Einmal, sled, ordered by partition",
            Self::FsyncNone | Self::FlushNone => "Einmal, sled, unordered",
        }
    }

    /// What the outcomes in its store survive.
    pub(crate) const fn durability(self) -> &'static str {
        match self {
            Self::Bare => "no store",
            Self::MemoryPartition | Self::MemoryNone => "none",
            Self::FsyncPartition | Self::FsyncNone => "power loss (fdatasync)",
            Self::FlushPartition | Self::FlushNone => "process death",
        }
    }
}

/// What came of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) handled: u64,
    pub(crate) unique: u64,
    pub(crate) committed: u64,
    /// What the worker counted as run and stored; of the bare one what it handled.
    pub(crate) ran_ok: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) rss_growth_kib: Option<u64>,
}

impl Measured {
    pub(crate) fn is_void(&self, messages: u64) -> bool {
        [self.handled, self.unique, self.committed, self.ran_ok].into_iter().any(|count| count != messages)
    }

    pub(crate) fn text(&self, messages: u64) -> String {
        let Self { handled, unique, committed, ran_ok, seconds, cpu_seconds, .. } = self;
        if self.is_void(messages) {
            let counts =
                format!("{handled} handled, {unique} unique, {ran_ok} stored, {committed} committed");
            return format!("VOID: {counts} of {messages}");
        }
        let cpu = cpu_seconds.map(|cpu| format!(", {cpu:.2} s of CPU")).unwrap_or_default();
        format!("{:.0}/s{cpu}", rate(messages, *seconds))
    }
}

pub(crate) fn client(brokers: &str) -> ClientConfig {
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    client
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

pub(crate) fn run(cell: Cell, args: &Args, brokers: &str, topic: &str) -> Result<Measured> {
    let group = format!("{topic}-{:016x}", rand::random::<u64>());
    let mut member = client(brokers);
    member.set("group.id", &group).set("auto.offset.reset", "earliest");
    let witness = Arc::new(Witness::new(args.messages)?);
    let observer = Observer::new(args, &member, topic, witness)?;
    let before = memory("VmRSS");
    let mut measured = match cell.class() {
        _ if cell == Cell::Bare => bare(&member, topic, &observer)?,
        None => {
            let max_keys = usize::try_from(args.messages)?;
            let config = MemoryConfig { max_keys, max_keys_per_scope: max_keys, ..MemoryConfig::default() };
            let store = MemoryStore::new(config, Arc::new(SystemClock));
            runtime()?.block_on(einmal(&member, topic, cell.lanes(), store, observer))?
        }
        Some(class) => {
            let place = tempfile::tempdir_in(&args.dir)?;
            runtime()?.block_on(async {
                let store = sled(place.path(), class, args.messages).await?;
                let measured = einmal(&member, topic, cell.lanes(), store.clone(), observer).await?;
                store.close().await?;
                Ok::<_, anyhow::Error>(measured)
            })?
        }
    };
    measured.rss_growth_kib = memory("VmHWM").zip(before).map(|(peak, before)| peak.saturating_sub(before));
    Ok(measured)
}

/// With room for all ids: the default is a million.
async fn sled(dir: &Path, class: Class, messages: u64) -> Result<SledStore> {
    let keys = usize::try_from(messages)?;
    let durability = match class {
        Class::Fsync => Durability::Fsync,
        Class::Flush => Durability::Flush,
    };
    let config = SledConfig::builder(dir.join("store")).durability(durability);
    Ok(SledStore::open(config.max_keys(keys).max_keys_per_scope(keys).build()?).await?)
}

/// The loop that people write.
fn bare(member: &ClientConfig, topic: &str, observer: &Observer) -> Result<Measured> {
    let consumer: BaseConsumer = member.clone().set("enable.auto.commit", "false").create()?;
    consumer.subscribe(&[topic])?;
    let witness = &observer.witness;
    let (mut committed_at, mut heard_at) = (now(), now());
    while witness.handled() < observer.messages && heard_at.elapsed() < PATIENCE {
        let polled = consumer.poll(COMMIT_EVERY);
        let now = now();
        if let Some(message) = polled {
            heard_at = now;
            let message = message?;
            let headers = message.headers().context("a message has no headers")?;
            let id = headers.iter().find(|header| header.key.eq_ignore_ascii_case(ID));
            let id = id.and_then(|header| header.value).unwrap_or_default();
            witness.handle(id, message.payload().unwrap_or_default());
        }
        if witness.handled() > 0 && now.duration_since(committed_at) >= COMMIT_EVERY {
            committed_at = now;
            consumer.commit_consumer_state(CommitMode::Async)?;
        }
    }
    consumer.commit_consumer_state(CommitMode::Sync)?;
    let measured = observer.until_committed()?;
    Ok(Measured { ran_ok: witness.handled(), ..measured })
}

async fn einmal(
    member: &ClientConfig,
    topic: &str,
    lanes: Lanes,
    store: impl DedupStore,
    observer: Observer,
) -> Result<Measured> {
    let witness = Arc::clone(&observer.witness);
    let handling = Arc::clone(&witness);
    let handler = move |context: Context| {
        handling.handle(context.key().id().as_str().as_bytes(), context.payload());
        async { Ok::<_, Failure>(()) }
    };
    let config = KafkaConfig::builder(member.clone()).topics([topic]).build()?;
    let worker = KafkaWorker::builder(config)
        .worker(WorkerConfig { lanes, ..WorkerConfig::default() })
        // Nothing is to be given up here; what is, stays uncommitted, and its cell is void.
        .dead_letters(None)
        .build(store, handler)?;
    let shutdown = CancellationToken::new();
    let observed = tokio::task::spawn_blocking(move || {
        observer.until_handled();
        observer.until_committed()
    });
    let observed = async {
        let observed = observed.await;
        shutdown.cancel();
        observed
    };
    let (summary, measured) = tokio::join!(worker.run(shutdown.clone()), observed);
    let (ran_ok, measured) = (summary?.ran_ok, measured??);
    // What came later is a repeat, and counts as well.
    Ok(Measured { ran_ok, handled: witness.handled(), unique: witness.unique(), ..measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_lost_or_repeated_anything_is_void() {
        let right = Measured {
            handled: 7,
            unique: 7,
            committed: 7,
            ran_ok: 7,
            seconds: 1.0,
            cpu_seconds: None,
            rss_growth_kib: None,
        };
        assert!(!right.is_void(7) && right.is_void(8));
        let repeated = Measured { handled: 8, ..right.clone() };
        assert!(repeated.is_void(7) && repeated.text(7).starts_with("VOID: 8 handled, 7 unique"));
        let lost = [
            Measured { unique: 6, ..right.clone() },
            Measured { committed: 6, ..right.clone() },
            Measured { ran_ok: 6, ..right },
        ];
        assert!(lost.iter().all(|one| one.is_void(7)));
    }
}
