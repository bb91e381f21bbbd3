//! As much of Markdown as checking and collecting the pages needs: links, headings, paths.

use std::collections::BTreeSet;

/// Returns the links of a page to files of the repository and to its own headings, each with its line.
pub(crate) fn links(text: &str) -> impl Iterator<Item = (usize, String)> {
    prose(text).flat_map(|(number, line)| {
        let line = without_code(line);
        let inline = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let named = line.starts_with('[').then(|| line.split_once("]: ")).flatten().map(|(_, target)| target);
        let targets: Vec<String> = inline.chain(named).map(|target| target.trim().to_owned()).collect();
        let is_ours = |target: &String| !target.contains("://") && !target.starts_with("mailto:");
        targets.into_iter().filter(is_ours).map(move |target| (number, target)).collect::<Vec<_>>()
    })
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).filter_map(|(_, line)| heading(line)) {
        let anchor = slug(&heading);
        // A second heading of the same words has a number.
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

/// Returns the first heading of a page, without its marks.
pub(crate) fn title(text: &str) -> Option<String> {
    prose(text).find_map(|(_, line)| heading(line))
}

/// Returns the path to which a link in the page `from` leads; `None` if that is outside of the repository.
pub(crate) fn resolve(from: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match part {
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Returns the numbered lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Removes what is in backticks: it is code, not a link.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn heading(line: &str) -> Option<String> {
    let words = line.trim_start_matches('#').strip_prefix(' ')?;
    (line.starts_with('#') && !words.is_empty()).then(|| words.trim().to_owned())
}

fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_with_their_lines_and_code_is_left_out() {
        let text = "a [b](c.md#d) `[x](y.md)` [e](https://f.g)\n```sh\n[no](no.md)\n```\n![p](i/p.png)\n[r]: z.md\n";
        let expected = [(1, "c.md#d"), (5, "i/p.png"), (6, "z.md")].map(|(line, link)| (line, link.to_owned()));
        assert_eq!(links(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn anchors_are_made_as_readers_know_them() {
        let anchors = anchors("# The `lock`: 3 parts\n## ls, show\n## ls, show\n```sh\n# a comment\n```\n#hashtag\n");
        assert_eq!(Vec::from_iter(anchors), ["ls-show", "ls-show-1", "the-lock-3-parts"]);
        assert_eq!(title("\n\ntext\n# One\n# Two\n").as_deref(), Some("One"));
    }

    #[test]
    fn paths_are_relative_to_the_page() {
        assert_eq!(resolve("docs/backends/a.md", "../b.md#c").as_deref(), Some("docs/b.md"));
        assert_eq!(resolve("README.md", "./docs/").as_deref(), Some("docs"));
        assert_eq!(resolve("README.md", "../x"), None);
    }
}
