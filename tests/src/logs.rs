//! Every line that this process logs, kept.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};
use tracing_subscriber::filter::LevelFilter as Filter;

/// What has been logged so far, by all tests of this process: look for names of your own.
#[derive(Clone, Debug, Default)]
pub struct Logs(Arc<Mutex<Vec<u8>>>);

static LOGS: OnceLock<Logs> = OnceLock::new();

impl Logs {
    /// Keeps all lines from now on: those of `tracing` at every level, and those of `log`, which rdkafka writes.
    ///
    /// # Panics
    /// When another subscriber or logger was there first: then nothing would be found.
    #[allow(clippy::expect_used, reason = "what is wrong in a test is said by failing")]
    pub fn keep() -> &'static Self {
        LOGS.get_or_init(|| {
            let logs = Self::default();
            let writer = logs.clone();
            tracing_subscriber::fmt()
                .with_ansi(false)
                .with_max_level(Filter::TRACE)
                .with_writer(move || writer.clone())
                .try_init()
                .expect("the only subscriber");
            log::set_boxed_logger(Box::new(logs.clone())).expect("the only logger");
            log::set_max_level(LevelFilter::Trace);
            logs
        })
    }

    /// The lines that hold all of `parts`.
    #[must_use]
    pub fn lines(&self, parts: &[&str]) -> Vec<String> {
        let text =
            String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
        let holds = |line: &&str| parts.iter().all(|part| line.contains(part));
        text.lines().filter(holds).map(str::to_owned).collect()
    }
}

impl Write for Logs {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log for Logs {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("log {} {}: {}\n", record.level(), record.target(), record.args());
        let _ = self.clone().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}
