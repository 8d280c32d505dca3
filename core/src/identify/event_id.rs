//! One message id of the two attributes that identify a CloudEvent.

use sha2::{Digest, Sha256};

use crate::cloud_event::Identity;
use crate::dead_letter::hex;
use crate::id::{InvalidId, MAX_LEN, MessageId, check};

/// `ce:`, the length of the source in bytes, `:`, the source, `:`, the id. The length tells where the source
/// ends, so that no two pairs have one id.
///
/// A pair that is too long for it becomes `ce-sha256:`, the hash of the pair, `:`, and the source as far as
/// there is room, for people to read. No short form begins like that.
pub(super) fn event_id(event: &Identity<'_>) -> Result<MessageId, InvalidId> {
    let (source, id) = (event.source.as_ref(), event.id.as_ref());
    for part in [source, id] {
        // An attribute may be longer than an id, but not empty, nor a danger to a log.
        check("message id", part, part.len().max(MAX_LEN))?;
    }
    let short = format!("ce:{}:{source}:{id}", source.len());
    if short.len() <= MAX_LEN {
        return MessageId::new(short);
    }
    let len = u64::try_from(source.len()).unwrap_or(u64::MAX).to_be_bytes();
    let hash = Sha256::new().chain_update(len).chain_update(source).chain_update(id);
    let mut long = format!("ce-sha256:{}:", hex(&hash.finalize()));
    for character in source.chars() {
        if long.len() + character.len_utf8() > MAX_LEN {
            break;
        }
        long.push(character);
    }
    MessageId::new(long)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;

    fn of(source: &str, id: &str) -> MessageId {
        event_id(&Identity { source: Cow::Borrowed(source), id: Cow::Borrowed(id) }).unwrap()
    }

    /// What is stored under these is looked for under these: a change runs old events again.
    #[test]
    fn golden_ids_of_events() {
        assert_eq!(of("/orders", "42").as_str(), "ce:7:/orders:42");
        assert_eq!(of("é", ":").as_str(), "ce:2:é::");
        let long = of(&"é".repeat(120), &"x".repeat(20));
        let hash = "4d027b4644b7cd639b6072d60da3a1d7258bd3c551919ce49b08b366e8a6b045";
        assert_eq!(long.as_str(), format!("ce-sha256:{hash}:{}", "é".repeat(90)));
        assert_eq!(long.as_str().len(), 255);
    }

    #[test]
    fn the_longest_short_form_is_as_long_as_an_id_may_be() {
        let short = of("s", &"x".repeat(255 - 7));
        assert_eq!((short.as_str().len(), &short.as_str()[..6]), (255, "ce:1:s"));
        assert!(of("s", &"x".repeat(256 - 7)).as_str().starts_with("ce-sha256:"));
    }

    proptest! {
        /// Of few characters, among them those of the encoding, so that near misses are common.
        #[test]
        fn no_two_events_have_one_id(
            one in ("[1:é]{1,4}", "[1:é]{1,4}"), two in ("[1:é]{1,4}", "[1:é]{1,4}"), pad in 0_usize..200,
        ) {
            let pad = "x".repeat(pad);
            let id = |(source, id): &(String, String)| of(&format!("{source}{pad}"), &format!("{id}{pad}"));
            prop_assert_eq!(one == two, id(&one) == id(&two));
            prop_assert_eq!(of(&one.0, &format!("{}{}", one.1, two.1)) == of(&format!("{}{}", one.0, one.1), &two.1), false);
        }
    }
}
