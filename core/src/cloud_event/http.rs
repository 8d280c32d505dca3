//! How the HTTP binding writes an attribute's value into a header (its section 3.1.3.2).

use std::borrow::Cow;

use crate::identify::Flaw;

const QUOTES: Flaw = Flaw::Malformed("an attribute of the event has a quote that does not end");
const PERCENT: Flaw = Flaw::Malformed("an attribute of the event is not percent-encoded");

/// First the quotes, which older senders write, then one round of percent-decoding.
pub(super) fn decode(value: &str) -> Result<Cow<'_, str>, Flaw> {
    let value = match value.strip_prefix('"') {
        Some(quoted) => Cow::Owned(unquote(quoted)?),
        None => Cow::Borrowed(value),
    };
    if !value.contains('%') {
        return Ok(value);
    }
    let mut decoded = Vec::with_capacity(value.len());
    let mut bytes = value.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => decoded.push(digit(bytes.next())? << 4 | digit(bytes.next())?),
            other => decoded.push(other),
        }
    }
    String::from_utf8(decoded).map(Cow::Owned).map_err(|_| PERCENT)
}

fn unquote(quoted: &str) -> Result<String, Flaw> {
    let (mut text, mut characters) = (String::with_capacity(quoted.len()), quoted.chars());
    loop {
        match characters.next().ok_or(QUOTES)? {
            '"' => break,
            '\\' => text.push(characters.next().ok_or(QUOTES)?),
            other => text.push(other),
        }
    }
    // Nothing may follow: whoever cuts it off makes one id of two.
    characters.next().map_or(Ok(text), |_| Err(QUOTES))
}

fn digit(byte: Option<u8>) -> Result<u8, Flaw> {
    let digit = byte.and_then(|byte| char::from(byte).to_digit(16)).ok_or(PERCENT)?;
    u8::try_from(digit).map_err(|_| PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_binding_says() {
        // The first is the specification's own example.
        for (written, meant) in [
            ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
            ("%e2%82%ac%41", "€A"),
            ("/plain/1", "/plain/1"),
            (r#""a \"b\" \\ c%25""#, r#"a "b" \ c%"#),
            ("%2541", "%41"),
            ("", ""),
            (r#""""#, ""),
        ] {
            assert_eq!(decode(written).unwrap(), meant, "{written}");
        }
        // The overlong space must be refused, says the specification.
        for broken in ["%C0%A0", "%", "%4", "%zz", "%+1", "%ff", r#"""#, r#""a"#, r#""a\"#, r#""a"b"#] {
            assert!(matches!(decode(broken), Err(Flaw::Malformed(_))), "{broken}");
        }
    }
}
