//! Links between the pages, and the table of contents of the book.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use crate::markdown::{anchors, links, resolve};

const SUMMARY: &str = "docs/SUMMARY.md";
/// `cargo xtask book` lists these by itself.
const DECISIONS: &str = "docs/decisions/";

/// Checks that every link in a page leads to a file and a heading, and that the table of contents lists every page.
pub(super) fn check(files: &[(String, String)], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let pages: BTreeMap<&str, &str> =
        files.iter().filter(|(path, _)| path.ends_with(".md")).map(|(path, text)| (&**path, &**text)).collect();
    let mut findings = Vec::new();
    for (path, text) in &pages {
        for (line, link) in links(text) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { Some((*path).to_owned()) } else { resolve(path, file) };
            let fault = match target {
                None => Some("leads out of the repository".to_owned()),
                Some(target) if !exists(&target) => Some(format!("{target} does not exist")),
                Some(target) if !anchor.is_empty() => pages
                    .get(&*target)
                    .is_none_or(|text| !anchors(text).contains(anchor))
                    .then(|| format!("{target} has no heading #{anchor}")),
                Some(_) => None,
            };
            findings.extend(fault.map(|fault| Finding::new(path, line, "link", format!("({link}): {fault}"))));
        }
    }
    findings.extend(unlisted(&pages));
    findings
}

/// Returns the pages of docs/ that the table of contents does not list.
fn unlisted(pages: &BTreeMap<&str, &str>) -> Vec<Finding> {
    let Some(summary) = pages.get(SUMMARY) else { return Vec::new() };
    let listed: BTreeSet<String> = links(summary).filter_map(|(_, link)| resolve(SUMMARY, &link)).collect();
    let is_page = |path: &&&str| path.starts_with("docs/") && !path.starts_with(DECISIONS) && **path != SUMMARY;
    let missing = pages.keys().filter(is_page).filter(|path| !listed.contains(**path));
    missing.map(|path| Finding::new(path, 1, "contents", format!("{SUMMARY} does not list this page"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        let exists = |path: &str| path == "docs/a.png" || files.iter().any(|(known, _)| known == path);
        check(&files, exists).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let page = "# A\n[b](b.md) ![a](a.png)\n[gone](gone.md)\n[up](../../x.md)\n## Two words\n[two](#two-words) [three](#three)";
        let files = [("docs/a.md", page), ("docs/b.md", "# B\n[a](a.md#a) [a](a.md#b)\n```text\n[no](link.md)\n```\n")];
        assert_eq!(
            found(&files),
            [
                "docs/a.md:3: link: (gone.md): docs/gone.md does not exist",
                "docs/a.md:4: link: (../../x.md): leads out of the repository",
                "docs/a.md:6: link: (#three): docs/a.md has no heading #three",
                "docs/b.md:2: link: (a.md#b): docs/a.md has no heading #b",
            ]
        );
    }

    #[test]
    fn a_page_that_the_contents_do_not_list_is_found() {
        let summary = "# Summary\n- [A](a.md)\n";
        let files = [
            ("docs/SUMMARY.md", summary),
            ("docs/a.md", "# A"),
            ("docs/b.md", "# B"),
            ("docs/decisions/0001-a.md", ""),
        ];
        assert_eq!(found(&files), ["docs/b.md:1: contents: docs/SUMMARY.md does not list this page"]);
    }
}
