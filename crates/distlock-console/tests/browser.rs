//! The page in a real browser, over real servers.
#![allow(missing_docs)]

mod common;

use std::time::Duration;

use common::browser::{Browser, DOWN, ENTER, ESCAPE};
use common::{LIMIT, Running};
use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{LockGuard, Locker, LossReason};
use distlock_console::AccessToken;
use distlock_testkit::servers::{Directory, EtcdServer, RedisServer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// 30 held locks and 100 waiters: 40 for the first lock, in order, and the others for the rest.
struct Crowd {
    guards: Vec<LockGuard>,
    waiters: Vec<JoinHandle<LockGuard>>,
}

const LABELS: [&str; 5] = ["nightly export", "invoice run", "schema change", "cache warm-up", "mail digest"];

impl Crowd {
    async fn start(url: &str) -> Crowd {
        let family = Locker::connect(&format!("{url}?history=50")).await.unwrap();
        // Ended before the first listing: only the histories contain it.
        family.clone().lock("job:00").owner("forerunner").await.unwrap().unlock().await.unwrap();
        let lost = family.clone().lock("job:03").owner("unlucky").await.unwrap();
        family.inspect().force_release("job:03", lost.fencing_token(), "made way").await.unwrap();
        timeout(LIMIT, lost.lost()).await.expect("it is shown");
        let (mut guards, mut waiters) = (Vec::new(), Vec::new());
        for number in 0..30 {
            let label = LABELS[number % LABELS.len()];
            let request = family.clone().lock(format!("job:{number:02}")).owner(format!("holder-{number:02}"));
            // Long leases, so that a busy machine loses none; one is short, to see it renewed.
            let ttl = Duration::from_secs(if number == 5 { 6 } else { 60 });
            guards.push(request.ttl(ttl).label(label).await.unwrap());
        }
        for number in 0..100 {
            let lock = if number < 40 { 0 } else { 1 + number % 29 };
            let locker = family.clone();
            waiters.push(tokio::spawn(async move {
                let request = locker.lock(format!("job:{lock:02}")).owner(format!("waiter-{number:02}"));
                request.ttl(Duration::from_secs(60)).label("batch").await.unwrap()
            }));
            if number < 40 {
                await_waiters(&family, "job:00", number + 1).await;
            }
        }
        Crowd { guards, waiters }
    }

    fn take(&mut self, name: &str) -> LockGuard {
        let index = self.guards.iter().position(|guard| guard.key().as_str() == name).expect("it is held");
        self.guards.remove(index)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.waiters.iter().for_each(JoinHandle::abort);
    }
}

async fn await_waiters(locker: &Locker, name: &str, count: usize) {
    let queued = async {
        while locker.inspect().get(name).await.unwrap().is_none_or(|lock| lock.waiters.len() < count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, queued).await.expect("they wait");
}

/// Returns the selector of a lock's row; only rows in view exist.
fn row(name: &str) -> String {
    format!("[...document.querySelectorAll('#rows .row')].find((it) => it.cells.name.textContent === '{name}')")
}

async fn check_page(engine: &str, url: &str) {
    let mut crowd = Crowd::start(url).await;
    let directory = Directory::new();
    let audit_file = directory.path().join("audit.jsonl");
    let watcher = Locker::connect(url).await.unwrap();
    let console = Running::start_over(url, &watcher, |options| options.audit_file = Some(audit_file.clone())).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    browser.until("30 rows", "document.querySelector('#count').textContent === '30 locks'").await;
    browser.until("100 wait", "document.querySelector('#stat-waiting').textContent === '100'").await;
    let address = browser.js("return location.href").await;
    assert!(!address.as_str().unwrap().contains(&console.token), "the token is out of the address: {address}");

    check_heat(&browser).await;
    check_rows_live(&browser, &watcher, &mut crowd).await;
    check_filter(&browser).await;
    check_keyboard(&browser).await;
    check_losses(&browser, engine).await;
    check_detail(&browser).await;
    take_pictures(&browser, engine).await;
    check_break(&browser, &console, &mut crowd, &audit_file).await;
    browser.picture(&format!("{engine}-broken")).await;
    console.stop().await;
    browser.until("it says so", "document.querySelector('#health').textContent === 'Disconnected'").await;
    browser.until("in full", "document.querySelector('#banner').textContent.includes('does not answer')").await;
}

async fn check_rows_live(browser: &Browser, watcher: &Locker, crowd: &mut Crowd) {
    let seconds = |name: &str, cell: &str| format!("parseFloat({}.cells.{cell}.textContent)", row(name));
    browser.js(&format!("window.before = {}", seconds("job:05", "left"))).await;
    // Less than the largest value seen, and then more than the smallest: the current value may be either.
    let falls = "(left => { window.before = Math.max(window.before, left); return left < window.before })";
    browser.until("it counts down", &format!("{falls}({})", seconds("job:05", "left"))).await;
    let rises = "(left => { window.before = Math.min(window.before, left); return left > window.before })";
    browser.until("a renewal", &format!("{rises}({})", seconds("job:05", "left"))).await;
    let new = watcher.clone().lock("a-new-one").owner("newcomer").await.unwrap();
    browser.until("a row appears", &row("a-new-one")).await;
    new.unlock().await.unwrap();
    browser.until("a row vanishes", &format!("!{}", row("a-new-one"))).await;
    let handed = crowd.take("job:10");
    handed.unlock().await.unwrap();
    let next = format!("{}.lock.holders[0].owner.startsWith('waiter-')", row("job:10"));
    browser.until("the next one has it", &next).await;
    let shown = browser.text("#health").await;
    assert!(shown.starts_with("Live"), "{shown}");
}

async fn check_losses(browser: &Browser, engine: &str) {
    browser.until("the history is read", "document.querySelector('#stat-lost').textContent === '1'").await;
    assert!(browser.text("#stat-lost-since").await.starts_with("known since "));
    browser.click("#stat-lost").await;
    browser.until("its lock is opened", "document.querySelector('#detail-name')?.textContent === 'job:03'").await;
    browser.until("the log", "document.querySelectorAll('#detail .log li').length === 4").await;
    let log = browser.texts("#detail .log li").await;
    assert!(log[0].contains("acquired holder-03") && log[1].contains("lost unlucky"), "{log:?}");
    assert!(log[2].contains("broken by ") && log[2].contains(": made way"), "{log:?}");
    browser.js("document.querySelector('#detail .log').scrollIntoView(false)").await;
    browser.picture(&format!("{engine}-lost")).await;
    browser.click("#detail .close").await;
    browser.until("closed", "document.querySelector('#detail').hidden").await;
    browser.press("kk").await;
}

async fn check_heat(browser: &Browser) {
    browser.until("it says so", "document.querySelector('#waits-words').textContent.startsWith('30 locks')").await;
    browser.click("#waits > summary").await;
    browser.until("strips", "document.querySelectorAll('#heat .lock').length === 12").await;
    assert!(browser.js("return document.querySelectorAll('#heat .heat').length").await.as_u64().unwrap() >= 12);
    assert!(browser.text("#graph").await.contains("No holder of a lock"));
    browser.click("#waits > summary").await;
    browser.js("document.querySelector('#table').focus()").await;
}

async fn check_filter(browser: &Browser) {
    browser.press("/").await;
    assert_eq!(browser.js("return document.activeElement.id").await, "filter");
    browser.press("JOB:0").await;
    browser.until("ten of them", "document.querySelector('#count').textContent === '10 of 30 locks'").await;
    let address = browser.js("return location.search").await;
    assert_eq!(address, "?q=JOB%3A0");
    browser.press(" invoice").await;
    browser.until("by label too", "document.querySelector('#count').textContent === '2 of 30 locks'").await;
    assert_eq!(browser.texts("#rows .name").await, ["job:01", "job:06"]);
    browser.press(" nothing").await;
    browser.until("none", "document.querySelector('#nothing').innerText === 'No lock matches the filter.'").await;
    browser.press(ESCAPE).await;
    browser.until("all again", "document.querySelector('#count').textContent === '30 locks'").await;
}

async fn check_keyboard(browser: &Browser) {
    let chosen = "document.querySelector('#rows [aria-selected=true]')?.cells.name.textContent";
    browser.press(ESCAPE).await;
    assert_eq!(browser.js("return document.activeElement.id").await, "table");
    browser.press(&format!("jj{DOWN}k")).await;
    assert_eq!(browser.js(&format!("return {chosen}")).await, "job:01");
    let active = "document.getElementById(document.activeElement.getAttribute('aria-activedescendant'))";
    assert_eq!(
        browser.js(&format!("return {active}.cells.name.textContent")).await,
        "job:01",
        "screen readers are told"
    );
    let outline = browser.js("return getComputedStyle(document.activeElement).outlineStyle").await;
    assert_eq!(outline, "solid", "the focus can be seen");
    browser.press(ENTER).await;
    browser.until("the detail", "document.querySelector('#detail-name')?.textContent === 'job:01'").await;
    assert_eq!(browser.js("return location.search").await, "?lock=job%3A01");
    browser.press(ESCAPE).await;
    browser.until("closed", "document.querySelector('#detail').hidden").await;
    assert_eq!(browser.js("return document.activeElement.id").await, "table");
}

async fn check_detail(browser: &Browser) {
    browser.press("k").await;
    browser.press(ENTER).await;
    browser.until("the queue", "document.querySelectorAll('#detail .queue li').length === 40").await;
    let expected: Vec<String> = (0..40).map(|number| format!("waiter-{number:02}")).collect();
    assert_eq!(browser.texts("#detail .queue b").await, expected, "in order");
    let places: Vec<String> = (1..=40).map(|place| place.to_string()).collect();
    assert_eq!(browser.texts("#detail .queue .place").await, places);
    let holder = browser.text("#detail .holder-card").await;
    for part in ["holder-00", "nightly export", "exclusive", &format!("/{}", std::process::id())] {
        assert!(holder.contains(part), "{part}: {holder}");
    }
    browser.until("a bar", "document.querySelectorAll('#detail .gantt .hold.held').length === 1").await;
    browser.until("one before", "document.querySelectorAll('#detail .gantt .hold.released').length === 1").await;
    assert!(browser.text("#detail").await.contains("Recent holds, as written down"));
    let log = browser.texts("#detail .log li").await;
    assert!(
        log.len() == 3 && log[0].contains("acquired holder-00, token ") && log[0].contains("nightly export"),
        "{log:?}"
    );
    assert!(log[1].contains("released forerunner, token ") && log[1].contains(", held for "), "{log:?}");
}

async fn take_pictures(browser: &Browser, engine: &str) {
    let mut pictures = Vec::new();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        pictures.push(browser.picture(&format!("{engine}-{scheme}")).await);
    }
    assert_ne!(pictures[0], pictures[1], "dark is not light");
    browser.resize(390, 844).await;
    browser.picture(&format!("{engine}-narrow-detail")).await;
    let width = browser.js("return document.documentElement.scrollWidth").await;
    assert_eq!(width, 390, "nothing sticks out");
    browser.press(ESCAPE).await;
    browser.until("closed", "document.querySelector('#detail').hidden").await;
    browser.picture(&format!("{engine}-narrow")).await;
    assert_eq!(browser.js("return document.documentElement.scrollWidth").await, 390);
    browser.prefer("light").await;
    browser.resize(1440, 900).await;
    browser.press(ENTER).await;
    browser.until("open again", "document.querySelectorAll('#detail .queue li').length === 40").await;
}

async fn check_break(browser: &Browser, console: &Running, crowd: &mut Crowd, audit_file: &std::path::Path) {
    let old = crowd.take("job:00");
    browser.click("#detail .quiet-danger").await;
    browser.press("job:0").await;
    browser.click("#break-reason").await;
    browser.press("it hangs since the deploy").await;
    assert_eq!(browser.js("return document.querySelector('#break-do').disabled").await, true, "not the whole name");
    browser.click("#break-name").await;
    browser.press("\u{E010}0").await;
    let command = browser.text("#break-command").await;
    let expected =
        format!("distlock break job:00 --if-token {} --reason 'it hangs since the deploy'", old.fencing_token());
    assert_eq!(command, expected);
    browser.picture("break").await;
    assert!(!old.is_lost(), "nothing was done yet");
    browser.click("#break-do").await;
    assert_eq!(timeout(LIMIT, old.lost()).await.expect("it is shown"), LossReason::Broken);
    let next = "document.querySelector('#detail .holder-card')?.innerText.includes('waiter-00')";
    browser.until("the next in the queue has it", next).await;
    browser.until("and the queue moved up", "document.querySelectorAll('#detail .queue li').length === 39").await;
    browser.until("it is marked", "document.querySelectorAll('#detail .gantt .hold.broken').length === 1").await;
    browser.until("it is logged", "document.querySelector('#detail .audit')?.innerText.includes('it hangs')").await;
    let event = |what: &str| {
        format!("[...document.querySelectorAll('#detail .log li')].some((it) => it.innerText.includes('{what}'))")
    };
    browser.until("the log goes on", &event("lost holder-00")).await;
    browser.until("and on", &event("acquired waiter-00")).await;
    browser.until("it is counted", "document.querySelector('#stat-lost').textContent === '2'").await;
    let rows = console.get("/api/v1/audit").send().await.json();
    let row = &rows["rows"][0];
    assert_eq!(
        (&row["event"], &row["lock"], &row["remote"]),
        (&"broken".into(), &"job:00".into(), &"127.0.0.1".into())
    );
    assert_eq!((&row["reason"], &row["holder"]["owner"]), (&"it hangs since the deploy".into(), &"holder-00".into()));
    let text = std::fs::read_to_string(audit_file).unwrap();
    assert_eq!(&serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap(), row);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_over_redis_needs_browser() {
    let server = RedisServer::start();
    check_page("redis", &server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_over_etcd_needs_browser() {
    let server = EtcdServer::start();
    check_page("etcd", &server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_shows_nothing_and_a_typed_one_signs_in_needs_browser() {
    let locker = Locker::new(Memory::new()).unwrap();
    let _guard = locker.lock("job").await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let browser = Browser::start().await;
    browser.goto(&console.url.replace("#token=", "#token=0")).await;
    browser.until("it asks", "!document.querySelector('#gate').hidden").await;
    assert!(browser.text("#gate").await.contains("not the right one"));
    assert!(browser.js("return document.querySelector('#work').hidden").await == true);
    let asked = "const done = arguments[0]; fetch('/api/v1/locks').then((it) => done(it.status))";
    assert_eq!(browser.js_async(asked).await, 401);
    browser.picture("token").await;
    browser.press(&console.token).await;
    browser.press(ENTER).await;
    browser.until("in", &row("job")).await;
    assert_eq!(browser.js("return document.cookie").await, "", "there are no cookies");
    browser.reload().await;
    browser.until("still in after a reload", &row("job")).await;
    browser.click("#sign-out").await;
    browser.until("it asks again", "!document.querySelector('#gate').hidden").await;
    assert!(browser.js("return document.querySelector('#work').hidden").await == true);
    assert_eq!(browser.js("return sessionStorage.length + localStorage.length").await, 0, "nothing is left");
    browser.goto(&console.url).await;
    browser.until("in by the link", &row("job")).await;
    assert_eq!(browser.js("return location.href").await, format!("http://{}/", console.address));
    console.stop().await;
}

/// Replies to every request, and returns the heads of all requests so far.
async fn other_server() -> (std::net::SocketAddr, std::sync::Arc<std::sync::Mutex<String>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, heard) = (listener.local_addr().unwrap(), std::sync::Arc::new(std::sync::Mutex::default()));
    let all: std::sync::Arc<std::sync::Mutex<String>> = heard.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.is_ok_and(|read| read > 0) {}
            all.lock().unwrap().push_str(&head);
            let answer =
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\nConnection: close\r\n\r\nneighbour";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_port_of_the_host_gets_no_credentials_needs_browser() {
    let locker = Locker::connect("mem://").await.unwrap();
    let _guard = locker.lock("job").await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let (address, heard) = other_server().await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    browser.until("signed in", &row("job")).await;
    browser.goto(&format!("http://{address}/elsewhere")).await;
    browser.until("elsewhere", "document.body.textContent === 'neighbour'").await;
    let seen = "return document.cookie + sessionStorage.length + localStorage.length + document.referrer";
    assert_eq!(browser.js(seen).await, "00", "the page there finds nothing either");
    let head = heard.lock().unwrap().to_ascii_lowercase();
    assert!(head.contains("get /elsewhere"), "{head}");
    for secret in ["cookie:", "authorization:", &console.token, &console.address.to_string()] {
        assert!(!head.contains(secret), "{secret}: {head}");
    }
    browser.goto(&format!("http://{}/?q=jo", console.address)).await;
    browser.until("the tab is still signed in", &row("job")).await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_reconnects_when_the_console_is_back_needs_browser() {
    let locker = Locker::connect("mem://").await.unwrap();
    let token = AccessToken::random();
    let start = |listen: std::net::SocketAddr| {
        let (locker, token) = (locker.clone(), token.clone());
        async move { Running::start(&locker, |options| (options.listen, options.token) = (listen, token)).await }
    };
    let console = start("127.0.0.1:0".parse().unwrap()).await;
    let (browser, address) = (Browser::start().await, console.address);
    browser.goto(&console.url).await;
    let health = |text: &str| format!("document.querySelector('#health').textContent.startsWith('{text}')");
    browser.until("it is live", &health("Live")).await;
    console.stop().await;
    browser.until("it says so", &health("Disconnected")).await;
    let console = start(address).await;
    let _guard = locker.lock("job").await.unwrap();
    browser.until("it is live again", &health("Live")).await;
    browser.until("and follows", &row("job")).await;
    assert_eq!(browser.js("return document.querySelector('#gate').hidden").await, true, "without signing in again");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_whose_names_are_dots_can_be_opened_needs_browser() {
    let locker = Locker::connect("mem://").await.unwrap();
    let mut guards = Vec::new();
    for name in [".", ".."] {
        guards.push(locker.lock(name).owner(format!("holder-of-{}", name.len())).await.unwrap());
    }
    let console = Running::start(&locker, |_| {}).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    for (index, name) in [".", ".."].into_iter().enumerate() {
        browser.until("a row", &row(name)).await;
        browser.press(&format!("j{ENTER}")).await;
        let holder =
            format!("document.querySelector('#detail .holder-card')?.innerText.includes('holder-of-{}')", index + 1);
        browser.until("its holder", &holder).await;
        assert_eq!(browser.text("#detail-name").await, name);
    }
    browser.reload().await;
    let holder = "document.querySelector('#detail .holder-card')?.innerText.includes('holder-of-2')";
    browser.until("by its address", holder).await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_console_has_no_break_button_and_names_are_escaped_needs_browser() {
    let locker = Locker::new(Memory::new()).unwrap();
    let name = "<img src=x onerror=\"window.hacked=1\">";
    let label = "</span><script>window.hacked=2</script>";
    let guard = locker.lock(name).owner("<b>owner</b>").label(label).await.unwrap();
    let console = Running::start(&locker, |options| options.read_only = true).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    browser.until("a row", "document.querySelectorAll('#rows .row').length === 1").await;
    assert_eq!(browser.texts("#rows .name").await, [name]);
    browser.press(&format!("j{ENTER}")).await;
    browser.until("the detail", "document.querySelector('#detail .holder-card')").await;
    let shown = browser.text("#detail").await;
    assert!(shown.contains(name) && shown.contains(label) && shown.contains("<b>owner</b>"), "{shown}");
    assert!(shown.contains("This console is read-only."), "{shown}");
    assert_eq!(browser.js("return document.querySelectorAll('.danger:not(#break-do)').length").await, 0);
    let inside = "return document.querySelectorAll('#work img, #work script, #work b:not(.mono)').length";
    assert_eq!(browser.js(inside).await, 0);
    assert_eq!(browser.js("return window.hacked ?? null").await, Value::Null);
    let body = json!({"name": name, "token": guard.fencing_token().to_string(), "reason": "x"}).to_string();
    let wish = format!(
        "const done = arguments[0]; fetch('/api/v1/break', {{method: 'POST', body: {}, \
         headers: {{'X-Distlock-Console': '1', Authorization: 'Bearer {}'}}}}).then((it) => it.json()) \
         .then((it) => done(it.error.kind))",
        Value::from(body),
        console.token
    );
    assert_eq!(browser.js_async(&wish).await, "read_only", "the server refuses, whatever the page does");
    assert!(!guard.is_lost());
    guard.unlock().await.unwrap();
    browser.until("nothing", "document.querySelector('#nothing').innerText.startsWith('No lock is held')").await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocked_waits_are_marked_needs_browser() {
    let locker = Locker::new(Memory::new()).unwrap();
    // Every owner holds a lock before any requests a second one.
    let mut holding = Vec::new();
    for (owner, held, wanted) in [("ann", "x", "y"), ("bob", "y", "x"), ("cid", "z", "x")] {
        holding.push((owner, wanted, locker.clone().lock(held).owner(owner).await.unwrap()));
    }
    let wait = |(owner, wanted, guard)| {
        let other = locker.clone();
        tokio::spawn(async move {
            let _guard: LockGuard = guard;
            drop(other.lock(wanted).owner(owner).await.unwrap());
        })
    };
    let waiting: Vec<_> = holding.into_iter().map(wait).collect();
    await_waiters(&locker, "x", 2).await;
    await_waiters(&locker, "y", 1).await;
    let console = Running::start(&locker, |_| {}).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    let words = "document.querySelector('#waits-stuck').textContent";
    browser.until("it is said", &format!("{words}.includes('2 owners wait for each other in a circle')")).await;
    browser.click("#waits > summary").await;
    browser.until("three arrows", "document.querySelectorAll('#graph path.edge').length === 3").await;
    assert_eq!(browser.js("return document.querySelectorAll('#graph path.edge.stuck').length").await, 2);
    assert_eq!(browser.js("return document.querySelectorAll('#graph .party.stuck').length").await, 2);
    let shown = browser.texts("#graph .edges li").await;
    assert_eq!(shown[0], "ann waits for y, held by bob: for ever, in a circle");
    assert_eq!(shown[2], "cid waits for x, held by ann");
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        browser.picture(if scheme == "light" { "waits" } else { "waits-dark" }).await;
    }
    browser.click("#graph .edges .link").await;
    browser.until("the lock is opened", "document.querySelector('#detail-name')?.textContent === 'y'").await;
    waiting.iter().for_each(JoinHandle::abort);
    browser.until("it is over", &format!("{words} === ''")).await;
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_open_lock_is_read_again_once_after_a_change_needs_browser() {
    let locker = Locker::new(Memory::new()).unwrap();
    // Long leases, so that no renewal counts as a change.
    let other = locker.lock("other").ttl(Duration::from_secs(3600)).await.unwrap();
    let guard = locker.lock("job").ttl(Duration::from_secs(3600)).await.unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    browser.until("a row", &row("job")).await;
    browser.press(&format!("j{ENTER}")).await;
    browser.until("the detail", "document.querySelector('#detail .holder-card')").await;
    assert_eq!(browser.text("#detail-name").await, "job");
    let count = "window.asked = 0; const before = window.fetch; \
        window.fetch = (...all) => { window.asked += String(all[0]).endsWith('/lock?name=job'); return before(...all) }";
    browser.js(count).await;
    guard.unlock().await.unwrap();
    browser.until("the change is shown", "window.asked > 0").await;
    browser.until("what was written a moment later is, too", "window.asked === 2").await;
    other.unlock().await.unwrap();
    browser.until("a later look", &format!("!{}", row("other"))).await;
    assert_eq!(browser.js("return window.asked").await, 2, "what goes on elsewhere is no reason to ask");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_hold_is_drawn_with_few_axis_marks_needs_browser() {
    let locker = Locker::new(Memory::new()).unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    let draw = "const done = arguments[0]; import('/gantt.js').then(({ gantt }) => done([20e3, 3e6, 9e7, 9e8, 1.7e12].map((ago) => { \
        const [now, ms] = [Date.now(), Date.now() - ago]; \
        const hold = { token: '1', end: 'released', since_ms: ms, seen_ms: ms, ended_ms: ms }; \
        return gantt([hold], now, 500).querySelectorAll('.grid').length; })))";
    let marks = browser.js_async(draw).await;
    let counts: Vec<u64> = marks.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).collect();
    assert!(counts.iter().all(|count| (1..=6).contains(count)), "{counts:?}");
    console.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_out_page_is_not_shown_as_live_needs_browser() {
    let locker = Locker::new(Memory::new()).unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let (browser, address) = (Browser::start().await, console.address);
    browser.goto(&console.url).await;
    browser.until("it is live", "document.querySelector('#health').textContent.startsWith('Live')").await;
    // The page checks its session only when another console answers.
    let hold = "const before = window.fetch; const held = new Promise((go) => { window.go = go }); \
        window.fetch = (...all) => held.then(() => before(...all))";
    browser.js(hold).await;
    console.stop().await;
    let other = Running::start(&locker, |options| options.listen = address).await;
    browser.js("window.go()").await;
    browser.until("it asks", "!document.querySelector('#gate').hidden").await;
    // Time must pass: the page updates every second.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(browser.text("#health").await, "Not signed in");
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_a_slow_engine_is_shown_as_old_needs_browser() {
    let store = Store::new();
    // For every listing, so that the data is old each time, however long the browser takes.
    (0..20).for_each(|_| store.script(Operation::Inspect, Fault::Delay(Duration::from_secs(2))));
    let locker = Locker::builder().build(Memory::on(&store)).unwrap();
    let console = Running::start(&locker, |_| {}).await;
    let browser = Browser::start().await;
    // The listing is made before the page loads, so that the page must learn its age.
    assert_eq!(console.get("/api/v1/locks").send().await.status, 200);
    browser.goto(&console.url).await;
    browser
        .until("it says so", r"/^Live, \d+(\.\d)? s old$/.test(document.querySelector('#health').textContent)")
        .await;
    console.stop().await;
}
