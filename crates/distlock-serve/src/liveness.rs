//! How long a hold lives: as long as its client. Events in, the end out; no await, no clock.

use std::time::Duration;

use distlock::Moment;

/// How a client shows that it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// By an open event stream.
    Stream,
    /// By calls of `alive`, each within the silence after the last one.
    Calls,
}

/// When a hold ends because of its client.
///
/// The client counts a deadline of its own from what it was told last. It may be unable to hear anything, so the hold is kept
/// until that deadline has passed, however the client looks from here. Only the client's own word or the death of its process
/// ends a hold earlier.
#[derive(Debug)]
pub(crate) struct Liveness {
    proof: Proof,
    silence: Duration,
    /// The lease that the client asked for.
    ttl: Duration,
    last_sign: Moment,
    /// The latest end that the client was told.
    announced: Moment,
    is_streaming: bool,
    is_stopping: bool,
    /// Another process than the one that acquired the hold uses it, too.
    is_shared: bool,
    /// The hold has ended: nothing is promised any more.
    is_over: bool,
}

impl Liveness {
    pub(crate) fn new(proof: Proof, silence: Duration, ttl: Duration, now: Moment) -> Liveness {
        Liveness {
            proof,
            silence,
            ttl,
            last_sign: now,
            announced: now,
            is_streaming: false,
            is_stopping: false,
            is_shared: false,
            is_over: false,
        }
    }

    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    pub(crate) fn sign(&mut self, now: Moment) {
        self.last_sign = self.last_sign.max(now);
    }

    pub(crate) fn extended(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(crate) fn stream_opened(&mut self, now: Moment) {
        self.is_streaming = true;
        self.sign(now);
    }

    pub(crate) fn stream_closed(&mut self, now: Moment) {
        // An open stream is a sign of life only where the client chose it as one: the kernel keeps the stream of a stopped
        // process open.
        if self.proof == Proof::Stream {
            self.sign(now);
        }
        self.is_streaming = false;
    }

    /// Ends the hold as soon as its client's deadline has passed, however alive the client is.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Records that another process uses the hold: the death of the first one does not end it.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Ends the hold for good if the process that has died is the only one that ever used it.
    pub(crate) fn die(&mut self) -> bool {
        self.is_over |= !self.is_shared;
        !self.is_shared
    }

    /// Ends the hold for good.
    pub(crate) fn finish(&mut self) {
        self.is_over = true;
    }

    /// Ends the hold for good if its end has passed. An end and a promise exclude each other.
    pub(crate) fn expire(&mut self, now: Moment) -> bool {
        self.is_over |= self.ends_at().is_some_and(|end| end <= now);
        self.is_over
    }

    /// Returns the end that the client may rely on, and keeps the hold until then; `None` once it has ended. `lease_end` is
    /// the local deadline of the lease, if the engine has leases.
    pub(crate) fn announce(&mut self, lease_end: Option<Moment>, now: Moment) -> Option<Moment> {
        if self.is_over {
            return None;
        }
        let end = self.end(lease_end, now);
        self.announced = self.announced.max(end);
        Some(end)
    }

    /// Returns the same end without a promise.
    pub(crate) fn end(&self, lease_end: Option<Moment>, now: Moment) -> Moment {
        let by_client = match self.proof {
            Proof::Calls => self.last_sign.after(self.silence),
            Proof::Stream => now.after(self.ttl),
        };
        let end = lease_end.map_or(by_client, |lease_end| lease_end.min(by_client));
        if self.is_stopping { end.min(self.announced) } else { end }
    }

    /// Returns when the hold ends; `None` while its stream is open.
    pub(crate) fn ends_at(&self) -> Option<Moment> {
        match self.proof {
            _ if self.is_stopping => Some(self.announced),
            Proof::Stream if self.is_streaming => None,
            _ => Some(self.last_sign.after(self.silence).max(self.announced)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment::from_nanos(1_000_000_000_000);
    const TTL: Duration = Duration::from_secs(10);
    const SILENCE: Duration = Duration::from_secs(3);

    fn at(seconds: u64) -> Moment {
        START.after(Duration::from_secs(seconds))
    }

    #[test]
    fn an_open_stream_keeps_a_hold_and_its_end_is_a_sign_of_life() {
        let mut life = Liveness::new(Proof::Stream, SILENCE, TTL, START);
        assert_eq!(life.ends_at(), Some(at(3)), "a client that never opens its stream");
        life.stream_opened(at(2));
        assert_eq!(life.ends_at(), None);
        life.stream_closed(at(100));
        assert_eq!(life.ends_at(), Some(at(103)));
        life.stream_opened(at(102));
        assert_eq!(life.ends_at(), None, "in time");
    }

    #[test]
    fn a_hold_never_ends_before_what_its_client_was_told() {
        let mut life = Liveness::new(Proof::Stream, SILENCE, TTL, START);
        assert_eq!(life.announce(Some(at(9)), START), Some(at(9)));
        assert_eq!(life.ends_at(), Some(at(9)), "later than the silence");
        life.stream_opened(at(1));
        assert_eq!(life.announce(Some(at(19)), at(10)), Some(at(19)));
        life.stream_closed(at(10));
        assert_eq!(life.ends_at(), Some(at(19)));
        life.stop();
        assert_eq!(life.ends_at(), Some(at(19)), "also when the daemon stops");
        assert_eq!(life.announce(Some(at(29)), at(11)), Some(at(19)), "and nothing later is announced then");
    }

    #[test]
    fn calls_count_and_an_open_stream_beside_them_does_not() {
        let mut life = Liveness::new(Proof::Calls, SILENCE, TTL, START);
        assert_eq!(life.announce(Some(at(9)), START), Some(at(3)), "the silence is shorter than the lease");
        life.stream_opened(at(1));
        assert_eq!(life.ends_at(), Some(at(4)));
        life.sign(at(2));
        assert_eq!(life.announce(Some(at(9)), at(2)), Some(at(5)));
        life.stream_closed(at(4));
        assert_eq!(life.ends_at(), Some(at(5)), "the kernel closes the stream of a process that was stopped before");
    }

    #[test]
    fn nothing_is_promised_once_a_hold_has_ended() {
        let mut life = Liveness::new(Proof::Calls, SILENCE, TTL, START);
        assert!(!life.expire(at(2)));
        assert!(life.expire(at(3)));
        life.sign(at(3));
        assert_eq!(life.announce(Some(at(9)), at(3)), None);
        assert!(life.expire(at(3)), "for good");
    }

    #[test]
    fn the_death_of_a_process_ends_only_a_hold_that_no_other_was_promised() {
        let mut life = Liveness::new(Proof::Calls, SILENCE, TTL, START);
        assert!(life.die());
        assert_eq!(life.announce(Some(at(9)), START), None, "no other process is promised anything after that");
        let mut life = Liveness::new(Proof::Calls, SILENCE, TTL, START);
        life.share();
        assert!(!life.die());
        assert_eq!(life.announce(Some(at(9)), START), Some(at(3)));
    }

    #[test]
    fn without_leases_the_daemon_is_the_lease() {
        let mut life = Liveness::new(Proof::Stream, SILENCE, TTL, START);
        assert_eq!(life.announce(None, at(1)), Some(at(11)));
        assert_eq!(life.ends_at(), Some(at(11)));
        let mut life = Liveness::new(Proof::Calls, SILENCE, TTL, START);
        assert_eq!(life.announce(None, at(1)), Some(at(3)));
    }

    #[test]
    fn a_stopping_daemon_waits_for_no_more_signs_of_life() {
        let mut life = Liveness::new(Proof::Stream, SILENCE, TTL, START);
        life.stream_opened(START);
        life.announce(Some(at(5)), START);
        life.stop();
        life.sign(at(4));
        assert_eq!(life.ends_at(), Some(at(5)));
    }
}
