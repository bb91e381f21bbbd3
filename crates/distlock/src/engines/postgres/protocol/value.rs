//! Holders as the tables store them. Rows may have been edited by hand, so they are read strictly.

use std::sync::Arc;

use crate::engines::postgres::protocol::time::from_micros;
use crate::engines::shared::record_text::read_record;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// Returns a holder from the columns of its row. A row that is not as this engine writes it has no record.
pub(in crate::engines) fn holder(
    token: Option<i64>,
    left_us: Option<i64>,
    held_us: Option<i64>,
    record: Option<&str>,
) -> Holder {
    Holder::new(record.and_then(read_record).map(Arc::new), token.and_then(read_token))
        .with_ttl_left(left_us.and_then(from_micros))
        .with_held_for(held_us.and_then(from_micros))
}

/// Reads a token; `None` when it is negative.
pub(in crate::engines) fn read_token(token: i64) -> Option<FencingToken> {
    u64::try_from(token).ok().map(FencingToken::new)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::engines::shared::record_text::write_record;
    use crate::types::owner::{OwnerId, Process, Record};

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
}
