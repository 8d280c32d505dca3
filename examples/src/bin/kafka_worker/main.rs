//! A worker for payments on a Kafka broker of yours, and a producer that repeats itself: to try Einmal with, and
//! to copy from.
//!
//! ```text
//! cargo run -p einmal-examples --bin kafka_worker -- produce --create --count 10000 --repeats 30
//! cargo run -p einmal-examples --bin kafka_worker -- consume --ledger bookings.jsonl
//! ```
//!
//! In reading order: `handler` (the effect), `consume` and `settings` (the worker around it), `ledger` (a file that is durable
//! before a handler returns), `client` (settings of librdkafka, and secrets), `metrics`, `signals`, `live` and
//! `report` (what people see), `produce` and `stream` (the payments), `accounts` (what the inbox left).

mod accounts;
mod client;
mod consume;
mod handler;
mod ledger;
mod live;
mod metrics;
mod produce;
mod report;
mod settings;
mod signals;
mod stream;
mod units;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use einmal::InvalidSetting;
use einmal_kafka::{KafkaBuildError, KafkaErrorKind, KafkaWorkerError};

/// Books payments from a Kafka topic, each once.
#[derive(Debug, Parser)]
#[command(
    after_help = "Exit codes: 0 done, or stopped by a signal and drained; 1 failed; 2 a setting can't be \
                        used; 130 a second signal ended it at once."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Consume payments and book each once. Ctrl-C or SIGTERM drains: what runs may end, and is committed.
    Consume(Box<settings::Args>),
    /// Produce payments of which some repeat an earlier id.
    Produce(produce::Args),
    /// Print the balances that `consume --inbox` keeps in its store. The worker must not be running.
    Accounts(accounts::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Consume(args) => consume::run(&args).await,
        Command::Produce(args) => produce::run(&args).await,
        Command::Accounts(args) => accounts::run(&args),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kafka_worker: {error:#}");
            ExitCode::from(if is_setting(&error) { 2 } else { 1 })
        }
    }
}

/// Whether starting again with the same settings makes no sense: a supervisor should not.
fn is_setting(error: &anyhow::Error) -> bool {
    error.is::<InvalidSetting>()
        || error.is::<client::BadProperty>()
        || error.downcast_ref().is_some_and(|error: &KafkaBuildError| match error {
            KafkaBuildError::Kafka(error) => error.kind() == KafkaErrorKind::Setup,
            _ => true,
        })
        || error.downcast_ref().is_some_and(|error: &KafkaWorkerError| {
            matches!(error, KafkaWorkerError::Kafka(error) if error.kind() == KafkaErrorKind::Setup)
        })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_fit_together() {
        Cli::command().debug_assert();
    }
}
