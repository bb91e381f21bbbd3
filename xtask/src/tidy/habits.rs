//! Habits of this project that a compiler does not see.

use super::finding::Finding;
use super::rust_text::{RustText, words};

/// The marks of unfinished work.
const MARKS: &[&str] = &["TODO", "FIXME", "XXX"];

/// Whether any rule looks at such a file.
pub(super) fn is_looked_at(path: &str) -> bool {
    let is_text = [".rs", ".md", ".lua", ".toml"].iter().any(|ending| path.ends_with(ending));
    is_text || path.starts_with(DECISIONS)
}

/// The rules that need no knowledge of Rust.
pub(super) fn in_any(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if path.ends_with(".rs") || path.ends_with(".md") {
        findings.extend(white_space(path, text));
    }
    if !path.ends_with(".rs") {
        findings.extend(unfinished(path, text));
    }
    if path.ends_with(".lua") {
        findings.extend(undocumented_script(path, text));
    }
    findings.extend(odd_decision(path));
    findings
}

/// The rules for Rust.
pub(super) fn in_rust(path: &str, rust: &RustText) -> Vec<Finding> {
    let mut findings = unfinished(path, rust.comments());
    for (number, line) in (1..).zip(rust.code().lines()) {
        let dense: String = line.split_whitespace().collect();
        if dense.contains("#[ignore]") || dense.contains(",ignore)]") {
            let message = "a test is ignored without a reason; write #[ignore = \"why\"]";
            findings.push(Finding::new(path, number, "ignore", message));
        }
        if words(line).any(|(at, word)| word == "dbg" && line[at + 3..].starts_with('!')) {
            findings.push(Finding::new(path, number, "debug", "a debugging macro was left behind"));
        }
    }
    findings
}

fn white_space(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.split('\n')) {
        if line.ends_with(char::is_whitespace) {
            findings.push(Finding::new(path, number, "space", "white space at the end of the line"));
        }
        if line.contains('\t') {
            findings.push(Finding::new(path, number, "space", "a tab; use spaces"));
        }
    }
    findings
}

fn unfinished(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for (at, mark) in words(line).filter(|(_, word)| MARKS.contains(word)) {
            let reason = line[at + mark.len()..].strip_prefix('(').and_then(|rest| rest.split_once(')'));
            if reason.is_none_or(|(reason, _)| reason.trim().is_empty()) {
                let message = format!("{mark} without a reason; write {mark}(why it is not done now)");
                findings.push(Finding::new(path, number, "unfinished", message));
            }
        }
    }
    findings
}

fn undocumented_script(path: &str, text: &str) -> Option<Finding> {
    let first = text.lines().next().unwrap_or_default();
    let is_good = first.starts_with("--") && first.contains("KEYS") && first.contains("ARGV");
    let message = "the first line must be a comment that says what KEYS and ARGV are, and what is replied";
    (!is_good).then(|| Finding::new(path, 1, "script", message))
}

const DECISIONS: &str = "docs/decisions/";

fn odd_decision(path: &str) -> Option<Finding> {
    let name = path.strip_prefix(DECISIONS)?;
    let is_good = name.strip_suffix(".md").and_then(|name| name.split_once('-')).is_some_and(|(number, title)| {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        number.len() == 4
            && number.bytes().all(|b| b.is_ascii_digit())
            && !title.is_empty()
            && title.chars().all(is_plain)
    });
    (!is_good).then(|| Finding::new(path, 1, "decision", "a decision is named NNNN-title-in-lower-case.md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(path: &str, text: &str) -> Vec<&'static str> {
        in_any(path, text).iter().map(|finding| finding.rule).collect()
    }

    fn rust(text: &str) -> Vec<&'static str> {
        in_rust("a.rs", &RustText::new(text)).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn unfinished_work_needs_a_reason() {
        assert_eq!(rust("// TODO later\n/* FIXME() */ // XXX: hm"), ["unfinished"; 3]);
        assert_eq!(any("a.md", "TODO"), ["unfinished"]);
        assert_eq!(rust("// TODO(waits for the next release of x): y"), [""; 0]);
        assert_eq!(rust("let TODO = \"FIXME\"; // TODOS"), [""; 0]);
        assert_eq!(any("a.md", "TODO(no server to try it on)"), [""; 0]);
    }

    #[test]
    fn an_ignored_test_needs_a_reason() {
        assert_eq!(rust("#[test]\n#[ignore]\nfn t() {}"), ["ignore"]);
        assert_eq!(rust("#[cfg_attr(slow, ignore)]\nfn t() {}"), ["ignore"]);
        assert_eq!(rust("#[ignore = \"takes an hour\"]\nfn t() {} // #[ignore]"), [""; 0]);
    }

    #[test]
    fn debugging_macros_are_found() {
        assert_eq!(rust("let x = dbg!(y);"), ["debug"]);
        assert_eq!(rust("let dbg = my_dbg!(y); // dbg!(z)"), [""; 0]);
    }

    #[test]
    fn white_space_is_found_in_code_and_prose() {
        assert_eq!(any("a.rs", "fn f() {} \n\tg"), ["space", "space"]);
        assert_eq!(any("a.md", "two  \r\n"), ["space"]);
        assert_eq!(any("a.md", "fine\n\nfine\n"), [""; 0]);
        assert_eq!(any("a.toml", "fine \n"), [""; 0], "only in code and prose");
    }

    #[test]
    fn a_script_says_what_it_takes() {
        for bad in ["", "return 1\n", "-- KEYS: lock\n-- ARGV: id", "KEYS ARGV"] {
            assert_eq!(any("a.lua", bad), ["script"], "{bad:?}");
        }
        assert_eq!(any("a.lua", "-- KEYS: lock, queue; ARGV: attempt, ttl_ms; reply: token\nreturn 1\n"), [""; 0]);
    }

    #[test]
    fn a_decision_is_numbered_and_named() {
        for bad in ["why.md", "1-why.md", "0001.md", "0001-.md", "0001-Why Not.md", "0001-why.txt", "deep/0001-a.md"] {
            assert_eq!(any(&format!("{DECISIONS}{bad}"), ""), ["decision"], "{bad}");
        }
        assert_eq!(any("docs/decisions/0001-no-task-per-lock.md", ""), [""; 0]);
        assert_eq!(any("docs/why.md", ""), [""; 0]);
    }

    #[test]
    fn every_decision_is_looked_at_whatever_it_is_called() {
        assert!(is_looked_at("docs/decisions/notes.txt") && is_looked_at("a.lua") && is_looked_at("b/c.rs"));
        assert!(!is_looked_at("logo.png") && !is_looked_at("Cargo.lock"));
    }
}
