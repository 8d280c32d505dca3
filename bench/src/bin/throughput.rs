//! Durable throughput of core and the sled store, without a broker: a handler that does nothing, payloads of
//! 64 bytes, a fresh id each.
//!
//! Beside it, in the same run and with the same number in flight, a bare file: records of 64 bytes, appended
//! by one thread that takes whatever waits, and `fdatasync`ed before anyone is answered. That is what group
//! commit can do at most on this disk; the ratio to it is what is reported. Rounds of both alternate, because
//! a shared disk drifts.
//!
//! Durability class of every cell: power loss (`fdatasync` before the answer), `Durability::Fsync`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use clap::Parser;
use einmal::worker::{Ack, Assignment, Incoming, Lanes, Limits, Source, Worker, WorkerConfig};
use einmal::{
    Context, Delivery, Failure, IdSource, Idempotent, Identify, Position, Scope, Settings, SledConfig,
    SledStore,
};
use einmal_bench::{Spread, now, rate};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// How much is measured.
#[derive(Debug, Parser)]
struct Args {
    /// Seconds that a cell is measured for, in each round.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Rounds; medians and ranges are over these.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the files lie. It must be on a disk: on a RAM disk nothing here means anything.
    #[arg(long, default_value = "target/bench")]
    dir: std::path::PathBuf,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Bare,
    Unordered,
    /// Pipelined lanes, 64 deliveries each.
    Ordered,
}

#[tokio::main(flavor = "multi_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    std::fs::create_dir_all(&args.dir)?;
    println!("seconds a cell {}, rounds {}, durability: power loss (fdatasync)", args.seconds, args.rounds);
    println!(
        "| in flight | what | op/s: median [lowest to highest] | ratio to the bare file: median [range] |"
    );
    println!("|---|---|---|---|");
    for in_flight in [1, 64, 1024] {
        let mut rows: [Vec<f64>; 3] = Default::default();
        for round in 0..args.rounds {
            for (at, what) in [What::Bare, What::Unordered, What::Ordered].into_iter().enumerate() {
                let rate = measure(what, in_flight, Duration::from_secs(args.seconds), &args.dir).await?;
                eprintln!("round {round}, in flight {in_flight}, {}: {rate:.0}/s", name(what));
                if let Some(row) = rows.get_mut(at) {
                    row.push(rate);
                }
            }
        }
        let [bare, unordered, ordered] = rows;
        for (what, row) in [(What::Bare, &bare), (What::Unordered, &unordered), (What::Ordered, &ordered)] {
            let ratios = row.iter().zip(&bare).map(|(rate, bare)| rate / bare);
            println!(
                "| {in_flight} | {} | {} | {} |",
                name(what),
                spread(row.iter().copied(), 0),
                spread(ratios, 2)
            );
        }
    }
    Ok(())
}

const fn name(what: What) -> &'static str {
    match what {
        What::Bare => "bare append + fdatasync",
        What::Unordered => "core + sled, unordered",
        What::Ordered => "core + sled, ordered",
    }
}

fn spread(values: impl IntoIterator<Item = f64>, digits: usize) -> String {
    Spread::of(values).map_or_else(|| "none".to_owned(), |spread| spread.text(digits))
}

async fn measure(what: What, in_flight: usize, time: Duration, dir: &Path) -> Result<f64> {
    let place = tempfile::tempdir_in(dir)?;
    match what {
        What::Bare => bare(in_flight, time, &place.path().join("log")).await,
        What::Unordered => worker(Lanes::None, in_flight, time, place.path()).await,
        What::Ordered => worker(Lanes::Partition, in_flight, time, place.path()).await,
    }
}

/// A closed loop of `in_flight` tasks over one writer thread that takes whatever waits.
async fn bare(in_flight: usize, time: Duration, path: &Path) -> Result<f64> {
    let (send, mut receive) = mpsc::channel::<oneshot::Sender<()>>(4096);
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        while let Some(first) = receive.blocking_recv() {
            let mut waiting = vec![first];
            while let Ok(next) = receive.try_recv() {
                waiting.push(next);
            }
            file.write_all(&vec![7u8; 64 * waiting.len()])?;
            file.sync_data()?;
            for waiter in waiting {
                let _ = waiter.send(());
            }
        }
        Ok(())
    });
    let began = now();
    let count = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let (send, count) = (send.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                while began.elapsed() < time {
                    let (answer, answered) = oneshot::channel();
                    if send.send(answer).await.is_err() || answered.await.is_err() {
                        return;
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    drop(send);
    for task in tasks {
        task.await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    ensure!(writer.join().is_ok_and(|ended| ended.is_ok()), "the bare writer failed: the cell is void");
    Ok(rate(count.load(Ordering::Relaxed), seconds))
}

struct Fresh {
    next: u64,
    lanes: u64,
    until: Instant,
    settled: Arc<AtomicU64>,
}

struct Settle(Arc<AtomicU64>);

impl Ack for Settle {
    fn settle(self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Source for Fresh {
    type Ack = Settle;

    async fn next(&mut self) -> Option<Incoming<Settle>> {
        if now() >= self.until {
            return None;
        }
        let number = self.next;
        self.next += 1;
        let lane = i32::try_from(number % self.lanes).unwrap_or_default();
        let position =
            Position::in_log("bench", lane, i64::try_from(number / self.lanes).unwrap_or_default());
        let id = Bytes::from(format!("{number:016x}"));
        let delivery = Delivery::new(position, Some(Bytes::from_static(&[7; 64])))
            .with_headers(vec![("message-id".into(), Some(id))]);
        let ack = Settle(Arc::clone(&self.settled));
        Some(Incoming { delivery, assignment: Assignment::default(), ack })
    }
}

async fn worker(lanes: Lanes, in_flight: usize, time: Duration, dir: &Path) -> Result<f64> {
    let store =
        SledStore::open(SledConfig::builder(dir.join("store")).max_keys(100_000_000).build()?).await?;
    let handled = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&handled);
    let handler = move |_: Context| {
        count.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Failure>(()) }
    };
    let settings =
        Settings::new(Scope::new("bench")?).identify(Identify::new([IdSource::header("message-id")]));
    let idempotent = Idempotent::new(store.clone(), handler, settings)?;
    let limits = Limits { deliveries: in_flight, ..Limits::default() };
    let worker = Worker::new(&idempotent, WorkerConfig { lanes, limits, ..WorkerConfig::default() })?;
    let settled = Arc::new(AtomicU64::new(0));
    let began = now();
    let lanes = (in_flight as u64).div_ceil(64);
    let source = Fresh { next: 0, lanes, until: began + time, settled: Arc::clone(&settled) };
    let summary = worker.run(source, CancellationToken::new()).await?;
    let seconds = began.elapsed().as_secs_f64();
    let (handled, settled) = (handled.load(Ordering::Relaxed), settled.load(Ordering::Relaxed));
    let right =
        handled == summary.received && settled == summary.received && summary.ran_ok == summary.received;
    ensure!(right, "{handled} handled, {settled} settled of {} unique: the cell is void", summary.received);
    store.close().await?;
    Ok(rate(settled, seconds))
}
