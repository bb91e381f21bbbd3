//! The daemon without HTTP: acquires and ends holds.

use std::sync::Arc;
use std::time::Duration;

use distlock::backend::Scope;
use distlock::{Clock, Error, ErrorKind, LockGuard, Locker};
use distlock_http::Peer;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::attempts::Attempts;
use crate::counters::Counters;
use crate::failure::Failure;
use crate::hold::{End, Hold, HoldId};
use crate::holds::Holds;
use crate::liveness::Liveness;
use crate::log::Log;
use crate::news::News;
use crate::process;
use crate::wanted::Wanted;

/// How often the engine is asked whether clients ask for held locks, for how many streams at most, and for how long.
const QUESTIONS_EVERY: Duration = Duration::from_secs(1);
const QUESTIONS_AT_ONCE: usize = 100;
const QUESTION_LIMIT: Duration = Duration::from_millis(200);
/// How often a lock is requested that was lost before its client could be told.
const MOST_TRIES: usize = 3;
/// How long clients may take to confirm that they have stopped, when the daemon stops. Leases end the holds of the others.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The daemon without HTTP.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) locker: Locker,
    pub(crate) clock: Clock,
    pub(crate) holds: Holds,
    pub(crate) attempts: Arc<Attempts>,
    pub(crate) news: News,
    pub(crate) log: Log,
    pub(crate) counters: Counters,
    pub(crate) default_ttl: Duration,
    /// Whether locks outlive the daemon, until their leases end.
    pub(crate) has_leases: bool,
    stopping: watch::Sender<bool>,
    stopped: watch::Sender<bool>,
}

impl Service {
    pub(crate) fn new(locker: Locker, news: News, log: Log, default_ttl: Duration) -> Service {
        let can = locker.capabilities();
        Service {
            has_leases: can.leases && can.scope > Scope::Process,
            locker,
            clock: Clock::system(),
            holds: Holds::new(Clock::system()),
            attempts: Arc::default(),
            news,
            log,
            counters: Counters::default(),
            default_ttl,
            stopping: watch::Sender::new(false),
            stopped: watch::Sender::new(false),
        }
    }

    /// Acquires a lock for a client.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the request, or releases the lock if it was just granted.
    pub(crate) async fn acquire(
        &self,
        wanted: &Wanted,
        peer: Peer,
        attempt: Option<String>,
    ) -> Result<Arc<Hold>, Failure> {
        let mut stopping = self.stopping.subscribe();
        if *stopping.borrow() {
            return Err(Failure::stopping());
        }
        let ttl = wanted.ttl(self.default_ttl);
        for _ in 0..MOST_TRIES {
            let waiting = self.counters.wait();
            let request = wanted.request(&self.locker, self.default_ttl, &peer);
            let granted = tokio::select! {
                biased;
                granted = request => granted,
                // An error means that the service is gone.
                _ = stopping.changed() => return Err(Failure::stopping()),
            };
            waiting.over();
            let guard = granted.map_err(|error| self.not_acquired(&error, wanted, peer))?;
            if guard.remaining().is_some_and(|left| left < ttl / 2) {
                // A lock that was handed over begins with a short lease, which the client must not have to live with. If
                // this fails, the keeper tries again.
                let _ = guard.extend(ttl).await;
            }
            // The daemon may have been stopped for longer than that short lease.
            if !guard.is_lost() {
                return self.keep(guard, wanted, peer, attempt);
            }
        }
        let error = Error::unavailable("it was granted and lost again before it could be used").with_key(&wanted.key);
        Err(self.not_acquired(&error, wanted, peer))
    }

    fn not_acquired(&self, error: &Error, wanted: &Wanted, peer: Peer) -> Failure {
        let counter = if error.kind() == ErrorKind::Timeout { &self.counters.busy } else { &self.counters.failed };
        Counters::add(counter);
        if error.kind() != ErrorKind::Timeout {
            self.log.detail(&peer, Some(&wanted.key), &error.to_string());
        }
        Failure::from(error)
    }

    fn keep(
        &self,
        guard: LockGuard,
        wanted: &Wanted,
        peer: Peer,
        attempt: Option<String>,
    ) -> Result<Arc<Hold>, Failure> {
        let (proof, silence) = wanted.proof();
        let life = Liveness::new(proof, silence, wanted.ttl(self.default_ttl), self.clock.now());
        let hold = Arc::new(Hold::new(guard, peer, attempt, life));
        if !self.holds.add(&hold) {
            // Dropping it releases the lock.
            return Err(Failure::stopping());
        }
        Counters::add(&self.counters.acquired);
        self.log.detail(&peer, Some(&hold.key), "acquired");
        Ok(hold)
    }

    pub(crate) fn hold(&self, id: HoldId, peer: &Peer) -> Result<Arc<Hold>, Failure> {
        let hold = self.holds.get(id).ok_or_else(Failure::no_such_hold)?;
        hold.used_by(peer);
        Ok(hold)
    }

    /// Releases a hold for its client.
    pub(crate) async fn release(&self, id: HoldId, peer: &Peer) -> Result<(), Failure> {
        let hold = self.holds.remove(id).ok_or_else(Failure::no_such_hold)?;
        let released = self.end(&hold, End::Released).await;
        self.log.detail(peer, Some(&hold.key), if released.is_ok() { "released" } else { "release failed" });
        released.map_err(|error| Failure::from(&error))
    }

    /// Ends a hold that was removed from the table.
    async fn end(&self, hold: &Hold, end: End) -> Result<(), Error> {
        if let Some(key) = &hold.attempt {
            self.attempts.ended(key);
        }
        Counters::add(self.counters.ended(end));
        // Once polled, an unlock goes on in the background if this future is dropped.
        match hold.take(end).await {
            Some(guard) => guard.unlock().await,
            None => Ok(()),
        }
    }

    /// Releases a hold whose client could not be told of it.
    pub(crate) fn discard(self: &Arc<Self>, hold: &Hold) {
        if let Some(hold) = self.holds.remove(hold.id) {
            self.end_apart(hold, End::Released);
        }
    }

    /// Ends holds whose clients are gone, for as long as the daemon runs.
    pub(crate) async fn end_silent(self: &Arc<Self>) {
        loop {
            let (hold, end) = self.holds.next_end().await;
            if end == End::Silent {
                self.log.say(&hold.peer, Some(&hold.key), "released: the client was silent for too long");
            }
            self.end_apart(hold, end);
        }
    }

    /// Ends a hold in a task of its own: an engine that hangs delays no other hold.
    fn end_apart(self: &Arc<Self>, hold: Arc<Hold>, end: End) {
        let service = self.clone();
        tokio::spawn(async move {
            // The library repeats a release that failed.
            let _ = service.end(&hold, end).await;
        });
    }

    /// Watches a hold whose stream has closed: it ends as soon as its client's process is dead.
    pub(crate) fn stream_closed(self: &Arc<Self>, hold: &Arc<Hold>) {
        hold.life().stream_closed(self.clock.now());
        self.holds.look_again(hold);
        let Some(pid) = hold.only_process() else { return };
        let (service, hold) = (self.clone(), hold.clone());
        tokio::spawn(async move {
            let left = hold.life().ends_at().map_or(Duration::ZERO, |end| end.since(service.clock.now()));
            let died = timeout(left, process::died(pid)).await.is_ok_and(|died| died);
            if died && hold.life().die() && service.holds.remove(hold.id).is_some() {
                service.log.say(&hold.peer, Some(&hold.key), "released: the client has died");
                let _ = service.end(&hold, End::Died).await;
            }
        });
    }

    /// Looks whether clients ask for locks that have a stream, for as long as the daemon runs.
    pub(crate) async fn look_for_questions(&self) {
        if !self.locker.capabilities().inspects {
            return std::future::pending().await;
        }
        loop {
            sleep(QUESTIONS_EVERY).await;
            let looks = self.news.turn(QUESTIONS_AT_ONCE).into_iter().map(|hold| async move {
                if let Ok(Some(reason)) = hold.look_for_question(QUESTION_LIMIT).await {
                    hold.was_asked(reason);
                }
            });
            futures_util::future::join_all(looks).await;
        }
    }

    /// Accepts no more holds, tells the streams, and waits until clients have released theirs or their deadlines have
    /// passed. Returns whether no hold is left.
    pub(crate) async fn stop(&self) -> bool {
        self.stopping.send_replace(true);
        self.holds.stop();
        let is_empty = timeout(STOP_LIMIT, self.holds.emptied()).await.is_ok();
        self.stopped.send_replace(true);
        is_empty
    }

    /// Returns once [`stop`](Service::stop) is done.
    pub(crate) async fn stopped(&self) {
        // An error means that the service is gone.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }
}
