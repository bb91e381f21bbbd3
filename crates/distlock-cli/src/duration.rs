//! Parses durations.

use std::time::Duration;

/// The longest accepted duration, a hundred years: a longer one is a typing mistake.
const LONGEST_S: f64 = 100.0 * 365.25 * 86_400.0;

/// Parses seconds (`0.3`, `90`), or numbers with units that add up: `250ms`, `10s`, `1h30m`, `2d`.
///
/// # Errors
/// What is wrong, for the user.
pub fn parse(text: &str) -> Result<Duration, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("empty; write 0.3, 10s, 5m, 1h or 250ms".into());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c: char| c.is_ascii_digit() || c == '.');
        let (unit, after) = split(after, |c: char| c.is_ascii_alphabetic());
        // A bare number is seconds, but only alone: `5m30` would be ambiguous.
        let bare = unit.is_empty() && number.len() == text.trim().len();
        let value: f64 = number.parse().map_err(|_| "write 0.3, 10s, 5m, 1h or 250ms".to_string())?;
        seconds += value * if bare { 1.0 } else { seconds_in(unit)? };
        rest = after;
    }
    if seconds > LONGEST_S {
        return Err("longer than a hundred years".into());
    }
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

fn seconds_in(unit: &str) -> Result<f64, String> {
    match unit {
        "ms" => Ok(0.001),
        "s" => Ok(1.0),
        "m" => Ok(60.0),
        "h" => Ok(3_600.0),
        "d" => Ok(86_400.0),
        "" => Err("a unit is missing: ms, s, m, h or d".into()),
        other => Err(format!("the unit {other:?} is not one of ms, s, m, h, d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_fractions_and_units_are_parsed() {
        let cases = [
            ("0", 0),
            ("0.3", 300),
            (".5", 500),
            ("10", 10_000),
            ("10s", 10_000),
            ("1.5s", 1_500),
            ("250ms", 250),
            ("5m", 300_000),
            ("1h", 3_600_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
            (" 7 ", 7_000),
        ];
        for (text, ms) in cases {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text:?}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_a_reason() {
        for text in ["", " ", "s", "5x", "-1", "+1", "1e9", "5m30", "5 m", "1..2", "inf", "NaN", "999999999999d"] {
            let problem = parse(text).expect_err(text);
            assert!(!problem.is_empty());
        }
    }
}
