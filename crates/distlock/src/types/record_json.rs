//! A record as JSON, written by hand: a claim writes one, and most of it is the same each time.

use std::cell::RefCell;
use std::sync::Arc;

use crate::types::mode::Mode;
use crate::types::owner::{Process, Record};

thread_local! {
    /// The process of the last record that this thread wrote, and its part of the JSON.
    static LAST: RefCell<Option<(Arc<Process>, Vec<u8>)>> = const { RefCell::new(None) };
}

/// Appends `record` as JSON on one line, byte by byte as serde writes it.
pub(crate) fn write_json(record: &Record, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"owner\":");
    write_text(record.owner.as_str(), out);
    write_process(&record.process, out);
    if let Some(label) = &record.label {
        out.extend_from_slice(b",\"label\":");
        write_text(label, out);
    }
    match record.mode {
        Mode::Exclusive => {}
        Mode::Shared => out.extend_from_slice(b",\"mode\":\"shared\""),
        Mode::Reentrant => out.extend_from_slice(b",\"mode\":\"reentrant\""),
        Mode::Slot { of } => {
            out.extend_from_slice(b",\"mode\":{\"slot\":{\"of\":");
            write_number(of.into(), out);
            out.extend_from_slice(b"}}");
        }
    }
    if record.resizes {
        out.extend_from_slice(b",\"resizes\":true");
    }
    if record.lapses {
        out.extend_from_slice(b",\"lapses\":true");
    }
    out.extend_from_slice(b",\"since_ms\":");
    write_number(record.since_ms, out);
    out.push(b'}');
}

fn write_process(process: &Arc<Process>, out: &mut Vec<u8>) {
    LAST.with_borrow_mut(|last| match last {
        Some((of, json)) if Arc::ptr_eq(of, process) || **of == **process => out.extend_from_slice(json),
        _ => {
            let start = out.len();
            out.extend_from_slice(b",\"host\":");
            write_text(&process.host, out);
            out.extend_from_slice(b",\"pid\":");
            write_number(process.pid.into(), out);
            out.extend_from_slice(b",\"user\":");
            write_text(&process.user, out);
            *last = Some((process.clone(), out[start..].to_vec()));
        }
    });
}

pub(crate) fn write_text(text: &str, out: &mut Vec<u8>) {
    // All bytes, without an early end: so the compiler looks at many at a time.
    let is_plain = text.bytes().fold(true, |all, byte| all & (byte >= b' ') & (byte != b'"') & (byte != b'\\'));
    if is_plain {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        // Writing text to memory cannot fail.
        let _ = serde_json::to_writer(out, text);
    }
}

/// Appends a number in decimal digits.
pub(crate) fn write_number(mut number: u64, out: &mut Vec<u8>) {
    // As many digits as the highest number has.
    let (mut digits, mut first) = ([0; 20], 20);
    // Two at a time: a division by a hundred costs as much as one by ten.
    while number >= 100 {
        let two = (number % 100) as u8;
        first -= 2;
        (digits[first], digits[first + 1]) = (b'0' + two / 10, b'0' + two % 10);
        number /= 100;
    }
    first -= 1;
    digits[first] = b'0' + (number % 10) as u8;
    if number >= 10 {
        first -= 1;
        digits[first] = b'0' + (number / 10) as u8;
    }
    out.extend_from_slice(&digits[first..]);
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::types::owner::OwnerId;

    fn json_of(record: &Record) -> String {
        let mut out = b"before ".to_vec();
        write_json(record, &mut out);
        String::from_utf8(out).unwrap().strip_prefix("before ").unwrap().to_owned()
    }

    #[test]
    fn it_is_what_serde_writes() {
        let texts = ["o", "\"q\\u\"", "\u{e9}\u{1f512}/", "a\u{2028}b", "</script>", &"\\".repeat(256)];
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Reentrant, Mode::Slot { of: 1 }, Mode::Slot { of: 1024 }];
        let times = [0, 10, 1_763_000_000_123, u64::MAX];
        for (number, text) in texts.iter().enumerate() {
            let pid = u32::MAX >> number;
            let process = Arc::new(Process { host: text.repeat(number), pid, user: texts[number / 2].to_owned() });
            let kinds = [None, Some(*text)].into_iter().flat_map(|label| modes.map(|mode| (label, mode)));
            for ((label, mode), since_ms) in kinds.zip(times.into_iter().cycle()) {
                let owner = OwnerId::new(text).unwrap();
                let record = Record::new(owner, process.clone(), label.map(Arc::from), SystemTime::UNIX_EPOCH);
                let record =
                    Record { since_ms, resizes: since_ms > 0, lapses: since_ms > 10, ..record.with_mode(mode) };
                assert_eq!(json_of(&record), serde_json::to_string(&record).unwrap());
            }
        }
    }

    #[test]
    fn each_process_is_written_as_itself() {
        let process = |pid| Arc::new(Process { host: "h".into(), pid, user: "u".into() });
        let record = |process: &Arc<Process>| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_millis(7);
            Record::new(OwnerId::new("o").unwrap(), process.clone(), None, now)
        };
        let (parent, child) = (process(1), process(2));
        for of in [&parent, &child, &process(2), &parent] {
            let expected = format!(r#"{{"owner":"o","host":"h","pid":{},"user":"u","since_ms":7}}"#, of.pid);
            assert_eq!(json_of(&record(of)), expected);
        }
    }

    #[test]
    fn fuzz_any_text_is_written_as_serde_writes_it() {
        distlock_testkit::fuzz("texts.txt", |input| {
            let text = String::from_utf8_lossy(input);
            let process = Arc::new(Process { host: text.to_string(), pid: 1, user: text.to_string() });
            let owner = OwnerId::new(&*text).unwrap_or_else(|_| OwnerId::random());
            let record = Record::new(owner, process, Some((*text).into()), SystemTime::UNIX_EPOCH);
            assert_eq!(json_of(&record), serde_json::to_string(&record).unwrap());
        });
    }
}
