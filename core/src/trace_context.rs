//! The producer's trace context (W3C), as far as it has the form of one: a header is not to be trusted.

use std::collections::HashMap;

use crate::delivery::Delivery;

/// `version-trace id-parent id-flags`. Later versions may have more, which nobody knows how to read.
const KNOWN: usize = 55;
/// What the recommendation asks everybody to carry of `tracestate`, in bytes. What is longer is left out.
const MAX_STATE: usize = 512;

/// `traceparent`, cut to what is known of its form.
pub(crate) fn parent(delivery: &Delivery) -> Option<&str> {
    let mut values = delivery.header("traceparent").flatten();
    let first = values.next()?;
    // Two that differ are none.
    if values.any(|other| other != first) {
        return None;
    }
    let (known, more) = first.split_at_checked(KNOWN)?;
    let known = std::str::from_utf8(known).ok()?;
    let mut parts = known.split('-');
    let mut part =
        |len: usize| parts.next().filter(|part| part.len() == len && part.bytes().all(is_lower_hex));
    let (version, trace, parent, _flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    let is_zero = |id: &str| id.bytes().all(|digit| digit == b'0');
    let ends_well = more.is_empty() || version != "00" && more.starts_with(b"-");
    Some(known).filter(|_| ends_well && version != "ff" && !is_zero(trace) && !is_zero(parent))
}

/// `tracestate`, of several headers one text. Worth nothing without a `traceparent`.
pub(crate) fn state(delivery: &Delivery) -> Option<String> {
    parent(delivery)?;
    let mut state = String::new();
    for value in delivery.header("tracestate").flatten().filter(|value| !value.trim_ascii().is_empty()) {
        let printable = value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
        let value = std::str::from_utf8(value).ok().filter(|_| printable)?;
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(value.trim());
        if state.len() > MAX_STATE {
            return None;
        }
    }
    Some(state).filter(|state| !state.is_empty())
}

pub(crate) fn carrier(delivery: &Delivery) -> HashMap<String, String> {
    let parent = parent(delivery).map(|value| ("traceparent".to_owned(), value.to_owned()));
    let state = state(delivery).map(|value| ("tracestate".to_owned(), value));
    parent.into_iter().chain(state).collect()
}

const fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::delivery::{Header, Position};

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn with(headers: &[(&str, &[u8])]) -> Delivery {
        let headers =
            headers.iter().map(|(name, value)| ((*name).into(), Some(Bytes::copy_from_slice(value))));
        Delivery::new(Position::in_queue("q"), None).with_headers(headers.collect::<Vec<Header>>())
    }

    fn parent_of(value: &str) -> Option<String> {
        with(&[("TraceParent", value.as_bytes())]).traceparent().map(str::to_owned)
    }

    #[test]
    fn only_what_has_the_form_of_a_trace_context_is_one() {
        assert_eq!(parent_of(GOOD).as_deref(), Some(GOOD));
        let sampled_not = GOOD.replace("-01", "-00");
        assert_eq!(parent_of(&sampled_not), Some(sampled_not));
        for bad in [
            "",
            "password",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-011",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b-7-01",
        ] {
            assert_eq!(parent_of(bad), None, "{bad}");
        }
    }

    #[test]
    fn of_a_later_version_what_is_known_is_read() {
        let later = GOOD.replacen("00", "cc", 1);
        assert_eq!(parent_of(&later).as_deref(), Some(&*later));
        assert_eq!(parent_of(&format!("{later}-what the future will be like")), Some(later));
    }

    #[test]
    fn two_that_differ_are_none() {
        let other = GOOD.replace("4bf", "5bf");
        let twice =
            |second: &str| with(&[("traceparent", GOOD.as_bytes()), ("traceparent", second.as_bytes())]);
        assert_eq!(twice(GOOD).traceparent(), Some(GOOD));
        assert_eq!(twice(&other).traceparent(), None);
    }

    #[test]
    fn the_state_is_carried_with_its_parent_and_never_alone() {
        let parent = ("traceparent", GOOD.as_bytes());
        let two = with(&[("tracestate", b"a=1"), parent, ("tracestate", b""), ("tracestate", b" b=2 ")]);
        assert_eq!(two.tracestate().as_deref(), Some("a=1,b=2"));
        let carried = [("traceparent", GOOD), ("tracestate", "a=1,b=2")];
        let carried = carried.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(two.trace_context(), HashMap::from(carried));
        assert_eq!(with(&[("tracestate", b"a=1")]).tracestate(), None);
        assert_eq!(with(&[("tracestate", b"a=1")]).trace_context(), HashMap::new());
        for bad in [&b"a=\n"[..], b"a=\xff", &[b'a'; 513]] {
            assert_eq!(with(&[parent, ("tracestate", bad)]).tracestate(), None);
        }
        assert!(with(&[parent, ("tracestate", &[b'a'; 512])]).tracestate().is_some());
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_no_trace_context_and_no_panic(
            value in proptest::collection::vec(any::<u8>(), 0..70), state in proptest::collection::vec(any::<u8>(), 0..9),
        ) {
            let delivery = with(&[("traceparent", &value), ("tracestate", &state)]);
            prop_assert_eq!(delivery.traceparent(), None);
            prop_assert_eq!(delivery.tracestate(), None);
        }
    }
}
