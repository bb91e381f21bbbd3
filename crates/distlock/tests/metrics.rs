//! The recorded metrics are those of docs/metrics.md, and the files of deploy/ name no others.
#![cfg(feature = "metrics")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{Clock, Locker};
use distlock_testkit::conformance::record_skip;
use distlock_testkit::servers::TEST_LIMIT;
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};

/// One series: its labels by name.
type Labels = BTreeMap<String, String>;

/// Everything recorded: by type, name and labels, the count and the sum.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<BTreeMap<Id, (u64, f64)>>>);

/// Type, name and labels.
type Id = (&'static str, String, Labels);

/// A metric as documented: name, type and the names of its labels.
type Row = (String, String, BTreeSet<String>);

static RECORDED: LazyLock<Recorded> = LazyLock::new(Recorded::default);

impl Recorded {
    /// Returns the count and the sum over all series with these labels.
    fn of(&self, name: &str, labels: &[(&str, &str)]) -> (u64, f64) {
        let fits = |series: &Labels| labels.iter().all(|(name, value)| series.get(*name).is_some_and(|v| v == value));
        let all = self.0.lock().unwrap();
        let found = all.iter().filter(|((_, of, series), _)| of == name && fits(series));
        found.fold((0, 0.0), |(times, sum), (_, (t, s))| (times + t, sum + s))
    }
}

/// A handle that records one series.
struct Series(Recorded, &'static str, String, Labels);

impl Series {
    fn add(&self, value: f64) {
        let mut all = self.0.0.lock().unwrap();
        let entry = all.entry((self.1, self.2.clone(), self.3.clone())).or_default();
        *entry = (entry.0 + 1, entry.1 + value);
    }
}

impl CounterFn for Series {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }
    fn absolute(&self, _value: u64) {
        panic!("not used");
    }
}

impl GaugeFn for Series {
    fn increment(&self, value: f64) {
        self.add(value);
    }
    fn decrement(&self, value: f64) {
        self.add(-value);
    }
    fn set(&self, _value: f64) {
        panic!("not used");
    }
}

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Recorded {
    fn series(&self, kind: &'static str, key: &Key) -> Arc<Series> {
        let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        Arc::new(Series(self.clone(), kind, key.name().to_owned(), labels))
    }
}

impl metrics::Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series("counter", key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series("gauge", key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series("histogram", key))
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns name, type and labels of each documented metric, and all code words of the page.
fn documented() -> (BTreeSet<Row>, BTreeSet<String>) {
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    let page = text("docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `distlock_"));
    let rows = rows.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = words(cells[1]).pop_first().expect("a name");
        (name, cells[2].to_owned(), words(cells[3]))
    });
    (rows.collect(), words(&page.replace("```", "")))
}

/// A single test, because the recorder is global to the process.
#[tokio::test]
async fn the_recorded_metrics_are_the_documented_ones() {
    assert!(metrics::set_global_recorder(RECORDED.clone()).is_ok(), "the first");
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let make = || Locker::builder().clock(clock.clone()).group("jobs").build(Memory::on(&store)).unwrap();
    let (locker, other) = (make(), make());
    let now = |name: &str, labels: &[(&str, &str)]| RECORDED.of(name, labels);
    let jobs = [("group", "jobs"), ("backend", "memory")];

    // Held, waited for, timed out, given up, tried in vain, released.
    let guard = locker.lock("a").await.unwrap();
    assert_eq!(now("distlock_active", &jobs).1, 1.0);
    let patient = tokio::spawn({
        let other = other.clone();
        async move { other.lock("a").wait(Duration::from_secs(4)).await }
    });
    let hasty = tokio::spawn({
        let other = other.clone();
        async move { other.lock("a").group("hasty").await }
    });
    let until = async |done: &dyn Fn() -> bool| {
        let started = Instant::now();
        while !done() {
            assert!(started.elapsed() < TEST_LIMIT, "it never came");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    until(&|| now("distlock_waiting", &jobs).1 == 1.0 && now("distlock_waiting", &[("group", "hasty")]).1 == 1.0).await;
    hasty.abort();
    assert!(hasty.await.unwrap_err().is_cancelled());
    assert_eq!(now("distlock_waiting", &[("group", "hasty")]).1, 0.0, "a request that was given up no longer waits");
    assert!(other.try_lock("a").await.unwrap().is_none());
    hand.jump(Duration::from_secs(4));
    patient.await.unwrap().unwrap_err();
    assert_eq!(now("distlock_waiting", &jobs).1, 0.0);
    guard.unlock().await.unwrap();
    assert_eq!(now("distlock_active", &jobs).1, 0.0);
    let acquired = |outcome| now("distlock_acquire_duration_seconds", &[jobs[0], jobs[1], ("outcome", outcome)]);
    assert_eq!(["acquired", "timeout", "busy"].map(|outcome| acquired(outcome).0), [1, 1, 1]);
    assert!(acquired("timeout").1 >= 4.0);
    assert_eq!(now("distlock_acquire_duration_seconds", &[("group", "hasty"), ("outcome", "dropped")]).0, 1);
    let (times, held) = now("distlock_hold_duration_seconds", &[jobs[0], jobs[1], ("end", "released")]);
    assert!(times == 1 && held >= 4.0, "{times} {held}");

    // Renewed after a failure, broken, lost; and an error.
    store.script(Operation::Renew, Fault::Refuse);
    let guard = locker.lock("b").await.unwrap();
    let renewals = |outcome| now("distlock_renewals_total", &[("backend", "memory"), ("outcome", outcome)]).1;
    let before = renewals("renewed");
    let margin = || now("distlock_renewal_margin_seconds", &[("backend", "memory")]);
    // A renewal is due, and retried at once. The keeper's thread records one metric after the other, so each is waited
    // for. The clock moves once, so that the lease does not end before that thread runs.
    hand.jump(Duration::from_secs(4));
    until(&|| renewals("failed") == 1.0 && renewals("renewed") > before && margin().0 >= 1).await;
    let (times, margins) = margin();
    assert!(margins > 0.0 && margins / (times as f64) < 10.0, "{times} {margins}");
    other.inspect().force_release("b", guard.fencing_token(), "test").await.unwrap();
    guard.lost().await;
    until(&|| now("distlock_losses_total", &[("reason", "broken")]).1 == 1.0).await;
    until(&|| now("distlock_hold_duration_seconds", &[("end", "forced")]).0 == 1).await;
    // The guard still exists, the lock does not.
    until(&|| now("distlock_active", &jobs).1 == 0.0).await;
    assert_eq!(now("distlock_forced_releases_total", &[("outcome", "ok")]).1, 1.0);
    other.inspect().force_release("b", guard.fencing_token(), "test").await.unwrap_err();
    assert_eq!(now("distlock_forced_releases_total", &[("outcome", "ok")]).1, 1.0);
    store.script(Operation::Claim, Fault::Refuse);
    other.try_lock("c").await.unwrap_err();
    assert_eq!(acquired("unavailable").0, 1);
    let calls = |operation, outcome| {
        let labels = [("backend", "memory"), ("operation", operation), ("outcome", outcome)];
        now("distlock_backend_operation_duration_seconds", &labels).0
    };
    assert_eq!((calls("claim", "unavailable"), calls("renew", "unavailable"), calls("force_release", "ok")), (1, 1, 1));

    // Several locks: each counts once, in one step or one after the other.
    let both = other.lock_all(["e", "f"]).await.unwrap();
    assert_eq!((now("distlock_active", &jobs).1, acquired("acquired").0), (2.0, 4));
    assert!(make().lock_all(["e", "g"]).wait(Duration::ZERO).await.is_err());
    assert_eq!(now("distlock_acquire_duration_seconds", &[jobs[0], ("outcome", "dropped")]).0, 0);
    both.unlock().await.unwrap();
    assert_eq!(now("distlock_active", &jobs).1, 0.0);

    // The locks of a dropped locker no longer count.
    let left = other.lock("d").group("left").await.unwrap();
    assert_eq!(now("distlock_active", &[("group", "left")]).1, 1.0);
    drop(left);
    until(&|| now("distlock_active", &[("group", "left")]).1 == 0.0).await;
    check_names();
}

/// Asserts that every series has a documented name, type and labels, and that every documented one was recorded.
fn check_names() {
    let (table, words) = documented();
    let all = RECORDED.0.lock().unwrap();
    let seen: BTreeSet<_> = all
        .keys()
        .map(|(kind, name, labels)| (name.clone(), (*kind).to_owned(), labels.keys().cloned().collect()))
        .collect();
    assert_eq!(seen, table);
    let values =
        all.keys().flat_map(|(_, _, labels)| labels.iter().filter(|(name, _)| *name != "group" && *name != "backend"));
    for (name, value) in values {
        assert!(words.contains(value), "{name}={value} is not on the page");
    }
}

/// Returns every word in `text` that looks like one of our metrics, without the suffixes that exporters add for
/// histograms.
fn named(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c)).filter(|word| word.starts_with("distlock_"));
    let stem = |word: &str| {
        let parts = ["_bucket", "_count", "_sum"].iter().find_map(|part| word.strip_suffix(part));
        parts.unwrap_or(word).to_owned()
    };
    words.map(stem).collect()
}

#[test]
fn rules_and_dashboard_name_all_metrics_and_no_others() {
    let table: BTreeSet<String> = documented().0.into_iter().map(|(name, ..)| name).collect();
    let dashboard = text("deploy/grafana/distlock.json");
    serde_json::from_str::<serde_json::Value>(&dashboard).expect("the dashboard is JSON");
    assert_eq!(named(&dashboard), table, "the dashboard shows all of them");
    let rules = named(&text("deploy/prometheus/rules.yml"));
    assert!(rules.is_subset(&table), "{:?}", rules.difference(&table).collect::<Vec<_>>());
    assert!(rules.len() >= 7, "{rules:?}");
    assert_eq!(
        named("rate(distlock_x_seconds_bucket[1m]) + distlock_y"),
        ["distlock_x_seconds", "distlock_y"].map(String::from).into()
    );
}

#[test]
fn prometheus_understands_the_rules() {
    let promtool = |words: &[&str]| std::process::Command::new("promtool").args(words).output();
    if promtool(&["--version"]).is_err() {
        return record_skip("metrics/prometheus_understands_the_rules: promtool of the package prometheus");
    }
    let rules = repository("deploy/prometheus/rules.yml");
    let checked = promtool(&["check", "rules", rules.to_str().unwrap()]).unwrap();
    let said = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.contains("8 rules found"), "{said}");
}
