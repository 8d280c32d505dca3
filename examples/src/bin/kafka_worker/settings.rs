//! What `consume` can be told, and what that is for Einmal.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;
use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Backoff, Durability, IdSource, Identify, Policy, SledConfig, SledStore};
use einmal_kafka::{DeadLetterTopic, KafkaConfig, KafkaWorker};

use crate::client::ClientArgs;
use crate::handler::{Book, BookInTx, Trouble};
use crate::ledger::Ledger;
use crate::units;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    client: ClientArgs,
    /// The topic.
    #[arg(long, env = "EINMAL_TOPIC", default_value = "payments")]
    topic: String,
    /// The consumer group. It is the scope too: other groups book the same payments for themselves.
    #[arg(long, env = "EINMAL_GROUP", default_value = "payments-worker")]
    group: String,
    /// Where dead letters go; make it first. By default the topic's name with `.dead-letter` behind it.
    #[arg(long, env = "EINMAL_DEAD_LETTERS", value_name = "TOPIC")]
    dead_letters: Option<String>,
    /// The header that bears the message id. Where it is missing, the member `id` of the JSON payload is it.
    #[arg(long, env = "EINMAL_ID_HEADER", value_name = "NAME", default_value = "event-id")]
    id_header: String,

    /// The store's directory, on a local disk. One process at a time can have it.
    #[arg(long, env = "EINMAL_STORE", value_name = "DIR", default_value = "payments.sled")]
    pub(crate) store: PathBuf,
    /// What an outcome survives: a power loss (fsync), or the death of the process only (flush).
    #[arg(long, env = "EINMAL_DURABILITY", value_enum, default_value_t = DurabilityArg::Fsync)]
    durability: DurabilityArg,
    /// The most ids in the store; beyond it intake stops. About 300 bytes each.
    #[arg(long, env = "EINMAL_MAX_KEYS", value_name = "N", default_value_t = 1_000_000)]
    max_keys: usize,
    /// How long an outcome answers repeats. Longer than the topic keeps its messages (by default 7 days).
    #[arg(long, env = "EINMAL_RETENTION", value_name = "TIME", default_value = "8d", value_parser = units::duration)]
    retention: Duration,
    /// How long a claim lives without renewal; it is renewed every third of it.
    #[arg(long, env = "EINMAL_LEASE", value_name = "TIME", default_value = "30s", value_parser = units::duration)]
    lease: Duration,
    /// Attempts at which a payment is given up, and becomes a dead letter.
    #[arg(long, env = "EINMAL_ATTEMPTS", value_name = "N", default_value_t = 5)]
    attempts: u32,
    /// The longest wait after a first failure; doubled after each, up to 5m.
    #[arg(long, env = "EINMAL_BACKOFF", value_name = "TIME", default_value = "1s", value_parser = units::duration)]
    backoff: Duration,
    /// What is handled in order: a partition, the payments of an account (key), or nothing.
    #[arg(long, env = "EINMAL_LANES", value_enum, default_value_t = LanesArg::Key)]
    lanes: LanesArg,
    /// How long what runs may go on after a signal.
    #[arg(long, env = "EINMAL_DRAIN", value_name = "TIME", default_value = "20s", value_parser = units::duration)]
    drain: Duration,
    /// The same where a partition is taken away. Below session.timeout.ms (by default 45s).
    #[arg(long, env = "EINMAL_REVOKE_DRAIN", value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    revoke_drain: Duration,

    /// Book each payment as a JSON line of this file.
    #[arg(long, env = "EINMAL_LEDGER", value_name = "FILE")]
    pub(crate) ledger: Option<PathBuf>,
    /// Book in the store instead, in the transaction of the outcome. `accounts` prints what came of it.
    #[arg(long, env = "EINMAL_INBOX", conflicts_with = "ledger")]
    inbox: bool,
    /// How many in a hundred attempts fail, to see retries and dead letters.
    #[arg(long, value_name = "PCT", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    fail_rate: u8,
    /// How long each attempt takes at least.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    slow: Duration,

    /// Answer /metrics (Prometheus), /health (200 or 503) and /live (503: restart it) at this address.
    #[arg(long, env = "EINMAL_METRICS", value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Where there is no terminal, print the counters this often; 0s for never.
    #[arg(long, env = "EINMAL_REPORT_EVERY", value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub(crate) report_every: Duration,
    /// Print the counts at the end as one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LanesArg {
    Partition,
    Key,
    None,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DurabilityArg {
    Fsync,
    Flush,
}

impl Args {
    pub(crate) fn kafka(&self) -> Result<KafkaConfig> {
        let mut client = self.client.config()?;
        client.set("group.id", &self.group);
        let config = KafkaConfig::builder(client).topics([&self.topic]).drain(self.revoke_drain).build()?;
        // Without passwords, keys and tokens.
        tracing::debug!(?config, "the consumer's settings");
        Ok(config)
    }

    pub(crate) fn store_config(&self) -> Result<SledConfig> {
        let durability = match self.durability {
            DurabilityArg::Fsync => Durability::Fsync,
            DurabilityArg::Flush => Durability::Flush,
        };
        let config = SledConfig::builder(&self.store).durability(durability);
        Ok(config.max_keys(self.max_keys).max_keys_per_scope(self.max_keys).build()?)
    }

    pub(crate) fn worker(
        &self,
        config: KafkaConfig,
        store: SledStore,
        ledger: Option<Ledger>,
    ) -> Result<KafkaWorker> {
        let policy = Policy::builder()
            .retention(self.retention)
            .lease(self.lease)
            .max_failures(self.attempts)
            .backoff(Backoff { initial: self.backoff, ..Backoff::default() })
            .build()?;
        let lanes = match self.lanes {
            LanesArg::Partition => Lanes::Partition,
            LanesArg::Key => Lanes::Key,
            LanesArg::None => Lanes::None,
        };
        let letters = self.dead_letters.clone().map_or_else(DeadLetterTopic::default, DeadLetterTopic::Fixed);
        let id_header = IdSource::header(self.id_header.as_str());
        let builder = KafkaWorker::builder(config)
            .identify(Identify::new([id_header, IdSource::json_pointer("/id")]))
            .policy(policy)
            .worker(WorkerConfig { lanes, drain: self.drain, ..WorkerConfig::default() })
            .dead_letters(Some(letters));
        let trouble = Trouble { slow: self.slow, fail_rate: self.fail_rate };
        Ok(match self.inbox {
            true => builder.build_in_tx(store, BookInTx { trouble })?,
            false => builder.build(store, Book { ledger, trouble })?,
        })
    }
}
