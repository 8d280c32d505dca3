//! What is on the disk: the key space, and the versioned form of every value.
//!
//! One tree, kinds apart by their first byte. Every value that is ours begins with a version byte, so that
//! a later release can read an older file and an older release refuses a later one by name.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::claim::{Phase, Record, Stage};
use crate::clock::Timestamp;
use crate::error::{StoreError, StoreErrorKind};
use crate::id::DedupKey;
use crate::store::TimeMark;

/// The version of the whole layout, kept under [`FORMAT_KEY`].
pub(super) const FORMAT: u8 = 1;
/// The version of each value.
const VALUE: u8 = 1;

/// `r` + the encoded dedup key: a record.
const RECORD: u8 = b'r';
/// `e` + time + sequence: a list of the keys to look at then.
pub(super) const EXPIRY: u8 = b'e';
/// `c` + scope: how many records it has.
pub(super) const COUNT: u8 = b'c';
/// `u` + length and name of a tree + key: what the user wrote.
const USER: u8 = b'u';
/// `a` + name of a tree: the last number that an append was given.
const APPENDED: u8 = b'a';
pub(super) const FORMAT_KEY: &[u8] = b"mformat";
pub(super) const STATE_KEY: &[u8] = b"mstate";

/// The longest list of keys in one expiry entry, in bytes: sled is slow to free larger values.
const MAX_LIST: usize = 8 * 1024;

/// What the store knows about itself. Written with every batch, so it is as old as the newest of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// How often the store has been opened: the upper bits of its fences.
    pub(super) epoch: u64,
    /// The number of the batch that wrote this.
    pub(super) batch: u64,
    pub(super) mark: TimeMark,
}

pub(super) fn record_key(key: &DedupKey) -> Vec<u8> {
    prefixed(RECORD, &key.encode())
}

pub(super) fn count_key(scope: &str) -> Vec<u8> {
    prefixed(COUNT, scope.as_bytes())
}

pub(super) fn appended_key(tree: &str) -> Vec<u8> {
    prefixed(APPENDED, tree.as_bytes())
}

pub(super) fn user_prefix(tree: &str) -> Vec<u8> {
    // A tree's name has at most 255 bytes.
    let len = u16::try_from(tree.len()).unwrap_or(u16::MAX);
    let mut bytes = vec![USER];
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(tree.as_bytes());
    bytes
}

pub(super) fn user_key(tree: &str, key: &[u8]) -> Vec<u8> {
    let mut bytes = user_prefix(tree);
    bytes.extend_from_slice(key);
    bytes
}

fn prefixed(prefix: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + rest.len());
    bytes.push(prefix);
    bytes.extend_from_slice(rest);
    bytes
}

/// The key of an expiry entry: due at `at`; `unique` keeps two of the same moment apart.
pub(super) fn expiry_key(at: Timestamp, unique: u64) -> Vec<u8> {
    let mut bytes = vec![EXPIRY];
    bytes.extend_from_slice(&at.as_micros().to_be_bytes());
    bytes.extend_from_slice(&unique.to_be_bytes());
    bytes
}

/// When the entry with this key is due.
pub(super) fn due_at(expiry_key: &[u8]) -> Option<Timestamp> {
    let (at, _) = expiry_key.get(1..)?.split_first_chunk::<8>()?;
    Some(Timestamp::from_micros(u64::from_be_bytes(*at)))
}

/// The keys of `due` as few lists, each with the latest time of its keys and none longer than sled likes.
///
/// Keys that end within `SPAN` of each other share a list: with one retention that is one list a batch.
pub(super) fn expiry_lists(mut due: Vec<(Timestamp, DedupKey)>) -> Vec<(Timestamp, Vec<u8>)> {
    const SPAN: std::time::Duration = std::time::Duration::from_millis(100);
    due.sort_unstable_by_key(|(at, _)| *at);
    let mut lists: Vec<(Timestamp, Timestamp, Vec<u8>)> = Vec::new();
    for (at, key) in due {
        let key = key.encode();
        match lists.last_mut() {
            Some((first, last, list)) if at.since(*first) <= SPAN && list.len() + key.len() < MAX_LIST => {
                *last = at;
                push(list, &key);
            }
            _ => {
                let mut list = vec![VALUE];
                push(&mut list, &key);
                lists.push((at, at, list));
            }
        }
    }
    lists.into_iter().map(|(_, last, list)| (last, list)).collect()
}

/// The list of `keys`, in their order.
pub(super) fn list(keys: &[DedupKey]) -> Vec<u8> {
    let mut list = vec![VALUE];
    for key in keys {
        push(&mut list, &key.encode());
    }
    list
}

fn push(list: &mut Vec<u8>, key: &[u8]) {
    // An encoded key has at most 547 bytes.
    let len = u16::try_from(key.len()).unwrap_or(u16::MAX);
    list.extend_from_slice(&len.to_be_bytes());
    list.extend_from_slice(key);
}

/// The keys of a list; `None` when it is none of ours.
pub(super) fn listed(list: &[u8]) -> Option<Vec<DedupKey>> {
    let (&VALUE, mut rest) = list.split_first()? else { return None };
    let mut keys = Vec::new();
    while !rest.is_empty() {
        let (len, after) = rest.split_first_chunk::<2>()?;
        let (key, after) = after.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
        keys.push(DedupKey::decode(key)?);
        rest = after;
    }
    Some(keys)
}

/// The bytes of `value`, behind the version.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    postcard::to_extend(value, vec![VALUE])
        .map_err(|e| StoreError::new(StoreErrorKind::Misuse, "a record can't be encoded").with_source(e))
}

/// The value that [`encode`] made these bytes of; `None` when it made none such.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (&VALUE, rest) = bytes.split_first()? else { return None };
    match postcard::take_from_bytes(rest) {
        Ok((value, [])) => Some(value),
        _ => None,
    }
}

/// The record as the disk keeps it. A held dead letter is kept as owed: when the file is opened again its
/// holder is gone, and what remains is that it is owed.
pub(super) fn encode_record(record: &Record) -> Result<Vec<u8>, StoreError> {
    match &record.phase {
        Phase::InProgress { stage: Stage::DeadLetter(reason), .. } => {
            encode(&Record { phase: Phase::Owed(reason.clone()), ..record.clone() })
        }
        _ => encode(record),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::claim::{Counters, Ended, EndedBy, Fence, Token};
    use crate::fingerprint::Fingerprint;
    use crate::id::{MessageId, Scope};
    use crate::outcome::{FailReason, Outcome, StoredResult};

    fn record(phase: Phase) -> Record {
        Record {
            phase,
            fingerprint: Some(Fingerprint::raw(Some(b"x"))),
            counters: Counters { failures: 1, interruptions: 2, crashes: 3 },
            generation: Fence::new(4),
            fence: Fence::new(500),
            first_at: Timestamp::from_micros(6),
            expires_at: Timestamp::from_micros(7),
            ended: Some(Ended {
                token: Token::from_bytes([9; 16]),
                fence: Fence::new(8),
                by: EndedBy::Complete,
            }),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes on disk. A change here is a new format: raise `VALUE` and keep reading the old one.
    #[test]
    fn golden_record() {
        let outcome = Outcome {
            result: StoredResult::Kept(Bytes::from_static(b"ok")),
            at: Timestamp::from_micros(300),
            attempt: 2,
        };
        let completed = record(Phase::Completed(outcome));
        let bytes = encode_record(&completed).unwrap();
        assert_eq!(hex(&bytes), GOLDEN_COMPLETED);
        assert_eq!(decode(&bytes), Some(completed));
        let owed = record(Phase::Owed(FailReason::Rejected("no".into())));
        assert_eq!(hex(&encode_record(&owed).unwrap()), GOLDEN_OWED);
    }

    const GOLDEN_COMPLETED: &str = "010301026f6bac0202010123c86a8aded0ad81f8111bb07e6ec0ffb00ce5bfef001417c07243f43fd70b2f01020304f403060701090909090909090909090909090909090800";
    const GOLDEN_OWED: &str = "010202026e6f010123c86a8aded0ad81f8111bb07e6ec0ffb00ce5bfef001417c07243f43fd70b2f01020304f403060701090909090909090909090909090909090800";

    #[test]
    fn a_held_dead_letter_is_kept_as_owed() {
        let held = record(Phase::InProgress {
            token: Token::from_bytes([1; 16]),
            lease_until: Timestamp::MAX,
            stage: Stage::DeadLetter(FailReason::Attempts),
            started: false,
            alone: false,
        });
        let kept: Record = decode(&encode_record(&held).unwrap()).unwrap();
        assert_eq!(kept, Record { phase: Phase::Owed(FailReason::Attempts), ..held });
    }

    #[test]
    fn other_versions_and_rubbish_are_not_read() {
        let mut bytes = encode(&State::default()).unwrap();
        assert!(decode::<State>(&bytes).is_some());
        bytes.push(0);
        assert!(decode::<State>(&bytes).is_none(), "bytes are left over");
        bytes.pop();
        bytes[0] = 2;
        assert!(decode::<State>(&bytes).is_none(), "a later version");
        assert!(decode::<State>(&[]).is_none());
        assert!(listed(&[VALUE, 0, 9, 1]).is_none());
    }

    #[test]
    fn keys_that_end_together_share_a_list() {
        let key = |id: u32| DedupKey::new(Scope::new("s").unwrap(), MessageId::new(id.to_string()).unwrap());
        let at = Timestamp::from_micros;
        let lists = expiry_lists(vec![(at(2_000_000), key(3)), (at(10), key(1)), (at(99_000), key(2))]);
        assert_eq!(lists.len(), 2);
        assert_eq!(lists[0].0, at(99_000), "none is listed before it ends");
        assert_eq!(listed(&lists[0].1).unwrap(), [key(1), key(2)]);
        let many = expiry_lists((0..4096).map(|id| (at(5), key(id))).collect());
        assert!(many.iter().all(|(_, list)| list.len() <= MAX_LIST + 547));
        assert_eq!(many.iter().map(|(_, list)| listed(list).unwrap().len()).sum::<usize>(), 4096);
        assert_eq!(due_at(&expiry_key(at(77), 3)), Some(at(77)));
    }
}
