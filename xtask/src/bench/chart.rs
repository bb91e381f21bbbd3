//! The chart of docs/performance.md: how fast each contestant is, as a share of the floor.

use std::fmt::Write;

use super::figures::Results;
use super::table::{SCENARIOS, Scenario, ratio_text, share_of_floor};

const PANEL_WIDTH: f64 = 420.0;
const LABELS: f64 = 130.0;
const VALUES: f64 = 50.0;
const ROW: f64 = 20.0;
const HEAD: f64 = 42.0;
const GAP: f64 = 14.0;

/// Colours for a light and a dark page; only fonts that the reader has.
const STYLE: &str = "<style>text{font:12px system-ui,sans-serif;fill:#1f2328}.head{font-weight:600}\
    .page{fill:#ffffff}.peer{fill:#8c959f}.ours{fill:#0969da}.floor{stroke:#57606a;stroke-dasharray:3 3}\
    .value{paint-order:stroke;stroke:#ffffff;stroke-width:4px}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.page{fill:#0d1117}.peer{fill:#6e7681}.ours{fill:#4493f8}\
    .floor{stroke:#8b949e}.value{stroke:#0d1117}}</style>";

/// Bars of one scenario.
struct Panel {
    title: &'static str,
    /// Label, share of the floor, and whether it is this library.
    bars: Vec<(String, f64, bool)>,
}

impl Panel {
    fn new(scenario: Scenario, results: &Results) -> Option<Panel> {
        let figures = results.of(scenario.name);
        let (floor, others) = figures.split_first()?;
        let bar = |figure: &&super::figures::Figure| {
            Some((figure.label().to_owned(), share_of_floor(scenario, figure, floor)?, figure.is_ours()))
        };
        let bars: Vec<_> = others.iter().filter_map(bar).collect();
        (!bars.is_empty()).then_some(Panel { title: scenario.title, bars })
    }

    fn height(&self) -> f64 {
        HEAD + self.bars.len() as f64 * ROW + GAP
    }

    fn draw(&self, left: f64, top: f64, svg: &mut String) {
        let longest = self.bars.iter().map(|(_, share, _)| *share).fold(1.0, f64::max);
        let scale = (PANEL_WIDTH - LABELS - VALUES) / longest;
        let zero = left + LABELS;
        let (line, bottom) = (zero + scale, top + HEAD + self.bars.len() as f64 * ROW);
        let _ = write!(svg, "<text class=\"head\" x=\"{left:.0}\" y=\"{:.0}\">{}</text>", top + 14.0, self.title);
        let _ = write!(svg, "<text x=\"{line:.0}\" y=\"{:.0}\" text-anchor=\"middle\">floor</text>", top + 32.0);
        let mut values = String::new();
        for (number, (label, share, is_ours)) in self.bars.iter().enumerate() {
            let y = top + HEAD + number as f64 * ROW;
            let (class, width) = (if *is_ours { "ours" } else { "peer" }, (share * scale).max(1.0));
            let _ =
                write!(svg, "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{label}</text>", zero - 8.0, y + 12.0);
            let _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{zero:.0}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"14\"/>"
            );
            // The line of the floor is drawn after the bars, and the values with their margin over it.
            let (x, y, value) = (zero + width + 6.0, y + 12.0, ratio_text(*share));
            let _ = write!(values, "<text class=\"value\" x=\"{x:.0}\" y=\"{y:.0}\">{value}</text>");
        }
        let _ = write!(
            svg,
            "<line class=\"floor\" x1=\"{line:.0}\" x2=\"{line:.0}\" y1=\"{:.0}\" y2=\"{bottom:.0}\"/>{values}",
            top + HEAD - 6.0
        );
    }
}

/// Returns the chart of all scenarios that have a floor, two panels in a row.
pub(super) fn chart(results: &Results) -> String {
    let panels: Vec<Panel> = SCENARIOS.iter().filter_map(|scenario| Panel::new(*scenario, results)).collect();
    let (mut body, mut top) = (String::new(), GAP);
    for row in panels.chunks(2) {
        for (column, panel) in row.iter().enumerate() {
            panel.draw(GAP + column as f64 * (PANEL_WIDTH + GAP), top, &mut body);
        }
        top += row.iter().map(Panel::height).fold(0.0, f64::max);
    }
    let width = 2.0 * PANEL_WIDTH + 3.0 * GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {top:.0}\" role=\"img\" \
         aria-label=\"Speed as a share of the floor\">{STYLE}\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_the_share_of_the_floor() {
        let results = Results::parse(
            "redis/tasks raw-redis 1 ops=100 seconds=1\nredis/tasks distlock 1 ops=50 seconds=1\n\
             redis/tasks rslock 1 ops=200 seconds=1\nredis/killed distlock 1 late_ms=3\n",
        );
        let svg = chart(&results);
        assert_eq!(svg.matches("class=\"head\"").count(), 1, "a panel only where there is a floor: {svg}");
        // The scale ends at the longest bar, twice the floor: 240 units.
        assert!(svg.contains("<rect class=\"ours\" x=\"144\" y=\"56\" width=\"60.0\""), "{svg}");
        assert!(svg.contains("<rect class=\"peer\" x=\"144\" y=\"76\" width=\"240.0\""), "{svg}");
        assert!(svg.contains("x1=\"264\""), "the floor's line: {svg}");
        assert!(svg.contains("prefers-color-scheme:dark") && !svg.contains("url("), "both modes, nothing loaded");
    }
}
