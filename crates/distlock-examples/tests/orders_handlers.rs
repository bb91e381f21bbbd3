//! The handlers of the example `orders`, without a network and with locks in memory.

#[allow(dead_code)]
#[path = "../examples/orders.rs"]
mod orders;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::Method;
use distlock::backend::memory::{Fault, Memory, Operation, Store as Locks};
use distlock::{FencingToken, Locker};
use distlock_testkit::servers::{Directory, TEST_LIMIT};
use metrics_exporter_prometheus::PrometheusBuilder;
use orders::failure::Failure;
use orders::settings::Settings;
use orders::store::Store;
use orders::{App, lead, router};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tower::ServiceExt;

/// Longer than any test runs.
const FOREVER: &str = "takes_ms=600000";

/// One instance of the service, the locks and the file that it shares with others.
struct World {
    locks: Locks,
    app: App,
    router: Router,
    directory: Arc<Directory>,
}

impl World {
    fn new() -> World {
        World::on(Locks::new(), Arc::new(Directory::new()))
    }

    fn on(locks: Locks, directory: Arc<Directory>) -> World {
        let locker = Locker::builder().owner_per_request().build(Memory::on(&locks)).unwrap();
        let app = App {
            name: "a".into(),
            locker: Arc::new(locker),
            store: Store::open(&directory.path().join("orders.sqlite")).unwrap(),
            metrics: PrometheusBuilder::new().build_recorder().handle(),
            exports: 2,
            summary_every: Duration::from_secs(3600),
        };
        World { locks, router: router(app.clone()), app, directory }
    }

    /// Returns another client of the same locks.
    fn other(&self) -> Locker {
        Locker::new(Memory::on(&self.locks)).unwrap()
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        send(self.router.clone(), Method::GET, path.to_owned()).await
    }

    async fn post(&self, path: &str) -> (u16, Value) {
        send(self.router.clone(), Method::POST, path.to_owned()).await
    }

    /// Sends a request that works until the test ends, and waits until it holds `lock`; returns its token, too.
    async fn begin(&self, path: &str, lock: &str) -> (JoinHandle<(u16, Value)>, FencingToken) {
        let sent = tokio::spawn(send(self.router.clone(), Method::POST, path.to_owned()));
        let inspect = self.other().inspect();
        let token = async {
            loop {
                let info = inspect.get(lock).await.unwrap();
                if let Some(token) = info.and_then(|info| info.holder().and_then(|holder| holder.token)) {
                    return token;
                }
                tokio::task::yield_now().await;
            }
        };
        let token = timeout(TEST_LIMIT, token).await.expect("the request holds its lock");
        (sent, token)
    }
}

async fn send(router: Router, method: Method, path: String) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = timeout(TEST_LIMIT, router.oneshot(request)).await.expect("a response in time").unwrap();
    let (status, body) = (response.status(), to_bytes(response.into_body(), 1 << 20).await.unwrap());
    let text = String::from_utf8(body.to_vec()).unwrap();
    (status.as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn an_order_is_changed_with_the_token_of_its_lock_and_shown() {
    let world = World::new();
    let (status, order) = world.post("/orders/7?state=paid").await;
    assert_eq!((status, &order["state"], &order["token"]), (200, &"paid".into(), &"1".into()));
    assert_eq!(world.post("/orders/7?state=sent").await.1["token"], "2", "the lock was free again");
    let (_, shown) = world.get("/orders/7").await;
    assert_eq!((&shown["order"]["state"], &shown["holder"]), (&"sent".into(), &Value::Null));
    assert_eq!(world.get("/orders/8").await.1["order"], Value::Null);
    assert_eq!(world.post("/orders/seven?state=paid").await.0, 400);
}

#[tokio::test]
async fn an_order_that_another_request_works_on_is_423_with_the_holder() {
    let world = World::new();
    let (_sent, token) = world.begin(&format!("/orders/7?state=paid&{FOREVER}"), "order:7").await;
    let (status, body) = world.post("/orders/7?state=sent").await;
    assert_eq!((status, &body["error"]), (423, &"timeout".into()));
    assert_eq!(body["holder"]["token"], token.to_string());
    assert_eq!(body["holder"]["record"]["pid"], std::process::id());
    assert_eq!(world.get("/orders/7").await.1["holder"]["token"], token.to_string());
    assert_eq!(world.post("/orders/8?state=sent").await.0, 200, "another order");
}

#[tokio::test]
async fn a_loss_cancels_the_work_with_503_and_nothing_is_written() {
    let world = World::new();
    let (sent, token) = world.begin(&format!("/orders/7?state=paid&{FOREVER}"), "order:7").await;
    world.other().inspect().force_release("order:7", token, "a test").await.unwrap();
    let (status, body) = sent.await.unwrap();
    assert_eq!((status, &body["error"]), (503, &"lost".into()));
    assert_eq!(world.get("/orders/7").await.1["order"], Value::Null);
}

#[tokio::test]
async fn a_request_whose_client_goes_away_gives_up_its_lock() {
    let world = World::new();
    let (sent, _) = world.begin(&format!("/orders/7?state=paid&{FOREVER}"), "order:7").await;
    sent.abort();
    assert_eq!(world.post("/orders/7?state=sent").await.0, 200);
}

#[tokio::test]
async fn an_engine_that_is_away_is_503_and_nothing_is_written() {
    for (fault, error) in [(Fault::Refuse, "unavailable"), (Fault::LoseRequest, "unknown"), (Fault::Hang, "unknown")] {
        let world = World::new();
        // More than a wait has time for.
        (0..100).for_each(|_| world.locks.script(Operation::Claim, fault));
        let (status, body) = world.post("/orders/7?state=paid").await;
        assert_eq!((status, &body["error"]), (503, &error.into()), "{fault:?}");
        assert_eq!(world.get("/orders/7").await.1["order"], Value::Null, "{fault:?}");
        world.locks.script(Operation::Inspect, Fault::Refuse);
        assert_eq!(world.get("/orders/7").await.0, 503);
    }
}

#[tokio::test]
async fn a_write_that_a_later_holder_has_overtaken_is_refused_with_503() {
    let world = World::new();
    // Written by a holder whose token is higher than those of this engine.
    world.app.store.write(7, "sent".into(), FencingToken::new(9)).await.unwrap();
    let (status, body) = world.post("/orders/7?state=paid").await;
    assert_eq!((status, &body["error"]), (503, &"stale".into()));
    let (_, shown) = world.get("/orders/7").await;
    assert_eq!((&shown["order"]["state"], &shown["order"]["token"]), (&"sent".into(), &"9".into()));
}

#[tokio::test]
async fn as_many_exports_run_as_may_over_all_instances() {
    let world = World::new();
    let other = World::on(world.locks.clone(), world.directory.clone());
    world.post("/orders/7?state=paid").await;
    let elsewhere = world.other().semaphore("exports", 2).acquire().await.unwrap();
    assert_eq!(world.post("/exports").await.1[0]["state"], "paid");
    let second = world.other().semaphore("exports", 2).acquire().await.unwrap();
    let (status, body) = other.post("/exports").await;
    assert_eq!((status, &body["error"]), (423, &"timeout".into()));
    assert_eq!(other.get("/exports").await.1.as_array().map(Vec::len), Some(2));
    elsewhere.unlock().await.unwrap();
    assert_eq!(other.post("/exports").await.0, 200);
    second.unlock().await.unwrap();
}

#[tokio::test]
async fn the_leader_writes_the_summary_until_the_locker_is_closed() {
    let world = World::new();
    assert_eq!(world.get("/leader").await.1, Value::Null);
    world.post("/orders/7?state=paid").await;
    let leading = tokio::spawn(lead(world.app.clone()));
    let written = async {
        loop {
            let (_, summary) = world.get("/summary").await;
            if summary != Value::Null {
                return summary;
            }
        }
    };
    let summary = timeout(TEST_LIMIT, written).await.expect("the leader writes");
    assert_eq!((&summary["orders"], &summary["leader"]), (&1.into(), &"a".into()));
    let (_, leader) = world.get("/leader").await;
    assert_eq!((&leader["value"], &leader["token"]), (&"a".into(), &summary["token"]));
    // A late leader is refused.
    let late = world.app.store.summarize("late".into(), FencingToken::new(1)).await;
    assert!(matches!(late, Err(Failure::Stale)), "{late:?}");
    world.app.locker.close().await.unwrap();
    timeout(TEST_LIMIT, leading).await.expect("leading ends").unwrap();
}

#[test]
fn variables_win_over_the_file_and_unknown_settings_are_refused() {
    let sample = include_str!("../examples/orders/orders.toml");
    let settings = Settings::parse(sample, |_| None).unwrap();
    assert_eq!((settings.name.as_str(), settings.listen.port(), settings.exports), ("orders-1", 8080, 3));
    assert_eq!((settings.grace(), settings.summary_every()), (Duration::from_secs(10), Duration::from_secs(60)));
    assert_eq!(settings.locks.url.as_deref(), Some("redis://127.0.0.1/"));
    settings.locks.check().unwrap();

    let lookup = |name: &str| match name {
        "ORDERS_NAME" => Some("b".to_owned()),
        "ORDERS_LISTEN" => Some("127.0.0.1:9".to_owned()),
        "ORDERS_DATABASE" => Some("/tmp/b".to_owned()),
        _ => None,
    };
    let settings = Settings::parse(sample, lookup).unwrap();
    assert_eq!((settings.name.as_str(), settings.listen.port()), ("b", 9));
    assert_eq!(settings.database, Path::new("/tmp/b"));

    assert!(Settings::parse("ports = 1", |_| None).unwrap_err().to_string().contains("ports"));
    let secret = Settings::parse("name = \"secret", |_| None).unwrap_err().to_string();
    assert!(!secret.contains("secret"), "{secret}");
}
