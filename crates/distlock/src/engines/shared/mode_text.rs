//! Modes of claims as scripts and functions of an engine write and compare them.

use crate::types::mode::Mode;
use crate::types::owner::Record;

/// Returns the text of a claim's mode. Claims with the same text may hold the lock together, unless it is `x`.
pub(crate) fn mode_text(record: &Record) -> String {
    match record.mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Slot { of } => format!("p{of}"),
        // In hex: a name may have spaces.
        Mode::Reentrant => record.owner.as_str().bytes().fold("r".into(), |mode, byte| format!("{mode}{byte:02x}")),
    }
}

/// Returns the mode that a [`mode_text`] means.
pub(crate) fn mode_of(text: &str) -> Option<Mode> {
    match text.split_at_checked(1)? {
        ("x", "") => Some(Mode::Exclusive),
        ("s", "") => Some(Mode::Shared),
        ("p", of) => Some(Mode::Slot { of: of.parse().ok()? }),
        ("r", _) => Some(Mode::Reentrant),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::types::owner::{OwnerId, Process};

    #[test]
    fn every_mode_is_read_back() {
        let record = Record::new(OwnerId::new("a b").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        for (mode, text) in
            [(Mode::Exclusive, "x"), (Mode::Shared, "s"), (Mode::Slot { of: 12 }, "p12"), (Mode::Reentrant, "r612062")]
        {
            assert_eq!(mode_text(&record.clone().with_mode(mode)), text);
            assert_eq!(mode_of(text), Some(mode));
        }
        for other in ["", "y", "xx", "p", "p-1", "é"] {
            assert_eq!(mode_of(other), None, "{other}");
        }
    }
}
