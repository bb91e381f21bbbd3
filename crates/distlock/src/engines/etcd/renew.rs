//! What a hold goes on with: a lease that is renewed, or a longer one, and what others may read about it.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, Lease, Renewal, Term};
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::Fault;
use crate::engines::etcd::protocol::queue;
use crate::engines::etcd::protocol::value::Value;
use crate::engines::etcd::shared_lease::SharedLease;
use crate::engines::etcd::state::attempts::{Attempt, Phase, QueueKey};
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::mode::Mode;

/// How often a hold is renewed once more that was moved to another lease meanwhile.
const ROUNDS: usize = 8;

impl Engine {
    pub(super) async fn renew(self: &Arc<Self>, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(self.renew_one(lease).await);
        }
        answers
    }

    /// Renews one hold: its lease was renewed since it last asked, or is now, for all that hang on it.
    async fn renew_one(self: &Arc<Self>, lease: &Lease) -> Result<Renewal> {
        if lease.claim.mode() == Mode::Reentrant {
            return self.renew_entry(lease).await;
        }
        let attempt = self.attempts.get(lease.claim.attempt);
        let Some(attempt) = attempt.filter(|attempt| matches!(attempt.state().phase, Phase::Held(_))) else {
            return Ok(Renewal::Lost(LossReason::Revoked));
        };
        if attempt.state().in_question {
            self.look_who_wrote(&attempt, None).await;
            let state = attempt.state();
            if state.phase == Phase::Gone {
                return Ok(Renewal::Lost(LossReason::Revoked));
            }
            if state.in_question {
                return Err(Error::unavailable(
                    "a lease that it may have hung on is gone, and nobody says whether it is",
                ));
            }
        }
        let length = lease.claim.lease();
        let (is_long_enough, is_moving) = {
            let state = attempt.state();
            (state.session.covers(length), !state.next_leases.is_empty())
        };
        if !is_long_enough && !self.move_to_longer(attempt.clone(), length).await? {
            return Ok(Renewal::Lost(LossReason::Revoked));
        }
        if is_long_enough && is_moving {
            self.settle_soon(&attempt, length);
        }
        for _ in 0..ROUNDS {
            let (leases, known) = {
                let state = attempt.state();
                (state.leases().cloned().collect::<Vec<_>>(), state.known_start)
            };
            let term = self.renew_leases(&leases, known).await?;
            let mut state = attempt.state();
            if !matches!(state.phase, Phase::Held(_)) {
                return Ok(Renewal::Lost(LossReason::Revoked));
            }
            // What it was moved to meanwhile is another lease, and may end sooner.
            let Some(term) = term else { continue };
            if state.leases().all(|session| leases.iter().any(|renewed| renewed.id == session.id)) {
                state.known_start = state.known_start.max(term.start);
                state.keep_until = state.keep_until.max(term.start.after(term.ttl));
                return Ok(Renewal::Renewed(Some(attempt.term_of(term))));
            }
        }
        Err(Error::unavailable("it is moved to another lease again and again"))
    }

    /// Renews every lease that a hold may hang on, the one that it was on last first; each was renewed since the term that began at
    /// `known`, or is now. Answers the term that ends first; `None`: the first one is gone, and whatever hangs on it was told.
    async fn renew_leases(self: &Arc<Self>, leases: &[Arc<SharedLease>], known: Moment) -> Result<Option<Term>> {
        let mut first: Option<Term> = None;
        for session in leases {
            let renewed = match session.term() {
                term if term.start > known && !session.is_gone() => Some(term),
                _ => session.renewed_after(known).await?,
            };
            let Some(term) = renewed else {
                self.lease_lost(session);
                return match first {
                    None => Ok(None),
                    // Whether the hold went with it is being looked for.
                    Some(_) => Err(Error::unavailable("a lease that it may hang on is gone")),
                };
            };
            let end = |term: &Term| term.start.after(term.ttl);
            first = Some(first.filter(|first| end(first) <= end(&term)).unwrap_or(term));
        }
        Ok(first)
    }

    /// Finds out what a hold hangs on. Its renewals do not wait for that: leases are kept alive also where nothing is written.
    fn settle_soon(self: &Arc<Self>, attempt: &Arc<Attempt>, length: Duration) {
        if attempt.making.try_lock().is_err() {
            // Somebody is at it.
            return;
        }
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move {
            // Unanswered, it is tried again at the next renewal.
            let _ = engine.move_alone(&attempt, length).await;
        });
    }

    /// Writes what is known about a holder anew.
    pub(super) async fn amend(self: &Arc<Self>, lease: &Lease) -> Result<bool> {
        if lease.claim.mode() == Mode::Reentrant {
            return self.amend_entry(lease).await;
        }
        let Some(attempt) = self.attempts.get(lease.claim.attempt) else { return Ok(false) };
        let (engine, claim) = (self.clone(), lease.claim.clone());
        // Whoever wants to move or delete the key waits for it, and not for the caller to go on.
        self.apart(async move { engine.amend_alone(&attempt, &claim).await }).await
    }

    async fn amend_alone(&self, attempt: &Attempt, claim: &Claim) -> Result<bool> {
        // Moved to another lease meanwhile, the key would look like one that was taken over.
        let _making = attempt.making.lock().await;
        let (mark, session, slot) = {
            let state = attempt.state();
            if !matches!(state.phase, Phase::Held(_)) {
                return Ok(false);
            }
            if !state.next_leases.is_empty() {
                return Err(Error::unavailable("it is being moved to another lease"));
            }
            let mark = QueueKey { key: attempt.key.clone(), created: state.created };
            (mark, state.session.id, state.slot)
        };
        let record = Arc::new(claim.record.as_ref().clone().with_mode(attempt.mode));
        let claim = Claim { record: record.clone(), ..claim.clone() };
        let value = Value::new(&claim, session).with_slot(slot).to_value();
        let amended = queue::rewrite(&self.client, &mark, Some(session), value).await?;
        if amended {
            attempt.state().record = record;
        }
        Ok(amended)
    }

    /// Hangs a hold on a lease that is long enough for `ttl`, and for what was asked before and not answered: after that it
    /// is known again what it hangs on. False when the hold is gone.
    async fn move_to_longer(self: &Arc<Self>, attempt: Arc<Attempt>, ttl: Duration) -> Result<bool> {
        let engine = self.clone();
        // Whoever wants to renew or delete the key waits for it, and not for the caller to go on.
        self.apart(async move { engine.move_alone(&attempt, ttl).await }).await
    }

    async fn move_alone(self: &Arc<Self>, attempt: &Attempt, ttl: Duration) -> Result<bool> {
        // One after the other: an answer says what the key hangs on only as long as nobody else moves it.
        let _making = attempt.making.lock().await;
        let ttl = attempt.state().next_leases.iter().map(|next| next.length()).fold(ttl, Duration::max);
        let longer = self.lease_for(ttl).await?;
        loop {
            // It may be in use for a while, and must not end before the one that the holder counts on.
            let known = attempt.state().known_start;
            if longer.renewed_after(known).await?.is_none() {
                self.lease_lost(&longer);
                return Err(Error::unavailable("the longer lease is gone"));
            }
            let (mark, from, in_doubt) = {
                let mut state = attempt.state();
                match state.phase {
                    Phase::Held(_) if !state.session.covers(ttl) => {}
                    Phase::Held(_) => return Ok(true),
                    _ => return Ok(false),
                }
                if longer.term().start <= state.known_start {
                    continue;
                }
                // Until the answer it may hang on either.
                let in_doubt = state.next_leases.iter().any(|next| next.id == longer.id);
                if !in_doubt {
                    state.next_leases.push(longer.clone());
                }
                (QueueKey { key: attempt.key.clone(), created: state.created }, state.session.id, in_doubt)
            };
            match queue::attach(&self.client, &mark, from, longer.id).await {
                Ok(lease) => {
                    let mut state = attempt.state();
                    let next = state.next_leases.iter().find(|next| Some(next.id) == lease).cloned();
                    let Some(next) = next else {
                        state.name_is_taken = true;
                        drop(state);
                        self.key_lost(attempt);
                        return Ok(false);
                    };
                    state.session = next;
                    state.next_leases.clear();
                    state.in_question = false;
                }
                Err(failure) => {
                    if !in_doubt && failure.fault != Fault::Unknown {
                        attempt.state().next_leases.retain(|next| next.id != longer.id);
                    }
                    if failure.fault == Fault::LeaseGone {
                        self.lease_lost(&longer);
                    }
                    return Err(failure.into());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use distlock_testkit::proxy::Proxy;
    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::contract::{Backend, Claimed};
    use crate::engines::etcd::Etcd;
    use crate::engines::etcd::protocol::messages::{DeleteRangeRequest, Request, TxnRequest};
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    const PATIENCE: Duration = Duration::from_secs(30);
    const TTL: Duration = Duration::from_secs(60);
    const LONGER: Duration = Duration::from_secs(70);

    /// A hold, and a longer lease that was there before it.
    struct Scene {
        _server: EtcdServer,
        proxy: Proxy,
        etcd: Etcd,
        lease: Lease,
        attempt: Arc<Attempt>,
        longer: Arc<SharedLease>,
    }

    impl Scene {
        async fn set() -> Scene {
            let server = EtcdServer::start();
            let proxy = Proxy::start(server.address());
            let etcd = Etcd::builder([proxy.address().to_string()]).build().unwrap();
            let longer = etcd.engine.lease_for(LONGER).await.unwrap();
            let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
            let claim = Claim::new(Key::new("a").unwrap(), TTL, true, Arc::new(record));
            let Ok(Claimed::Granted(grant)) = etcd.claim(&claim).await else { panic!("not granted") };
            let attempt = etcd.engine.attempts.get(claim.attempt).unwrap();
            Scene { _server: server, proxy, etcd, lease: Lease::new(claim, grant.token), attempt, longer }
        }

        async fn renew(&self) -> Result<Renewal> {
            let renewed = self.etcd.engine.renew(std::slice::from_ref(&self.lease));
            tokio::time::timeout(PATIENCE, renewed).await.expect("it waits").pop().unwrap()
        }

        /// Renews it for `ttl` in the background, with the first request of that held up.
        async fn renew_slowly(&self, ttl: Duration) -> tokio::task::JoinHandle<Result<Renewal>> {
            self.proxy.hold_requests();
            let mut lease = self.lease.clone();
            lease.claim.ttl = ttl;
            let engine = self.etcd.engine.clone();
            let renewed = tokio::spawn(async move { engine.renew(&[lease]).await.pop().unwrap() });
            self.proxy.wait_for("a request", |counts| counts.requests.held() > 0);
            renewed
        }

        async fn delete_key(&self) {
            let delete = Request::DeleteRange(DeleteRangeRequest { key: self.attempt.key.clone() });
            let request = TxnRequest { success: vec![delete.into()], ..TxnRequest::default() };
            queue::txn(&self.etcd.engine.client, request).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hold_is_moved_only_to_a_lease_that_ends_after_what_was_promised() {
        let scene = Scene::set().await;
        let extended = scene.renew_slowly(LONGER).await;
        {
            let state = scene.attempt.state();
            assert!(scene.longer.term().start < state.known_start, "it may end sooner than the hold may count on");
            assert!(state.next_leases.is_empty(), "it may hang on it from now on");
        }
        scene.proxy.pass();
        let extended = extended.await.unwrap().unwrap();
        assert!(matches!(extended, Renewal::Renewed(Some(Term { ttl: LONGER, .. }))), "{extended:?}");
    }

    /// An extension that is not answered: its hold may hang on either lease, and goes on with what both are good for.
    #[tokio::test]
    async fn a_hold_that_is_being_moved_is_renewed_without_waiting_for_that() {
        let scene = Scene::set().await;
        let known = scene.attempt.state().known_start;
        scene.attempt.state().next_leases.push(scene.longer.clone());
        let _moving = scene.attempt.making.lock().await;
        let renewed = scene.renew().await.unwrap();
        let Renewal::Renewed(Some(term)) = renewed else { panic!("{renewed:?}") };
        assert!(term.ttl == TTL && term.start > known, "{term:?}");
        assert!(scene.longer.term().start > known, "it may hang on this one");
    }

    /// One of the leases that a hold may hang on is gone: it counts on nothing until somebody has looked.
    #[tokio::test]
    async fn a_hold_that_may_have_gone_with_a_lease_is_looked_for() {
        for went_with_it in [false, true] {
            let scene = Scene::set().await;
            let _moving = scene.attempt.making.lock().await;
            scene.attempt.state().next_leases.push(scene.longer.clone());
            if went_with_it {
                scene.delete_key().await;
            }
            scene.longer.lose();
            let renewed = scene.renew().await;
            assert!(renewed.is_err(), "{renewed:?}");
            let renewed = scene.renew().await.unwrap();
            assert_eq!(matches!(renewed, Renewal::Lost(_)), went_with_it, "{renewed:?}");
        }
    }

    /// An extension that was carried out and not answered is repeated. Where etcd does not tell the leases of keys that are
    /// asked for without their values, as 3.7 does not, that is no loss.
    #[tokio::test]
    async fn an_extension_repeated_finds_what_the_hold_hangs_on_also_in_etcd_3_7() {
        let scene = Scene::set().await;
        let (client, attempt) = (&scene.etcd.engine.client, &scene.attempt);
        client.as_of_3_7.store(true, std::sync::atomic::Ordering::Relaxed);
        let (mark, from) = {
            let mut state = attempt.state();
            state.next_leases.push(scene.longer.clone());
            (QueueKey { key: attempt.key.clone(), created: state.created }, state.session.id)
        };
        assert_eq!(queue::attach(client, &mark, from, scene.longer.id).await.unwrap(), Some(scene.longer.id));
        let mut longer = scene.lease.clone();
        longer.claim.ttl = LONGER;
        let renewed = scene.etcd.engine.renew(&[longer]).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewal::Renewed(Some(Term { ttl: LONGER, .. }))), "{renewed:?}");
        assert_eq!(attempt.state().session.id, scene.longer.id);
    }

    /// Its lease goes while it is renewed, and the hold has left it by then.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_hold_that_was_moved_outlives_the_lease_that_it_was_on() {
        let scene = Scene::set().await;
        let renewed = scene.renew_slowly(TTL).await;
        let left = std::mem::replace(&mut scene.attempt.state().session, scene.longer.clone());
        left.lose();
        scene.proxy.pass();
        let renewed = renewed.await.unwrap().unwrap();
        assert!(matches!(renewed, Renewal::Renewed(Some(Term { ttl: LONGER, .. }))), "{renewed:?}");
    }
}
