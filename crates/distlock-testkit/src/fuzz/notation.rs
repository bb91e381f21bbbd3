//! An input as a line of text: printable characters stay, the rest is escaped as in a Rust byte string.

/// Parses a line of a corpus.
///
/// # Panics
/// When the line has an invalid escape.
pub(super) fn read_line(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match rest.next() {
            Some('n') => bytes.push(b'\n'),
            Some('r') => bytes.push(b'\r'),
            Some('t') => bytes.push(b'\t'),
            Some('\\') => bytes.push(b'\\'),
            Some('x') => {
                let digits: String = rest.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("\\x{digits} in {line}")));
            }
            other => panic!("\\{other:?} in {line}"),
        }
    }
    bytes
}

/// Formats an input as a line of a corpus.
pub(super) fn write_line(bytes: &[u8]) -> String {
    let mut line = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => line.push_str("\\n"),
                '\r' => line.push_str("\\r"),
                '\t' => line.push_str("\\t"),
                '\\' => line.push_str("\\\\"),
                // A line that begins with `#` would be a comment.
                '#' => line.push_str("\\x23"),
                c if c.is_control() => c.encode_utf8(&mut [0; 4]).bytes().for_each(|b| push_hex(&mut line, b)),
                c => line.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_hex(&mut line, *byte));
    }
    line
}

fn push_hex(line: &mut String, byte: u8) {
    line.push_str(&format!("\\x{byte:02x}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_is_a_line_and_comes_back() {
        for input in [&b""[..], b"a b", b"#\\ \n\r\t\0", b"\xff\xfe", "\u{85}日本".as_bytes()] {
            let line = write_line(input);
            assert!(!line.contains(char::is_control) && !line.starts_with('#'), "{line}");
            assert_eq!(read_line(&line), input);
        }
    }
}
