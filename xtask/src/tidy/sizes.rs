//! Sizes are a question rather than a wall.

use super::finding::Finding;
use super::functions::functions;
use super::rust_text::RustText;

/// What a reader can keep in view.
const LONGEST_FUNCTION: usize = 70;

/// What a reader can keep in mind.
const LONGEST_FILE: usize = 600;

/// Asks whether a long function or a long file is really one thing.
pub(super) fn ask(path: &str, rust: &RustText) -> Vec<Finding> {
    let mut questions = Vec::new();
    let lines = rust.code().lines().count();
    if lines > LONGEST_FILE {
        let message = format!("{lines} lines, more than {LONGEST_FILE}; is it one noun?");
        questions.push(Finding::new(path, 1, "size", message));
    }
    for function in functions(rust.code()) {
        let first = rust.line_of(function.start);
        let lines = rust.line_of(function.body.end) - first + 1;
        if lines > LONGEST_FUNCTION {
            let message =
                format!("{} has {lines} lines, more than {LONGEST_FUNCTION}; is it one thing?", function.name);
            questions.push(Finding::new(path, first, "size", message));
        }
    }
    questions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(function_lines: usize, file_lines: usize) -> Vec<String> {
        let function = format!("fn f() {{\n{}}}\n", "g();\n".repeat(function_lines - 2));
        let text = format!("{function}{}", "\n".repeat(file_lines - function_lines));
        ask("a.rs", &RustText::new(&text)).into_iter().map(|question| question.message).collect()
    }

    #[test]
    fn a_function_may_have_seventy_lines() {
        assert_eq!(of(70, 100), [""; 0]);
        assert!(of(71, 100)[0].starts_with("f has 71 lines"));
    }

    #[test]
    fn a_file_may_have_six_hundred_lines() {
        assert_eq!(of(3, 600), [""; 0]);
        assert!(of(3, 601)[0].starts_with("601 lines"));
    }
}
