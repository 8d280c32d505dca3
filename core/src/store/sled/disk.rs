//! The disk below the writer: few verbs, so that a test can stand in and fail, wait or count.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{fmt, io};

use sled::IVec;

use super::config::{Durability, Probe, WritePoint};
use crate::error::{StoreError, StoreErrorKind};

/// Writes that become durable together or not at all; `None` removes.
pub(super) type Batch = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

pub(super) trait Disk: fmt::Debug + Send + Sync + 'static {
    fn get(&self, key: &[u8]) -> Result<Option<IVec>, StoreError>;

    /// At most `limit` entries whose keys begin with `prefix` and come after `after`.
    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(IVec, IVec)>, StoreError>;

    /// Makes the writes visible, all at once. They are durable after the next [`Disk::sync`].
    fn apply(&self, batch: &Batch) -> Result<(), StoreError>;

    /// Makes everything applied durable.
    fn sync(&self) -> Result<(), StoreError>;

    fn size(&self) -> Option<u64>;
}

/// sled, and the file handle that makes its writes durable.
pub(super) struct SledDisk {
    pub(super) db: sled::Db,
    /// A second handle of sled's file. On Linux sled's `flush` ends in `sync_file_range`, which syncs neither
    /// the file's length nor the drive's cache; measured, a database flushed that way does not open after a
    /// power loss. `sync_data` of any handle of the same file does what `flush` promises.
    pub(super) file: File,
    pub(super) durability: Durability,
    pub(super) probe: Probe,
}

impl fmt::Debug for SledDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SledDisk").field("durability", &self.durability).finish_non_exhaustive()
    }
}

impl Disk for SledDisk {
    fn get(&self, key: &[u8]) -> Result<Option<IVec>, StoreError> {
        guarded(|| Ok(self.db.get(key)?))
    }

    fn scan(&self, prefix: &[u8], after: &[u8], limit: usize) -> Result<Vec<(IVec, IVec)>, StoreError> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let start = if after < prefix { Included(prefix) } else { Excluded(after) };
        guarded(|| {
            let found = self.db.range::<&[u8], _>((start, Unbounded));
            let ours = found.take_while(|entry| !matches!(entry, Ok((key, _)) if !key.starts_with(prefix)));
            Ok(ours.take(limit).collect::<Result<Vec<_>, _>>()?)
        })
    }

    fn apply(&self, batch: &Batch) -> Result<(), StoreError> {
        let mut writes = sled::Batch::default();
        for (key, value) in batch {
            match value {
                Some(value) => writes.insert(key.as_slice(), value.as_slice()),
                None => writes.remove(key.as_slice()),
            }
        }
        guarded(|| Ok(self.db.apply_batch(writes)?))
    }

    fn sync(&self) -> Result<(), StoreError> {
        guarded(|| {
            self.probe.pass(WritePoint::BeforeFlush);
            self.db.flush()?;
            self.probe.pass(WritePoint::AfterFlush);
            if self.durability == Durability::Fsync {
                self.file.sync_data()?;
            }
            self.probe.pass(WritePoint::AfterSync);
            Ok(())
        })
    }

    fn size(&self) -> Option<u64> {
        guarded(|| Ok(self.db.size_on_disk()?)).ok()
    }
}

/// sled panics on some damaged files; its panics end here.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, DiskError>) -> Result<T, StoreError> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(StoreError::new(StoreErrorKind::Corrupt, "sled panicked on the store's files")),
    }
}

pub(super) enum DiskError {
    Sled(sled::Error),
    Io(io::Error),
}

impl From<sled::Error> for DiskError {
    fn from(error: sled::Error) -> Self {
        Self::Sled(error)
    }
}

impl From<io::Error> for DiskError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<DiskError> for StoreError {
    fn from(error: DiskError) -> Self {
        use sled::Error as Sled;
        let (kind, what) = match &error {
            DiskError::Sled(
                Sled::Corruption { .. } | Sled::ReportableBug(_) | Sled::CollectionNotFound(_),
            ) => (StoreErrorKind::Corrupt, "the store's files are damaged"),
            DiskError::Sled(_) | DiskError::Io(_) => (StoreErrorKind::Unavailable, "the disk failed"),
        };
        match error {
            DiskError::Sled(error) => {
                Self::new(kind, format!("{what}{}", io_cause(&error))).with_source(error)
            }
            DiskError::Io(error) => Self::new(kind, format!("{what}{}", io_cause(&error))).with_source(error),
        }
    }
}

/// What the operating system said, if it was that: " (No space left on device)". A [`StoreError`] shows its
/// own message only, and a service's log has seldom more.
pub(super) fn io_cause(error: &(dyn Error + 'static)) -> String {
    let mut next = Some(error);
    while let Some(cause) = next {
        match (cause.downcast_ref::<io::Error>(), cause.downcast_ref::<sled::Error>()) {
            (Some(io), _) | (_, Some(sled::Error::Io(io))) => return format!(" ({io})"),
            _ => next = cause.source(),
        }
    }
    String::new()
}
