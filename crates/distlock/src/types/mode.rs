//! Who may hold a lock at the same time.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::error::{Error, Result};

/// The most slots that a semaphore may have.
pub const MAX_SLOTS: u32 = 1024;

/// Who may hold a lock at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mode {
    /// One holder.
    #[default]
    Exclusive,
    /// Any number of shared holders: readers.
    Shared,
    /// Claims of the same owner, from any process.
    Reentrant,
    /// As many as there are slots: a semaphore.
    Slot {
        /// The number of slots. All users of the semaphore give the same, unless they
        /// [resize](crate::Semaphore::or_resize) it.
        of: u32,
    },
}

impl Mode {
    /// Returns whether claims in the two modes can meet on one lock. While a semaphore has a holder or waiter, all
    /// claims must be for a semaphore with the same number of slots; the number may differ between claims that both
    /// [resize](crate::Record::resizes) it.
    #[must_use]
    pub fn agrees_with(self, other: Mode) -> bool {
        match (self, other) {
            (Mode::Slot { of }, Mode::Slot { of: others }) => of == others,
            (Mode::Slot { .. }, _) | (_, Mode::Slot { .. }) => false,
            _ => true,
        }
    }

    /// Returns how many holders the lock may have at once.
    #[must_use]
    pub fn most_holders(self) -> usize {
        match self {
            Mode::Exclusive => 1,
            Mode::Shared | Mode::Reentrant => usize::MAX,
            Mode::Slot { of } => of as usize,
        }
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        *self == Mode::Exclusive
    }

    /// Refuses a mode that no engine supports, before anything is sent.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Mode::Slot { of } if !(1..=MAX_SLOTS).contains(&of) => {
                Err(Error::invalid("slots", format_args!("{of} is not from 1 to {MAX_SLOTS}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of a claim that [does not agree](Mode::agrees_with) with what the lock is.
    #[must_use]
    pub fn disagrees(self, lock: Mode) -> Error {
        Error::invalid("mode", format_args!("asked for {self}, but as long as it is in use it is {lock}"))
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("an exclusive lock"),
            Mode::Shared => f.write_str("a shared lock"),
            Mode::Reentrant => f.write_str("a lock of one owner"),
            Mode::Slot { of } => write!(f, "a semaphore of {of}"),
        }
    }
}

/// A mode as a claim asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AskedMode {
    pub(crate) mode: Mode,
    /// Whether the claim goes with claims for another number of slots that say the same.
    pub(crate) resizes: bool,
}

impl AskedMode {
    /// Returns whether the two claims can meet on one lock.
    pub(crate) fn agrees_with(self, other: AskedMode) -> bool {
        let both_have_slots = matches!((self.mode, other.mode), (Mode::Slot { .. }, Mode::Slot { .. }));
        self.mode.agrees_with(other.mode) || both_have_slots && self.resizes && other.resizes
    }
}

impl From<Mode> for AskedMode {
    fn from(mode: Mode) -> Self {
        AskedMode { mode, resizes: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semaphores_of_two_sizes_agree_if_both_resize() {
        let asked = |of, resizes| AskedMode { mode: Mode::Slot { of }, resizes };
        for (a, b, agree) in [
            (asked(2, true), asked(3, true), true),
            (asked(2, true), asked(3, false), false),
            (asked(2, false), asked(3, false), false),
            (asked(2, true), asked(2, false), true),
            (asked(2, true), AskedMode { mode: Mode::Shared, resizes: true }, false),
        ] {
            assert_eq!([a.agrees_with(b), b.agrees_with(a)], [agree; 2], "{a:?} and {b:?}");
        }
    }

    #[test]
    fn a_semaphore_agrees_with_nothing_but_itself() {
        let locks = [Mode::Exclusive, Mode::Shared, Mode::Reentrant];
        let semaphores = [Mode::Slot { of: 2 }, Mode::Slot { of: 3 }];
        for a in locks {
            assert!(locks.iter().all(|b| a.agrees_with(*b)));
            assert!(semaphores.iter().all(|b| !a.agrees_with(*b) && !b.agrees_with(a)));
        }
        assert!(semaphores[0].agrees_with(semaphores[0]) && !semaphores[0].agrees_with(semaphores[1]));
    }

    #[test]
    fn a_mode_survives_json_and_reads_as_exclusive_where_there_is_none() {
        for (mode, text) in [
            (Mode::Exclusive, r#""exclusive""#),
            (Mode::Shared, r#""shared""#),
            (Mode::Reentrant, r#""reentrant""#),
            (Mode::Slot { of: 3 }, r#"{"slot":{"of":3}}"#),
        ] {
            assert_eq!(serde_json::to_string(&mode).unwrap(), text);
            assert_eq!(serde_json::from_str::<Mode>(text).unwrap(), mode);
        }
    }

    #[test]
    fn a_semaphore_has_some_slots_and_not_too_many() {
        assert!(Mode::Slot { of: 1 }.check().is_ok() && Mode::Slot { of: MAX_SLOTS }.check().is_ok());
        for of in [0, MAX_SLOTS + 1] {
            assert!(Mode::Slot { of }.check().unwrap_err().to_string().starts_with("slots: "));
        }
    }
}
