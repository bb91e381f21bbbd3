//! 5 000 locks: how fast they are painted, and what listing them costs.
//!
//! Alone in its program: it measures the processor time of the whole process.
#![allow(missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::Running;
use common::browser::Browser;
use distlock::{LockGuard, Locker};
use distlock_testkit::servers::RedisServer;

const LOCKS: usize = 5_000;
const BROWSERS: usize = 10;
/// The least time of the measurement, in which only listings happen.
const WATCHED: Duration = Duration::from_secs(5);

/// Returns the processor time of this process.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    // Linux counts in hundredths of a second on every machine.
    Duration::from_millis(ticks * 10)
}

async fn listings(console: &Running) -> f64 {
    let text = console.get("/metrics").send().await.body;
    let line = text.lines().find(|line| line.starts_with("distlock_console_listing_duration_seconds_count")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_locks_are_painted_fast_and_cost_little_needs_browser() {
    let server = RedisServer::start();
    let locker = Locker::connect(&server.url()).await.unwrap();
    let _guards = hold_all(&locker).await;
    let console = Running::start(&Locker::connect(&server.url()).await.unwrap(), |_| {}).await;
    let browser = Browser::start().await;
    browser.goto(&console.url).await;
    browser.until("all", "document.querySelector('#count').textContent === '5000 locks'").await;
    // With the token that the tab keeps and a listing at hand: only the page is timed.
    browser.goto(console.url.split('#').next().unwrap()).await;
    browser.until("all again", "document.querySelector('#count').textContent === '5000 locks'").await;
    browser.until("it is painted", "performance.getEntriesByName('first rows').length").await;
    let painted = browser.js("return performance.getEntriesByName('first rows')[0].startTime").await.as_f64().unwrap();
    let elements = browser.js("return document.querySelectorAll('#rows .row').length").await.as_u64().unwrap();
    assert!(elements < 100, "only rows in view are elements: {elements}");
    check_last_row_is_reached(&browser).await;

    let mut others = Vec::new();
    for _ in 1..BROWSERS {
        let mut events = console.events().await;
        assert_eq!(events.next().await.1["locks"].as_array().map(Vec::len), Some(LOCKS));
        others.push(tokio::spawn(async move {
            let mut bytes = 0;
            loop {
                bytes = bytes.max(events.next().await.1.to_string().len());
                if bytes > 10_000 {
                    return bytes;
                }
            }
        }));
    }
    let (began, used, before) = (Instant::now(), processor_time(), listings(&console).await);
    let mut listed = 0.0;
    // On a machine so busy that a listing takes a second, the next one comes after ten.
    while listed < 1.0 {
        assert!(began.elapsed() < common::LIMIT, "no listing");
        // Time must pass: this is the measurement.
        tokio::time::sleep(WATCHED).await;
        listed = listings(&console).await - before;
    }
    let (took, used) = (began.elapsed(), processor_time() - used);
    assert!(others.iter().all(|other| !other.is_finished()), "nothing changes, so nothing but the time is sent");
    others.iter().for_each(tokio::task::JoinHandle::abort);
    let share = 100.0 * used.as_secs_f64() / took.as_secs_f64();
    let rate = listed / took.as_secs_f64();
    let per_listing = 1_000.0 * used.as_secs_f64() / listed;
    println!(
        "{LOCKS} locks, {BROWSERS} browsers: rows painted after {painted:.0} ms, {rate:.2} listings/s, {share:.1} % of a core, \
         {per_listing:.0} ms of it per listing"
    );
    assert!(rate <= 1.0 + 1.5 / took.as_secs_f64(), "{rate} listings a second");
    // The other values are figures for a quiet machine and an optimised build: this may be neither.

    drop(browser);
    let gone = Instant::now();
    while browsers(&console).await > 0.0 {
        assert!(gone.elapsed() < common::LIMIT, "they are still counted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let used = processor_time();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let share = 100.0 * (processor_time() - used).as_secs_f64() / 3.0;
    println!("no browser: {share:.1} % of a core");
    console.stop().await;
}

/// Locks that are not renewed: listing is measured, not holding.
async fn hold_all(locker: &Locker) -> Vec<LockGuard> {
    let tasks: Vec<_> = (0..50)
        .map(|task| {
            let locker = locker.clone();
            tokio::spawn(async move {
                let mut guards = Vec::new();
                for number in (task..LOCKS).step_by(50) {
                    let request = locker.lock(format!("tenant-{:02}/order:{number:05}", number % 40)).label("import");
                    guards.push(request.ttl(Duration::from_secs(1_800)).watchdog(false).await.unwrap());
                }
                guards
            })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.extend(task.await.unwrap());
    }
    guards
}

async fn browsers(console: &Running) -> f64 {
    let text = console.get("/metrics").send().await.body;
    let line = text.lines().find(|line| line.starts_with("distlock_console_browsers ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

async fn check_last_row_is_reached(browser: &Browser) {
    browser.press("\u{E010}").await;
    let chosen = "document.querySelector('#rows [aria-selected=true]')?.cells.name.textContent";
    browser.until("the last row", &format!("{chosen} === 'tenant-39/order:04999'")).await;
}
