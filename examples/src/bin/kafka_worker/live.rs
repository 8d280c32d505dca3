//! A line of counters: alive on a terminal, a plain one every few seconds elsewhere.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use einmal::worker::{Health, Summary};
use einmal_kafka::KafkaWorker;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;
use tracing_subscriber::EnvFilter;

const ON_A_TERMINAL: Duration = Duration::from_millis(500);

/// Where the line is shown: on the standard error.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    bar: ProgressBar,
    plain: bool,
    every: Duration,
}

impl Live {
    /// `every` is for where there is no terminal; zero means never.
    pub(crate) fn new(every: Duration) -> Self {
        let plain = !io::stderr().is_terminal();
        let target = if plain { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, plain, every: if plain { every } else { ON_A_TERMINAL } }
    }

    /// Sends logs to the standard error, above the line.
    pub(crate) fn start_logs(&self) {
        let live = self.clone();
        // sled tells contents at its trace level.
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| "info,sled=warn".into());
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(!self.plain)
            .with_writer(move || live.clone())
            .init();
    }

    /// Shows how far the worker is, until the future is dropped.
    pub(crate) async fn show(&self, worker: &KafkaWorker) -> Infallible {
        if self.every.is_zero() {
            std::future::pending::<()>().await;
        }
        let mut before = (Instant::now(), worker.summary());
        loop {
            tokio::time::sleep(self.every).await;
            let now = (Instant::now(), worker.summary());
            let seconds = now.0.duration_since(before.0).as_secs_f64();
            let line = line(&now.1, rate(&before.1, &now.1, seconds), &worker.health().read());
            if self.plain {
                eprintln!("{line}");
            } else {
                self.bar.set_message(line);
                self.bar.tick();
            }
            before = now;
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// For logs: the bar must not be where they are written.
impl Write for Live {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bar.suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Deliveries answered for good, a second.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn rate(before: &Summary, now: &Summary, seconds: f64) -> f64 {
    settled(now).saturating_sub(settled(before)) as f64 / seconds.max(f64::MIN_POSITIVE)
}

const fn settled(summary: &Summary) -> u64 {
    summary.received.saturating_sub(summary.in_flight).saturating_sub(summary.unsettled)
}

fn line(now: &Summary, rate: f64, health: &Health) -> String {
    let dead_letters = now.ran_failed
        + now.parked
        + now.conflict
        + now.dead_lettered_without_run
        + now.rejected_before_claim;
    let state = if health.ready { "ready".to_owned() } else { health.reasons.join("; ") };
    // What matters most comes first: a narrow terminal cuts the end.
    format!(
        "{state} | {rate:.0}/s | received {} | handled {} | repeats {} | dead letters {dead_letters} | in flight {} \
         | unsettled {}",
        now.received, now.ran_ok, now.duplicate, now.in_flight, now.unsettled
    )
}
