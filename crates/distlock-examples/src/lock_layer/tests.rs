use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use axum::routing::post;
use axum::{Extension, Router};
use distlock::FencingToken;
use distlock::backend::memory::{Fault, Memory, Operation, Store};
use tokio::sync::{Notify, Semaphore};

use super::*;
use crate::testing::{LIMIT, post as send};

/// A handler that the test watches.
struct Handler {
    /// The requests in it, how many were at once at most, and how many have left it in whatever way.
    inside: AtomicU32,
    most_inside: AtomicU32,
    left: AtomicU32,
    /// Wakes the test when a request is in it.
    entered: Notify,
    /// Lets as many requests leave it.
    leave: Semaphore,
}

impl Handler {
    /// Says its token when the test lets it leave.
    async fn handle(self: Arc<Self>, token: Option<Extension<FencingToken>>) -> String {
        let now = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(now, Ordering::SeqCst);
        let _visit = Visit(&self);
        self.entered.notify_one();
        self.leave.acquire().await.expect("it is not closed").forget();
        token.map_or("none".to_owned(), |Extension(token)| token.to_string())
    }
}

/// Counts a request that leaves the handler, also one that is dropped.
struct Visit<'a>(&'a Handler);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
        self.0.left.fetch_add(1, Ordering::SeqCst);
    }
}

/// A service behind the layer, and the locks it uses.
struct World {
    store: Store,
    router: Router,
    handler: Arc<Handler>,
}

impl World {
    /// Returns a service whose lock is what follows `/`.
    fn new(wait: Duration) -> World {
        let store = Store::new();
        let handler = Arc::new(Handler {
            inside: AtomicU32::new(0),
            most_inside: AtomicU32::new(0),
            left: AtomicU32::new(0),
            entered: Notify::new(),
            leave: Semaphore::new(0),
        });
        let handle = {
            let handler = handler.clone();
            async move |token: Option<Extension<FencingToken>>| handler.clone().handle(token).await
        };
        let key = |request: &Request| {
            let name = request.uri().path().trim_start_matches('/').replace("%0A", "\n");
            (!name.is_empty()).then_some(name)
        };
        let layer = LockLayer::new(Locker::new(Memory::on(&store)).unwrap(), key).wait(wait);
        let router = Router::new().route("/", post(handle.clone())).route("/{name}", post(handle)).layer(layer);
        World { store, router, handler }
    }

    /// Returns another client of the same locks.
    fn other(&self) -> Locker {
        Locker::new(Memory::on(&self.store)).unwrap()
    }

    /// Sends a request and waits until the handler has it.
    async fn begin(&self, path: &'static str) -> tokio::task::JoinHandle<(axum::http::StatusCode, serde_json::Value)> {
        let router = self.router.clone();
        let sent = tokio::spawn(async move { send(&router, path).await });
        tokio::time::timeout(LIMIT, self.handler.entered.notified()).await.expect("the handler is called");
        sent
    }
}

#[tokio::test]
async fn a_request_holds_its_lock_until_its_response_and_knows_its_token() {
    let world = World::new(Duration::ZERO);
    let sent = world.begin("/order").await;
    let lock = world.other().inspect().get("order").await.unwrap().expect("it is held");
    assert!(world.other().try_lock("order").await.unwrap().is_none());
    world.handler.leave.add_permits(1);
    let (status, body) = sent.await.unwrap();
    let token = lock.holder().and_then(|holder| holder.token).expect("a token");
    assert_eq!((status.as_u16(), body), (200, serde_json::json!(token.get())));
    assert!(world.other().try_lock("order").await.unwrap().is_some(), "free when the response is there");
}

#[tokio::test]
async fn a_held_lock_is_423_with_the_holder_and_the_handler_is_not_called() {
    let world = World::new(Duration::ZERO);
    let guard = world.other().lock("order").label("the nightly run").await.unwrap();
    let (status, body) = send(&world.router, "/order").await;
    assert_eq!((status.as_u16(), &body["error"]), (423, &"timeout".into()));
    let record = &body["holder"]["record"];
    assert_eq!((&record["label"], &record["pid"]), (&"the nightly run".into(), &std::process::id().into()));
    assert_eq!(record["owner"], guard.owner().as_str());
    assert_eq!(world.handler.left.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn requests_for_one_lock_come_one_after_the_other_although_they_share_a_locker() {
    let world = World::new(LIMIT);
    let mut all = vec![world.begin("/order").await];
    all.extend((0..4).map(|_| {
        let router = world.router.clone();
        tokio::spawn(async move { send(&router, "/order").await })
    }));
    let inspect = world.other().inspect();
    let waiting = async {
        while inspect.get("order").await.unwrap().is_none_or(|lock| lock.waiters.len() < 4) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.expect("the others wait");
    world.handler.leave.add_permits(5);
    let mut tokens = Vec::new();
    for sent in all {
        let (status, token) = sent.await.unwrap();
        assert_eq!(status, 200);
        tokens.push(token.as_u64().expect("a token"));
    }
    tokens.sort_unstable();
    assert_eq!((tokens, world.handler.most_inside.load(Ordering::SeqCst)), (vec![1, 2, 3, 4, 5], 1));
}

#[tokio::test]
async fn a_loss_drops_the_handler_and_is_503() {
    let world = World::new(Duration::ZERO);
    let sent = world.begin("/order").await;
    world.other().inspect().force_release("order", FencingToken::new(1), "a test").await.unwrap();
    let (status, body) = sent.await.unwrap();
    assert_eq!((status.as_u16(), &body["error"]), (503, &"lost".into()));
    assert_eq!(
        (world.handler.inside.load(Ordering::SeqCst), world.handler.left.load(Ordering::SeqCst)),
        (0, 1),
        "dropped"
    );
}

#[tokio::test]
async fn an_engine_that_is_away_is_503_and_the_handler_is_not_called() {
    let world = World::new(Duration::ZERO);
    world.store.script(Operation::Claim, Fault::Refuse);
    let (status, body) = send(&world.router, "/order").await;
    assert_eq!((status.as_u16(), &body["error"]), (503, &"unavailable".into()));
    for _ in 0..2 {
        world.store.script(Operation::Claim, Fault::LoseRequest);
    }
    let (status, body) = send(&world.router, "/order").await;
    assert_eq!((status.as_u16(), &body["error"]), (503, &"unknown".into()));
    assert_eq!(world.handler.left.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_request_without_a_name_has_no_lock_and_one_with_an_invalid_name_is_400() {
    let world = World::new(Duration::ZERO);
    world.handler.leave.add_permits(1);
    assert_eq!(send(&world.router, "/").await, (axum::http::StatusCode::OK, "none".into()));
    let (status, body) = send(&world.router, "/a%0Ab").await;
    assert_eq!((status.as_u16(), &body["error"]), (400, &"invalid_input".into()));
}

#[tokio::test]
async fn a_request_whose_client_is_gone_releases_its_lock() {
    let world = World::new(Duration::ZERO);
    let sent = world.begin("/order").await;
    sent.abort();
    let next =
        tokio::time::timeout(LIMIT, world.other().lock("order").into_future()).await.expect("before the lease ends");
    assert_eq!((next.unwrap().fencing_token().get(), world.handler.inside.load(Ordering::SeqCst)), (2, 0));
}

#[tokio::test]
async fn a_service_that_is_not_ready_is_not_called() {
    /// Is ready the second time it is polled, and not at all when it was cloned.
    struct Slow(u32);
    impl Clone for Slow {
        fn clone(&self) -> Self {
            Slow(0)
        }
    }
    impl Service<Request> for Slow {
        type Response = Response;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Response, Self::Error>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            self.0 += 1;
            if self.0 == 2 { Poll::Ready(Ok(())) } else { Poll::Pending }
        }
        fn call(&mut self, _: Request) -> Self::Future {
            assert_eq!(self.0, 2, "called before it was ready");
            std::future::ready(Ok(Response::default()))
        }
    }
    let locker = Locker::new(Memory::new()).unwrap();
    let mut service = LockLayer::new(locker, |_: &Request| Some("order".to_owned())).layer(Slow(0));
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_pending() && service.poll_ready(&mut context).is_ready());
    assert_eq!(service.call(Request::default()).await.unwrap().status(), 200);
}
