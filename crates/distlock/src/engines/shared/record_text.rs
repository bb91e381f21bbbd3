//! Records of owners as engines store them: JSON on one line.

use crate::types::error::{Error, ErrorKind, Result};
use crate::types::owner::Record;
use crate::types::record_json::write_json;

/// The longest record in bytes.
const MAX_RECORD_BYTES: usize = 3 * 1024;

/// Room for a record of ordinary length.
const RECORD_BYTES: usize = 192;

/// Returns the record as it is stored.
pub(crate) fn write_record(record: &Record) -> Result<String> {
    let mut text = Vec::with_capacity(RECORD_BYTES);
    append_record(record, &mut text)?;
    String::from_utf8(text).map_err(|error| refuse(error.to_string()))
}

/// Appends the record to `out` as it is stored. If it is too long, `out` stays as it was.
pub(crate) fn append_record(record: &Record, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    write_json(record, out);
    let bytes = out.len() - start;
    if bytes > MAX_RECORD_BYTES {
        out.truncate(start);
        return Err(refuse(format_args!("{bytes} bytes, at most {MAX_RECORD_BYTES} are stored")));
    }
    Ok(())
}

fn refuse(problem: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("the owner's record: {problem}"))
}

/// Reads what [`write_record`] wrote; `None` for anything else.
pub(crate) fn read_record(text: &str) -> Option<Record> {
    if text.len() > MAX_RECORD_BYTES {
        return None;
    }
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::types::owner::{OwnerId, Process};

    #[test]
    fn a_record_is_appended_whole_or_not_at_all() {
        let owner = OwnerId::new("req-7").unwrap();
        let short = Record::new(owner, Process::current(), Some("\"eod\" {}".into()), SystemTime::now());
        let mut out = b"before ".to_vec();
        append_record(&short, &mut out).unwrap();
        assert_eq!(out, format!("before {}", serde_json::to_string(&short).unwrap()).as_bytes());
        let process = Process { host: "h".repeat(MAX_RECORD_BYTES), pid: 1, user: "u".into() };
        let long = Record { process: Arc::new(process), ..short };
        let before = out.clone();
        assert_eq!(append_record(&long, &mut out).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(out, before);
        assert!(write_record(&long).is_err());
    }
}
