//! The files that the glossary names.

use super::finding::Finding;
use super::layers::LIBRARY;

const GLOSSARY: &str = "docs/glossary.md";

/// Checks that every path in backticks that ends in `.rs` or `/` exists in the library.
pub(super) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let Some((_, text)) = files.iter().find(|(path, _)| path == GLOSSARY) else { return Vec::new() };
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for path in line.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs") || word.ends_with('/')) {
            let place = format!("{LIBRARY}{path}");
            let is_there =
                files.iter().any(|(known, _)| *known == place || (path.ends_with('/') && known.starts_with(&place)));
            if !is_there {
                findings.push(Finding::new(GLOSSARY, number, "glossary", format!("{place} does not exist")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_does_not_exist_is_found() {
        let page = "| lock | `Key` in `types/key.rs` |\n| gone | `types/gone.rs`, `engines/zookeeper/` |\n| folder | `types/` |";
        let files = [(GLOSSARY.to_owned(), page.to_owned()), (format!("{LIBRARY}types/key.rs"), String::new())];
        let found: Vec<_> = check(&files).into_iter().map(|finding| (finding.line, finding.message)).collect();
        let missing = |path: &str| (2, format!("{LIBRARY}{path} does not exist"));
        assert_eq!(found, [missing("types/gone.rs"), missing("engines/zookeeper/")]);
    }
}
