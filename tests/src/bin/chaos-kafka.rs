//! `cargo xtask chaos kafka`: faults at random against a worker on a real broker, and a count at the end.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use einmal_tests::chaos::run::{Settings, run};

/// Kills, stops and cuts off a Kafka worker and its broker at random, and counts what came of it.
#[derive(Parser)]
struct Args {
    /// How long faults are made. The end comes when everything that was sent is committed.
    #[arg(long, default_value_t = 2)]
    minutes: u64,
    /// Of the random choices. When things happen is not chosen by it alone.
    #[arg(long)]
    seed: Option<u64>,
    /// Messages a second.
    #[arg(long, default_value_t = 200)]
    rate: usize,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(rand::random);
    eprintln!("seed {seed}");
    let worker = std::env::current_exe()?.with_file_name("kill-worker");
    let time = Duration::from_secs(args.minutes * 60);
    let report = run(Settings { time, seed, rate: args.rate, worker }).await;
    let report = report.with_context(|| format!("chaos with seed {seed}"))?;
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(if report.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
