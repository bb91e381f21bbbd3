//! `cargo xtask tidy`: who may import whom, and the habits that a compiler does not see.
//!
//! Every rule is a function of a path and a text. `tidy-allow(rule): why` in a comment on the same line or the line
//! before makes an exception.

mod assertions;
mod cycles;
mod finding;
mod functions;
mod glossary;
mod habits;
mod imports;
mod layers;
mod links;
mod rust_text;
mod sizes;
mod type_names;

use std::fs;
use std::path::Path;

use finding::Finding;
use rust_text::RustText;

/// Checks the whole tree, prints what was found and says whether all is in order.
pub(crate) fn run() -> bool {
    let mut files = Vec::new();
    collect(Path::new("."), &mut files);
    files.sort();
    let mut findings = Vec::new();
    let mut questions = Vec::new();
    findings.extend(cycles::check(&files));
    findings.extend(glossary::check(&files));
    findings.extend(links::check(&files, |path| Path::new(path).exists()));
    questions.extend(type_names::ask(&files));
    for (path, text) in &files {
        findings.extend(check(path, text));
        questions.extend(ask(path, text));
    }
    questions.iter().for_each(|question| println!("question: {question}"));
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    println!("tidy: {} files, {} findings, {} questions", files.len(), findings.len(), questions.len());
    findings.is_empty()
}

/// What must be repaired in one file.
fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = habits::in_any(path, text);
    if path.ends_with(".rs") {
        let rust = RustText::new(text);
        findings.extend(habits::in_rust(path, &rust));
        findings.extend(assertions::check(path, &rust));
        findings.extend(layers::check(path, &rust));
        findings.retain(|finding| !is_allowed(finding, &rust));
    }
    findings
}

/// What a maintainer should think about in one file.
fn ask(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let rust = RustText::new(text);
    sizes::ask(path, &rust).into_iter().filter(|question| !is_allowed(question, &rust)).collect()
}

fn is_allowed(finding: &Finding, rust: &RustText) -> bool {
    let mark = format!("tidy-allow({}): ", finding.rule);
    let nearby =
        rust.comments().lines().skip(finding.line.saturating_sub(2)).take(if finding.line > 1 { 2 } else { 1 });
    nearby.filter_map(|line| line.split_once(&mark)).any(|(_, reason)| !reason.trim().is_empty())
}

/// All text files below `directory` that a rule looks at, with paths as they are written in the findings.
fn collect(directory: &Path, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // Hidden directories and build output are not ours to judge; links would lead in circles.
        let is_foreign = name.starts_with('.') || name == "target" || name == "node_modules";
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !is_foreign => collect(&path, files),
            Ok(kind) if kind.is_file() => {
                let shown = path.strip_prefix(".").unwrap_or(&path).to_string_lossy().into_owned();
                if habits::is_looked_at(&shown) {
                    // What is not UTF-8 is no text, and no rule could read it.
                    files.extend(fs::read_to_string(&path).ok().map(|text| (shown, text)));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        check(path, text).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn an_exception_with_a_reason_is_respected_on_its_line_and_the_next() {
        let path = "crates/distlock/src/engines/redis/mod.rs";
        let call = "fn f() { h.spawn(g()) }";
        assert_eq!(rules(path, call), ["spawn"]);
        assert_eq!(rules(path, &format!("// tidy-allow(spawn): reads replies\n{call}")), [""; 0]);
        assert_eq!(rules(path, &format!("{call} // tidy-allow(spawn): reads replies")), [""; 0]);
    }

    #[test]
    fn an_exception_without_a_reason_for_another_rule_or_too_far_away_is_not() {
        let path = "crates/distlock/src/engines/redis/mod.rs";
        let call = "fn f() { h.spawn(g()) }";
        for mark in ["// tidy-allow(spawn):", "// tidy-allow(clock): why", "// tidy-allow(spawn): why\n"] {
            assert_eq!(rules(path, &format!("{mark}\n{call}")), ["spawn"], "{mark:?}");
        }
    }

    #[test]
    fn large_things_are_questions_and_no_failures() {
        let long = format!("fn f() {{\n{}}}\n", "    g();\n".repeat(80));
        assert_eq!(rules("crates/x/src/a.rs", &long), [""; 0]);
        assert_eq!(ask("crates/x/src/a.rs", &long).len(), 1);
    }
}
