//! What the inbox writes: a balance for each account.

use std::path::PathBuf;

use anyhow::{Context, Result};
use einmal::{SledConfig, SledStore};
use serde::Serialize;

/// The user's tree in the store.
pub(crate) const ACCOUNTS: &str = "accounts";
const PAGE: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The store's directory.
    #[arg(long, env = "EINMAL_STORE", value_name = "DIR", default_value = "payments.sled")]
    store: PathBuf,
}

/// An account as it is stored: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    cents: i64,
    bookings: u64,
}

/// What is stored is no account, or would be none.
#[derive(Debug)]
pub(crate) struct BadAccount(&'static str);

impl std::fmt::Display for BadAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BadAccount {}

impl Account {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadAccount> {
        let halves = bytes.split_first_chunk().and_then(|(cents, rest)| Some((cents, rest.try_into().ok()?)));
        let (cents, bookings) = halves.ok_or(BadAccount("an account has 16 bytes"))?;
        Ok(Self { cents: i64::from_be_bytes(*cents), bookings: u64::from_be_bytes(bookings) })
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        [self.cents.to_be_bytes(), self.bookings.to_be_bytes()].concat()
    }

    pub(crate) fn book(&mut self, cents: i64) -> Result<(), BadAccount> {
        self.cents = self.cents.checked_add(cents).ok_or(BadAccount("the balance is too large"))?;
        self.bookings += 1;
        Ok(())
    }
}

#[derive(Serialize)]
struct Line {
    account: u64,
    cents: i64,
    bookings: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // Opening would make one.
    let there = args.store.is_dir();
    anyhow::ensure!(there, "there is no store in {}", args.store.display());
    let config = SledConfig::new(&args.store)?;
    let store = SledStore::open_blocking(config)
        .with_context(|| format!("the store in {}; is the worker running?", args.store.display()))?;
    let view = store.view(ACCOUNTS)?;
    let mut after = None;
    loop {
        let page = view.scan(after.as_deref(), PAGE)?;
        for (key, value) in &page {
            let account = u64::from_be_bytes(key.as_ref().try_into().context("a key of an account")?);
            let Account { cents, bookings } = Account::decode(value)?;
            println!("{}", serde_json::to_string(&Line { account, cents, bookings })?);
        }
        match page.into_iter().next_back() {
            Some((key, _)) => after = Some(key),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_comes_back_and_half_of_one_does_not() {
        let mut account = Account::default();
        account.book(250).unwrap();
        account.book(50).unwrap();
        assert_eq!(account, Account { cents: 300, bookings: 2 });
        assert_eq!(Account::decode(&account.encode()).unwrap(), account);
        assert!(Account::decode(&account.encode()[..15]).is_err());
        assert!(Account { cents: i64::MAX, bookings: 1 }.book(1).is_err());
    }
}
