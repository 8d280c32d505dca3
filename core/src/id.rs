//! Who must not repeat which work: scope, message id, and the key made of both.
//!
//! Identities come from outside and are hostile until shown otherwise: they are checked here, once, and
//! are printed escaped everywhere.

use std::fmt;
use std::sync::Arc;

/// The longest scope and the longest message id, in bytes.
pub const MAX_LEN: usize = 255;

/// The longest prefix that an adapter may fix in front of a scope, in bytes. It is not counted against
/// [`MAX_LEN`], so that a user's scope of full length works behind every adapter.
pub const MAX_PREFIX_LEN: usize = 32;

/// The first byte of every encoded key.
const FORMAT: u8 = 1;

/// Why a text can't be a scope or a message id. It never repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidId {
    /// Nothing is not an identity: it would make one key of all messages that have none.
    #[error("the {what} is empty; it must have 1 to {max} bytes")]
    Empty {
        /// "scope", "message id" or "scope prefix".
        what: &'static str,
        /// The bound, in bytes.
        max: usize,
    },
    /// More bytes than [`MAX_LEN`].
    #[error("the {what} has {len} bytes; at most {max} are allowed")]
    TooLong {
        /// "scope", "message id" or "scope prefix".
        what: &'static str,
        /// Its length, in bytes.
        len: usize,
        /// The bound, in bytes.
        max: usize,
    },
    /// A control character, which could forge a log line or end a header.
    #[error("the {what} has a control character at byte {at}")]
    ControlCharacter {
        /// "scope", "message id" or "scope prefix".
        what: &'static str,
        /// Where, counted in bytes from 0.
        at: usize,
    },
    /// Bytes that are not UTF-8.
    #[error("the {what} is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// "scope", "message id" or "scope prefix".
        what: &'static str,
        /// Where, counted in bytes from 0.
        at: usize,
    },
}

pub(crate) fn check(what: &'static str, text: &str, max: usize) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty { what, max });
    }
    if text.len() > max {
        return Err(InvalidId::TooLong { what, len: text.len(), max });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(InvalidId::ControlCharacter { what, at }),
        None => Ok(()),
    }
}

fn utf8<'a>(what: &'static str, bytes: &'a [u8], max: usize) -> Result<&'a str, InvalidId> {
    if bytes.len() > max {
        return Err(InvalidId::TooLong { what, len: bytes.len(), max });
    }
    std::str::from_utf8(bytes).map_err(|error| InvalidId::NotUtf8 { what, at: error.valid_up_to() })
}

/// Who must not repeat the work: a consumer group, a queue, a tenant, an endpoint.
///
/// UTF-8 without control characters, 1 to 255 bytes, and in front of it at most 32 bytes of a prefix
/// that an adapter fixes. No scope ever sees the outcome of another.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scope(Arc<str>);

impl Scope {
    /// # Errors
    /// When `scope` is empty, longer than 255 bytes, or has a control character.
    pub fn new(scope: impl AsRef<str>) -> Result<Self, InvalidId> {
        let scope = scope.as_ref();
        check("scope", scope, MAX_LEN)?;
        Ok(Self(scope.into()))
    }

    /// A scope behind a fixed prefix such as `http:`, which is not counted against the 255 bytes.
    ///
    /// # Errors
    /// As for [`Scope::new`]; also when `prefix` is longer than 32 bytes or has a control character.
    pub fn with_prefix(prefix: &str, scope: impl AsRef<str>) -> Result<Self, InvalidId> {
        let scope = scope.as_ref();
        check("scope prefix", prefix, MAX_PREFIX_LEN)?;
        check("scope", scope, MAX_LEN)?;
        Ok(Self(format!("{prefix}{scope}").into()))
    }

    /// A scope as a store has written it, its prefix included; `None` when it can't be one.
    #[cfg(feature = "sled")]
    pub(crate) fn stored(scope: &str) -> Option<Self> {
        check("scope", scope, MAX_LEN + MAX_PREFIX_LEN).ok()?;
        Some(Self(scope.into()))
    }

    /// The scope's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The identity of an *operation*, chosen by its producer: the same on every delivery and every attempt.
///
/// UTF-8 without control characters, 1 to 255 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// # Errors
    /// When `id` is empty, longer than 255 bytes, or has a control character.
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidId> {
        let id = id.as_ref();
        check("message id", id, MAX_LEN)?;
        Ok(Self(id.into()))
    }

    /// An id that no message can bring along: it begins with a control character.
    pub(crate) fn stand_in(name: &str) -> Self {
        Self(format!("\u{1}{name}").into())
    }

    /// # Errors
    /// As for [`MessageId::new`]; also when `id` is not UTF-8.
    pub fn from_bytes(id: &[u8]) -> Result<Self, InvalidId> {
        Self::new(utf8("message id", id, MAX_LEN)?)
    }

    /// The id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Scope and message id: what a store keys its records by.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey {
    scope: Scope,
    id: MessageId,
}

impl DedupKey {
    /// The key of `id` in `scope`.
    #[must_use]
    pub const fn new(scope: Scope, id: MessageId) -> Self {
        Self { scope, id }
    }

    /// Who must not repeat the work.
    #[must_use]
    pub const fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Which operation.
    #[must_use]
    pub const fn id(&self) -> &MessageId {
        &self.id
    }

    /// The bytes that stores use: `01`, then scope and id, each behind its length in two bytes, big end
    /// first. The lengths see to it that no two pairs collide; the first byte is the format's version.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + self.scope.0.len() + self.id.0.len());
        bytes.push(FORMAT);
        for part in [&self.scope.0, &self.id.0] {
            // Both parts are at most 287 bytes long by construction.
            let len = u16::try_from(part.len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&len.to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }

    /// The key that [`encode`](DedupKey::encode) made `bytes` of; `None` when it made none such.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        let (scope, rest) = part(rest)?;
        let (id, rest) = part(rest)?;
        if version != FORMAT || !rest.is_empty() {
            return None;
        }
        check("scope", scope, MAX_LEN + MAX_PREFIX_LEN).ok()?;
        check("message id", id, MAX_LEN).ok()?;
        Some(Self { scope: Scope(scope.into()), id: MessageId(id.into()) })
    }
}

fn part(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    let (part, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
    Some((std::str::from_utf8(part).ok()?, rest))
}

// Printed escaped: an id can hold quotes, bidirectional overrides and the like, and a log must show them.
macro_rules! escaped {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.escape_debug())
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )*};
}
escaped!(Scope, MessageId);

impl fmt::Display for DedupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope, self.id)
    }
}

impl fmt::Debug for DedupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DedupKey({self})")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(scope: &str, id: &str) -> DedupKey {
        DedupKey::new(Scope::new(scope).unwrap(), MessageId::new(id).unwrap())
    }

    /// The bytes on disk. A change here is a new format: raise `FORMAT` and keep reading the old one.
    #[test]
    fn golden_encoding() {
        assert_eq!(key("pay", "evt_1").encode(), b"\x01\x00\x03pay\x00\x05evt_1");
        assert_eq!(key("a", "bc").encode(), b"\x01\x00\x01a\x00\x02bc");
        assert_ne!(key("a", "bc").encode(), key("ab", "c").encode());
    }

    #[test]
    fn full_lengths_are_accepted_together_and_one_more_is_not() {
        let full = "x".repeat(MAX_LEN);
        let prefixed = Scope::with_prefix(&"p".repeat(MAX_PREFIX_LEN), &full).unwrap();
        let key = DedupKey::new(prefixed, MessageId::new(&full).unwrap());
        assert_eq!(DedupKey::decode(&key.encode()), Some(key));
        assert_eq!(
            MessageId::new("x".repeat(256)),
            Err(InvalidId::TooLong { what: "message id", len: 256, max: 255 })
        );
        assert!(Scope::with_prefix(&"p".repeat(33), "s").is_err());
    }

    #[test]
    fn hostile_identities_are_refused() {
        assert!(matches!(MessageId::new(""), Err(InvalidId::Empty { .. })));
        assert!(matches!(MessageId::new("a\nb"), Err(InvalidId::ControlCharacter { at: 1, .. })));
        assert!(matches!(MessageId::new("a\u{85}"), Err(InvalidId::ControlCharacter { .. })));
        assert!(matches!(MessageId::from_bytes(b"ok\xff"), Err(InvalidId::NotUtf8 { at: 2, .. })));
        assert!(matches!(Scope::new("\0"), Err(InvalidId::ControlCharacter { at: 0, .. })));
    }

    #[test]
    fn printing_escapes() {
        assert_eq!(key("s", "\u{202e}x\"").to_string(), "s/\\u{202e}x\\\"");
    }

    proptest! {
        #[test]
        fn every_key_is_read_back(scope in "\\PC{1,60}", id in "\\PC{1,60}") {
            let key = key(&scope, &id);
            prop_assert_eq!(DedupKey::decode(&key.encode()), Some(key));
        }

        #[test]
        fn garbage_is_no_key_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(key) = DedupKey::decode(&bytes) {
                prop_assert_eq!(key.encode(), bytes);
            }
        }
    }
}
