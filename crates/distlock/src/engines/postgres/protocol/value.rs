//! Records and modes as the tables store them. Rows may have been edited by hand, so they are read strictly.

use std::sync::Arc;

use crate::engines::postgres::protocol::time::from_micros;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::mode::Mode;
use crate::types::owner::{Holder, Record};
use crate::types::token::FencingToken;

/// The longest record in bytes.
const MAX_RECORD_BYTES: usize = 3 * 1024;

/// Returns the record as it is stored: JSON on one line.
pub(in crate::engines) fn write_record(record: &Record) -> Result<String> {
    let failed = |problem: String| Error::new(ErrorKind::InvalidInput, format!("the owner's record: {problem}"));
    let text = serde_json::to_string(record).map_err(|error| failed(error.to_string()))?;
    if text.len() > MAX_RECORD_BYTES {
        return Err(failed(format!("{} bytes, at most {MAX_RECORD_BYTES} are stored", text.len())));
    }
    Ok(text)
}

/// Reads what [`write_record`] wrote; `None` for anything else.
pub(in crate::engines) fn read_record(text: &str) -> Option<Arc<Record>> {
    if text.len() > MAX_RECORD_BYTES {
        return None;
    }
    serde_json::from_str(text).ok().map(Arc::new)
}

/// Returns a holder from the columns of its row. A row that is not as this engine writes it has no record.
pub(in crate::engines) fn holder(
    token: Option<i64>,
    left_us: Option<i64>,
    held_us: Option<i64>,
    record: Option<&str>,
) -> Holder {
    Holder::new(record.and_then(read_record), token.and_then(read_token))
        .with_ttl_left(left_us.and_then(from_micros))
        .with_held_for(held_us.and_then(from_micros))
}

/// Reads a token; `None` when it is negative.
pub(in crate::engines) fn read_token(token: i64) -> Option<FencingToken> {
    u64::try_from(token).ok().map(FencingToken::new)
}

/// Returns the mode of a claim as the schema writes it. Claims with the same text may hold the lock together, unless it
/// is `x`.
pub(in crate::engines) fn mode_text(record: &Record) -> String {
    match record.mode {
        Mode::Exclusive => "x".into(),
        Mode::Shared => "s".into(),
        Mode::Slot { of } => format!("p{of}"),
        Mode::Reentrant => record.owner.as_str().bytes().fold("r".into(), |mode, byte| format!("{mode}{byte:02x}")),
    }
}

/// Returns the mode that a [`mode_text`] means.
pub(in crate::engines) fn mode_of(text: &str) -> Option<Mode> {
    match text.split_at_checked(1)? {
        ("x", "") => Some(Mode::Exclusive),
        ("s", "") => Some(Mode::Shared),
        ("p", of) => Some(Mode::Slot { of: of.parse().ok()? }),
        ("r", _) => Some(Mode::Reentrant),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::types::owner::{OwnerId, Process};

    fn record() -> Record {
        Record::new(OwnerId::new("req-7").unwrap(), Process::current(), Some("\"eod\" {}".into()), SystemTime::now())
    }

    #[test]
    fn a_holder_is_read_back_and_a_row_of_strangers_names_no_owner() {
        let json = write_record(&record()).unwrap();
        let found = holder(Some(7), Some(1_000_000), Some(2_000_000), Some(&json));
        assert_eq!(
            found.record.as_deref(),
            Some(&record())
                .map(|it| Record { since_ms: found.record.as_ref().unwrap().since_ms, ..it.clone() })
                .as_ref()
        );
        assert_eq!((found.token, found.ttl_left), (Some(FencingToken::new(7)), Some(Duration::from_secs(1))));
        for hostile in
            ["", "{}", "null", &json.replace("req-7", "two\\nlines"), &json.replace("req-7", &"x".repeat(4000))]
        {
            assert_eq!(holder(Some(-1), Some(-1), None, Some(hostile)), Holder::new(None, None), "{hostile}");
        }
    }

    #[test]
    fn a_word_says_the_mode_and_whose_entry_it_is() {
        let modes = [Mode::Exclusive, Mode::Shared, Mode::Reentrant, Mode::Slot { of: 12 }];
        let words = modes.map(|mode| mode_text(&record().with_mode(mode)));
        assert_eq!(words, ["x", "s", "r7265712d37", "p12"]);
        assert_eq!(words.map(|word| mode_of(&word)), modes.map(Some));
        assert!(["", "y", "sx", "p", "p-1"].iter().all(|word| mode_of(word).is_none()));
    }
}
