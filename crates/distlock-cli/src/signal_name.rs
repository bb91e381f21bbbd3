//! Parses and prints signal names.

use rustix::process::Signal;

const NAMED: [(&str, Signal); 14] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
    ("CONT", Signal::CONT),
    ("STOP", Signal::STOP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
];

/// Parses `TERM`, `SIGTERM`, `term` or `15`.
///
/// # Errors
/// What is wrong, for the user.
pub fn parse(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let named = NAMED.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    let numbered = || text.parse().ok().and_then(Signal::from_named_raw);
    named.or_else(numbered).ok_or_else(|| format!("{text:?} is not a signal such as TERM, INT or 15"))
}

/// Returns `SIGTERM`, or `signal 40` for a signal without a name here.
#[must_use]
pub fn show(raw: i32) -> String {
    match NAMED.iter().find(|(_, signal)| signal.as_raw() == raw) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {raw}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_any_form_and_numbers_are_parsed() {
        for text in ["TERM", "SIGTERM", "term", "sigterm", "15"] {
            assert_eq!(parse(text), Ok(Signal::TERM), "{text}");
        }
        for text in ["", "0", "-15", "999", "TERMINATE"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn known_signals_are_shown_by_name() {
        assert_eq!(show(15), "SIGTERM");
        assert_eq!(show(40), "signal 40");
    }
}
