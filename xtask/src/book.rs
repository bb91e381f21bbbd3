//! `cargo xtask book`: the pages of the repository as a book, by mdBook.
//!
//! The pages are copied to target/book/src under the paths that they have in the repository, so that their links lead to
//! the same files in both.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::cmd::Cmd;
use crate::markdown::{links, resolve, title};

const SUMMARY: &str = "docs/SUMMARY.md";
const DECISIONS: &str = "docs/decisions";
/// As in book.toml.
const SOURCE: &str = "target/book/src";
const INDEX: &str = "target/book/html/index.html";

/// Collects the pages and builds the book. Returns whether that succeeded. Without mdBook the book is skipped by name, as
/// other checks are whose tools are missing.
pub(crate) fn run() -> bool {
    if let Err(error) = collect() {
        eprintln!("{SOURCE}: {error}");
        return false;
    }
    if !Cmd::new("mdbook").args(&["--version"]).succeeds_silently() {
        println!("skipped: book: mdBook is not installed (cargo install --locked mdbook); its pages are in {SOURCE}");
        return true;
    }
    let built = Cmd::new("mdbook").args(&["build"]).succeeds();
    if built {
        println!("{INDEX}");
    }
    built
}

/// Copies the listed pages and all files to which they lead, and writes the table of contents.
fn collect() -> io::Result<()> {
    let contents = contents(&fs::read_to_string(SUMMARY)?, &decisions()?);
    if Path::new(SOURCE).exists() {
        fs::remove_dir_all(SOURCE)?;
    }
    let pages: Vec<String> = links(&contents).map(|(_, link)| link).collect();
    let mut files: BTreeSet<String> = pages.iter().cloned().collect();
    for page in &pages {
        files.extend(links(&fs::read_to_string(page)?).filter_map(|(_, link)| resolve(page, &link)));
    }
    for file in files.iter().filter(|file| Path::new(file).is_file()) {
        let copy = Path::new(SOURCE).join(file);
        fs::create_dir_all(copy.parent().unwrap_or(Path::new(SOURCE)))?;
        fs::copy(file, copy)?;
    }
    fs::write(Path::new(SOURCE).join("SUMMARY.md"), contents)
}

/// Returns the pages of decisions, each with its title.
fn decisions() -> io::Result<Vec<(String, String)>> {
    let mut decisions = Vec::new();
    for entry in fs::read_dir(DECISIONS)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = format!("{DECISIONS}/{name}");
        let title = title(&fs::read_to_string(&path)?).unwrap_or(name);
        decisions.push((path, title));
    }
    decisions.sort();
    Ok(decisions)
}

/// Returns the table of contents with paths from the root, and the decisions at its end.
fn contents(summary: &str, decisions: &[(String, String)]) -> String {
    let mut contents = String::new();
    for line in summary.lines() {
        let place =
            line.split_once("](").and_then(|(label, rest)| Some((label, resolve(SUMMARY, rest.strip_suffix(')')?)?)));
        contents += &place.map_or_else(|| line.to_owned(), |(label, path)| format!("{label}]({path})"));
        contents.push('\n');
    }
    contents += "\n# Decisions\n\n";
    for (path, title) in decisions {
        contents += &format!("- [{title}]({path})\n");
    }
    contents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contents_have_paths_from_the_root_and_the_decisions() {
        let summary =
            "# Summary\n\n[distlock](../README.md)\n\n- [Engines](choosing.md)\n  - [Redis](backends/redis.md)\n";
        let decisions = [("docs/decisions/0001-a.md".to_owned(), "One".to_owned())];
        assert_eq!(
            contents(summary, &decisions),
            "# Summary\n\n[distlock](README.md)\n\n- [Engines](docs/choosing.md)\n  - [Redis](docs/backends/redis.md)\n\n\
             # Decisions\n\n- [One](docs/decisions/0001-a.md)\n"
        );
    }
}
