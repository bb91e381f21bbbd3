//! The measured part of docs/performance.md, between two marks, and its chart.

use std::fs;
use std::io;

use super::chart::chart;
use super::figures::Results;
use super::table::{SCENARIOS, table};

pub(super) const PATH: &str = "docs/performance.md";
const CHART: &str = "docs/images/peers.svg";
const BEGIN: &str = "<!-- peers begin -->";
const END: &str = "<!-- peers end -->";

/// Writes the page and the chart.
pub(super) fn write(results: &Results) -> io::Result<()> {
    let page = fs::read_to_string(PATH)?;
    let merged = merge(&page, results).ok_or_else(|| io::Error::other(format!("no {BEGIN} and {END} in it")))?;
    fs::write(CHART, chart(results))?;
    fs::write(PATH, merged)
}

fn merge(page: &str, results: &Results) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{}\n{END}{after}", measured(results)))
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
        let page = merge(&format!("above\n{BEGIN}\nold\n{END}\nbelow\n"), &results).unwrap();
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
        assert_eq!(merge(&page, &results).as_deref(), Some(page.as_str()), "writing twice changes nothing");
        assert_eq!(merge("no marks", &results), None);
    }

    /// The page in the repository has its marks, or the next run could not write it.
    #[test]
    fn the_page_can_be_written() {
        let page = fs::read_to_string(format!("{}/../{PATH}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(merge(&page, &Results::default()).is_some());
    }
}
