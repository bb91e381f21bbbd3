//! Which modules of its own crate a file names.

use super::rust_text::{is_word, words};

/// A path from the crate's root, such as `backend::redis::Script`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Import {
    /// Where it is named.
    pub(super) offset: usize,
    /// Its parts.
    pub(super) path: Vec<String>,
}

/// Everything that is reached through `crate::` or `super::` in the file of `module`, `use` trees unfolded.
pub(super) fn imports(code: &str, module: &[&str]) -> Vec<Import> {
    let mut found = Vec::new();
    for (offset, word) in words(code) {
        // `a::super` is no path's beginning; `super::super` is handled from its first part on.
        if (word == "crate" || word == "super") && !code[..offset].trim_end().ends_with("::") {
            let mut paths = Vec::new();
            unfold(&code[offset..], &mut Vec::new(), &mut paths);
            let absolute = paths.iter().filter_map(|path| from_root(path, module));
            found.extend(absolute.map(|path| Import { offset, path }));
        }
    }
    found
}

/// The parts after `crate`, or those that `super` stands for in `module`; `None` when nothing is named.
fn from_root(path: &[&str], module: &[&str]) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|part| **part == "super").count();
    let (base, rest) =
        if ups > 0 { (&module[..module.len().saturating_sub(ups)], &path[ups..]) } else { (&module[..0], &path[1..]) };
    // `pub(super)` and `pub(crate)` name nothing.
    if rest.is_empty() {
        return None;
    }
    Some(base.iter().chain(rest).map(ToString::to_string).collect())
}

/// Adds every path of the `use` tree that `text` begins with, and returns how long that tree is.
fn unfold<'a>(text: &'a str, prefix: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) -> usize {
    let depth = prefix.len();
    let mut at = 0;
    loop {
        at += blanks(&text[at..]);
        let rest = &text[at..];
        let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if rest.starts_with('{') {
            at += unfold_group(rest, prefix, paths);
            break;
        }
        if length == 0 {
            // `*` stands for a part; `::<` and the like end the path.
            prefix.extend(rest.starts_with('*').then_some("*"));
            at += usize::from(rest.starts_with('*'));
            paths.push(prefix.clone());
            break;
        }
        prefix.push(&rest[..length]);
        at += length;
        let gap = blanks(&text[at..]);
        if !text[at + gap..].starts_with("::") {
            paths.push(prefix.clone());
            break;
        }
        at += gap + 2;
    }
    prefix.truncate(depth);
    at
}

fn unfold_group<'a>(text: &'a str, prefix: &mut Vec<&'a str>, paths: &mut Vec<Vec<&'a str>>) -> usize {
    let mut at = 1;
    loop {
        at += blanks(&text[at..]);
        if !text[at..].starts_with('}') {
            at += unfold(&text[at..], prefix, paths);
        }
        // Steps over `as other`.
        let Some(end) = text[at..].find([',', '}']) else { return text.len() };
        at += end + 1;
        if text[..at].ends_with('}') {
            return at;
        }
    }
}

fn blanks(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(code: &str, module: &[&str]) -> Vec<String> {
        imports(code, module).into_iter().map(|import| import.path.join("::")).collect()
    }

    #[test]
    fn trees_are_unfolded() {
        let code = "use crate::{clock::Moment, backend::{self as b, redis::{A, B}, *},\n key};";
        let expected =
            ["clock::Moment", "backend::self", "backend::redis::A", "backend::redis::B", "backend::*", "key"];
        assert_eq!(paths(code, &["x"]), expected);
    }

    #[test]
    fn paths_in_expressions_count_and_visibilities_do_not() {
        assert_eq!(paths("pub(crate) fn f() -> crate::key::Key { crate::a::b::<u8>() }", &["x"]), ["key::Key", "a::b"]);
        assert_eq!(paths("pub(super) struct S; pub (crate) use std::fmt;", &["x"]), [""; 0]);
    }

    #[test]
    fn super_is_what_it_means_in_that_file() {
        assert_eq!(paths("use super::Claim;", &["backend", "file"]), ["backend::Claim"]);
        assert_eq!(paths("use super::super::{locker, file};", &["backend", "file"]), ["locker", "file"]);
        assert_eq!(paths("use super::locker::Locker;", &["key"]), ["locker::Locker"]);
    }

    #[test]
    fn a_text_that_ends_in_the_middle_is_no_reason_to_panic() {
        for code in ["use crate::{a, b", "use crate::", "use crate::{", "crate::a::{{", "super::"] {
            assert!(paths(code, &[]).len() < 4, "{code}");
        }
    }
}
