//! The main job, with everything on board: a Kafka stream with repeats, a worker on a durable store, and
//! somebody who kills the worker in the middle.
//!
//! The parent process keeps librdkafka's mock cluster, produces payment events of which some repeat, starts
//! the worker as a child, kills it with SIGKILL while it works, and starts it again. At the end it counts, in
//! what the worker could not make up: the rows of the ledger, and lines appended before each start.

mod interrupt;
mod journal;
mod ledger;
mod parent;
mod plan;
mod report;
mod status;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Consumes a redelivered stream of payments, is killed in the middle, and shows what came of it.
#[derive(Debug, Parser)]
struct Args {
    /// Messages to produce, repeats included. At most about 145,000 fit into the broker on board.
    #[arg(long, default_value_t = 20_000)]
    messages: usize,
    /// How many in a hundred of them repeat an id that was produced before.
    #[arg(long, value_name = "PCT", default_value_t = 30, value_parser = clap::value_parser!(u8).range(0..=90))]
    duplicates: u8,
    /// How often the worker is killed while it works.
    #[arg(long, default_value_t = 2)]
    kills: usize,
    /// Where the store and the journal lie; a temporary directory by default. Must be empty or absent.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// What the events, and the places of the repeats, are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Leave the store and the journal where they are.
    #[arg(long)]
    keep: bool,
    /// Print one JSON object on the last line instead of the table.
    #[arg(long)]
    json: bool,
    /// Be the worker. For the parent process only.
    #[arg(long, hide = true, value_name = "BROKERS")]
    worker: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match (&args.worker, &args.store) {
        (Some(brokers), Some(store)) => worker::run(brokers, store),
        _ => parent::run(&args),
    };
    match ended {
        Ok(code) => code,
        Err(error) if error.is::<interrupt::Interrupted>() => {
            eprintln!("quickstart: {error}");
            ExitCode::from(interrupt::CODE)
        }
        Err(error) => {
            eprintln!("quickstart: {error:#}");
            ExitCode::FAILURE
        }
    }
}
