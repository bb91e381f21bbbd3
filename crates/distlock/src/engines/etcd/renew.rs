//! What a hold goes on with: a lease that is renewed, or a longer one, and what others may read about it.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, Lease, Renewal, Term};
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::Fault;
use crate::engines::etcd::protocol::queue;
use crate::engines::etcd::protocol::value::Value;
use crate::engines::etcd::shared_lease::SharedLease;
use crate::engines::etcd::state::attempts::Attempt;
use crate::engines::etcd::state::effect::{Move, NoAmendment, Renewed};
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::mode::{AskedMode, Mode};

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
        let Some(attempt) = attempt.filter(|attempt| attempt.state().is_held()) else {
            return Ok(Renewal::Lost(LossReason::Revoked));
        };
        if let Some(term) = renewed_already(&attempt, lease.claim.lease()) {
            return Ok(Renewal::Renewed(Some(attempt.term_of(term))));
        }
        if attempt.state().is_in_question() {
            self.look_who_wrote(&attempt, None).await;
            let state = attempt.state();
            if state.is_gone() {
                return Ok(Renewal::Lost(LossReason::Revoked));
            }
            if state.is_in_question() {
                return Err(Error::unavailable(
                    "a lease that its key may be attached to is gone, and it is not known whether it was",
                ));
            }
        }
        let length = lease.claim.lease();
        let (is_long_enough, is_moving) = {
            let state = attempt.state();
            (state.lease().covers(length), !state.next_leases().is_empty())
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
                (state.leases().cloned().collect::<Vec<_>>(), state.known_start())
            };
            let term = self.renew_leases(&leases, known).await?;
            match (attempt.state().renewed(&leases, term), term) {
                (Renewed::Done, Some(term)) => return Ok(Renewal::Renewed(Some(attempt.term_of(term)))),
                (Renewed::Done | Renewed::Again, _) => {}
                (Renewed::Lost, _) => return Ok(Renewal::Lost(LossReason::Revoked)),
            }
        }
        Err(Error::unavailable("it is moved to another lease again and again"))
    }

    /// Renews every lease that a hold may hang on, the one that it was on last first; each was renewed since the term
    /// that began at `known`, or is now. Returns the term that ends first; `None`: the first one is gone, and its
    /// holders were told.
    async fn renew_leases(self: &Arc<Self>, leases: &[Arc<SharedLease>], known: Moment) -> Result<Option<Term>> {
        let mut first: Option<Term> = None;
        for lease in leases {
            let renewed = match lease.term() {
                term if term.start > known && !lease.is_gone() => Some(term),
                _ => lease.renewed_after(known).await?,
            };
            let Some(term) = renewed else {
                self.lease_lost(lease);
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

    /// Finds out what a hold hangs on. Its renewals do not wait for that: leases are kept alive also where nothing is
    /// written.
    fn settle_soon(self: &Arc<Self>, attempt: &Arc<Attempt>, length: Duration) {
        if attempt.making().try_lock().is_err() {
            // Another task is moving it, writing it or deleting it.
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
        // A task that moves or deletes the key waits for this one, and not for the caller.
        self.finish(async move { engine.amend_alone(&attempt, &claim).await }).await
    }

    async fn amend_alone(&self, attempt: &Attempt, claim: &Claim) -> Result<bool> {
        // Moved to another lease meanwhile, the key would look like one that was taken over.
        let _making = attempt.making().lock().await;
        let (created, lease, slot) = match attempt.state().amendment() {
            Ok(amendment) => amendment,
            Err(NoAmendment::NotHeld) => return Ok(false),
            Err(NoAmendment::Moving) => return Err(Error::unavailable("it is being moved to another lease")),
        };
        let AskedMode { mode, resizes } = attempt.asked();
        let record = Arc::new(claim.record.as_ref().clone().with_mode(mode).with_resizes(resizes));
        let claim = Claim { record: record.clone(), ..claim.clone() };
        let value = Value::new(&claim, lease).with_slot(slot).to_value();
        let amended = queue::rewrite(&self.client, &attempt.key_made_at(created), Some(lease), value).await?;
        if amended {
            attempt.amended(record);
        }
        Ok(amended)
    }

    /// Hangs a hold on a lease that is long enough for `ttl`, and for earlier unanswered requests: after that it
    /// is known again what it hangs on. False when the hold is gone.
    async fn move_to_longer(self: &Arc<Self>, attempt: Arc<Attempt>, ttl: Duration) -> Result<bool> {
        let engine = self.clone();
        // A task that renews or deletes the key waits for this one, and not for the caller.
        self.finish(async move { engine.move_alone(&attempt, ttl).await }).await
    }

    async fn move_alone(self: &Arc<Self>, attempt: &Attempt, ttl: Duration) -> Result<bool> {
        // One after the other: a reply says what the key hangs on only while no other task moves it.
        let _making = attempt.making().lock().await;
        let ttl = attempt.state().next_leases().iter().map(|next| next.length()).fold(ttl, Duration::max);
        let longer = self.lease_for(ttl).await?;
        loop {
            // It may be in use for a while, and must not end before the term that the holder counts on.
            let known = attempt.state().known_start();
            if longer.renewed_after(known).await?.is_none() {
                self.lease_lost(&longer);
                return Err(Error::unavailable("the longer lease is gone"));
            }
            let begun = {
                let mut state = attempt.state();
                let is_long_enough = state.lease().covers(ttl);
                state.begin_move(&longer, longer.term().start, is_long_enough)
            };
            let (created, from, in_doubt) = match begun {
                Move::Done => return Ok(true),
                Move::Lost => return Ok(false),
                Move::RenewFirst => continue,
                Move::Send { created, from, in_doubt } => (created, from, in_doubt),
            };
            match queue::attach(&self.client, &attempt.key_made_at(created), from, longer.id).await {
                Ok(lease) => {
                    let is_ours = attempt.state().moved(lease);
                    if !is_ours {
                        self.key_lost(attempt);
                        return Ok(false);
                    }
                }
                Err(failure) => {
                    if !in_doubt && failure.fault != Fault::Unknown {
                        attempt.state().move_refused(longer.id);
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

/// Renews a hold whose lease was renewed since it last asked, for itself or for another. Returns the term; `None` where
/// more is to be done.
fn renewed_already(attempt: &Attempt, length: Duration) -> Option<Term> {
    let mut state = attempt.state();
    let (lease, known) = (state.lease().clone(), state.known_start());
    let is_settled = !state.is_in_question() && state.next_leases().is_empty() && lease.covers(length);
    let term = lease.renewed_term(known).filter(|_| is_settled)?;
    (state.renewed(std::slice::from_ref(&lease), Some(term)) == Renewed::Done).then_some(term)
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

    const RENEWAL_WAIT: Duration = Duration::from_secs(30);
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
            tokio::time::timeout(RENEWAL_WAIT, renewed).await.expect("it waits").pop().unwrap()
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

        /// A request to move the hold to the longer lease is sent, as far as this client knows.
        fn begin_move(&self) {
            let begun = self.attempt.state().begin_move(&self.longer, Moment::NEVER, false);
            assert!(matches!(begun, Move::Send { .. }), "{begun:?}");
        }

        async fn delete_key(&self) {
            let delete = Request::DeleteRange(DeleteRangeRequest { key: self.attempt.key().to_vec() });
            let request = TxnRequest { success: vec![delete.into()], ..TxnRequest::default() };
            self.etcd.engine.client.txn(request).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_hold_is_moved_only_to_a_lease_that_ends_after_what_was_promised() {
        let scene = Scene::set().await;
        let extended = scene.renew_slowly(LONGER).await;
        {
            let state = scene.attempt.state();
            assert!(scene.longer.term().start < state.known_start(), "it may end sooner than the hold may count on");
            assert!(state.next_leases().is_empty(), "it may hang on it from now on");
        }
        scene.proxy.pass();
        let extended = extended.await.unwrap().unwrap();
        assert!(matches!(extended, Renewal::Renewed(Some(Term { ttl: LONGER, .. }))), "{extended:?}");
    }

    /// An extension that is not answered: its hold may hang on either lease, and goes on with what both are good for.
    #[tokio::test]
    async fn a_hold_that_is_being_moved_is_renewed_without_waiting_for_that() {
        let scene = Scene::set().await;
        let known = scene.attempt.state().known_start();
        scene.begin_move();
        let _moving = scene.attempt.making().lock().await;
        let renewed = scene.renew().await.unwrap();
        let Renewal::Renewed(Some(term)) = renewed else { panic!("{renewed:?}") };
        assert!(term.ttl == TTL && term.start > known, "{term:?}");
        assert!(scene.longer.term().start > known, "it may hang on this one");
    }

    /// One of the leases that a hold may hang on is gone: it counts on nothing until its key was read.
    #[tokio::test]
    async fn a_hold_that_may_have_gone_with_a_lease_is_looked_for() {
        for went_with_it in [false, true] {
            let scene = Scene::set().await;
            let _moving = scene.attempt.making().lock().await;
            scene.begin_move();
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

    /// An extension that was carried out and not answered is repeated. Where etcd does not tell the leases of keys that
    /// are asked for without their values, as 3.7 does not, that is no loss.
    #[tokio::test]
    async fn an_extension_repeated_finds_what_the_hold_hangs_on_also_in_etcd_3_7() {
        let scene = Scene::set().await;
        let (client, attempt) = (&scene.etcd.engine.client, &scene.attempt);
        client.as_of_3_7.store(true, std::sync::atomic::Ordering::Relaxed);
        let (mark, from) = {
            scene.begin_move();
            (attempt.own_key().unwrap(), attempt.lease().id)
        };
        assert_eq!(queue::attach(client, &mark, from, scene.longer.id).await.unwrap(), Some(scene.longer.id));
        let mut longer = scene.lease.clone();
        longer.claim.ttl = LONGER;
        let renewed = scene.etcd.engine.renew(&[longer]).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewal::Renewed(Some(Term { ttl: LONGER, .. }))), "{renewed:?}");
        assert_eq!(attempt.lease().id, scene.longer.id);
    }

    /// Its lease goes while it is renewed, and the hold has left it by then.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_hold_that_was_moved_outlives_the_lease_that_it_was_on() {
        let scene = Scene::set().await;
        let renewed = scene.renew_slowly(TTL).await;
        let left = scene.attempt.lease();
        scene.begin_move();
        assert!(scene.attempt.state().moved(Some(scene.longer.id)));
        left.lose();
        scene.proxy.pass();
        let renewed = renewed.await.unwrap().unwrap();
        assert!(matches!(renewed, Renewal::Renewed(Some(Term { ttl: LONGER, .. }))), "{renewed:?}");
    }
}
