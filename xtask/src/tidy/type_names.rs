//! Type names of the library that stand for two things.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::layers::module_of;
use super::rust_text::{RustText, is_word};

/// Asks about every second definition of a type name outside of tests. `tidy-allow(name): why` makes an exception.
pub(super) fn ask(files: &[(String, String)]) -> Vec<Finding> {
    let mut first: BTreeMap<String, String> = BTreeMap::new();
    let mut questions = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| module_of(path).is_some()) {
        let rust = RustText::new(text);
        for (line, name) in definitions(rust.product()) {
            let Some(other) = first.get(name) else {
                first.insert(name.to_owned(), format!("{path}:{line}"));
                continue;
            };
            let message = format!("{name} is also a type at {other}; does one name stand for two things?");
            let question = Finding::new(path, line, "name", message);
            questions.extend((!super::is_allowed(&question, &rust)).then_some(question));
        }
    }
    questions
}

/// The types that a file defines at its top level, with their lines. Indented ones are associated types or local.
fn definitions(code: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(code.lines()).filter_map(|(number, line)| {
        let item = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        let (keyword, rest) = item.split_once(' ')?;
        let name = &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())];
        let is_type = ["struct", "enum", "union", "trait", "type"].contains(&keyword);
        (is_type && !name.is_empty()).then_some((number, name))
    })
}

#[cfg(test)]
mod tests {
    use super::super::layers::LIBRARY;
    use super::*;

    fn asked(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("{LIBRARY}{path}"), (*text).to_owned())).collect();
        ask(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_that_two_files_define_is_asked_about() {
        for second in ["struct Session;", "pub(crate) enum Session {", "pub trait Session {}", "type Session<T> = u8;"]
        {
            let found = asked(&[("a.rs", "pub struct Session(u8);"), ("b.rs", second)]);
            let message =
                "name: Session is also a type at crates/distlock/src/a.rs:1; does one name stand for two things?";
            assert_eq!(found, [format!("{LIBRARY}b.rs:1: {message}")], "{second}");
        }
    }

    #[test]
    fn one_definition_an_exception_a_test_and_an_associated_type_are_not() {
        let cases = [
            "struct Sessions;",
            "// tidy-allow(name): the twin without the feature\nstruct Session;",
            "#[cfg(test)]\nmod tests {\n}\n#[cfg(test)]\nstruct Session;",
            "impl X for Y {\n    type Session = u8;\n}",
            "fn session(session: Session) {}\n// struct Session;",
        ];
        for second in cases {
            assert_eq!(asked(&[("a.rs", "struct Session;"), ("b.rs", second)]), [""; 0], "{second}");
        }
        assert_eq!(asked(&[("a.rs", "struct Session;"), ("a/tests.rs", "struct Session;")]), [""; 0]);
    }
}
