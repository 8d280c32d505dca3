//! What must be equal in a true repeat.
//!
//! An id that comes back with another content is not a repeat: answering it with the old outcome would
//! lose the new content in silence. A record therefore keeps a hash of the content it was claimed with.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::cloud_event;
use crate::delivery::Delivery;

/// A SHA-256 of what must be equal in a true repeat, with the version of the rule that chose it.
///
/// Fingerprints of different versions are not compared: after a change of the rule the records of the
/// old one still answer, without the check, until their retention ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    version: u8,
    digest: [u8; 32],
}

impl Fingerprint {
    /// Version of [`Fingerprint::raw`].
    const RAW: u8 = 1;
    /// Version of [`Fingerprint::canonical_json`].
    const JSON: u8 = 2;
    /// Version of [`FingerprintPolicy::CloudEvent`].
    const CLOUD_EVENT: u8 = 3;
    /// Versions from here on are the user's: see [`Fingerprint::custom`].
    pub const FIRST_CUSTOM_VERSION: u8 = 128;

    /// Of the bytes as they are. No payload (a Kafka tombstone) and an empty one differ.
    #[must_use]
    pub fn raw(payload: Option<&[u8]>) -> Self {
        Self { version: Self::RAW, digest: tagged(payload) }
    }

    /// Of the JSON value in its canonical form (RFC 8785), so that the order of keys, white space and the
    /// spelling of numbers don't matter; without the members that `leave_out` points at (JSON pointers,
    /// RFC 6901), such as a time of sending.
    ///
    /// RFC 8785 sees numbers as IEEE 754 doubles: two integers beyond 2^53 that differ only in their last
    /// digits are one. Carry such numbers as strings.
    ///
    /// A payload that is not JSON is hashed as it is: the same garbage again is a repeat, other garbage a
    /// conflict.
    #[must_use]
    pub fn canonical_json(payload: Option<&[u8]>, leave_out: &[String]) -> Self {
        let canonical = payload.and_then(|bytes| canonicalize(bytes, leave_out));
        let digest = match canonical {
            Some(bytes) => Sha256::new().chain_update([2]).chain_update(bytes).finalize().into(),
            None => tagged(payload),
        };
        Self { version: Self::JSON, digest }
    }

    /// Of bytes that the caller has chosen under a rule of its own.
    ///
    /// `version` is taken as at least [`Fingerprint::FIRST_CUSTOM_VERSION`]; give a new one when the rule
    /// changes.
    #[must_use]
    pub fn custom(version: u8, bytes: &[u8]) -> Self {
        Self { version: version.max(Self::FIRST_CUSTOM_VERSION), digest: Sha256::digest(bytes).into() }
    }

    /// The version of the rule.
    #[must_use]
    pub const fn version(&self) -> u8 {
        self.version
    }

    /// Whether the two are of one version and differ.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.version == other.version && self.digest != other.digest
    }
}

/// A hash cut from the secret content could be tried against guesses: it is not printed.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint(v{})", self.version)
    }
}

fn tagged(payload: Option<&[u8]>) -> [u8; 32] {
    let hash = Sha256::new().chain_update([u8::from(payload.is_some())]);
    hash.chain_update(payload.unwrap_or_default()).finalize().into()
}

fn canonicalize(payload: &[u8], leave_out: &[String]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(payload).ok()?;
    for pointer in leave_out {
        remove(&mut value, pointer);
    }
    serde_json_canonicalizer::to_vec(&value).ok()
}

/// Takes out what `pointer` names. An element of an array becomes null: its neighbours keep their places.
fn remove(value: &mut Value, pointer: &str) {
    let Some((parent, last)) = pointer.rsplit_once('/') else { return };
    match value.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.remove(&last.replace("~1", "/").replace("~0", "~"));
        }
        Some(Value::Array(_)) => {
            if let Some(element) = value.pointer_mut(pointer) {
                *element = Value::Null;
            }
        }
        _ => {}
    }
}

/// Which part of a delivery must be equal in a true repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FingerprintPolicy {
    /// The payload's bytes. The default.
    #[default]
    RawPayload,
    /// The payload as canonical JSON, see [`Fingerprint::canonical_json`].
    CanonicalJson {
        /// JSON pointers of members that may differ.
        leave_out: Vec<String>,
    },
    /// Type and data of a CloudEvent, as canonical JSON if its data is JSON: the same in binary and in structured
    /// mode, so that an event may change its mode on its way, and its other attributes with it. Of what is no
    /// CloudEvent, the payload's bytes.
    CloudEvent,
    /// Nothing: an id that comes back with another content gets the old outcome in silence. For producers
    /// whose payload differs on every attempt.
    Unchecked,
}

impl FingerprintPolicy {
    /// The fingerprint of `delivery`.
    #[must_use]
    pub fn of(&self, delivery: &Delivery) -> Option<Fingerprint> {
        let payload = delivery.payload().map(AsRef::as_ref);
        match self {
            Self::RawPayload => Some(Fingerprint::raw(payload)),
            Self::CanonicalJson { leave_out } => Some(Fingerprint::canonical_json(payload, leave_out)),
            Self::CloudEvent => Some(match cloud_event::fingerprint(delivery) {
                Some(digest) => Fingerprint { version: Fingerprint::CLOUD_EVENT, digest },
                None => Fingerprint::raw(payload),
            }),
            Self::Unchecked => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str, leave_out: &[&str]) -> Fingerprint {
        let leave_out: Vec<String> = leave_out.iter().map(ToString::to_string).collect();
        Fingerprint::canonical_json(Some(text.as_bytes()), &leave_out)
    }

    #[test]
    fn a_tombstone_is_not_an_empty_payload() {
        assert!(Fingerprint::raw(None).conflicts_with(&Fingerprint::raw(Some(b""))));
        assert!(!Fingerprint::raw(Some(b"x")).conflicts_with(&Fingerprint::raw(Some(b"x"))));
    }

    #[test]
    fn versions_are_not_compared_with_each_other() {
        assert!(!Fingerprint::raw(Some(b"1")).conflicts_with(&json("2", &[])));
        assert!(Fingerprint::custom(128, b"1").conflicts_with(&Fingerprint::custom(1, b"2")));
    }

    #[test]
    fn scenario_35_spelling_does_not_matter() {
        assert_eq!(json(r#"{"b":1.0,"a":"x"}"#, &[]), json("{ \"a\" : \"\\u0078\", \"b\": 1e0 }", &[]));
        assert!(json(r#"{"a":1}"#, &[]).conflicts_with(&json(r#"{"a":2}"#, &[])));
    }

    #[test]
    fn members_are_left_out_on_request() {
        let (one, two) = (r#"{"id":7,"m":{"sent/at":1,"x":2}}"#, r#"{"id":7,"m":{"sent/at":9,"x":2}}"#);
        assert_ne!(json(one, &[]), json(two, &[]));
        assert_eq!(json(one, &["/m/sent~1at"]), json(two, &["/m/sent~1at"]));
        assert_eq!(json("[1,2]", &["/0"]), json("[9,2]", &["/0"]));
        assert_ne!(json("[1,2]", &["/0"]), json("[2]", &["/0"]));
        assert_eq!(json(one, &["nonsense", "/no/such"]), json(one, &[]));
    }

    #[test]
    fn garbage_is_compared_as_it_is() {
        assert_eq!(json("{no", &[]), json("{no", &[]));
        assert!(json("{no", &[]).conflicts_with(&json("{yes", &[])));
        assert!(json("{no", &[]).conflicts_with(&json("1", &[])));
    }

    /// The published vectors of RFC 8785; where they come from is said beside them.
    #[test]
    fn the_vectors_of_rfc_8785_come_out_as_published() {
        let vectors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/jcs");
        let mut compared = 0;
        for entry in std::fs::read_dir(vectors.join("input")).unwrap() {
            let input = entry.unwrap().path();
            let published = std::fs::read(vectors.join("output").join(input.file_name().unwrap())).unwrap();
            let canonical = canonicalize(&std::fs::read(&input).unwrap(), &[]).unwrap();
            assert_eq!(canonical, published.trim_ascii_end(), "{}", input.display());
            compared += 1;
        }
        assert!(compared >= 4, "only {compared} vectors were found");
    }

    #[test]
    fn debug_shows_no_digest() {
        assert_eq!(format!("{:?}", Fingerprint::raw(Some(b"secret"))), "Fingerprint(v1)");
    }
}
