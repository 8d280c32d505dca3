//! What a cell has handled, and what that cost.

use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};

/// The header that ids are in.
pub(crate) const ID: &str = "message-id";

/// The id of a message: as long as a UUID's digits.
pub(crate) fn id_of(number: u64) -> String {
    format!("{number:032x}")
}

/// Which messages were handled, since when.
pub(crate) struct Witness {
    /// One bit a message.
    seen: Vec<AtomicU64>,
    handled: AtomicU64,
    unique: AtomicU64,
    began: OnceLock<(Instant, Option<f64>)>,
}

impl Witness {
    pub(crate) fn new(messages: u64) -> Result<Self> {
        let words = usize::try_from(messages.div_ceil(64))?;
        let seen = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { seen, handled: AtomicU64::new(0), unique: AtomicU64::new(0), began: OnceLock::new() })
    }

    /// What every cell does with a message. One whose id is none of ours makes the numbers differ.
    pub(crate) fn handle(&self, id: &[u8], payload: &[u8]) {
        self.began.get_or_init(|| (einmal_bench::now(), cpu()));
        black_box(payload.iter().fold(0_u64, |sum, byte| sum.wrapping_add(u64::from(*byte))));
        let number = std::str::from_utf8(id).ok().and_then(|id| u64::from_str_radix(id, 16).ok());
        let word = number.and_then(|number| self.seen.get(usize::try_from(number / 64).ok()?));
        if let (Some(number), Some(word)) = (number, word) {
            let bit = 1 << (number % 64);
            let was = word.fetch_or(bit, Ordering::Relaxed);
            self.unique.fetch_add(u64::from(was & bit == 0), Ordering::Relaxed);
        }
        self.handled.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    pub(crate) fn unique(&self) -> u64 {
        self.unique.load(Ordering::Relaxed)
    }

    /// Seconds, and seconds of CPU, since the first message.
    pub(crate) fn spent(&self) -> Result<(f64, Option<f64>)> {
        let (began, cpu_then) = self.began.get().context("nothing was handled")?;
        let used = cpu().zip(*cpu_then).map(|(now, then)| now - then);
        Ok((began.elapsed().as_secs_f64(), used))
    }
}

/// Seconds of CPU that this process has used so far, all threads, user and system; `None` where there is no
/// `/proc`. Linux counts them in hundredths for programs.
fn cpu() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // After the name, which is in brackets and can hold anything: user and system are fields 14 and 15 of all.
    let mut ticks = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut seconds = || Some(ticks.next()?.parse::<f64>().ok()? / 100.0);
    Some(seconds()? + seconds()?)
}

/// A line of `/proc/self/status`, in KiB; `None` where there is no such file.
pub(crate) fn memory(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
