//! The functions of a file.

use std::ops::Range;

use super::rust_text::{end_of_block, is_word, words};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function<'a> {
    /// Its name; a macro's variable begins with `$`.
    pub(super) name: &'a str,
    /// Where the keyword is.
    pub(super) start: usize,
    /// Its block, braces included.
    pub(super) body: Range<usize>,
}

/// All functions with bodies, in the order in which they begin.
pub(super) fn functions(code: &str) -> impl Iterator<Item = Function<'_>> {
    words(code).filter(|(_, word)| *word == "fn").filter_map(move |(start, _)| function_at(code, start))
}

fn function_at(code: &str, start: usize) -> Option<Function<'_>> {
    let after = code[start + 2..].trim_start();
    let length = after.find(|c: char| !is_word(c) && c != '$').unwrap_or(after.len());
    let name = &after[..length];
    // `fn(u32)` is a type.
    let open = if name.is_empty() { None } else { body_start(code, start) }?;
    Some(Function { name, start, body: open..end_of_block(code, open) })
}

/// The brace after the signature; `None` when a semicolon comes first.
fn body_start(code: &str, start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += code[at..].find(['(', '[', '{', ';'])?;
        match code.as_bytes()[at] {
            b'{' => return Some(at),
            b';' => return None,
            // `[u8; 4]` has a semicolon that ends nothing.
            _ => at = end_of_block(code, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_found_and_declarations_and_types_are_not() {
        let code = "trait T { fn no(&self) -> [u8; 4]; fn yes(x: [u8; 2]) -> fn(u32) { { x } } } fn last() {}";
        let found: Vec<(&str, &str)> = functions(code).map(|f| (f.name, &code[f.body])).collect();
        assert_eq!(found, [("yes", "{ { x } }"), ("last", "{}")]);
    }

    #[test]
    fn a_name_that_a_macro_gives_is_marked() {
        assert_eq!(functions("fn $name() {}").next().map(|f| f.name), Some("$name"));
    }
}
