//! The tables of docs/performance.md.

use super::figures::{Figure, Results, Round};

/// A scenario of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Latency,
    Rate,
    Handover,
    Held,
    Killed,
}

/// The scenarios in the order of the page. The driver measures the same.
pub(super) const SCENARIOS: [Scenario; 14] = [
    Scenario { name: "redis/alone", title: "Redis, one task", kind: Kind::Latency },
    Scenario { name: "redis/tasks", title: "Redis, 64 tasks with a lock each", kind: Kind::Rate },
    Scenario { name: "redis/contended", title: "Redis, one lock, 64 tasks in one process", kind: Kind::Handover },
    Scenario { name: "redis/processes", title: "Redis, one lock, eight processes", kind: Kind::Handover },
    Scenario { name: "redis/held", title: "Redis, 10 000 held locks", kind: Kind::Held },
    Scenario { name: "redis/killed", title: "Redis, killed holder", kind: Kind::Killed },
    Scenario { name: "redlock/alone", title: "Redlock on five nodes, one task", kind: Kind::Latency },
    Scenario { name: "redlock/tasks", title: "Redlock on five nodes, 64 tasks with a lock each", kind: Kind::Rate },
    Scenario { name: "etcd/alone", title: "etcd, one task", kind: Kind::Latency },
    Scenario { name: "etcd/tasks", title: "etcd, 64 tasks with a lock each", kind: Kind::Rate },
    Scenario { name: "etcd/contended", title: "etcd, one lock, 64 tasks in one process", kind: Kind::Handover },
    Scenario { name: "etcd/processes", title: "etcd, one lock, eight processes", kind: Kind::Handover },
    Scenario { name: "etcd/held", title: "etcd, 10 000 held locks", kind: Kind::Held },
    Scenario { name: "etcd/killed", title: "etcd, killed holder", kind: Kind::Killed },
];

/// Returns the table of a scenario; `None` when nothing was measured.
pub(super) fn table(scenario: Scenario, results: &Results) -> Option<String> {
    let figures = results.of(scenario.name);
    let first = figures.first()?;
    let mut text = format!("### {}\n\n", scenario.title);
    let heads = scenario.kind.heads();
    text += &format!("| | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for figure in &figures {
        let cells = scenario.kind.cells(figure, first.is_floor().then_some(*first));
        let label = match figure.label() {
            label if figure.is_ours() => format!("**{label}**"),
            label if figure.is_floor() => format!("*{label}*"),
            label => label.to_owned(),
        };
        text += &format!("| {label} | {} |\n", cells.join(" | "));
    }
    Some(text)
}

/// Returns how fast `figure` is, as a share of the floor's speed; `None` in scenarios without one.
pub(super) fn share_of_floor(scenario: Scenario, figure: &Figure, floor: &Figure) -> Option<f64> {
    let ratio = floor.is_floor().then(|| scenario.kind.ratio(figure, floor))??;
    Some(if scenario.kind == Kind::Latency { 1.0 / ratio } else { ratio })
}

/// Shows a ratio with more digits where two would be none.
pub(super) fn ratio_text(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

impl Kind {
    /// Returns the ratio to the floor of what the scenario is about: a latency or a rate.
    fn ratio(self, figure: &Figure, floor: &Figure) -> Option<f64> {
        let per_second = |name| move |round: &Round| Some(round.get(name)? / round.get("seconds")?);
        match self {
            Kind::Latency => figure.ratio_to(floor, |round| round.get("p50_us").copied()),
            Kind::Rate => figure.ratio_to(floor, per_second("ops")),
            Kind::Handover => figure.ratio_to(floor, per_second("handovers")),
            Kind::Held | Kind::Killed => None,
        }
    }

    fn heads(self) -> &'static [&'static str] {
        match self {
            Kind::Latency => &["p50", "to the floor", "p90", "p99", "requests", "client CPU", "server CPU"],
            Kind::Rate => &["lock+unlock/s", "to the floor", "p50", "p99", "requests", "client CPU", "server CPU"],
            Kind::Handover => &[
                "handovers/s",
                "to the floor",
                "wait p50",
                "wait p99",
                "longest wait",
                "requests",
                "client CPU",
                "server CPU",
            ],
            Kind::Held => &["requests/s", "client, of a core", "server, of a core", "client memory", "lost"],
            Kind::Killed => &["after the lease's end", "least – most"],
        }
    }

    fn cells(self, figure: &Figure, floor: Option<&Figure>) -> Vec<String> {
        let us = |name: &str| shown(figure.of(name), time);
        let each = |name: &str, by: &str| shown(figure.per(name, by), time);
        let requests = |by: &str| shown(figure.per("requests", by), |number| format!("{number:.2}"));
        let ratio = || {
            let ratio = floor.and_then(|floor| self.ratio(figure, floor));
            shown(ratio, |ratio| format!("{}×", ratio_text(ratio)))
        };
        let rate = |by: &str| shown(figure.per(by, "seconds"), |rate| format!("{rate:.0}"));
        let cores = |name: &str| {
            let share = |round: &Round| Some(round.get(name)? / round.get("seconds")? / 10_000.0);
            shown(figure.median(share), |percent| format!("{percent:.2} %"))
        };
        match self {
            Kind::Latency => vec![
                us("p50_us"),
                ratio(),
                us("p90_us"),
                us("p99_us"),
                requests("ops"),
                each("client_us", "ops"),
                each("server_us", "ops"),
            ],
            Kind::Rate => vec![
                rate("ops"),
                ratio(),
                us("p50_us"),
                us("p99_us"),
                requests("ops"),
                each("client_us", "ops"),
                each("server_us", "ops"),
            ],
            Kind::Handover => vec![
                rate("handovers"),
                ratio(),
                us("p50_us"),
                us("p99_us"),
                us("max_us"),
                requests("handovers"),
                each("client_us", "handovers"),
                each("server_us", "handovers"),
            ],
            Kind::Held => vec![
                shown(figure.per("requests", "seconds"), |rate| format!("{rate:.1}")),
                cores("client_us"),
                cores("server_us"),
                shown(figure.of("rss_kb"), |kilobytes| format!("{:.0} MB", kilobytes / 1_000.0)),
                shown(figure.range("lost"), |(_, most)| format!("{most:.0}")),
            ],
            Kind::Killed => vec![
                shown(figure.of("late_ms"), |late| time(late * 1_000.0)),
                shown(figure.range("late_ms"), |(least, most)| {
                    format!("{} – {}", time(least * 1_000.0), time(most * 1_000.0))
                }),
            ],
        }
    }
}

fn shown<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "–".into(), show)
}

/// Shows microseconds with three digits and a unit.
fn time(us: f64) -> String {
    let (value, unit) = match us.abs() {
        us_abs if us_abs < 1_000.0 => (us, "µs"),
        us_abs if us_abs < 1_000_000.0 => (us / 1_000.0, "ms"),
        _ => (us / 1_000_000.0, "s"),
    };
    let decimals = match value.abs() {
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Scenario {
        *SCENARIOS.iter().find(|scenario| scenario.name == name).unwrap()
    }

    #[test]
    fn a_table_has_ratios_to_the_floor_and_costs_per_operation() {
        let results = Results::parse(
            "redis/alone raw-redis 1 ops=100 p50_us=50 p90_us=60 p99_us=99 requests=200 client_us=1000 server_us=2000\n\
             redis/alone distlock 1 ops=50 p50_us=1500 p90_us=60 p99_us=99 requests=100 client_us=1000 server_us=2000\n",
        );
        let expected = "### Redis, one task\n\n\
            | | p50 | to the floor | p90 | p99 | requests | client CPU | server CPU |\n\
            |---|---|---|---|---|---|---|---|\n\
            | *raw-redis* | 50.0 µs | 1.00× | 60.0 µs | 99.0 µs | 2.00 | 10.0 µs | 20.0 µs |\n\
            | **distlock** | 1.50 ms | 30.00× | 60.0 µs | 99.0 µs | 2.00 | 20.0 µs | 40.0 µs |\n";
        assert_eq!(table(named("redis/alone"), &results).as_deref(), Some(expected));
        assert_eq!(table(named("redis/tasks"), &results), None, "not measured");
    }

    #[test]
    fn handovers_count_and_not_cycles() {
        let results = Results::parse(
            "redis/contended raw-queue 1 ops=900 handovers=900 seconds=3 requests=1800\n\
             redis/contended rslock 1 ops=900 handovers=90 seconds=3 requests=1800\n",
        );
        let text = table(named("redis/contended"), &results).unwrap();
        assert!(text.contains("| *raw-queue* | 300 | 1.00× |") && text.contains("| rslock | 30 | 0.10× |"), "{text}");
        assert!(text.contains("| 20.00 |"), "requests per handover: {text}");
        let [floor, rslock] = results.of("redis/contended")[..] else { panic!() };
        assert_eq!(share_of_floor(named("redis/contended"), rslock, floor), Some(0.1));
    }

    #[test]
    fn held_and_killed_have_their_own_columns_and_no_floor_where_there_is_none() {
        let results = Results::parse(
            "redis/held distlock 1 seconds=10 requests=125 client_us=65000 server_us=1000 rss_kb=24000 lost=0\n\
             redis/killed distlock 1 late_ms=-3.5\nredis/killed distlock 2 late_ms=40\nredis/killed distlock 3 late_ms=12\n",
        );
        let held = table(named("redis/held"), &results).unwrap();
        assert!(held.contains("| **distlock** | 12.5 | 0.65 % | 0.01 % | 24 MB | 0 |"), "{held}");
        let killed = table(named("redis/killed"), &results).unwrap();
        assert!(killed.contains("| **distlock** | 12.0 ms | -3.50 ms – 40.0 ms |"), "{killed}");
        let figure = results.of("redis/held")[0];
        assert_eq!(share_of_floor(named("redis/held"), figure, figure), None);
    }
}
