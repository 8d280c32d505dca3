//! Tasks of the workspace: `cargo xtask test`, `check`, `ci`, `services` and `chaos`.

mod chaos;
mod check;
mod ci;
mod command;
mod services;
mod test;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Tasks of the Einmal workspace.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every test of the workspace, then the doc tests.
    Test(test::Args),
    /// Everything but tests: format, lints, docs, dependencies, file length.
    Check,
    /// `check`, then `test`.
    Ci,
    /// Faults at random against a worker, and a count at the end.
    #[command(subcommand)]
    Chaos(chaos::Task),
    /// The brokers and databases that tests talk to: find or start them, ask them, stop them.
    #[command(subcommand)]
    Services(services::Task),
}

fn main() -> ExitCode {
    match run(&Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Not `Result` from main: a backtrace would bury the one line that matters.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<()> {
    // The folder of xtask is one below the root, wherever it was called from.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask has no parent folder")?;
    match task {
        Task::Test(args) => test::run(root, args),
        Task::Check => check::run(root),
        Task::Ci => ci::run(root),
        Task::Chaos(task) => chaos::run(root, task),
        Task::Services(task) => services::run(root, task),
    }
}
