//! The console over HTTP: access, responses and events.
#![allow(missing_docs)]

mod common;
#[path = "http/histories.rs"]
mod histories;
#[path = "http/limits.rs"]
mod limits;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::{LIMIT, Running};
use distlock::{Locker, LossReason};
use distlock_console::{AccessToken, Console, Options};
use distlock_testkit::servers::{Certs, Directory, RedisServer};
use serde_json::{Value, json};
use tokio::time::timeout;

const PATHS: [&str; 10] = [
    "/api/v1/session",
    "/api/v1/locks",
    "/api/v1/lock?name=job",
    "/api/v1/locks/job",
    "/api/v1/waits",
    "/api/v1/losses",
    "/api/v1/events",
    "/api/v1/audit",
    "/api/v1/openapi.json",
    "/metrics",
];

async fn memory() -> Locker {
    // A separate store: tests run at the same time in one process.
    Locker::new(distlock::backend::memory::Memory::new()).unwrap()
}

fn break_body(name: &str, token: &str) -> Value {
    json!({"name": name, "token": token, "reason": "it hangs"})
}

#[tokio::test]
async fn requests_without_the_right_token_are_refused() {
    let console = Running::start(&memory().await, |_| {}).await;
    for path in PATHS {
        let wrong = [
            console.bare("GET", path),
            console.bare("GET", path).header("Authorization", "Bearer "),
            console.bare("GET", path).header("Authorization", &format!("Bearer {}x", console.token)),
            console.bare("GET", path).header("Authorization", &console.token),
            console.bare("GET", path).header("Cookie", &format!("distlock_console_{}=x", console.address.port())),
            console
                .bare("GET", &format!("{path}{}token={}", if path.contains('?') { '&' } else { '?' }, console.token)),
        ];
        for ask in wrong {
            let answer = ask.send().await;
            assert_eq!((answer.status, answer.error().as_str()), (401, "unauthorized"), "{path}");
        }
    }
    for path in ["/api/v1/break", "/api/v1/session"] {
        let answer = console.post(path, &break_body("job", "1")).without("Authorization").send().await;
        assert_eq!(answer.status, 401, "{path}");
    }
    for open in ["/", "/app.js", "/style.css", "/healthz"] {
        assert_eq!(console.bare("GET", open).send().await.status, 200, "{open}");
    }
    console.stop().await;
}

/// Browsers send cookies to every port of a host: a cookie of the console would reach every other server there.
#[tokio::test]
async fn cookies_are_neither_set_nor_accepted() {
    let console = Running::start(&memory().await, |_| {}).await;
    let (token, port) = (&console.token, console.address.port());
    let mut asks =
        vec![console.post("/api/v1/session", &Value::Null), console.post("/api/v1/break", &break_body("job", "1"))];
    asks.extend(["/", "/app.js", "/session.js", "/healthz"].map(|path| console.get(path)));
    asks.extend(PATHS.iter().filter(|path| !path.ends_with("events")).map(|path| console.get(path)));
    for ask in asks {
        let answer = ask.send().await;
        assert!(answer.status != 401 && answer.header("set-cookie").is_none(), "{answer:?}");
    }
    for cookie in [format!("distlock_console_{port}={token}"), format!("token={token}"), format!("Bearer {token}")] {
        for path in PATHS {
            let answer = console.bare("GET", path).header("Cookie", &cookie).send().await;
            assert_eq!((answer.status, answer.error().as_str()), (401, "unauthorized"), "{path}: {cookie}");
        }
        let change =
            console.post("/api/v1/break", &break_body("job", "1")).without("Authorization").header("Cookie", &cookie);
        assert_eq!(change.send().await.status, 401, "{cookie}");
    }
    let about = console.post("/api/v1/session", &Value::Null).send().await.json();
    assert_eq!((&about["engine"], &about["read_only"]), (&"test://engine".into(), &false.into()));
    console.stop().await;
}

#[tokio::test]
async fn changes_need_the_header_and_the_consoles_own_origin() {
    let console = Running::start(&memory().await, |_| {}).await;
    let ask = || console.post("/api/v1/break", &break_body("job", "1"));
    assert_eq!(ask().send().await.error(), "not_held", "let in, and nothing is there to break");
    let answer = ask().without("X-Distlock-Console").send().await;
    assert_eq!((answer.status, answer.error().as_str()), (403, "csrf"));
    let ours = format!("http://{}", console.address);
    assert_eq!(ask().header("Origin", &ours).send().await.error(), "not_held");
    let elsewhere = format!("http://127.0.0.1:{}", console.address.port() ^ 1);
    for origin in ["null", "http://evil.example", "https://127.0.0.1", elsewhere.as_str(), "file://"] {
        let answer = ask().header("Origin", origin).send().await;
        assert_eq!((answer.status, answer.error().as_str()), (403, "origin"), "{origin}");
        let answer = console.get("/api/v1/events").header("Origin", origin).send().await;
        assert_eq!(answer.status, 403, "{origin}");
    }
    let answer = console.bare("OPTIONS", "/api/v1/break").header("Origin", "http://evil.example").send().await;
    assert!(answer.status >= 400 && answer.header("access-control-allow-origin").is_none(), "{answer:?}");
    console.stop().await;
}

#[tokio::test]
async fn an_unknown_host_name_is_refused_in_any_case() {
    let console = Running::start(&memory().await, |options| options.hosts.push("locks.example".parse().unwrap())).await;
    let port = console.address.port();
    for host in [format!("localhost:{port}"), format!("[::1]:{port}"), "locks.example".into()] {
        assert_eq!(console.get("/api/v1/locks").header("Host", &host).send().await.status, 200, "{host}");
    }
    for path in ["/", "/healthz", "/metrics", "/api/v1/locks"] {
        for host in
            ["evil.example".to_owned(), format!("evil.example:{port}"), format!("127.0.0.1.evil.example:{port}")]
        {
            let answer = console.get(path).header("Host", &host).send().await;
            assert_eq!((answer.status, answer.error().as_str()), (421, "host"), "{path} {host}");
        }
    }
    console.stop().await;
}

#[tokio::test]
async fn every_response_has_the_security_headers() {
    let console = Running::start(&memory().await, |_| {}).await;
    for ask in [console.bare("GET", "/"), console.bare("GET", "/api/v1/locks"), console.get("/nowhere")] {
        let answer = ask.send().await;
        let policy = answer.header("content-security-policy").expect("a policy");
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"] {
            assert!(policy.contains(part), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("x-frame-options"), Some("deny"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
    }
    let page = console.bare("GET", "/").send().await.body;
    assert!(!page.contains("<style") && !page.contains("style=") && !page.contains("onclick"), "nothing inline");
    assert!(page.match_indices("<script").all(|(at, _)| page[at..].starts_with("<script type=\"module\" src=")));
    assert_eq!(console.get("/nowhere").send().await.error(), "not_found");
    assert_eq!(console.bare("PUT", "/healthz").send().await.error(), "method");
    console.stop().await;
}

#[tokio::test]
async fn a_read_only_console_refuses_changes_on_the_server() {
    let locker = memory().await;
    let guard = locker.lock("job").await.unwrap();
    let console = Running::start(&locker, |options| options.read_only = true).await;
    let token = guard.fencing_token().to_string();
    let answer = console.post("/api/v1/break", &break_body("job", &token)).send().await;
    assert_eq!((answer.status, answer.error().as_str()), (403, "read_only"));
    assert!(!guard.is_lost() && guard.check().is_ok());
    assert_eq!(console.get("/api/v1/session").send().await.json()["read_only"], true);
    assert_eq!(console.get("/api/v1/audit").send().await.json()["rows"], json!([]));
    console.stop().await;
}

/// Breaks a lock over HTTP and checks all consequences.
async fn check_break(holder: &Locker, watcher: &Locker) {
    let directory = Directory::new();
    let audit_file = directory.path().join("audit.jsonl");
    let console = Running::start(watcher, |options| options.audit_file = Some(audit_file.clone())).await;
    let guard = holder.lock("jobs/ä 1").owner("old-holder").label("<b>nightly</b>").await.unwrap();
    let token = guard.fencing_token().to_string();
    let mut events = console.events().await;
    let (name, snapshot) = events.next().await;
    assert_eq!((name.as_str(), &snapshot["locks"][0]["name"]), ("snapshot", &"jobs/ä 1".into()));

    let wrong = console.post("/api/v1/break", &break_body("jobs/ä 1", "987654321")).send().await;
    assert_eq!((wrong.status, wrong.error().as_str()), (409, "not_held"), "another token");
    assert!(!guard.is_lost());
    for (reason, status) in [("", 400), ("  ", 400), (&*"x".repeat(257), 400)] {
        let body = json!({"name": "jobs/ä 1", "token": token, "reason": reason});
        assert_eq!(console.post("/api/v1/break", &body).send().await.status, status, "{reason}");
    }
    assert!(!guard.is_lost(), "nothing without a reason");

    let done = console.post("/api/v1/break", &break_body("jobs/ä 1", &token)).send().await;
    assert_eq!(done.status, 200, "{done:?}");
    let lost = timeout(LIMIT, guard.lost()).await.expect("the old holder is notified");
    assert_eq!(lost, LossReason::Broken);

    let row = &console.get("/api/v1/audit").send().await.json()["rows"][0];
    for (field, expected) in
        [("event", "broken"), ("lock", "jobs/ä 1"), ("reason", "it hangs"), ("remote", "127.0.0.1")]
    {
        assert_eq!(row[field], expected, "{row}");
    }
    assert_eq!((&row["token"], &row["holder"]["owner"]), (&token.as_str().into(), &"old-holder".into()));
    assert!(row["at_ms"].as_u64().is_some_and(|at| at > 1_600_000_000_000));
    let text = std::fs::read_to_string(&audit_file).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(&last, row, "the file says the same");
    let asked = text.lines().filter(|line| line.contains("\"asked\"")).count();
    assert!(asked >= 2 && text.lines().count() == 2 * asked, "each wish has its outcome: {text}");

    let told = events.next_of("audit").await;
    assert_eq!(told["event"], "refused", "the wrong token was one too");
    while events.next_of("audit").await["event"] != "broken" {}
    loop {
        let changes = events.next_of("changes").await;
        if changes["gone"].as_array().unwrap().contains(&"jobs/ä 1".into()) {
            break;
        }
    }
    let detail = console.get("/api/v1/locks/jobs%2F%C3%A4%201").send().await.json();
    assert_eq!((&detail["lock"], &detail["name"]), (&Value::Null, &"jobs/ä 1".into()));
    let past = &detail["past"][0];
    assert_eq!((&past["end"], &past["token"], &past["owner"]), (&"broken".into(), &token.into(), &"old-holder".into()));
    console.stop().await;
}

#[tokio::test]
async fn a_break_ends_the_hold_notifies_its_holder_and_is_audited() {
    let locker = memory().await;
    check_break(&locker, &locker).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_on_redis_ends_the_hold_notifies_its_holder_and_is_audited() {
    let server = RedisServer::start();
    let connect = async || Locker::connect(&server.url()).await.unwrap();
    check_break(&connect().await, &connect().await).await;
}

#[tokio::test]
async fn an_unsupported_break_is_refused_and_audited() {
    let directory = Directory::new();
    let locker = Locker::connect(&format!("file://{}", directory.path().display())).await.unwrap();
    let guard = locker.lock("job").await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let listed = console.get("/api/v1/locks?prefix=jo").send().await.json();
    assert_eq!(
        (&listed["locks"][0]["name"], listed["locks"][0]["holders"][0]["pid"].as_u64()),
        (&"job".into(), Some(u64::from(std::process::id())))
    );
    assert_eq!(listed["locks"][0]["holders"][0]["expires_ms"], Value::Null);
    let answer = console.post("/api/v1/break", &break_body("job", &guard.fencing_token().to_string())).send().await;
    assert_eq!((answer.status, answer.error().as_str()), (501, "unsupported"));
    assert_eq!(console.get("/api/v1/session").send().await.json()["breaks"], false);
    assert_eq!(console.get("/api/v1/audit").send().await.json()["rows"][0]["event"], "refused");
    assert!(!guard.is_lost());
    console.stop().await;
}

/// The state that a page builds from the events.
#[derive(Default, Debug, PartialEq)]
struct PageState(BTreeMap<String, Value>);

impl PageState {
    fn take(&mut self, event: &str, data: &Value) {
        if event == "snapshot" {
            self.0.clear();
        }
        let field = if event == "snapshot" { "locks" } else { "set" };
        for lock in data[field].as_array().into_iter().flatten() {
            self.0.insert(lock["name"].as_str().unwrap().to_owned(), lock.clone());
        }
        for pair in data["renewed"].as_array().into_iter().flatten() {
            let lock = self.0.get_mut(pair[0].as_str().unwrap()).expect("it is known");
            for (holder, expires) in lock["holders"].as_array_mut().unwrap().iter_mut().zip(pair[1].as_array().unwrap())
            {
                holder["expires_ms"] = expires.clone();
            }
        }
        for name in data["gone"].as_array().into_iter().flatten() {
            self.0.remove(name.as_str().unwrap()).expect("it was there");
        }
    }
}

#[tokio::test]
async fn the_changes_add_up_to_a_new_snapshot() {
    let locker = memory().await;
    let console = Running::start(&locker, |_| {}).await;
    let mut guards: Vec<_> = Vec::new();
    for number in 0..20 {
        guards.push(locker.clone().lock(format!("job:{number}")).ttl(Duration::from_millis(1_500)).await.unwrap());
    }
    let mut events = console.events().await;
    let mut picture = PageState::default();
    let (name, data) = events.next().await;
    picture.take(&name, &data);
    assert_eq!((name.as_str(), picture.0.len()), ("snapshot", 20));
    let (mut renewed, mut set) = (0, 0);
    for step in 0..4 {
        guards.remove(step).unlock().await.unwrap();
        guards.push(locker.clone().lock(format!("new:{step}")).owner("x".repeat(step + 1)).await.unwrap());
        let data = events.next_of("changes").await;
        renewed += data["renewed"].as_array().unwrap().len();
        set += data["set"].as_array().unwrap().len();
        picture.take("changes", &data);
        let mut newcomer = console.events().await;
        let (name, data) = newcomer.next().await;
        let mut fresh = PageState::default();
        fresh.take(&name, &data);
        assert_eq!(picture, fresh, "after {step}");
    }
    assert_eq!(set, 4, "only what is new is sent in full");
    assert!(renewed > 20, "leases went on: {renewed}");
    console.stop().await;
}

#[tokio::test]
async fn the_queue_is_in_order_and_past_holds_are_kept() {
    let locker = memory().await;
    let console = Running::start(&locker, |_| {}).await;
    let mut events = console.events().await;
    events.next().await;
    let first = locker.lock("job").owner("first").await.unwrap();
    let mut waiting = Vec::new();
    for owner in ["second", "third", "fourth"] {
        let locker = locker.clone();
        waiting.push(tokio::spawn(async move { locker.lock("job").owner(owner).await.unwrap() }));
        while !console_queue(&console).await.iter().any(|queued| queued == owner) {
            events.next_of("changes").await;
        }
    }
    assert_eq!(console_queue(&console).await, ["second", "third", "fourth"]);
    first.unlock().await.unwrap();
    let second = timeout(LIMIT, waiting.remove(0)).await.unwrap().unwrap();
    while console_queue(&console).await.len() != 2 {
        events.next_of("changes").await;
    }
    let detail = console.get("/api/v1/locks/job").send().await.json();
    assert_eq!(detail["lock"]["holders"][0]["owner"], "second");
    assert_eq!((&detail["past"][0]["owner"], &detail["past"][0]["end"]), (&"first".into(), &"ended".into()));
    let number = |field: &str| detail["past"][0][field].as_u64().unwrap();
    assert!(number("since_ms") <= number("ended_ms") && number("seen_ms") <= number("ended_ms"));
    drop(second);
    waiting.into_iter().for_each(|task| task.abort());
    console.stop().await;
}

#[tokio::test]
async fn a_lock_shows_what_ran_once_per_tick() {
    let locker = memory().await;
    let console = Running::start(&locker, |_| {}).await;
    for (tick, succeeds) in [("first", true), ("second", false)] {
        match locker.once("job").tick(tick).label("nightly").wait(LIMIT).await.unwrap() {
            distlock::OnceOutcome::Run(run) if succeeds => drop(run.done().await.unwrap()),
            distlock::OnceOutcome::Run(run) => run.failed().await.unwrap(),
            other => panic!("{other:?}"),
        }
    }
    let detail = console.get("/api/v1/locks/job").send().await.json();
    let ticks = detail["ticks"].as_array().unwrap();
    assert_eq!(ticks.iter().map(|tick| &tick["tick"]).collect::<Vec<_>>(), ["name:second", "name:first"]);
    assert_eq!((&ticks[0]["done"], &ticks[0]["took_ms"]), (&false.into(), &Value::Null));
    assert!(ticks[1]["done"] == true && ticks[1]["took_ms"].is_u64() && ticks[1]["label"] == "nightly", "{detail}");
    assert!(ticks[1]["until_ms"].as_u64() > ticks[1]["started_ms"].as_u64() && ticks[1]["token"].is_string());
    let other = console.get("/api/v1/locks/other").send().await.json();
    assert_eq!(other["ticks"], serde_json::json!([]));
    console.stop().await;
}

async fn console_queue(console: &Running) -> Vec<String> {
    let detail = console.get("/api/v1/locks/job").send().await.json();
    detail["queue"].as_array().unwrap().iter().map(|who| who["owner"].as_str().unwrap().to_owned()).collect()
}

/// Returns the value of a metric.
async fn metric(console: &Running, name: &str) -> f64 {
    let text = console.get("/metrics").send().await.body;
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

#[tokio::test]
async fn one_listing_per_second_for_all_browsers_and_none_without() {
    let locker = memory().await;
    let _guard = locker.lock("job").await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let began = Instant::now();
    let mut browsers = Vec::new();
    for _ in 0..40 {
        let mut events = console.events().await;
        assert_eq!(events.next().await.0, "snapshot");
        browsers.push(events);
    }
    for _ in 0..3 {
        for events in &mut browsers {
            events.next_of("changes").await;
        }
        for path in ["/api/v1/locks", "/api/v1/locks/job", "/metrics"] {
            assert_eq!(console.get(path).send().await.status, 200);
        }
    }
    let listings = metric(&console, "distlock_console_listing_duration_seconds_count").await;
    let allowed = began.elapsed().as_secs_f64() + 1.0;
    assert!(listings >= 3.0 && listings <= allowed, "{listings} in {allowed} s");
    assert_eq!(metric(&console, "distlock_console_browsers").await, 40.0);
    assert_eq!(metric(&console, "distlock_console_holds").await, 1.0);
    assert_eq!(metric(&console, "distlock_console_listing_errors_total").await, 0.0);

    drop(browsers);
    let gone = Instant::now();
    while metric(&console, "distlock_console_browsers").await > 0.0 {
        assert!(gone.elapsed() < LIMIT, "they are still counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let before = metric(&console, "distlock_console_listing_duration_seconds_count").await;
    // Time must pass without a browser: there is no event to wait for.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let after = metric(&console, "distlock_console_listing_duration_seconds_count").await;
    assert_eq!(after - before, 1.0, "the one that the last question made");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_engine_is_reported_and_listings_resume() {
    let mut server = RedisServer::options().password("s3cret-pass").start();
    let locker = Locker::connect(&server.url()).await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let mut events = console.events().await;
    assert_eq!(events.next().await.1["trouble"], Value::Null);
    server.kill9();
    let trouble = events.next_of("trouble").await;
    assert_eq!(trouble["error"]["kind"], "unavailable", "{trouble}");
    let answer = console.get("/api/v1/locks").send().await;
    assert_eq!((answer.status, answer.error().as_str()), (503, "unavailable"));
    assert!(!answer.body.contains("s3cret") && !trouble.to_string().contains("s3cret"));
    assert_eq!(metric(&console, "distlock_console_engine_up").await, 0.0);
    assert_eq!(console.bare("GET", "/healthz").send().await.status, 200, "the console itself is well");
    tokio::task::block_in_place(|| server.restart(distlock_testkit::servers::Data::Lost));
    events.next_of("changes").await;
    assert_eq!(console.get("/api/v1/locks").send().await.status, 200);
    console.stop().await;
}

#[tokio::test]
async fn neither_passwords_nor_the_token_are_in_any_answer() {
    let locker = memory().await;
    let _guard = locker.lock("job").await.unwrap();
    let options = Options { listen: "127.0.0.1:0".parse().unwrap(), ..Options::new(AccessToken::random()) };
    let debug = format!("{options:?}");
    let console = Console::bind(locker, "redis://me:s3cret@127.0.0.1/", options).await.unwrap();
    let (address, url) = (console.address(), console.url_with_token());
    let token = url.split_once("#token=").unwrap().1.to_owned();
    assert!(!debug.contains(&token) && !console.url().contains(&token));
    let served = tokio::spawn(console.serve(std::future::pending()));
    for path in PATHS.iter().filter(|path| !path.ends_with("events")).chain(&["/", "/healthz"]) {
        let ask = common::HttpRequest::new(address, "GET", path).header("Authorization", &format!("Bearer {token}"));
        let answer = ask.send().await;
        assert_eq!(answer.status, 200, "{path}");
        for secret in ["s3cret", &token] {
            assert!(!answer.body.contains(secret) && !answer.head.contains(secret), "{path}: {answer:?}");
        }
    }
    served.abort();
}

#[tokio::test]
async fn lock_names_are_returned_unchanged_and_bad_requests_are_json_errors() {
    let locker = memory().await;
    let name = "<img src=x onerror=alert(1)>\"'&/..%2f";
    let _guard = locker.lock(name).label("</script><script>alert(2)</script>").await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let listed = console.get("/api/v1/locks").send().await;
    assert_eq!(listed.header("content-type"), Some("application/json"));
    assert_eq!(listed.json()["locks"][0]["name"], name);
    let bad = [
        console.post("/api/v1/break", &json!({"name": "a"})),
        console.post("/api/v1/break", &json!({"name": "a", "token": 7, "reason": "x"})),
        console.post("/api/v1/break", &json!({"name": "a", "token": "x", "reason": "x"})),
        console.post("/api/v1/break", &json!({"name": "", "token": "1", "reason": "x"})),
        console.post("/api/v1/break", &json!({"name": "a", "token": "1", "reason": "x", "force": true})),
        console.post("/api/v1/break", &Value::Null).body("not json"),
        console.get("/api/v1/locks/%ff"),
        console.get("/api/v1/lock"),
        console.get("/api/v1/lock?name="),
        console.get("/api/v1/lock?name=%0a"),
        console.get("/api/v1/lock?name=a&name=b"),
        console.get("/api/v1/locks/a%0ab"),
        console.get("/api/v1/locks?prefix=a&prefix=b"),
    ];
    for ask in bad {
        let answer = ask.send().await;
        assert_eq!((answer.status, answer.error().as_str()), (400, "invalid_input"), "{answer:?}");
    }
    console.stop().await;
}

/// Clients remove `.` and `..` from a path before they send it, also as `%2E`; never from a query.
#[tokio::test]
async fn a_lock_of_any_name_is_shown_by_a_query() {
    let locker = memory().await;
    let mut guards = Vec::new();
    for name in [".", "..", "...", "../a", "a b&c=d#e?f%2E+g"] {
        guards.push(locker.lock(name).owner(format!("holder of {name}")).await.unwrap());
    }
    let console = Running::start(&locker, |_| {}).await;
    let encoded = |byte: u8| format!("%{byte:02X}");
    for guard in &guards {
        let name = guard.key().as_str();
        let path = format!("/api/v1/lock?name={}", name.bytes().map(encoded).collect::<String>());
        let detail = console.get(&path).send().await.json();
        assert_eq!((&detail["name"], &detail["lock"]["name"]), (&name.into(), &name.into()), "{detail}");
        assert_eq!(detail["lock"]["holders"][0]["owner"], format!("holder of {name}"));
    }
    for (path, name) in [("/api/v1/lock?name=..", ".."), ("/api/v1/lock?name=.", "."), ("/api/v1/locks/...", "...")] {
        assert_eq!(console.get(path).send().await.json()["lock"]["name"], name, "{path}");
    }
    console.stop().await;
}

#[tokio::test]
async fn other_machines_are_accepted_only_with_tls() {
    let locker = memory().await;
    let options = Options { listen: "0.0.0.0:0".parse().unwrap(), ..Options::new(AccessToken::random()) };
    let refused = Console::bind(locker.clone(), "mem://", options.clone()).await.err().expect("refused").to_string();
    assert!(refused.contains("--tls-cert"), "{refused}");
    let certs = Certs::new();
    let tls = Some((certs.server_cert(), certs.server_key()));
    let swapped = Some((certs.server_key(), certs.server_cert()));
    assert!(Console::bind(locker.clone(), "mem://", Options { tls: swapped, ..options.clone() }).await.is_err());
    let listen = "127.0.0.1:0".parse().unwrap();
    let console = Console::bind(locker, "mem://", Options { tls, listen, ..options }).await.unwrap();
    let (url, address) = (console.url_with_token(), console.address());
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let token = url.split_once("#token=").unwrap().1.to_owned();
    let served = tokio::spawn(console.serve(std::future::pending()));
    let answer = tokio::task::spawn_blocking(move || over_tls(address, &token)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.to_ascii_lowercase().contains("set-cookie"), "{answer}");
    served.abort();
}

/// Sends a request with the machine's own TLS client.
fn over_tls(address: std::net::SocketAddr, token: &str) -> String {
    use std::io::Write;
    let mut client = std::process::Command::new("openssl")
        .args(["s_client", "-quiet", "-connect", &address.to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("openssl runs");
    let request = format!(
        "POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\
         X-Distlock-Console: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    client.stdin.as_mut().expect("piped").write_all(request.as_bytes()).expect("sent");
    String::from_utf8(client.wait_with_output().expect("it ends").stdout).expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_request_does_not_affect_the_next() {
    let server = RedisServer::start();
    let locker = Locker::connect(&server.url()).await.unwrap();
    let _guard = locker.lock("job").ttl(Duration::from_secs(60)).await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    server.stop();
    let given_up = timeout(Duration::from_millis(200), console.get("/api/v1/locks").send()).await;
    assert!(given_up.is_err(), "no response");
    server.cont();
    let answer = console.get("/api/v1/locks").send().await;
    assert_eq!((answer.status, answer.json()["locks"].as_array().map(Vec::len)), (200, Some(1)), "{answer:?}");
    console.stop().await;
}

#[tokio::test]
async fn stopping_ends_the_streams_at_once() {
    let console = Running::start(&memory().await, |_| {}).await;
    let mut events = console.events().await;
    assert_eq!(events.next().await.0, "snapshot");
    let began = Instant::now();
    console.stop().await;
    assert!(events.is_ended().await && began.elapsed() < Duration::from_millis(1_900), "{:?}", began.elapsed());
}
