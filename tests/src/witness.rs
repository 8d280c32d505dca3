//! What a process writes down outside its store: append-only files, one line a `write`, so that a parent can
//! count without trusting the store.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;

/// An append-only file of lines.
#[derive(Debug)]
pub struct Lines(File);

impl Lines {
    /// Opens or makes it.
    ///
    /// # Errors
    /// When it can't be opened.
    pub fn append_to(path: &Path) -> Result<Self> {
        Ok(Self(OpenOptions::new().create(true).append(true).open(path)?))
    }

    /// Appends a line.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn push(&self, line: &str) -> std::io::Result<()> {
        (&self.0).write_all(format!("{line}\n").as_bytes())
    }
}

/// The lines of a file; none when there is no such file.
///
/// # Errors
/// When it can't be read.
pub fn lines(path: &Path) -> Result<Vec<String>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    Ok(BufReader::new(File::open(path)?).lines().collect::<std::io::Result<_>>()?)
}

/// Reads on in a file of lines from where it stopped.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    /// From the beginning.
    #[must_use]
    pub const fn of(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// The lines that are complete and were not read yet; none when there is no such file.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn more(&mut self) -> Result<Vec<String>> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let complete = text.rfind('\n').map_or("", |end| text.split_at(end + 1).0);
        self.read += complete.len() as u64;
        Ok(complete.lines().map(str::to_owned).collect())
    }
}

/// Where a worker process leaves its traces.
#[derive(Clone, Debug)]
pub struct Place(pub PathBuf);

impl Place {
    /// The store.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// A line for each start of the handler: id, pid, fence.
    #[must_use]
    pub fn starts(&self) -> PathBuf {
        self.0.join("starts.log")
    }

    /// A file with the id at which the handler waits for ever; there is none as a rule.
    #[must_use]
    pub fn stalled(&self) -> PathBuf {
        self.0.join("stalled")
    }

    /// A file with the milliseconds that each handler takes; there is none as a rule.
    #[must_use]
    pub fn pause(&self) -> PathBuf {
        self.0.join("pause")
    }

    /// A line for each run that was cut short by its worker: id, pid.
    #[must_use]
    pub fn cancelled(&self) -> PathBuf {
        self.0.join("cancelled.log")
    }

    /// A line for each worker that ended in order: what it counted, as JSON.
    #[must_use]
    pub fn summaries(&self) -> PathBuf {
        self.0.join("summaries.log")
    }

    /// A line for each settled delivery: its number, its id, pid.
    #[must_use]
    pub fn settled(&self) -> PathBuf {
        self.0.join("settled.log")
    }

    /// Handler starts in their order.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn read_starts(&self) -> Result<Vec<Start>> {
        let start = |line: &String| {
            let mut words = line.split(' ');
            Some(Start {
                id: words.next()?.to_owned(),
                pid: words.next()?.parse().ok()?,
                fence: words.next()?.parse().ok()?,
            })
        };
        Ok(lines(&self.starts())?.iter().filter_map(start).collect())
    }

    /// Settled deliveries: number, and the process that settled it first.
    ///
    /// # Errors
    /// When they can't be read.
    pub fn read_settled(&self) -> Result<HashMap<usize, u32>> {
        let mut settled = HashMap::new();
        for line in lines(&self.settled())? {
            let mut words = line.split(' ');
            if let (Some(Ok(number)), Some(Ok(pid))) =
                (words.next().map(str::parse), words.next().map(str::parse))
            {
                settled.entry(number).or_insert(pid);
            }
        }
        Ok(settled)
    }
}

/// A start of the handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The message.
    pub id: String,
    /// The process.
    pub pid: u32,
    /// The claim's fence.
    pub fence: u64,
}

/// Ids that `pid` started.
#[must_use]
pub fn started_by(starts: &[Start], pid: u32) -> HashSet<&str> {
    starts.iter().filter(|start| start.pid == pid).map(|start| start.id.as_str()).collect()
}
