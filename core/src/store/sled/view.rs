//! Reading the user's trees outside a transaction.

use std::sync::Arc;

use bytes::Bytes;

use super::record;
use super::shared::Shared;
use super::tx::{check_tree, full_key};
use crate::error::StoreError;

/// The most entries of one page.
const MAX_PAGE: usize = 10_000;

/// Reads one of the user's trees. Sees what has been committed, at the latest once the commit was answered;
/// it can see a commit a moment before that is durable.
#[derive(Clone, Debug)]
pub struct SledView {
    shared: Arc<Shared>,
    tree: String,
}

impl SledView {
    pub(super) fn new(shared: &Arc<Shared>, tree: &str) -> Result<Self, StoreError> {
        check_tree(tree)?;
        Ok(Self { shared: Arc::clone(shared), tree: tree.to_owned() })
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.shared.check()?;
        let full = full_key(&self.tree, key)?;
        let found = self.shared.on_disk(|disk| disk.get(&full))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    /// The entries after the key `after`, or from the first on, in the order of their keys: a page of at
    /// most `limit`, and of at most 10,000. It is the last page when it has none.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn scan(&self, after: Option<&[u8]>, limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.shared.check()?;
        let prefix = record::user_prefix(&self.tree);
        let after = after.map(|key| record::user_key(&self.tree, key)).unwrap_or_default();
        let found = self.shared.on_disk(|disk| disk.scan(&prefix, &after, limit.min(MAX_PAGE)))?;
        let entry = |(key, value): (sled::IVec, sled::IVec)| {
            let key = key.get(prefix.len()..).unwrap_or_default();
            (Bytes::copy_from_slice(key), Bytes::copy_from_slice(&value))
        };
        Ok(found.into_iter().map(entry).collect())
    }

    /// How many entries there are. Counts them one by one.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn len(&self) -> Result<usize, StoreError> {
        let (mut len, mut after) = (0, None::<Bytes>);
        loop {
            let page = self.scan(after.as_deref(), 1000)?;
            let Some((last, _)) = page.last() else { return Ok(len) };
            len += page.len();
            after = Some(last.clone());
        }
    }

    /// Whether there is none.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.scan(None, 1)?.is_empty())
    }
}
