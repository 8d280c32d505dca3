//! Durations as people write them.

use std::time::Duration;

/// Reads `250ms`, `30s`, `5m`, `24h` or `8d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("a whole number with a unit is needed: ms, s, m, h or d".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a whole number is needed before the unit".to_owned())?;
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(|| "too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_what_has_none() {
        for (text, millis) in [("0s", 0), ("250ms", 250), ("5m", 300_000), ("8d", 691_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", "5", "s", "1.5s", "-1s", "5 s", "5 min", "99999999999999999999s", "9999999999999999d"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
