//! The effect: a payment is booked. Once as a line of a file, and once in the transaction of its outcome.

use std::time::Duration;

use async_trait::async_trait;
use einmal::{Context, Failure, Handler, Reply, SledStore, SledTx, TxHandler};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use crate::accounts::{ACCOUNTS, Account};
use crate::ledger::Ledger;

/// A message's payload. Its id stands in the header too, where it is found without reading the payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payment {
    pub(crate) id: String,
    pub(crate) account: u64,
    pub(crate) cents: i64,
}

/// Reads a payment. What can't be one is a dead letter: trying again would not help.
fn read(context: &Context) -> Result<Payment, Failure> {
    let payment: Payment = context.json()?;
    if payment.cents <= 0 {
        return Err(Failure::reject("an amount must be above zero"));
    }
    Ok(payment)
}

/// A line of the ledger.
#[derive(Debug, Serialize)]
struct Booking<'a> {
    /// The message id, by which Einmal knew it.
    id: &'a str,
    /// The same on every attempt of this payment: what another service would know the call by.
    key: String,
    account: u64,
    cents: i64,
    attempt: u32,
    worker: u32,
}

/// Books payments in a file, level *dedup*: after a `kill -9` between the line and its outcome, the line is
/// written a second time, under the same key.
#[derive(Debug)]
pub(crate) struct Book {
    pub(crate) ledger: Option<Ledger>,
    pub(crate) trouble: Trouble,
}

#[async_trait]
impl Handler for Book {
    async fn handle(&self, context: Context) -> Result<Reply, Failure> {
        let payment = read(&context)?;
        self.trouble.pass().await?;
        if let Some(ledger) = &self.ledger {
            let booking = Booking {
                id: context.key().id().as_str(),
                key: context.downstream_key("booking", 64)?,
                account: payment.account,
                cents: payment.cents,
                attempt: context.attempt(),
                worker: std::process::id(),
            };
            // Back only when it is on the disk: once the outcome is stored, nobody books it again.
            ledger.append(&booking).await?;
        }
        Ok(Reply::none())
    }
}

/// Books payments in the store, level *inbox*: balance and outcome are one transaction, and not even a `kill -9`
/// doubles a booking.
#[derive(Debug)]
pub(crate) struct BookInTx {
    pub(crate) trouble: Trouble,
}

#[async_trait]
impl TxHandler<SledStore> for BookInTx {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        let payment = read(&context)?;
        self.trouble.pass().await?;
        let key = payment.account.to_be_bytes();
        let mut account = match tx.get(ACCOUNTS, &key)? {
            Some(stored) => Account::decode(&stored)?,
            None => Account::default(),
        };
        account.book(payment.cents)?;
        tx.put(ACCOUNTS, &key, account.encode())?;
        Ok(Reply::none())
    }
}

/// What goes wrong on purpose, before the effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) slow: Duration,
    /// Of a hundred attempts.
    pub(crate) fail_rate: u8,
}

impl Trouble {
    async fn pass(self) -> Result<(), Failure> {
        if !self.slow.is_zero() {
            tokio::time::sleep(self.slow).await;
        }
        if rand::rng().random_range(0..100) < self.fail_rate {
            return Err(Failure::retry("this attempt fails, as --fail-rate asks"));
        }
        Ok(())
    }
}
