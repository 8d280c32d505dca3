//! What is produced: payment events from a seed, some of them more than once.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

pub(crate) const PARTITIONS: i32 = 6;
/// The mock cluster silently drops what a partition holds beyond 5 MiB.
const MAX_PARTITION_BYTES: usize = 4 * 1024 * 1024;
/// What a record takes in the log besides its payload, generously.
const RECORD_OVERHEAD: usize = 120;
const ACCOUNTS: u64 = 500;

/// A payment, as it stands in the payload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) account: u64,
    pub(crate) cents: i64,
}

/// A record to produce.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) partition: i32,
    pub(crate) payment: Payment,
}

impl Record {
    pub(crate) fn payload(&self) -> Result<String> {
        Ok(serde_json::to_string(&self.payment)?)
    }
}

/// All records in the order in which they are produced.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) records: Vec<Record>,
    pub(crate) ids: HashSet<String>,
}

impl Plan {
    /// `messages` records, of which `repeat_percent` in a hundred repeat an earlier id: right behind it, far
    /// behind it, or at once on another partition.
    pub(crate) fn new(messages: usize, repeat_percent: usize, seed: u64) -> Result<Self> {
        let mut random = StdRng::seed_from_u64(seed);
        let repeats = messages * repeat_percent / 100;
        let distinct = messages - repeats;
        ensure!(distinct > 0, "--messages and --duplicates leave no message that is not a repeat");
        let mut records: Vec<Record> = Vec::with_capacity(messages);
        let (mut fresh, mut repeated) = (0, 0);
        while records.len() < messages {
            let repeat = fresh > 0
                && repeated < repeats
                && (fresh == distinct || random.random_range(0..messages) < repeats);
            if !repeat {
                records.push(first(&mut random, seed, fresh));
                fresh += 1;
                continue;
            }
            repeated += 1;
            let behind = match random.random_range(0..3) {
                0 | 1 => 1,
                _ => random.random_range(1..=records.len()),
            };
            let Some(mut copy) = records.get(records.len() - behind).cloned() else { continue };
            if random.random_bool(0.33) {
                copy.partition = (copy.partition + 1) % PARTITIONS;
            }
            records.push(copy);
        }
        let plan = Self { ids: records.iter().map(|record| record.id.clone()).collect(), records };
        plan.check_size()?;
        Ok(plan)
    }

    fn check_size(&self) -> Result<()> {
        for partition in 0..PARTITIONS {
            let here = self.records.iter().filter(|record| record.partition == partition);
            let bytes: usize = here.map(|record| record.id.len() + RECORD_OVERHEAD + 40).sum();
            ensure!(
                bytes <= MAX_PARTITION_BYTES,
                "--messages {} is too many: the broker that this example brings along keeps {} MiB a partition; \
                 at most about {} messages fit",
                self.records.len(),
                MAX_PARTITION_BYTES / 1024 / 1024,
                self.records.len() * MAX_PARTITION_BYTES / bytes,
            );
        }
        Ok(())
    }

    /// How many records each partition holds.
    pub(crate) fn ends(&self) -> Vec<i64> {
        let mut ends = vec![0; usize::try_from(PARTITIONS).unwrap_or_default()];
        for record in &self.records {
            if let Some(end) = usize::try_from(record.partition).ok().and_then(|at| ends.get_mut(at)) {
                *end += 1;
            }
        }
        ends
    }
}

fn first(random: &mut StdRng, seed: u64, number: usize) -> Record {
    let account = random.random_range(0..ACCOUNTS);
    Record {
        id: format!("evt-{seed:x}-{number:06}"),
        partition: i32::try_from(account % u64::from(PARTITIONS.unsigned_abs())).unwrap_or_default(),
        payment: Payment { account, cents: random.random_range(1..100_000) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_plan_and_the_share_is_kept() {
        let plan = Plan::new(20_000, 30, 7).unwrap();
        assert_eq!((plan.records.len(), plan.ids.len()), (20_000, 14_000));
        assert_eq!(plan.ends().iter().sum::<i64>(), 20_000);
        let again = Plan::new(20_000, 30, 7).unwrap();
        assert!(plan.records.iter().zip(&again.records).all(|(a, b)| a.id == b.id));
        assert_eq!(Plan::new(10, 0, 1).unwrap().ids.len(), 10);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_bound() {
        let error = Plan::new(1_000_000, 30, 7).unwrap_err().to_string();
        assert!(error.contains("4 MiB") && error.contains("at most about"), "{error}");
        assert!(Plan::new(10, 100, 1).is_err());
    }
}
