//! Which handlers were running when the process died.
//!
//! A claim lives in memory only: when the file is opened again its holder is gone anyway. But that its
//! handler had *started* must survive a kill, or a message that takes its process with it would look new at
//! every restart, for ever. Writing that to sled would double the writes of every message. So a started
//! claim is noted in a slot of a small file beside sled's, by one `write` that is not synced: the operating
//! system keeps it when the process dies. A power loss may take the note, and then one interruption is not
//! charged.
//!
//! The file's head holds the number of the last batch that was made durable. If sled comes back with an
//! older one, its file has lost its end, and the store is not opened as if nothing were missing. For the same
//! reason a journal that is gone, or is no journal, is an error. Who wants to go on without it says so with an
//! empty file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::record;
use crate::claim::Record;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::DedupKey;

pub(super) const FILE_NAME: &str = "einmal.started";

/// The head: this, then the number of the last durable batch.
const MAGIC: &[u8; 8] = b"EINMAL\0\x01";
const HEAD: usize = 4096;
/// A key has at most 547 bytes encoded, and a started record, which has neither result nor reason, at
/// most 150.
const SLOT: usize = 1024;
const USED: u8 = 1;

/// A place in the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slot(u32);

#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    slots: Vec<u32>,
    next: u32,
}

/// What a journal said when it was opened.
#[derive(Debug, Default)]
pub(super) struct Noted {
    pub(super) batch: u64,
    pub(super) started: Vec<(Slot, DedupKey, Record)>,
}

impl Journal {
    /// Opens the file and reads what it says. What it says stays in it until [cleared](Journal::clear).
    /// While the store is being made the file is made too, whatever is there.
    pub(super) fn open(directory: &Path, being_made: bool) -> Result<(Self, Noted), StoreError> {
        let path = directory.join(FILE_NAME);
        let failed = |kind, what: &str| {
            StoreError::new(kind, format!("the store {}: {FILE_NAME} {what}", directory.display()))
        };
        let io = |error: io::Error| {
            let what = format!("can't be read or written ({error})");
            failed(StoreErrorKind::Unavailable, &what).with_source(error)
        };
        let opened = OpenOptions::new().read(true).write(true).create(being_made).truncate(false).open(path);
        let mut file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !being_made => {
                let what = "is missing. With an empty file of that name the store goes on without its notes: \
                            it forgets which handlers were interrupted, and can't tell whether its last \
                            batches are there";
                return Err(failed(StoreErrorKind::Corrupt, what));
            }
            opened => opened.map_err(io)?,
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io)?;
        let (noted, free) = match read(&bytes) {
            Some(found) => found,
            None if being_made || bytes.is_empty() => {
                if !being_made {
                    tracing::warn!(path = %directory.display(), "{FILE_NAME} is empty: going on without notes");
                }
                file.set_len(0).and_then(|()| write_at(&file, &head(0), 0)).map_err(io)?;
                Default::default()
            }
            None => return Err(failed(StoreErrorKind::Corrupt, "has another content than notes")),
        };
        Ok((Self { file, free: Mutex::new(free) }, noted))
    }

    /// Makes what it says survive a power loss too.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Batch `number` is durable.
    pub(super) fn note_batch(&self, number: u64) -> io::Result<()> {
        write_at(&self.file, &number.to_be_bytes(), MAGIC.len() as u64)
    }

    /// The handler of `record`'s claim is about to run, or its lease has changed.
    pub(super) fn note(
        &self,
        slot: Option<&Slot>,
        key: &DedupKey,
        record: &Record,
    ) -> Result<Slot, StoreError> {
        let number = match slot {
            Some(slot) => slot.0,
            None => self.take(),
        };
        let bytes = slot_bytes(key, record)?;
        match write_at(&self.file, &bytes, offset(number)) {
            Ok(()) => Ok(Slot(number)),
            Err(error) => {
                if slot.is_none() {
                    self.give_back(number);
                }
                let message = format!("the start of a handler could not be noted ({error})");
                Err(StoreError::new(StoreErrorKind::Unavailable, message).with_key(key).with_source(error))
            }
        }
    }

    /// The claim in `slot` has ended, and that is durable.
    pub(super) fn clear(&self, slot: Slot) {
        // If this fails the note stays; the record on disk has a fence that is not lower, and shows it to be
        // of the past.
        if let Err(error) = write_at(&self.file, &[0], offset(slot.0)) {
            tracing::warn!(%error, "a note of a started handler could not be cleared");
        }
        self.give_back(slot.0);
    }

    fn take(&self) -> u32 {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.slots.pop().unwrap_or_else(|| {
            let number = free.next;
            free.next = number.saturating_add(1);
            number
        })
    }

    fn give_back(&self, number: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).slots.push(number);
    }
}

fn head(batch: u64) -> Vec<u8> {
    [MAGIC.as_slice(), &batch.to_be_bytes()].concat()
}

fn offset(slot: u32) -> u64 {
    HEAD as u64 + u64::from(slot) * SLOT as u64
}

fn slot_bytes(key: &DedupKey, record: &Record) -> Result<Vec<u8>, StoreError> {
    let key = key.encode();
    let record = record::encode(record)?;
    // See `SLOT`: both lengths fit.
    let key_len = u16::try_from(key.len()).unwrap_or(u16::MAX).to_be_bytes();
    let len = u16::try_from(2 + key.len() + record.len()).unwrap_or(u16::MAX).to_be_bytes();
    let body = [key_len.as_slice(), &key, &record].concat();
    Ok([[USED].as_slice(), &len, &sum(&body), &body].concat())
}

fn sum(body: &[u8]) -> [u8; 8] {
    let digest = Sha256::digest(body);
    std::array::from_fn(|at| digest.get(at).copied().unwrap_or_default())
}

/// What the file says, and which slots are free; `None` when it is not one of ours, or empty. A torn slot is
/// a free one.
fn read(bytes: &[u8]) -> Option<(Noted, Free)> {
    let (magic, rest) = bytes.split_first_chunk::<8>()?;
    let batch = u64::from_be_bytes(*rest.first_chunk::<8>()?);
    if magic != MAGIC {
        return None;
    }
    let (mut noted, mut free) = (Noted { batch, started: Vec::new() }, Free::default());
    for slot in bytes.get(HEAD..).unwrap_or_default().chunks(SLOT) {
        match read_slot(slot) {
            Some((key, record)) => noted.started.push((Slot(free.next), key, record)),
            None => free.slots.push(free.next),
        }
        free.next = free.next.saturating_add(1);
    }
    Some((noted, free))
}

fn read_slot(slot: &[u8]) -> Option<(DedupKey, Record)> {
    let (&USED, rest) = slot.split_first()? else { return None };
    let (len, rest) = rest.split_first_chunk::<2>()?;
    let (noted, rest) = rest.split_first_chunk::<8>()?;
    let body = rest.get(..usize::from(u16::from_be_bytes(*len)))?;
    if *noted != sum(body) {
        return None;
    }
    let (key_len, rest) = body.split_first_chunk::<2>()?;
    let (key, record) = rest.split_at_checked(usize::from(u16::from_be_bytes(*key_len)))?;
    Some((DedupKey::decode(key)?, record::decode(record)?))
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        bytes = bytes.get(written..).unwrap_or_default();
        offset += written as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{ClaimRequest, Fence, Rules, Token, state};
    use crate::clock::Timestamp;
    use crate::id::{MAX_LEN, MAX_PREFIX_LEN, MessageId, Scope};

    fn longest() -> (DedupKey, Record) {
        let scope = Scope::with_prefix(&"p".repeat(MAX_PREFIX_LEN), "s".repeat(MAX_LEN)).unwrap();
        let key = DedupKey::new(scope, MessageId::new("m".repeat(MAX_LEN)).unwrap());
        let long = std::time::Duration::from_secs(u64::from(u32::MAX));
        let rules = Rules {
            lease: long,
            retention: long,
            max_failures: 5,
            max_crashes: 5,
            max_delay: long,
            max_result: 0,
        };
        let fingerprint = Some(crate::fingerprint::Fingerprint::raw(None));
        let token = Token::from_bytes([255; 16]);
        let request =
            ClaimRequest { key: key.clone(), token, fingerprint, rules, started: true, group: None };
        let (change, _) = state::claim(None, &request, Timestamp::MAX, Fence::new(u64::MAX));
        let mut record = None;
        change.apply_to(&mut record);
        let mut record = record.unwrap();
        let most = u32::MAX;
        record.counters = crate::claim::Counters { failures: most, interruptions: most, crashes: most };
        record.ended =
            Some(crate::claim::Ended { token, fence: record.fence, by: crate::claim::EndedBy::DeadLettered });
        (key, record)
    }

    #[test]
    fn the_longest_note_fits_its_slot_and_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let (key, record) = longest();
        assert!(slot_bytes(&key, &record).unwrap().len() <= SLOT);
        {
            let (journal, noted) = Journal::open(dir.path(), true).unwrap();
            assert!(noted.started.is_empty());
            let first = journal.note(None, &key, &record).unwrap();
            let second = journal.note(None, &key, &record).unwrap();
            assert_eq!(journal.note(Some(&second), &key, &record).unwrap(), second);
            journal.clear(first);
            journal.note_batch(7).unwrap();
        }
        let (journal, noted) = Journal::open(dir.path(), false).unwrap();
        assert_eq!(noted.batch, 7);
        assert_eq!(noted.started, [(Slot(1), key.clone(), record.clone())]);
        assert_eq!(journal.note(None, &key, &record).unwrap(), Slot(0), "a cleared slot is used again");
        assert_eq!(journal.note(None, &key, &record).unwrap(), Slot(2), "one that is in use is not");
    }

    #[test]
    fn a_torn_slot_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (key, record) = longest();
        let (journal, _) = Journal::open(dir.path(), true).unwrap();
        let slot = journal.note(None, &key, &record).unwrap();
        write_at(&journal.file, b"torn", offset(slot.0) + 40).unwrap();
        assert!(Journal::open(dir.path(), false).unwrap().1.started.is_empty());
    }

    #[test]
    fn another_content_is_replaced_only_while_the_store_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let cut_short = head(7)[..15].to_vec();
        for other in [vec![0; 5000], b"mine".to_vec(), cut_short] {
            std::fs::write(&path, &other).unwrap();
            let error = Journal::open(dir.path(), false).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Corrupt);
            assert!(error.to_string().contains(FILE_NAME), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), other);
            assert_eq!(Journal::open(dir.path(), true).unwrap().1.batch, 0);
            assert_eq!(std::fs::read(&path).unwrap(), head(0));
        }
    }

    #[test]
    fn a_missing_file_is_an_error_and_an_empty_one_a_new_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        let error = Journal::open(dir.path(), false).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains("einmal.started is missing. With an empty file"), "{error}");
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        let (journal, noted) = Journal::open(dir.path(), false).unwrap();
        assert_eq!((noted.batch, noted.started.len()), (0, 0));
        journal.note_batch(9).unwrap();
        assert_eq!(Journal::open(dir.path(), false).unwrap().1.batch, 9);
    }
}
