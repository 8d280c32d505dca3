//! `cargo xtask chaos`: faults at random, and a count at the end.

use std::path::Path;

use anyhow::Result;
use clap::Subcommand;
use einmal_services::Service;

use crate::command::{cargo, run as run_command};
use crate::services::{From, Session};

#[derive(Subcommand)]
pub(crate) enum Task {
    /// A worker on a Kafka broker of its own, out of programs of this machine.
    Kafka(Kafka),
}

#[derive(clap::Args)]
pub(crate) struct Kafka {
    /// How long faults are made. It ends when all that was sent is committed.
    #[arg(long, default_value_t = 2)]
    minutes: u64,
    /// Of the random choices; another one each time when not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Messages a second.
    #[arg(long, default_value_t = 200)]
    rate: usize,
}

pub(crate) fn run(root: &Path, task: &Task) -> Result<()> {
    let Task::Kafka(kafka) = task;
    // The broker that is stopped and killed is another one: of this one only the programs are used.
    let mut session = Session::begin(root, &[Service::Kafka], From::Programs)?;
    session.report().print();
    session.end()?;
    // Both programs: the one that makes the faults starts the other.
    run_command(cargo(root).args(["build", "-p", "einmal-tests", "--bins"]))?;
    let mut command = cargo(root);
    command.args(["run", "-q", "-p", "einmal-tests", "--bin", "chaos-kafka", "--"]);
    command.args(["--minutes", &kafka.minutes.to_string(), "--rate", &kafka.rate.to_string()]);
    if let Some(seed) = kafka.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    run_command(&mut command)
}
