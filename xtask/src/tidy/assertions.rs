//! A test that asserts nothing is green and empty.

use super::finding::Finding;
use super::functions::{Function, functions};
use super::rust_text::{RustText, end_of_block, words};

/// How the words begin that can make a test fail on purpose.
const ASSERTING: &[&str] =
    &["assert", "check_", "expect_", "verify", "unwrap_err", "should_panic", "insta", "debug_assert"];

/// Macros that count as assertions; their names alone would also be ordinary words.
const ASSERTING_MACROS: &[&str] = &["panic!", "matches!", "unreachable!"];

/// Finds test functions without an assertion.
pub(super) fn check(path: &str, rust: &RustText) -> Vec<Finding> {
    let code = rust.code();
    let tests = test_attributes(code).filter_map(|(start, end)| {
        let function = functions(&code[end..]).next()?;
        Some((start, Function { start: end + function.start, body: shifted(&function.body, end), ..function }))
    });
    // A function that a macro writes calls what the macro was given: it cannot be judged here.
    let silent =
        tests.filter(|(start, f)| !f.name.starts_with('$') && !asserts(&code[item_start(code, *start)..f.body.end]));
    silent
        .map(|(_, function)| {
            let message = format!("the test {} asserts nothing; it would pass whatever the code does", function.name);
            Finding::new(path, rust.line_of(function.start), "assertion", message)
        })
        .collect()
}

fn shifted(range: &std::ops::Range<usize>, by: usize) -> std::ops::Range<usize> {
    range.start + by..range.end + by
}

/// `#[test]`, `#[tokio::test(…)]` and their kin: where they begin and end.
fn test_attributes(code: &str) -> impl Iterator<Item = (usize, usize)> {
    code.match_indices("#[").map(|(start, _)| (start, end_of_block(code, start + 1))).filter(|(start, end)| {
        let path = code[start + 2..*end].split(['(', ']', '=']).next().unwrap_or_default();
        path.trim().rsplit("::").next() == Some("test")
    })
}

/// Where the attributes begin that stand before the one at `at`.
fn item_start(code: &str, at: usize) -> usize {
    code[..at].rfind(['{', '}', ';']).map_or(0, |end| end + 1)
}

fn asserts(code: &str) -> bool {
    let calls = words(code).any(|(_, word)| ASSERTING.iter().any(|beginning| word.starts_with(beginning)));
    calls || ASSERTING_MACROS.iter().any(|name| code.contains(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        check("a.rs", &RustText::new(text)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_test_that_only_calls_is_found() {
        for attribute in ["#[test]", "#[tokio::test]", "#[tokio::test(start_paused = true)]"] {
            let text =
                format!("{attribute}\nasync fn silent() {{ f().await.unwrap(); /* assert!(true) */ g(\"assert\"); }}");
            let found = names(&text);
            assert_eq!(found.len(), 1, "{attribute}");
            assert!(found[0].starts_with("the test silent"), "{found:?}");
        }
    }

    #[test]
    fn a_test_that_can_fail_on_purpose_passes() {
        let bodies = [
            "assert_eq!(a, b);",
            "f().unwrap_err();",
            "f().expect_err();",
            "if x { panic!() }",
            "check_history(&h);",
            "expect_lost(g).await;",
            "history.verify();",
            "insta::assert_snapshot!(x);",
        ];
        for body in bodies {
            assert_eq!(names(&format!("#[test]\nfn t() {{ {body} }}")), [""; 0], "{body}");
        }
    }

    #[test]
    fn a_test_that_must_panic_passes_on_either_side_of_the_attribute() {
        assert_eq!(names("#[test]\n#[should_panic]\nfn t() { f() }"), [""; 0]);
        assert_eq!(names("fn a() {}\n#[should_panic]\n#[test]\nfn t() { f() }"), [""; 0]);
        assert_eq!(names("#[should_panic]\n#[test]\nfn a() {}\n#[test]\nfn b() {}").len(), 1, "only its own");
    }

    #[test]
    fn only_tests_are_asked_and_macros_are_left_alone() {
        assert_eq!(names("fn helper() { f() }"), [""; 0]);
        assert_eq!(names("macro_rules! m { () => { #[test] fn $case() { run() } } }"), [""; 0]);
        assert_eq!(names("#[cfg(test)] fn helper() { f() }"), [""; 0]);
    }
}
