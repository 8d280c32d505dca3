//! The inbox: a handler's own writes, in one batch with its outcome.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::SledStore;
use super::disk::{Batch, Disk};
use super::record;
use super::shared::{Shared, Step};
use super::writer::{Draft, Job, Verdict, Writer};
use crate::claim::{Claim, Token, Verb};
use crate::error::{StoreError, StoreErrorKind};
use crate::id::DedupKey;
use crate::store::transactional::{TransactionalStore, TxAnswer};

/// The most reads and writes of one transaction.
const MAX_OPERATIONS: usize = 1024;
/// The most bytes that one transaction reads and writes.
const MAX_BYTES: usize = 1 << 20;
/// The longest value, in bytes. Larger ones make sled's file grow without end.
const MAX_VALUE: usize = 8 * 1024;
/// The longest key, in bytes.
const MAX_KEY: usize = 512;
/// The longest name of a tree, in bytes.
const MAX_TREE: usize = 255;

/// The handler's side of a transaction: what it reads and writes in the user's trees.
///
/// Nothing is written before [`commit`](TransactionalStore::commit); dropped without one, it leaves no
/// trace. What was read is compared again when the transaction is written: if it has changed meanwhile, the
/// answer is [`TxAnswer::Conflict`] and nothing is written.
///
/// At most 1,024 reads and writes and 1 MiB in all; a key has at most 512 bytes, a value 8 KiB, a tree's
/// name 1 to 255.
pub struct SledTx {
    shared: Arc<Shared>,
    key: DedupKey,
    token: Token,
    effects: Effects,
}

/// Shows how much, never what.
impl fmt::Debug for SledTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledTx")
            .field("key", &self.key)
            .field("operations", &self.effects.operations)
            .field("bytes", &self.effects.bytes)
            .finish_non_exhaustive()
    }
}

/// What a transaction read and would write.
#[derive(Default)]
pub(super) struct Effects {
    reads: BTreeMap<Vec<u8>, Option<Bytes>>,
    writes: Batch,
    appends: Vec<(String, Vec<u8>)>,
    operations: usize,
    bytes: usize,
}

impl fmt::Debug for Effects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Effects({} operations)", self.operations)
    }
}

impl SledTx {
    /// The value of `key` in `tree`, this transaction's own writes included; the same every time.
    ///
    /// # Errors
    /// When the store can't be read, or a bound is passed.
    pub fn get(&mut self, tree: &str, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let full = full_key(tree, key)?;
        if let Some(written) = self.effects.writes.get(&full) {
            return Ok(written.as_deref().map(Bytes::copy_from_slice));
        }
        if let Some(read) = self.effects.reads.get(&full) {
            return Ok(read.clone());
        }
        self.shared.check()?;
        let found = self.shared.on_disk(|disk| disk.get(&full))?;
        let found = found.map(|value| Bytes::copy_from_slice(&value));
        self.effects.charge(full.len() + found.as_ref().map_or(0, Bytes::len))?;
        self.effects.reads.insert(full, found.clone());
        Ok(found)
    }

    /// Sets `key` in `tree` to `value`.
    ///
    /// # Errors
    /// When a bound is passed; the transaction is as it was before.
    pub fn put(&mut self, tree: &str, key: &[u8], value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        let (full, value) = (full_key(tree, key)?, value.into());
        check_value(&value)?;
        self.effects.charge(full.len() + value.len())?;
        self.effects.writes.insert(full, Some(value));
        Ok(())
    }

    /// Takes `key` out of `tree`.
    ///
    /// # Errors
    /// When a bound is passed; the transaction is as it was before.
    pub fn remove(&mut self, tree: &str, key: &[u8]) -> Result<(), StoreError> {
        let full = full_key(tree, key)?;
        self.effects.charge(full.len())?;
        self.effects.writes.insert(full, None);
        Ok(())
    }

    /// Adds `value` to the end of `tree`, under a number that is chosen when the transaction is written: a
    /// `u64`, its big end first, higher than any that an append to this tree was ever given. Appends of two
    /// transactions never conflict. This transaction does not see it.
    ///
    /// # Errors
    /// When a bound is passed; the transaction is as it was before.
    pub fn append(&mut self, tree: &str, value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        check_tree(tree)?;
        let value = value.into();
        check_value(&value)?;
        self.effects.charge(tree.len() + value.len())?;
        self.effects.appends.push((tree.to_owned(), value));
        Ok(())
    }
}

impl Effects {
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    fn charge(&mut self, bytes: usize) -> Result<(), StoreError> {
        let (operations, bytes) = (self.operations + 1, self.bytes + bytes);
        if operations > MAX_OPERATIONS {
            return misuse(format!("a transaction reads and writes at most {MAX_OPERATIONS} keys"));
        }
        if bytes > MAX_BYTES {
            return misuse(format!("a transaction reads and writes at most {MAX_BYTES} bytes"));
        }
        (self.operations, self.bytes) = (operations, bytes);
        Ok(())
    }

    /// Adds the writes to the batch if what was read is still so, in the batch's own eyes. In any other case
    /// the batch stays as it was.
    pub(super) fn stage(self, writer: &Writer, draft: &mut Draft) -> Result<Verdict, StoreError> {
        let disk = &*writer.disk;
        for (key, seen) in &self.reads {
            if current(disk, &draft.batch, key)?.as_deref() != seen.as_deref() {
                return Ok(Verdict::Conflict);
            }
        }
        let mut writes = self.writes;
        let mut appended: BTreeMap<String, u64> = BTreeMap::new();
        for (tree, value) in self.appends {
            let last = appended
                .get(&tree)
                .or_else(|| draft.appended.get(&tree))
                .or_else(|| writer.appended.get(&tree))
                .copied();
            let mut number = match last {
                Some(last) => last,
                None => stored_number(disk, &tree)?,
            };
            let key = loop {
                number = number.checked_add(1).ok_or_else(|| exhausted(&tree))?;
                let key = record::user_key(&tree, &number.to_be_bytes());
                // A `put` may have used this key.
                let taken = writes.contains_key(&key) || current(disk, &draft.batch, &key)?.is_some();
                if !taken {
                    break key;
                }
            };
            writes.insert(key, Some(value));
            appended.insert(tree, number);
        }
        for (tree, number) in &appended {
            writes.insert(record::appended_key(tree), Some(record::encode(number)?));
        }
        draft.batch.extend(writes);
        draft.appended.extend(appended);
        Ok(Verdict::Written)
    }
}

fn current(disk: &dyn Disk, batch: &Batch, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    match batch.get(key) {
        Some(value) => Ok(value.clone()),
        None => Ok(disk.get(key)?.map(|value| value.to_vec())),
    }
}

fn stored_number(disk: &dyn Disk, tree: &str) -> Result<u64, StoreError> {
    let Some(bytes) = disk.get(&record::appended_key(tree))? else { return Ok(0) };
    record::decode(&bytes).ok_or_else(|| {
        let message = format!("the last number of the tree {tree:?} can't be decoded");
        StoreError::new(StoreErrorKind::Undecodable, message)
    })
}

fn exhausted(tree: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Full, format!("the tree {tree:?} has no number left: 2^64 appends"))
}

fn misuse<T>(message: String) -> Result<T, StoreError> {
    Err(StoreError::new(StoreErrorKind::Misuse, message))
}

pub(super) fn check_tree(tree: &str) -> Result<(), StoreError> {
    if tree.is_empty() || tree.len() > MAX_TREE {
        return misuse(format!("a tree's name has 1 to {MAX_TREE} bytes, not {}", tree.len()));
    }
    Ok(())
}

pub(super) fn full_key(tree: &str, key: &[u8]) -> Result<Vec<u8>, StoreError> {
    check_tree(tree)?;
    if key.len() > MAX_KEY {
        return misuse(format!("a key has at most {MAX_KEY} bytes, not {}", key.len()));
    }
    Ok(record::user_key(tree, key))
}

fn check_value(value: &[u8]) -> Result<(), StoreError> {
    if value.len() > MAX_VALUE {
        return misuse(format!("a value has at most {MAX_VALUE} bytes, not {}", value.len()));
    }
    Ok(())
}

#[async_trait]
impl TransactionalStore for SledStore {
    type Tx = SledTx;

    async fn begin(&self, claim: &Claim) -> Result<SledTx, StoreError> {
        self.handle.shared.check()?;
        let shared = Arc::clone(&self.handle.shared);
        Ok(SledTx { shared, key: claim.key.clone(), token: claim.token, effects: Effects::default() })
    }

    async fn commit(&self, tx: SledTx, claim: &Claim, result: Option<Bytes>) -> Result<TxAnswer, StoreError> {
        let shared = &self.handle.shared;
        if tx.key != claim.key || tx.token != claim.token || !Arc::ptr_eq(&tx.shared, shared) {
            return misuse("the transaction was begun for another claim".to_owned());
        }
        let verb = Verb::Complete { result };
        loop {
            let permit = self.handle.permit().await?;
            let (answer, write) = match shared.settle(claim, &verb, shared.time.now())? {
                Step::Done(answer) => return Ok(TxAnswer::Settled(answer)),
                Step::Wait(ended) => {
                    drop(permit);
                    let _ = ended.await;
                    continue;
                }
                Step::Write(answer, write) => (answer, write),
            };
            let (done, verdict) = oneshot::channel();
            permit.send(Job::Commit { write: Some(write), effects: tx.effects, done });
            return Ok(match self.handle.verdict(verdict).await? {
                Verdict::Written => TxAnswer::Settled(answer),
                Verdict::Conflict => TxAnswer::Conflict,
            });
        }
    }

    async fn commit_alone(&self, tx: SledTx) -> Result<bool, StoreError> {
        let shared = &self.handle.shared;
        if !Arc::ptr_eq(&tx.shared, shared) {
            return misuse("the transaction was begun in another store".to_owned());
        }
        let permit = self.handle.permit().await?;
        shared.check()?;
        let (done, verdict) = oneshot::channel();
        permit.send(Job::Commit { write: None, effects: tx.effects, done });
        Ok(self.handle.verdict(verdict).await? == Verdict::Written)
    }
}
