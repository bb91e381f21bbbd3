//! The measured parts of docs/performance.md and README.md, each between two marks, and the chart.

use std::fs;
use std::io;

use super::chart::chart;
use super::figures::{Figure, Results};
use super::table::{SCENARIOS, Scenario, ratio_text, share_of_floor, table};

pub(super) const PATH: &str = "docs/performance.md";
const CHART: &str = "docs/images/peers.svg";
const README: &str = "README.md";

/// Writes the page, the summary in the README, and the chart.
pub(super) fn write(results: &Results) -> io::Result<()> {
    let page = written(PATH, "peers", &measured(results))?;
    let readme = written(README, "peers-summary", &summary(results))?;
    fs::write(CHART, chart(results))?;
    fs::write(README, readme)?;
    fs::write(PATH, page)
}

fn written(path: &str, mark: &str, part: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    merge(&text, mark, part).ok_or_else(|| io::Error::other(format!("{path} has no marks {mark} begin and end")))
}

/// Returns `page` with `part` between the two marks of this name.
fn merge(page: &str, mark: &str, part: &str) -> Option<String> {
    let (begin, end) = (format!("<!-- {mark} begin -->"), format!("<!-- {mark} end -->"));
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}\n{part}\n{end}{after}"))
}

/// Returns the table of the README: the speed of this library and of the fastest other one, as shares of the floor.
fn summary(results: &Results) -> String {
    let mut text = "1.00 is the speed of the fewest requests from which a lock can be made, without token, renewal or loss \
                    signal; more is faster. Measured on the same servers in one run by `cargo xtask bench peers`:\n\n| | distlock | the fastest other library |\n|---|---|---|\n"
        .to_owned();
    for scenario in SCENARIOS {
        text += &summary_row(scenario, results).unwrap_or_default();
    }
    text + &format!("\n![Speed of each library as a share of the floor]({CHART})")
}

fn summary_row(scenario: Scenario, results: &Results) -> Option<String> {
    let figures = results.of(scenario.name);
    let (floor, others) = figures.split_first()?;
    let share = |figure: &&Figure| Some((share_of_floor(scenario, figure, floor)?, figure.label().to_owned()));
    let (ours, _) = others.iter().filter(|figure| figure.is_ours()).find_map(share)?;
    let peers = others.iter().filter(|figure| !figure.is_ours()).filter_map(share);
    let peer = peers.max_by(|a, b| a.0.total_cmp(&b.0));
    let peer = peer.map_or_else(|| "–".into(), |(share, name)| format!("{} ({name})", ratio_text(share)));
    Some(format!("| {} | {} | {peer} |\n", scenario.title, ratio_text(ours)))
}

/// Returns what was measured, when, where and with which versions, as the page shows it.
pub(super) fn measured(results: &Results) -> String {
    let joined = |kind: &str| results.remarks(kind).join("; ");
    let rounds = results.figures.iter().map(super::figures::Figure::rounds).min().unwrap_or(0);
    let mut text = format!(
        "Measured by `cargo xtask bench peers`: {}.\n\
         Machine: {}. Servers: {}. Libraries: {}.\n\
         Each number is the median of at least {rounds} rounds.\n",
        joined("run"),
        joined("machine"),
        joined("server"),
        joined("libraries")
    );
    for (kind, begin) in [("skipped", "Skipped"), ("failed", "Without a result")] {
        if !results.remarks(kind).is_empty() {
            text += &format!("{begin}: {}.\n", joined(kind));
        }
    }
    text += "\n![Speed of each library as a share of the floor](images/peers.svg)\n";
    for scenario in SCENARIOS {
        if let Some(table) = table(scenario, results) {
            text += &format!("\n{table}");
        }
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_when_where_and_with_what_and_keeps_the_rest() {
        let results = Results::parse(
            "# run 2026-11-18, commit 0123456789\n# machine 2 cores\n# server Redis 7.0.15\n# server etcd 3.4.23\n\
             # libraries rslock 0.10.0\n# skipped go-mutex: no Go\n\
             redis/tasks raw-redis 1 ops=100 seconds=1\nredis/tasks distlock 1 ops=50 seconds=1\n",
        );
        let old = "above\n<!-- peers begin -->\nold\n<!-- peers end -->\nbelow\n";
        let page = merge(old, "peers", &measured(&results)).unwrap();
        for part in [
            "above",
            "below",
            "2026-11-18, commit 0123456789",
            "2 cores",
            "Redis 7.0.15; etcd 3.4.23",
            "rslock 0.10.0",
            "Skipped: go-mutex: no Go.",
            "### Redis, 64 tasks",
            "images/peers.svg",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("old"));
        let again = merge(&page, "peers", &measured(&results));
        assert_eq!(again.as_deref(), Some(page.as_str()), "writing twice changes nothing");
        assert_eq!(merge("no marks", "peers", ""), None);
    }

    #[test]
    fn the_readme_compares_with_the_fastest_other_library() {
        let results = Results::parse(
            "redis/tasks raw-redis 1 ops=100 seconds=1\nredis/tasks distlock 1 ops=90 seconds=1\n\
             redis/tasks rslock 1 ops=40 seconds=1\nredis/tasks redis-py 1 ops=60 seconds=1\n\
             redis/alone raw-redis 1 p50_us=50\nredis/alone distlock 1 p50_us=100\nredis/killed distlock 1 late_ms=3\n",
        );
        let summary = summary(&results);
        assert!(summary.contains("| Redis, one task | 0.50 | – |\n"), "{summary}");
        assert!(
            summary.contains("| Redis, 64 tasks with a lock each | 0.90 | 0.60 (redis-py) |\n\n![Speed"),
            "{summary}"
        );
        assert!(!summary.contains("killed"), "a scenario without a floor: {summary}");
    }

    /// The pages in the repository have their marks, or the next run could not write them.
    #[test]
    fn the_pages_can_be_written() {
        for (path, mark) in [(PATH, "peers"), (README, "peers-summary")] {
            let page = fs::read_to_string(crate::root().join(path)).unwrap();
            assert!(merge(&page, mark, "").is_some(), "{path}");
        }
    }
}
