//! The effects, as the store's own transactions left them.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use einmal::{SledConfig, SledStore, SledView};
use serde::{Deserialize, Serialize};

/// The user's trees.
pub(crate) const LEDGER: &str = "ledger";
pub(crate) const BALANCES: &str = "balances";
/// Where the store lies in the worker's directory.
pub(crate) const STORE: &str = "store";

/// A row: appended under a fresh number each time, so that a second effect would be a second row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) account: u64,
    pub(crate) cents: i64,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) rows: Vec<Row>,
    balances: HashMap<u64, i64>,
}

impl Ledger {
    /// Reads the ledger of a worker that is not running.
    pub(crate) fn read(directory: &Path) -> Result<Self> {
        let store = SledStore::open_blocking(SledConfig::new(directory.join(STORE))?)
            .context("could not open the store to count its rows")?;
        let row = |(_, value): (Bytes, Bytes)| Ok(serde_json::from_slice(&value)?);
        let rows = entries(&store.view(LEDGER)?)?.into_iter().map(row).collect::<Result<_>>()?;
        let balance = |(key, value): (Bytes, Bytes)| Some((account(&key)?, cents(&value)?));
        let balances = entries(&store.view(BALANCES)?)?.into_iter().filter_map(balance).collect();
        Ok(Self { rows, balances })
    }

    /// Accounts whose balance is not the sum of their rows.
    pub(crate) fn wrong_balances(&self) -> usize {
        let mut sums = self.balances.clone();
        for row in &self.rows {
            *sums.entry(row.account).or_default() -= row.cents;
        }
        sums.values().filter(|difference| **difference != 0).count()
    }
}

fn entries(view: &SledView) -> Result<Vec<(Bytes, Bytes)>> {
    let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
    loop {
        let after = entries.last().map(|(key, _)| key.clone());
        let page = view.scan(after.as_deref(), 10_000)?;
        if page.is_empty() {
            return Ok(entries);
        }
        entries.extend(page);
    }
}

fn account(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

/// A balance as it is stored.
pub(crate) fn cents(value: &[u8]) -> Option<i64> {
    value.try_into().ok().map(i64::from_be_bytes)
}
