//! The worker: what a user of Einmal writes.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use einmal::worker::{Lanes, WorkerConfig};
use einmal::{Context, Failure, IdSource, Identify, Reply, SledConfig, SledStore, SledTx, TxHandler};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use crate::journal::Journal;
use crate::ledger::{BALANCES, LEDGER, Row, STORE, cents};
use crate::plan::Payment;
use crate::status::Status;

pub(crate) const TOPIC: &str = "payments";
pub(crate) const DEAD_LETTERS: &str = "payments.dead-letter";
pub(crate) const GROUP: &str = "ledger";
pub(crate) const ID_HEADER: &str = "event-id";

/// Books a payment: reads and writes the account's balance and appends a row, all in the transaction of the
/// message's outcome.
struct Book {
    journal: Journal,
}

#[async_trait]
impl TxHandler<SledStore> for Book {
    async fn handle(&self, context: Context, tx: &mut SledTx) -> Result<Reply, Failure> {
        let id = context.key().id().as_str();
        self.journal.start(id, context.attempt(), context.fence().get())?;
        let payment: Payment = context.json()?;
        let account = payment.account.to_be_bytes();
        let balance = tx.get(BALANCES, &account)?.and_then(|value| cents(&value)).unwrap_or_default();
        tx.put(BALANCES, &account, (balance + payment.cents).to_be_bytes())?;
        let row = Row { id: id.to_owned(), account: payment.account, cents: payment.cents };
        tx.append(LEDGER, serde_json::to_vec(&row)?)?;
        Ok(Reply::none())
    }
}
