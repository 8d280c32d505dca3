//! What the worker writes down outside its store, so that the parent can count without trusting it: each
//! delivery and each start of the handler is one line, appended before anything else happens.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use einmal::Position;

/// Two append-only files. A line is one `write`, so a kill cuts none in half that was counted on.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    starts: Arc<File>,
    deliveries: Arc<File>,
}

fn append_to(path: &Path) -> Result<Arc<File>> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    Ok(Arc::new(file.with_context(|| format!("could not open {}", path.display()))?))
}

impl Journal {
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let starts = append_to(&directory.join(STARTS))?;
        Ok(Self { starts, deliveries: append_to(&directory.join(DELIVERIES))? })
    }

    /// A handler starts: which message, which attempt, in which process, under which fence.
    pub(crate) fn start(&self, id: &str, attempt: u32, fence: u64) -> std::io::Result<()> {
        let line = format!("{id} {attempt} {} {fence}\n", std::process::id());
        (&*self.starts).write_all(line.as_bytes())
    }

    /// A message was delivered.
    pub(crate) fn delivery(&self, position: &Position) -> std::io::Result<()> {
        (&*self.deliveries).write_all(format!("{position} {}\n", std::process::id()).as_bytes())
    }
}

const STARTS: &str = "starts.log";
const DELIVERIES: &str = "deliveries.log";

/// What the two files say.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Handler runs.
    pub(crate) starts: usize,
    /// Runs that were repeated under the same claim, because what their transaction had read had changed.
    pub(crate) mismatch_reruns: usize,
    /// The messages that each process started.
    pub(crate) started: HashMap<String, HashSet<String>>,
    /// Deliveries, each once a process.
    pub(crate) deliveries: usize,
    /// Deliveries of a position that an earlier process had been given already.
    pub(crate) redelivered: usize,
}

impl Seen {
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let mut seen = Self::default();
        let mut claims: HashSet<String> = HashSet::new();
        for line in lines(&directory.join(STARTS))? {
            let mut words = line.split(' ');
            let (Some(id), Some(_attempt), Some(pid), Some(fence)) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            seen.starts += 1;
            seen.started.entry(pid.to_owned()).or_default().insert(id.to_owned());
            if !claims.insert(format!("{id} {pid} {fence}")) {
                seen.mismatch_reruns += 1;
            }
        }
        let mut processes: HashMap<String, HashSet<String>> = HashMap::new();
        for line in lines(&directory.join(DELIVERIES))? {
            let Some((position, pid)) = line.split_once(' ') else { continue };
            let given_to = processes.entry(position.to_owned()).or_default();
            if given_to.insert(pid.to_owned()) {
                seen.deliveries += 1;
                seen.redelivered += usize::from(given_to.len() > 1);
            }
        }
        Ok(seen)
    }
}

impl Seen {
    /// The messages that this process started.
    pub(crate) fn started_by(&self, pid: u32) -> HashSet<String> {
        self.started.get(&pid.to_string()).cloned().unwrap_or_default()
    }
}

fn lines(path: &Path) -> Result<Vec<String>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let file = File::open(path).with_context(|| format!("could not open {}", path.display()))?;
    Ok(BufReader::new(file).lines().collect::<std::io::Result<_>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_counted() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::open(directory.path()).unwrap();
        journal.start("a", 1, 7).unwrap();
        journal.start("a", 1, 7).unwrap();
        journal.start("a", 2, 8).unwrap();
        let position = Position::in_log("t", 1, 2);
        journal.delivery(&position).unwrap();
        journal.delivery(&position).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(directory.path().join(DELIVERIES))
            .and_then(|mut file| file.write_all(b"t[1]@2 0\n"))
            .unwrap();
        let seen = Seen::read(directory.path()).unwrap();
        assert_eq!((seen.starts, seen.mismatch_reruns, seen.started.len()), (3, 1, 1));
        assert_eq!(seen.started_by(std::process::id()).len(), 1);
        assert_eq!((seen.deliveries, seen.redelivered), (2, 1));
    }
}
