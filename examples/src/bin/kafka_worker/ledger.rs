//! A file of JSON lines. A line that was acknowledged is on the disk; one sync serves all that wait for it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Lines that wait for the disk; beyond it handlers wait to hand theirs over.
const WAITING: usize = 1_024;

struct Job {
    line: Vec<u8>,
    done: oneshot::Sender<()>,
}

/// Appends lines to a file, on a thread of its own.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    jobs: mpsc::Sender<Job>,
    broken: CancellationToken,
}

impl Ledger {
    /// Opens the file, and makes it if it isn't there.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            end_the_last_line(&mut file)?;
            // A new file's name is on the disk only when its directory is.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
            Ok::<_, io::Error>(file)
        };
        let mut file = open().with_context(|| format!("the ledger {}", path.display()))?;
        let (jobs, mut waiting) = mpsc::channel(WAITING);
        let broken = CancellationToken::new();
        let tell = broken.clone();
        std::thread::Builder::new().name("ledger".to_owned()).spawn(move || {
            if let Err(error) = write_all(&mut file, &mut waiting) {
                tracing::error!(%error, "the ledger can't be written; the worker stops");
                tell.cancel();
            }
        })?;
        Ok(Self { jobs, broken })
    }

    /// Appends a line, and waits until it is on the disk.
    pub(crate) async fn append<T: Serialize>(&self, booking: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(booking)?;
        line.push(b'\n');
        let (done, written) = oneshot::channel();
        let broken = |_| io::Error::other("the ledger can't be written");
        self.jobs.send(Job { line, done }).await.map_err(|_| io::Error::other("the ledger is closed"))?;
        written.await.map_err(broken)
    }

    /// Cancelled when a write has failed. What the disk has after that nobody knows, so nothing more is booked.
    pub(crate) fn broken(&self) -> &CancellationToken {
        &self.broken
    }
}

/// Dropping a job, or the channel, tells those who wait that it failed.
fn write_all(file: &mut File, waiting: &mut mpsc::Receiver<Job>) -> io::Result<()> {
    let mut jobs = Vec::new();
    while waiting.blocking_recv_many(&mut jobs, WAITING) > 0 {
        let lines = jobs.iter().map(|job| job.line.as_slice()).collect::<Vec<_>>().concat();
        file.write_all(&lines)?;
        file.sync_data()?;
        for job in jobs.drain(..) {
            // Nobody there: the handler was cancelled, and its line stands all the same.
            let _ = job.done.send(());
        }
    }
    Ok(())
}

/// A power loss can leave half a line, which must not spoil the next one.
fn end_the_last_line(file: &mut File) -> io::Result<()> {
    if file.metadata()?.len() == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last == [b'\n'] { Ok(()) } else { file.write_all(b"\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_there_when_told_and_half_a_line_spoils_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        std::fs::write(&path, "\"half").unwrap();
        let ledger = Ledger::open(&path).unwrap();
        for number in 0..3 {
            ledger.append(&number).await.unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\"half\n0\n1\n2\n");
        assert!(!ledger.broken().is_cancelled());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn after_a_failed_write_nothing_is_booked() {
        // A disk that is always full.
        let mut file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (jobs, mut waiting) = mpsc::channel(WAITING);
        let ledger = Ledger { jobs, broken: CancellationToken::new() };
        let writer = std::thread::spawn(move || write_all(&mut file, &mut waiting));
        assert!(ledger.append(&1).await.is_err());
        assert!(writer.join().unwrap().is_err());
        assert!(ledger.append(&2).await.is_err());
    }
}
