//! What a child says.

use std::fmt::{self, Display};
use std::str::FromStr;

use distlock::Moment;

/// An answer of a child, with the moments on the machine's clock between which it did what it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Just before.
    pub began: Moment,
    /// Just after.
    pub ended: Moment,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The lock is taken.
    Taken {
        /// The fencing token.
        token: u64,
        /// Until when the child believes in it, unless renewed; never, when it has no deadline.
        deadline: Moment,
    },
    /// Somebody else has the lock.
    Busy,
    /// How the child sees a lock that it took: `Held`, `AtRisk` or `Lost`.
    State(String),
    /// Why the lock was lost.
    Lost(String),
    /// It failed.
    Failed {
        /// The kind of the error.
        kind: String,
        /// What it says.
        message: String,
    },
}

impl Answer {
    /// The fencing token of the lock that was taken. Panics if none was.
    #[track_caller]
    pub fn token(&self) -> u64 {
        match self.outcome {
            Outcome::Taken { token, .. } => token,
            _ => panic!("no lock was taken: {self:?}"),
        }
    }

    /// The deadline of the lock that was taken. Panics if none was.
    #[track_caller]
    pub fn deadline(&self) -> Moment {
        match self.outcome {
            Outcome::Taken { deadline, .. } => deadline,
            _ => panic!("no lock was taken: {self:?}"),
        }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.began.as_nanos(), self.ended.as_nanos())?;
        match &self.outcome {
            Outcome::Done => f.write_str("done"),
            Outcome::Taken { token, deadline } => write!(f, "taken {token} {}", deadline.as_nanos()),
            Outcome::Busy => f.write_str("busy"),
            Outcome::State(state) => write!(f, "state {state}"),
            Outcome::Lost(reason) => write!(f, "lost {reason}"),
            // An answer is one line, whatever an error says.
            Outcome::Failed { kind, message } => write!(f, "failed {kind} {}", message.replace('\n', " ")),
        }
    }
}

impl FromStr for Answer {
    type Err = String;

    fn from_str(line: &str) -> Result<Answer, String> {
        let strange = || format!("not an answer: {line:?}");
        let number = |text: &str| text.parse::<u64>().map_err(|_| strange());
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().ok_or_else(strange);
        let (began, ended, what) = (number(word()?)?, number(word()?)?, word()?);
        let rest = words.next().unwrap_or_default();
        let pair = || rest.split_once(' ').ok_or_else(strange);
        let outcome = match what {
            "done" => Outcome::Done,
            "taken" => Outcome::Taken { token: number(pair()?.0)?, deadline: Moment::from_nanos(number(pair()?.1)?) },
            "busy" => Outcome::Busy,
            "state" => Outcome::State(rest.to_owned()),
            "lost" => Outcome::Lost(rest.to_owned()),
            "failed" => Outcome::Failed { kind: pair()?.0.to_owned(), message: pair()?.1.to_owned() },
            _ => return Err(strange()),
        };
        Ok(Answer { began: Moment::from_nanos(began), ended: Moment::from_nanos(ended), outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_were_written() {
        let outcomes = [
            Outcome::Done,
            Outcome::Taken { token: u64::MAX, deadline: Moment::NEVER },
            Outcome::Busy,
            Outcome::State("AtRisk".into()),
            Outcome::Lost("Expired { after: 3 }".into()),
            Outcome::Failed { kind: "Timeout".into(), message: "held by a b since c".into() },
        ];
        for outcome in outcomes {
            let answer = Answer { began: Moment::from_nanos(1), ended: Moment::from_nanos(2), outcome };
            assert_eq!(answer.to_string().parse(), Ok(answer));
        }
        for line in ["", "1 2", "1 x done", "1 2 taken 3", "1 2 odd"] {
            assert!(line.parse::<Answer>().is_err(), "{line}");
        }
    }
}
