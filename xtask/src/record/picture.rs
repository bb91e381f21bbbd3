//! The picture of a recording: lines of a terminal that appear one after the other, and stay.

use std::fmt::Write;
use std::time::Duration;

const CHARACTER: f64 = 7.8;
const LINE: f64 = 19.0;
const MARGIN: f64 = 16.0;
/// The height of the bar above the lines.
const BAR: f64 = 34.0;
const PROMPT: &str = "$ ";

/// Fonts that the reader has. Viewers without animation, and readers who ask for no motion, see the last frame.
const STYLE: &str = "<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d8dee9;white-space:pre;\
    animation:hidden 1ms backwards}.prompt{fill:#7fd1ae}.typed{fill:#fff;font-weight:600}\
    @keyframes hidden{from,to{opacity:0}}@media(prefers-reduced-motion){text{animation:none}}</style>";

/// A line of the terminal.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    at: Duration,
    text: String,
    is_typed: bool,
}

impl Line {
    /// A command, after the prompt.
    pub(super) fn typed(at: Duration, text: &str) -> Line {
        Line { at, text: text.into(), is_typed: true }
    }

    /// A line that a command printed.
    pub(super) fn printed(at: Duration, text: &str) -> Line {
        Line { at, text: text.into(), is_typed: false }
    }

    /// Returns the rows of this line in a terminal of so many columns.
    fn rows(&self, columns: usize) -> Vec<String> {
        let columns = if self.is_typed { columns - PROMPT.len() } else { columns };
        let characters: Vec<char> = self.text.chars().collect();
        let rows: Vec<String> = characters.chunks(columns).map(|row| row.iter().collect()).collect();
        if rows.is_empty() { vec![String::new()] } else { rows }
    }
}

/// Returns the picture of these lines in a terminal of so many columns.
pub(super) fn picture(lines: &[Line], columns: usize) -> String {
    let (mut body, mut row) = (String::new(), 0);
    for line in lines {
        for text in line.rows(columns) {
            let y = BAR + MARGIN + row as f64 * LINE + 6.0;
            draw(&mut body, line, &text, y);
            row += 1;
        }
    }
    let (width, height) = (columns as f64 * CHARACTER + 2.0 * MARGIN, BAR + row as f64 * LINE + 1.5 * MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
         aria-label=\"distlock in a terminal\">{STYLE}<rect width=\"100%\" height=\"100%\" rx=\"9\" fill=\"#1c2128\"/>\
         <circle cx=\"20\" cy=\"18\" r=\"5\" fill=\"#444c56\"/><circle cx=\"38\" cy=\"18\" r=\"5\" fill=\"#444c56\"/>\
         <circle cx=\"56\" cy=\"18\" r=\"5\" fill=\"#444c56\"/>\n{body}</svg>\n"
    )
}

/// Draws one row. Its length is fixed, so that it fits with any font.
fn draw(body: &mut String, line: &Line, text: &str, y: f64) {
    if text.is_empty() {
        return;
    }
    let prompt = if line.is_typed { PROMPT.len() } else { 0 };
    let length = (text.chars().count() + prompt) as f64 * CHARACTER;
    let _ = write!(
        body,
        "<text x=\"{MARGIN:.0}\" y=\"{y:.0}\" textLength=\"{length:.1}\" xml:space=\"preserve\" \
         style=\"animation-delay:{:.1}s\">",
        line.at.as_secs_f64()
    );
    let text = escaped(text);
    let _ = match line.is_typed {
        true => writeln!(body, "<tspan class=\"prompt\">{PROMPT}</tspan><tspan class=\"typed\">{text}</tspan></text>"),
        false => writeln!(body, "{text}</text>"),
    };
}

/// Returns the text as it stands in XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_goes_on_in_the_next_row_and_no_row_is_wider_than_the_picture() {
        let lines = [Line::typed(Duration::ZERO, "ls"), Line::printed(Duration::from_secs(1), &"x".repeat(25))];
        let svg = picture(&lines, 10);
        assert_eq!(svg.matches("<text ").count(), 4, "{svg}");
        assert!(svg.contains("viewBox=\"0 0 110 "), "10 columns and two margins: {svg}");
        let lengths = svg.split("textLength=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>());
        assert!(lengths.map(Result::unwrap).all(|length| length <= 78.0), "{svg}");
        assert!(svg.contains("animation-delay:1.0s"), "{svg}");
    }

    #[test]
    fn text_is_not_markup() {
        let svg = picture(&[Line::typed(Duration::ZERO, "a < b && echo \"c\"")], 40);
        assert!(svg.contains(">a &lt; b &amp;&amp; echo &quot;c&quot;<"), "{svg}");
    }
}
