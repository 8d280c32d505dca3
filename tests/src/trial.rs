//! A worker process, and what is known of it from outside.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use einmal::{Clock, SledConfig, SledStore, SystemClock};

use crate::kafka::PATIENCE;
use crate::log_broker::id_of;
use crate::points::Point;
use crate::witness::{Place, lines, started_by};

/// Runs of one worker program in one place.
#[derive(Debug)]
pub struct Trial {
    /// Where the workers leave their traces.
    pub place: Place,
    program: &'static str,
    source: String,
    messages: usize,
    lanes: &'static str,
    effect: &'static str,
    _directory: tempfile::TempDir,
}

impl Trial {
    /// Of `program`, which is given `source`, a source of `messages`.
    ///
    /// # Errors
    /// When there is no temporary directory.
    pub fn new(
        program: &'static str,
        source: String,
        messages: usize,
        lanes: &'static str,
        effect: &'static str,
    ) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let place = Place(directory.path().to_owned());
        Ok(Self { place, program, source, messages, lanes, effect, _directory: directory })
    }

    /// Starts a worker, which kills itself at the n-th passing of a point.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn(&self, kill: Option<(Point, usize)>) -> Result<Child> {
        self.spawn_telling(kill, None)
    }

    /// The same with a log of these levels, in a file.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn spawn_telling(&self, kill: Option<(Point, usize)>, log: Option<(&str, File)>) -> Result<Child> {
        let mut command = Command::new(self.program);
        command.arg(&self.place.0).arg(&self.source).args([self.lanes, self.effect]);
        if let Some((point, nth)) = kill {
            command.args([format!("{point:?}"), nth.to_string()]);
        }
        if let Some((levels, file)) = log {
            command.env("RUST_LOG", levels).stderr(file);
        }
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?)
    }

    /// The rows of the ledger, by id. No worker may be running.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn rows(&self) -> Result<HashMap<String, usize>> {
        rows(&self.place.store())
    }

    /// How many ids this many messages have.
    #[must_use]
    pub fn distinct(messages: usize) -> usize {
        (0..messages).map(id_of).collect::<HashSet<_>>().len()
    }

    /// The ids that were produced.
    #[must_use]
    pub fn ids(&self) -> HashSet<String> {
        (0..self.messages).map(id_of).collect()
    }

    /// Handlers that `pid` started and that left no row: what its death cut off.
    ///
    /// # Errors
    /// When the traces can't be read.
    pub fn cut_off(&self, pid: u32) -> Result<usize> {
        let (rows, starts) = (self.rows()?, self.place.read_starts()?);
        Ok(started_by(&starts, pid).into_iter().filter(|id| !rows.contains_key(*id)).count())
    }

    /// Fails if something is settled that has no row.
    ///
    /// # Errors
    /// See above.
    pub fn settled_have_rows(&self) -> Result<()> {
        let (rows, settled) = (self.rows()?, self.place.read_settled()?);
        let without = settled.keys().filter(|number| !rows.contains_key(&id_of(**number))).count();
        ensure!(without == 0, "{without} messages were settled without an outcome");
        Ok(())
    }

    /// Fails if a message was started by a process after an earlier one had settled it.
    ///
    /// # Errors
    /// See above.
    pub fn no_settled_message_ran_again(&self) -> Result<()> {
        // The first settle of each id, in the order of the file.
        let mut settled: HashMap<String, u32> = HashMap::new();
        for line in lines(&self.place.settled())? {
            let (number, pid) = line.split_once(' ').context("half a line")?;
            settled.entry(id_of(number.parse()?)).or_insert(pid.parse()?);
        }
        let starts = self.place.read_starts()?;
        let mut order: Vec<u32> = Vec::new();
        for start in &starts {
            if !order.contains(&start.pid) {
                order.push(start.pid);
            }
        }
        let turn = |pid: u32| order.iter().position(|other| *other == pid);
        for start in &starts {
            let Some(by) = settled.get(&start.id) else { continue };
            let again = turn(*by).is_some() && turn(start.pid) > turn(*by);
            ensure!(!again, "{} was settled by {by} and run again by {}", start.id, start.pid);
        }
        Ok(())
    }

    /// Fails unless every id has one row, every delivery is settled, and no more runs were made than the
    /// `cut_off` ones explain.
    ///
    /// # Errors
    /// See above.
    pub fn all_done_once(&self, cut_off: usize) -> Result<()> {
        let rows = self.rows()?;
        ensure!(rows.keys().cloned().collect::<HashSet<_>>() == self.ids(), "lost or made up");
        ensure!(rows.values().all(|count| *count == 1), "doubled");
        let settled = self.place.read_settled()?.len();
        ensure!(settled == self.messages, "{settled} of {} were settled", self.messages);
        let starts = self.place.read_starts()?;
        let claims: HashSet<(&str, u64)> = starts.iter().map(|s| (s.id.as_str(), s.fence)).collect();
        let most = self.ids().len() + cut_off;
        ensure!(claims.len() == most, "{} runs, of which deaths explain {most}", claims.len());
        self.no_settled_message_ran_again()
    }
}

/// Waits for a condition while a worker lives; kills it when it never comes.
///
/// # Errors
/// When the worker ends before it, or the condition never comes or can't be looked at.
pub fn wait_while(child: &mut Child, what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    const TICK: Duration = Duration::from_millis(2);
    let started = SystemClock.monotonic();
    while !condition()? {
        ensure!(child.try_wait()?.is_none(), "the worker ended by itself before {what}");
        if SystemClock.monotonic() - started > PATIENCE {
            child.kill()?;
            bail!("never came: {what}");
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

fn rows(store: &Path) -> Result<HashMap<String, usize>> {
    // Kept while its view is read: the last handle closes it.
    let store = SledStore::open_blocking(SledConfig::new(store)?)?;
    let view = store.view("ledger")?;
    let mut rows = HashMap::new();
    let mut after = None;
    loop {
        let page = view.scan(after.as_deref(), 10_000)?;
        let Some((last, _)) = page.last() else { return Ok(rows) };
        after = Some(last.clone());
        for (_, id) in page {
            *rows.entry(String::from_utf8(id.to_vec())?).or_default() += 1;
        }
    }
}
