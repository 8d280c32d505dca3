//! Tasks of the workspace: `cargo xtask test`, `cargo xtask check`, `cargo xtask ci`.

mod check;
mod ci;
mod command;
mod test;

use std::path::Path;

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
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    // The folder of xtask is one below the root, wherever it was called from.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has no parent folder")?;
    match cli.task {
        Task::Test(args) => test::run(root, &args),
        Task::Check => check::run(root),
        Task::Ci => ci::run(root),
    }
}
