//! One client: its knowledge, and the messages from and to it.

use std::collections::BTreeSet;

use super::{Flaw, POLL};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Client {
    pub(super) phase: Phase,
    pub(super) attempt: u8,
    /// When its last claim was sent, whether a reply came, and when the next is due.
    pub(super) sent: u8,
    pub(super) answered: bool,
    pub(super) poll_at: u8,
    /// The last claim with the reply busy: when it was sent, and when the server replied.
    pub(super) asked: Option<(u8, u8)>,
    /// A grant that came as a message while a claim was in flight.
    pub(super) handed: Option<Handed>,
    /// Messages to the server, in order: one connection.
    pub(super) requests: Vec<Request>,
    /// Messages to the client, in any order: pushed messages may use another connection.
    pub(super) inbox: BTreeSet<Answer>,
    /// The last attempt whose release the server has executed.
    pub(super) given_up: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    #[default]
    Idle,
    Waiting,
    Holding {
        deadline: u8,
        renewed: bool,
    },
    /// The process ended, or is frozen for ever; in that case the server still counts its connection.
    Dead {
        is_connected: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Handed {
    pub(super) token: u8,
    /// By the server's clock.
    pub(super) granted: u8,
    pub(super) received: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Claim { attempt: u8, sent: u8 },
    Renew { attempt: u8, sent: u8 },
    Release { attempt: u8, is_cancel: bool },
    LeanClaim { attempt: u8, sent: u8 },
    LeanRelease { attempt: u8, is_cancel: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    Granted {
        attempt: u8,
        sent: u8,
        token: u8,
    },
    Busy {
        attempt: u8,
        sent: u8,
        at: u8,
    },
    Renewed {
        attempt: u8,
        sent: u8,
    },
    NotOurs {
        attempt: u8,
    },
    /// The message of a handoff.
    Handed {
        attempt: u8,
        token: u8,
        at: u8,
    },
    /// The message to claim again.
    Retry {
        attempt: u8,
    },
    /// A lean script has left the request to the full one.
    OddClaim {
        attempt: u8,
        sent: u8,
    },
    OddRelease {
        attempt: u8,
        is_cancel: bool,
    },
}

impl Client {
    pub(super) fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Dead { .. })
    }

    pub(super) fn hears(&self) -> bool {
        !matches!(self.phase, Phase::Dead { is_connected: false })
    }

    pub(super) fn is_valid(&self, now: u8) -> bool {
        matches!(self.phase, Phase::Holding { deadline, .. } if now < deadline)
    }

    pub(super) fn tell(&mut self, answer: Answer) {
        if self.lives() {
            self.inbox.insert(answer);
        }
    }

    /// Clears the state of a finished wait, which makes no difference any more.
    pub(super) fn forget(&mut self) {
        (self.sent, self.answered, self.poll_at, self.asked, self.handed) = (0, false, 0, None, None);
    }

    /// Sends the first claim of an attempt. Every later one goes to the full script.
    pub(super) fn claim_first(&mut self, now: u8, is_lean: bool) {
        self.claim(now);
        if is_lean {
            self.requests.pop();
            self.requests.push(Request::LeanClaim { attempt: self.attempt, sent: now });
        }
    }

    pub(super) fn claim(&mut self, now: u8) {
        (self.sent, self.answered, self.poll_at) = (now, false, now + POLL);
        self.requests.push(Request::Claim { attempt: self.attempt, sent: now });
    }

    /// A message that requires another claim at once.
    pub(super) fn must_claim(&mut self, now: u8) {
        (self.answered, self.poll_at) = (false, now);
    }

    pub(super) fn is_to_poll(&self, now: u8, flaw: Flaw) -> bool {
        self.phase == Phase::Waiting && now >= self.poll_at && !(self.answered && flaw == Flaw::NoPoll)
    }

    /// Returns whether an action of the client is due before time may advance.
    pub(super) fn is_due(&self, now: u8, flaw: Flaw) -> bool {
        let polls = self.is_to_poll(now, flaw);
        let lapsed = matches!(self.phase, Phase::Holding { deadline, .. } if now >= deadline);
        !self.requests.is_empty() || !self.inbox.is_empty() || polls || lapsed
    }

    pub(super) fn awaits(&self, attempt: u8, sent: u8) -> bool {
        self.phase == Phase::Waiting && self.attempt == attempt && self.sent == sent
    }
}
