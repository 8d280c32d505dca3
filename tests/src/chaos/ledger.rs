//! What the workers wrote down, held against the store and the broker.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, Result};
use einmal::claim::{Phase, Stage};
use einmal::{DedupKey, DedupStore, MessageId, Scope, SledConfig, SledStore};

use crate::log_broker::{id_of, is_rejected};
use crate::witness::{Place, Tail};

/// How a worker's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// By SIGKILL.
    Killed,
    /// In order.
    InOrder,
}

/// Everything that is known so far.
#[derive(Debug)]
pub struct Ledger {
    place: Place,
    partitions: usize,
    starts: Tail,
    settled: Tail,
    cancelled: Tail,
    summaries: Tail,
    /// Runs of each id.
    pub runs: HashMap<String, usize>,
    /// Runs that a kill cut off, and those that the worker cut short, by id.
    pub cut: HashMap<String, usize>,
    /// How many of these a kill cut off.
    pub cut_by_kills: usize,
    /// In which incarnation an id was first settled.
    settled_in: HashMap<String, usize>,
    settled_numbers: HashSet<usize>,
    /// Per partition: all before it are settled; what was committed when looked at last.
    prefix: Vec<usize>,
    committed: Vec<usize>,
    incarnation: usize,
    started_now: HashMap<String, usize>,
    settled_now: HashSet<String>,
    cut_short_now: HashMap<String, usize>,
    settles_now: usize,
    /// Whatever is wrong.
    pub violations: Vec<String>,
}

impl Ledger {
    /// Of what is written in this place.
    #[must_use]
    pub fn new(place: Place, partitions: usize) -> Self {
        let tails = [place.starts(), place.settled(), place.cancelled(), place.summaries()].map(Tail::of);
        let [starts, settled, cancelled, summaries] = tails;
        Self {
            place,
            partitions,
            starts,
            settled,
            cancelled,
            summaries,
            runs: HashMap::new(),
            cut: HashMap::new(),
            cut_by_kills: 0,
            settled_in: HashMap::new(),
            settled_numbers: HashSet::new(),
            prefix: vec![0; partitions],
            committed: vec![0; partitions],
            incarnation: 0,
            started_now: HashMap::new(),
            settled_now: HashSet::new(),
            cut_short_now: HashMap::new(),
            settles_now: 0,
            violations: Vec::new(),
        }
    }

    /// Messages settled so far.
    #[must_use]
    pub fn settled(&self) -> usize {
        self.settled_numbers.len()
    }

    /// Reads what was written since.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn read(&mut self) -> Result<()> {
        for line in self.starts.more()? {
            let id = line.split(' ').next().context("no id")?.to_owned();
            if self.settled_in.get(&id).is_some_and(|settled| *settled < self.incarnation) {
                self.violations.push(format!("{id} was settled before and ran again"));
            }
            *self.runs.entry(id.clone()).or_default() += 1;
            *self.started_now.entry(id).or_default() += 1;
        }
        for line in self.cancelled.more()? {
            let id = line.split(' ').next().context("no id")?.to_owned();
            *self.cut.entry(id.clone()).or_default() += 1;
            *self.cut_short_now.entry(id).or_default() += 1;
        }
        for line in self.settled.more()? {
            let number: usize = line.split(' ').next().context("no number")?.parse()?;
            let id = id_of(number);
            self.settled_numbers.insert(number);
            self.settled_in.entry(id.clone()).or_insert(self.incarnation);
            self.settled_now.insert(id);
            self.settles_now += 1;
        }
        Ok(())
    }

    /// Holds what an incarnation wrote against the store that it left. Says how many runs its death cut off.
    ///
    /// # Errors
    /// When something can't be read.
    pub async fn after(&mut self, death: Death) -> Result<usize> {
        self.read()?;
        let store = SledStore::open(SledConfig::new(self.place.store())?).await?;
        let cut_short = std::mem::take(&mut self.cut_short_now);
        let mut cut_off = 0;
        for (id, runs) in std::mem::take(&mut self.started_now) {
            if done(&store, &id).await? {
                continue;
            }
            let left = runs.saturating_sub(cut_short.get(&id).copied().unwrap_or_default());
            if death == Death::Killed {
                *self.cut.entry(id).or_default() += left;
                cut_off += left;
            } else if left > 0 {
                self.violations.push(format!("{id} ran, was not cut short, and left nothing"));
            }
        }
        for id in std::mem::take(&mut self.settled_now) {
            if !done(&store, &id).await? {
                self.violations.push(format!("{id} is settled and not in the store"));
            }
        }
        store.close().await?;
        self.summary(death)?;
        self.cut_by_kills += cut_off;
        self.settles_now = 0;
        self.incarnation += 1;
        Ok(cut_off)
    }

    /// The counters of a worker that ended in order add up, with what it settled too.
    fn summary(&mut self, death: Death) -> Result<()> {
        let lines = self.summaries.more()?;
        if death == Death::Killed {
            return Ok(());
        }
        let counts: serde_json::Value = serde_json::from_str(lines.last().context("no counters")?)?;
        let count = |name| counts.get(name).and_then(serde_json::Value::as_u64).context("no such counter");
        // A letter that was not confirmed at first is published without another run.
        let without_run = count("dead_lettered_without_run")?;
        let settled = count("ran_ok")? + count("ran_failed")? + count("duplicate")? + without_run;
        let settles = self.settles_now as u64;
        let adds_up = count("in_flight")? == 0
            && count("received")? == settled + count("unsettled")?
            && settled == settles;
        if !adds_up {
            self.violations.push(format!("{settles} settles, and the counters are {counts}"));
        }
        Ok(())
    }

    /// Holds the committed offsets against what is settled.
    pub fn commits(&mut self, committed: &[usize]) {
        for (partition, end) in committed.iter().copied().enumerate() {
            let (Some(prefix), Some(before)) =
                (self.prefix.get_mut(partition), self.committed.get_mut(partition))
            else {
                continue;
            };
            while self.settled_numbers.contains(&(*prefix * self.partitions + partition)) {
                *prefix += 1;
            }
            if end > *prefix {
                self.violations.push(format!("partition {partition}: {end} committed, {prefix} settled"));
            }
            if end < *before {
                self.violations.push(format!("partition {partition} went back from {before} to {end}"));
            }
            *before = end;
        }
    }

    /// At the end, of so many messages: what is lost, and how many ids have more than one row.
    ///
    /// # Errors
    /// When the store can't be read.
    pub async fn rows(&self, produced: usize) -> Result<Rows> {
        let store = SledStore::open(SledConfig::new(self.place.store())?).await?;
        let view = store.view("ledger")?;
        let mut rows: HashMap<String, usize> = HashMap::new();
        let mut after = None;
        loop {
            let page = view.scan(after.as_deref(), 10_000)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (_, id) in page {
                *rows.entry(String::from_utf8(id.to_vec())?).or_default() += 1;
            }
        }
        let ids: HashSet<_> = (0..produced).map(id_of).collect();
        let (rejected, wanted): (HashSet<_>, HashSet<_>) = ids.into_iter().partition(|id| is_rejected(id));
        Ok(Rows {
            lost: wanted.iter().filter(|id| !rows.contains_key(*id)).count(),
            doubled: rows.values().filter(|count| **count > 1).count(),
            made_up: rows.keys().filter(|id| !wanted.contains(*id)).count(),
            distinct: wanted.len() + rejected.len(),
            rejected,
        })
    }

    /// Runs beyond the first of each id, and how many of them no death and no cancellation explains.
    #[must_use]
    pub fn again(&self) -> (usize, usize) {
        let again = |runs: &usize| runs.saturating_sub(1);
        let all = self.runs.values().map(again).sum();
        let explained = |id| self.cut.get(id).copied().unwrap_or_default();
        let unexplained = self.runs.iter().map(|(id, runs)| again(runs).saturating_sub(explained(id))).sum();
        (all, unexplained)
    }
}

/// The rows of the ledger in the store.
#[derive(Debug)]
pub struct Rows {
    /// Ids without a row.
    pub lost: usize,
    /// Ids with more than one.
    pub doubled: usize,
    /// Rows of ids that nobody sent, or that are rejected.
    pub made_up: usize,
    /// Ids in all.
    pub distinct: usize,
    /// Ids that are to be dead letters.
    pub rejected: HashSet<String>,
}

/// Whether the operation has ended, or is owed a dead letter.
async fn done(store: &SledStore, id: &str) -> Result<bool> {
    let key = DedupKey::new(Scope::new("kill")?, MessageId::new(id)?);
    Ok(store.get(&key).await?.is_some_and(|record| match record.phase {
        Phase::Completed(_) | Phase::Failed(_) | Phase::Owed(_) => true,
        Phase::InProgress { stage, .. } => matches!(stage, Stage::DeadLetter(_)),
        Phase::Released { .. } => false,
    }))
}
