//! The answers of a child.

use std::fmt::{self, Display};
use std::str::FromStr;

use distlock::Moment;

/// An answer of a child, with the moments on the machine's clock between which it executed the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Just before the order was executed.
    pub began: Moment,
    /// Just after the order was executed.
    pub ended: Moment,
    /// The outcome of the order.
    pub outcome: Outcome,
}

/// The outcome of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The order was executed.
    Done,
    /// The child holds the lock.
    Taken {
        /// The fencing token.
        token: u64,
        /// The deadline of the hold as the child knows it, unless renewed; [`Moment::NEVER`] without one.
        deadline: Moment,
    },
    /// The lock is held by another owner.
    Busy,
    /// The child's view of its hold: `Held`, `AtRisk` or `Lost`.
    State(String),
    /// Why the lock was lost.
    Lost(String),
    /// The order failed.
    Failed {
        /// The kind of the error.
        kind: String,
        /// The text of the error.
        message: String,
    },
}

impl Answer {
    /// Returns the fencing token. Panics if no lock was taken.
    #[track_caller]
    pub fn token(&self) -> u64 {
        match self.outcome {
            Outcome::Taken { token, .. } => token,
            _ => panic!("no lock was taken: {self:?}"),
        }
    }

    /// Returns the deadline. Panics if no lock was taken.
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
            // An answer is one line, so line breaks in an error text are replaced.
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
    fn answers_round_trip() {
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
