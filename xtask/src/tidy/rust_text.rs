//! Rust source in views of equal length: only code, only comments, only what is compiled into the product.
//!
//! What a view leaves out is blank in it, so that offsets and lines mean the same in all of them.

use std::ops::Range;

/// A Rust file.
#[derive(Debug)]
pub(super) struct RustText {
    code: String,
    comments: String,
    product: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Comment,
    Literal,
}

impl RustText {
    /// Splits the text into its views.
    pub(super) fn new(text: &str) -> Self {
        let spans = spans(text);
        let mut code = text.as_bytes().to_vec();
        let mut comments = blank(text.as_bytes());
        for (kind, span) in spans {
            if kind == Kind::Comment {
                comments[span.clone()].copy_from_slice(&text.as_bytes()[span.clone()]);
            }
            let nothing = blank(&code[span.clone()]);
            code[span].copy_from_slice(&nothing);
        }
        let code = into_text(code);
        let product = without_tests(&code);
        RustText { code, comments: into_text(comments), product }
    }

    /// Without comments and without the contents of strings.
    pub(super) fn code(&self) -> &str {
        &self.code
    }

    /// Nothing but comments.
    pub(super) fn comments(&self) -> &str {
        &self.comments
    }

    /// The code without items that are only compiled for tests.
    pub(super) fn product(&self) -> &str {
        &self.product
    }

    /// The line of an offset, from 1 on.
    pub(super) fn line_of(&self, offset: usize) -> usize {
        1 + self.code[..offset].bytes().filter(|byte| *byte == b'\n').count()
    }
}

/// The offset after the bracket that closes the one at `open`; the end of the text when nothing closes it.
pub(super) fn end_of_block(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

/// Every identifier, keyword and number with its offset.
pub(super) fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    code.split(|c: char| !is_word(c)).filter_map(move |word| {
        let start = at;
        // The separator may be longer than a byte, so the next start is found from the text itself.
        at += word.len() + code[start + word.len()..].chars().next().map_or(0, char::len_utf8);
        (!word.is_empty()).then_some((start, word))
    })
}

/// Whether a character can be part of an identifier.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn blank(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }).collect()
}

fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("spans begin and end between characters")
}

/// Where comments and literals are.
fn spans(text: &str) -> Vec<(Kind, Range<usize>)> {
    let mut spans = Vec::new();
    let mut at = 0;
    let mut before = ' ';
    while let Some(c) = text[at..].chars().next() {
        let found = match c {
            '/' => comment_length(&text[at..]).map(|length| (Kind::Comment, length)),
            '"' => Some((Kind::Literal, string_length(&text[at..]))),
            '\'' => char_length(&text[at..]).map(|length| (Kind::Literal, length)),
            'r' | 'b' | 'c' if !is_word(before) => raw_string_length(&text[at..]).map(|length| (Kind::Literal, length)),
            _ => None,
        };
        let length = found.map_or(c.len_utf8(), |(_, length)| length);
        spans.extend(found.map(|(kind, length)| (kind, at..at + length)));
        before = c;
        at += length;
    }
    spans
}

fn comment_length(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    let mut depth = 0;
    let mut at = 0;
    while text.starts_with("/*") && at < text.len() {
        let here = &text.as_bytes()[at..];
        let step = if here.starts_with(b"/*") {
            depth += 1;
            2
        } else if here.starts_with(b"*/") {
            depth -= 1;
            2
        } else {
            1
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    (at > 0).then_some(at)
}

fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !is_escaped => return at + 1,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

/// The length of a character literal; `None` for a lifetime.
fn char_length(text: &str) -> Option<usize> {
    let mut inner = text.char_indices().skip(1);
    let (_, first) = inner.next()?;
    if first == '\\' {
        let (escaped, _) = inner.next()?;
        return text[escaped + 1..].find('\'').map(|end| escaped + 1 + end + 1);
    }
    let (at, second) = inner.next()?;
    (second == '\'').then_some(at + 1)
}

/// The length of `r"…"`, `br#"…"#` and their kin.
fn raw_string_length(text: &str) -> Option<usize> {
    let prefix = text.find('r').filter(|at| *at <= 1)? + 1;
    let hashes = text[prefix..].bytes().take_while(|byte| *byte == b'#').count();
    let open = prefix + hashes;
    if !text[open..].starts_with('"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let end = text[open + 1..].find(&close);
    Some(end.map_or(text.len(), |end| open + 1 + end + close.len()))
}

fn without_tests(code: &str) -> String {
    let mut product = code.as_bytes().to_vec();
    for (start, _) in code.match_indices("#[cfg(") {
        let attribute_end = end_of_block(code, start + 1);
        let attribute = &code[start..attribute_end];
        if words(attribute).any(|(_, word)| word == "test") && !attribute.contains("not(test") {
            let end = end_of_item(code, attribute_end);
            let nothing = blank(&product[start..end]);
            product[start..end].copy_from_slice(&nothing);
        }
    }
    into_text(product)
}

/// Where the item ends that begins at `start`: at its semicolon or after its block.
fn end_of_item(code: &str, start: usize) -> usize {
    match code[start..].find(['{', ';']).map(|at| start + at) {
        Some(at) if code[at..].starts_with('{') => end_of_block(code, at),
        Some(at) => at + 1,
        None => code.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_in_the_code() {
        let cases = [
            ("a // b", "a     "),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("a\"b", c)"#, "f(      , c)"),
            (r##"f(r#"a"b"#, c)"##, "f(        , c)"),
            (r#"f(br"\", c)"#, "f(     , c)"),
            ("f('\"', '\\'', b)", "f(   ,     , b)"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("\"é\" x", "     x"),
            ("r#type + bar", "r#type + bar"),
        ];
        for (text, code) in cases {
            assert_eq!(RustText::new(text).code(), code, "{text}");
        }
    }

    #[test]
    fn comments_have_a_view_of_their_own() {
        let rust = RustText::new("a(\"// no\"); // yes\n/* and */ b");
        assert_eq!(rust.comments().split_whitespace().collect::<Vec<_>>(), ["//", "yes", "/*", "and", "*/"]);
        assert_eq!(rust.line_of(rust.code().find('b').unwrap()), 2);
    }

    #[test]
    fn what_is_compiled_only_for_tests_is_not_the_product() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { { } }\n}\n#[cfg(test)]\nuse x::c;\n#[cfg(not(test))]\nfn d() {}\n";
        let rust = RustText::new(text);
        let left: Vec<&str> = words(rust.product()).map(|(_, word)| word).filter(|word| word.len() == 1).collect();
        assert_eq!(left, ["a", "d"]);
    }

    #[test]
    fn words_are_found_where_they_are() {
        assert_eq!(words("→ab::c_1").collect::<Vec<_>>(), [(3, "ab"), (7, "c_1")]);
    }

    #[test]
    fn a_text_that_ends_in_the_middle_is_no_reason_to_panic() {
        for text in ["\"a", "/* a", "r#\"a", "'", "'\\", "{", "#[cfg(test)]", "#[cfg(test"] {
            assert_eq!(RustText::new(text).code().len(), text.len(), "{text}");
        }
    }
}
