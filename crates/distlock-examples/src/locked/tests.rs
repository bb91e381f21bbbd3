use axum::Router;
use axum::extract::State;
use axum::routing::post;
use distlock::backend::memory::{Fault, Memory, Operation, Store};
use tokio::sync::Barrier;

use super::*;
use crate::testing::{LIMIT, post as send};

#[derive(Debug, serde::Deserialize)]
struct Order(u32);

impl Lockable for Order {
    fn lock(&self, locker: &Locker) -> LockRequest {
        locker.lock(format!("order:{}", self.0))
    }
}

/// An order that no request waits for.
#[derive(Debug, serde::Deserialize)]
struct Hurried(Order);

impl Lockable for Hurried {
    fn lock(&self, locker: &Locker) -> LockRequest {
        self.0.lock(locker).wait(std::time::Duration::ZERO)
    }
}

/// A state that is more than a locker.
#[derive(Clone)]
struct App {
    locker: Arc<Locker>,
    /// Where a request inside a lock and the test meet.
    meeting: Arc<Barrier>,
}

impl FromRef<App> for Arc<Locker> {
    fn from_ref(app: &App) -> Self {
        app.locker.clone()
    }
}

/// Says what it holds, after it has met the test if the path says so.
async fn hold<T: Lockable + std::fmt::Debug>(
    State(app): State<App>,
    Locked { item, guard }: Locked<T>,
) -> Result<String, Refusal> {
    let work = async {
        if format!("{item:?}").contains('7') {
            app.meeting.wait().await;
            app.meeting.wait().await;
        }
        Ok(format!("{} {}", guard.key(), guard.fencing_token()))
    };
    guard.try_run::<_, Refusal>(work).await
}

fn world() -> (Store, App, Router) {
    let store = Store::new();
    let app = App { locker: Arc::new(Locker::new(Memory::on(&store)).unwrap()), meeting: Arc::new(Barrier::new(2)) };
    let routes = Router::new().route("/orders/{id}", post(hold::<Order>)).route("/hurried/{id}", post(hold::<Hurried>));
    (store, app.clone(), routes.with_state(app))
}

/// Sends a request and waits until its handler holds the lock; then the handler waits for one more meeting.
async fn begin(app: &App, router: &Router) -> tokio::task::JoinHandle<(axum::http::StatusCode, serde_json::Value)> {
    let router = router.clone();
    let sent = tokio::spawn(async move { send(&router, "/orders/7").await });
    tokio::time::timeout(LIMIT, app.meeting.wait()).await.expect("the handler is called");
    sent
}

#[tokio::test]
async fn the_handler_holds_the_lock_of_its_path() {
    let (_, app, router) = world();
    let sent = begin(&app, &router).await;
    assert!(app.locker.clone().try_lock("order:7").await.unwrap().is_none());
    let (_, other) = send(&router, "/orders/8").await;
    assert_eq!(other, "order:8 2");
    app.meeting.wait().await;
    let (status, said) = sent.await.unwrap();
    assert_eq!((status.as_u16(), said), (200, "order:7 1".into()));
}

#[tokio::test]
async fn requests_that_share_a_locker_contend() {
    let (_, app, router) = world();
    let first = begin(&app, &router).await;
    // Both wait for the lock; neither is told that its owner has it already.
    let (status, body) = send(&router, "/hurried/7").await;
    assert_eq!((status.as_u16(), &body["error"]), (423, &"timeout".into()));
    assert_eq!((&body["holder"]["token"], &body["holder"]["record"]["pid"]), (&"1".into(), &std::process::id().into()));
    app.meeting.wait().await;
    assert_eq!(first.await.unwrap().0, 200);
}

#[tokio::test]
async fn a_loss_ends_the_work_of_the_handler_with_503() {
    let (_, app, router) = world();
    let sent = begin(&app, &router).await;
    let token = distlock::FencingToken::new(1);
    app.locker.inspect().force_release("order:7", token, "a test").await.unwrap();
    let (status, body) = sent.await.unwrap();
    assert_eq!((status.as_u16(), &body["error"]), (503, &"lost".into()));
}

#[tokio::test]
async fn an_engine_that_is_away_is_503() {
    let (store, _, router) = world();
    store.script(Operation::Claim, Fault::Refuse);
    let (status, body) = send(&router, "/hurried/1").await;
    assert_eq!((status.as_u16(), &body["error"]), (503, &"unavailable".into()));
    assert_eq!(send(&router, "/hurried/1").await.1, "order:1 1");
}

#[tokio::test]
async fn a_path_that_names_nothing_is_refused_without_a_lock() {
    let (store, _, router) = world();
    assert_eq!(send(&router, "/orders/seven").await.0, 400);
    assert!(store.is_empty());
}
