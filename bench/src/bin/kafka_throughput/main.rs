//! Throughput on a real Kafka: Einmal beside a bare consumer that reads the same topic in the same run.
//!
//! The topic is produced once, each message with an id of its own, not compressed unless asked for. A cell reads all of it with a new consumer
//! group, a new store and in a process of its own, so that nothing is left over from the cell before. The cells
//! take turns, because a shared machine drifts; each is compared to the bare one of its own round.
//!
//! - Every cell does the same with a message: it finds the header `message-id`, reads the number in it, notes
//!   that number as seen, and adds up the payload's bytes.
//! - The bare cell is a `BaseConsumer` with the client's own defaults: a loop that polls, one thread, a commit
//!   each 100 ms that it does not wait for. Einmal has its own defaults, which also commit each 100 ms; beyond
//!   the bare cell it copies the message, hashes the payload, and claims and stores each id.
//! - Each store has room for all ids: its bounds, a million by default, are set to the number of messages. All
//!   else of Einmal, and the client in it, is as it is by default.
//! - No metrics recorder and no subscriber for logs is installed: what those cost comes on top.
//! - Time and CPU count from the first message handled until the broker says that all of the topic is
//!   committed, which it is asked each 5 ms once all are handled. The CPU is that of all threads of the cell's
//!   process. The memory is the peak above what the process had before it made store and client.
//! - A cell counts only if the messages handled, the different ones among them, the sum of the committed
//!   offsets and the topic's messages are one number. Any other is void, and said to be.

mod cell;
mod observer;
mod produce;
mod report;
mod witness;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use einmal_services::Service;

use cell::{Cell, Measured};
use report::{Report, Row};

/// What is measured.
#[derive(Clone, Debug, Parser)]
#[command(about = "Throughput of Einmal on a real Kafka, beside a bare consumer")]
struct Args {
    /// Messages in the topic, each with an id of its own.
    #[arg(long, default_value_t = 1_000_000)]
    messages: u64,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 100)]
    size: usize,
    /// Partitions of the topic.
    #[arg(long, default_value_t = 6)]
    partitions: i32,
    /// Rounds that count; medians and ranges are over these.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Rounds before them that don't.
    #[arg(long, default_value_t = 1)]
    warmup: usize,
    /// Durability classes of the sled store.
    #[arg(long, value_delimiter = ',', default_value = "fsync,flush")]
    durability: Vec<Class>,
    /// How the producer compresses: the client's `compression.type`.
    #[arg(long, default_value = "none")]
    compression: String,
    /// Where the stores lie. It must be on a disk: on a RAM disk `fsync` means nothing.
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// Another build of this program: its cells of Einmal are measured in the same rounds.
    #[arg(long)]
    against: Option<PathBuf>,
    /// Only these cells, and the bare one.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Cell>,
    /// Prints one JSON object in place of the table.
    #[arg(long)]
    json: bool,
    /// Runs one cell, on a topic that is there: what this program starts itself with.
    #[arg(long, hide = true, requires = "topic")]
    cell: Option<Cell>,
    #[arg(long, hide = true)]
    topic: Option<String>,
}

/// What an answer of the sled store survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Class {
    Fsync,
    Flush,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let Some(brokers) = Service::Kafka.address() else {
        bail!(
            "{} is not set, and this needs a real broker. With one of your own, set it to host:port; or\n    \
             eval \"$(cargo xtask services up --only kafka)\"",
            Service::Kafka.variable()
        );
    };
    std::fs::create_dir_all(&args.dir)?;
    if let (Some(cell), Some(topic)) = (args.cell, &args.topic) {
        let measured = cell::run(cell, &args, &brokers, topic)?;
        println!("{}", serde_json::to_string(&measured)?);
        return Ok(());
    }
    let topic = produce::topic(&args, &brokers)?;
    let measured = rounds(&args, &topic);
    // Its room is given back, however it went.
    produce::delete(&brokers, &topic)?;
    print!("{}", measured?.text()?);
    Ok(())
}

fn rounds(args: &Args, topic: &str) -> Result<Report> {
    let this = std::env::current_exe()?;
    let mut rows: Vec<(Row, &Path)> = Vec::new();
    for cell in Cell::all(args) {
        rows.push((Row::new(cell, false), &this));
        if let Some(other) = args.against.as_deref().filter(|_| cell != Cell::Bare) {
            rows.push((Row::new(cell, true), other));
        }
    }
    for round in 0..args.warmup + args.rounds {
        for (row, program) in &mut rows {
            let measured = child(args, row.cell, topic, program)?;
            let counts = round >= args.warmup;
            let what = if counts { format!("round {}", round - args.warmup) } else { "warm-up".to_owned() };
            eprintln!("{what}, {}: {}", row.name(), measured.text(args.messages));
            if counts {
                row.rounds.push(measured);
            }
        }
    }
    Ok(Report::new(args, rows.into_iter().map(|(row, _)| row).collect()))
}

/// Runs a cell in a process of its own.
fn child(args: &Args, cell: Cell, topic: &str, program: &Path) -> Result<Measured> {
    let output = Command::new(program)
        .args(["--cell", cell.name(), "--topic", topic])
        .args(["--messages", &args.messages.to_string(), "--partitions", &args.partitions.to_string()])
        .arg("--dir")
        .arg(&args.dir)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{} did not start", program.display()))?;
    ensure!(output.status.success(), "the cell {} failed: {}", cell.name(), output.status);
    serde_json::from_slice(&output.stdout).context("the cell's answer can't be read")
}
