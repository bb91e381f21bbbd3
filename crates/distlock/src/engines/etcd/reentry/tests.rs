//! Entries whose requests come late.

use std::time::{Duration, Instant, SystemTime};

use distlock_testkit::proxy::{Direction, Flow, Proxy};
use distlock_testkit::servers::EtcdServer;
use tokio::time::{sleep, timeout};

use super::*;
use crate::contract::Backend;
use crate::engines::etcd::Etcd;
use crate::types::clock::Clock;
use crate::types::key::Key;
use crate::types::manual_clock::ManualClock;
use crate::types::owner::{OwnerId, Process, Record};

/// So long that no lease is due in a test, however far it moves the clock.
const LONG: Duration = Duration::from_secs(30 * 24 * 60 * 60);
const TXNS: &str = "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Txn\",grpc_service=\"etcdserverpb.KV\",\
                    grpc_type=\"unary\"}";

/// An owner that is inside by one entry, and another attempt of it, which knows the head and is to enter.
struct Scene {
    server: EtcdServer,
    /// The way that is taken until a request on it is not answered.
    proxy: Proxy,
    time: ManualClock,
    etcd: Etcd,
    first: Claim,
    claim: Claim,
    lock: Vec<u8>,
    head: KeyValue,
}

impl Scene {
    async fn set() -> Self {
        let server = EtcdServer::start();
        let proxy = Proxy::start(server.address());
        let (clock, time) = Clock::manual();
        let addresses = [proxy.address(), server.address()].map(|address| address.to_string());
        let mut etcd = Etcd::builder(addresses).build().unwrap();
        Arc::get_mut(&mut etcd.engine).unwrap().clock = clock;
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let record = Arc::new(record.with_mode(Mode::Reentrant));
        let [first, claim] = [(); 2].map(|()| Claim::new(Key::new("a").unwrap(), LONG, true, record.clone()));
        assert!(matches!(etcd.claim(&first).await, Ok(Claimed::Granted(_))));
        let lock = etcd.engine.names.lock(&claim.key);
        let head = queue::head(&etcd.engine.client, &lock).await.unwrap().0.unwrap();
        Scene { server, proxy, time, etcd, first, claim, lock, head }
    }

    /// Runs `request`, which is held up on its way so that its sender gives it up. Returns when it was sent.
    async fn hold_up<T: Send + 'static>(&self, request: impl Future<Output = T> + Send + 'static) -> (Instant, T) {
        self.proxy.hold_requests();
        let asked = tokio::spawn(request);
        self.proxy.wait_for("the request", |counts| counts.requests.held() > 0);
        (Instant::now(), asked.await.unwrap())
    }

    /// Lets a request arrive that was sent at `sent`, and not yet that it was given up; waits until the server is done
    /// with it.
    async fn let_come(&self, sent: Instant) {
        let before = self.server.metric(TXNS).unwrap();
        self.proxy.set(Direction::Requests, Flow::Delay(sent.elapsed()));
        let handled = async {
            while self.server.metric(TXNS).unwrap() == before {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(Duration::from_secs(30), handled).await.expect("it comes");
    }

    /// The same attempt comes in again, with what is left of `old` behind it.
    async fn come_again(&self, old: &Entry) -> Arc<Entry> {
        assert!(matches!(self.etcd.claim(&self.claim).await, Ok(Claimed::Granted(_))));
        let new = self.etcd.engine.entries.get(self.claim.attempt).unwrap();
        assert_eq!((new.key(), new.head()), (old.key(), old.head()));
        new
    }

    /// The lease that the key of an entry hangs on.
    async fn lease_of(&self, entry: &Entry) -> Option<i64> {
        queue::read(&self.etcd.engine.client, entry.key()).await.unwrap().0.map(|key| key.lease)
    }

    /// All leave, and nothing stays behind.
    async fn end(&self) {
        for claim in [&self.claim, &self.first] {
            assert_eq!(self.etcd.release(claim).await.unwrap(), Release::Released);
        }
        assert_eq!(self.server.etcdctl().run(&["get", "--prefix", "a"]), "");
    }
}

/// An entry whose request is not answered is given up, and its attempt comes in again: neither what cleans up after the
/// first one touches the second, nor the request, which comes late.
#[tokio::test(flavor = "multi_thread")]
async fn f14_late_entry_spares_the_one_that_came_in_since() {
    let scene = Scene::set().await;
    let engine = &scene.etcd.engine;
    let old = engine.begin(&scene.claim, &scene.lock, &scene.head).await.unwrap().unwrap();
    let (enters, claim, lock, head) = (engine.clone(), scene.claim.clone(), scene.lock.clone(), scene.head.clone());
    let (sent, entered) = scene.hold_up(async move { enters.enter(&claim, &lock, &head).await }).await;
    assert_eq!(entered.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(engine.go_out(&old).await.unwrap(), Release::NotOurs);
    let new = scene.come_again(&old).await;
    let cleaned_up = async {
        while Arc::strong_count(&old) > 1 {
            scene.time.jump(LATE_KEY_PAUSES[3]);
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), cleaned_up).await.expect("it ends");
    assert_eq!(scene.lease_of(&new).await, Some(new.own().id), "deleted with the one before");
    scene.let_come(sent).await;
    assert_eq!(scene.lease_of(&new).await, Some(new.own().id), "moved by the one before");
    scene.end().await;
}

/// The same when it is the deletion of the first one that comes late.
#[tokio::test(flavor = "multi_thread")]
async fn f05_late_end_of_an_entry_spares_the_one_that_came_in_since() {
    let scene = Scene::set().await;
    let engine = &scene.etcd.engine;
    assert!(matches!(scene.etcd.claim(&scene.claim).await, Ok(Claimed::Granted(_))));
    let old = engine.entries.get(scene.claim.attempt).unwrap();
    let (leaves, leaver) = (engine.clone(), old.clone());
    let (sent, left) = scene.hold_up(async move { leaves.go_out(&leaver).await }).await;
    assert_eq!(left.unwrap_err().fault, Fault::Unknown);
    // It is in the way, so that it is deleted first.
    let new = scene.come_again(&old).await;
    scene.let_come(sent).await;
    assert_eq!(scene.lease_of(&new).await, Some(new.own().id), "deleted with the one before");
    scene.end().await;
}

/// Its claim is dropped, and released before it came to make the key.
#[tokio::test]
async fn an_entry_that_was_given_up_before_it_was_made_is_not_made() {
    let scene = Scene::set().await;
    let engine = &scene.etcd.engine;
    let entry = engine.begin(&scene.claim, &scene.lock, &scene.head).await.unwrap().unwrap();
    let making = entry.making().lock().await;
    let mut entering = std::pin::pin!(engine.enter(&scene.claim, &scene.lock, &scene.head));
    let poll = std::future::poll_fn(|context| std::task::Poll::Ready(entering.as_mut().poll(context).is_pending()));
    assert!(poll.await, "somebody else is at it");
    engine.entries.remove(&entry);
    drop(making);
    assert!(entering.await.unwrap().is_none());
    assert!(queue::read(&engine.client, entry.key()).await.unwrap().0.is_none(), "nobody would delete it");
}
