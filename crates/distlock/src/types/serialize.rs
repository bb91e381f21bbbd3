//! serde for the values that applications store or send: feature `serde`.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::types::key::Key;
use crate::types::token::FencingToken;

/// Text in formats that people read, because some readers of JSON round numbers of this size; a number in others.
impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => serializer.serialize_u64(self.get()),
        }
    }
}

/// Reads text or a number.
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.is_human_readable() {
            true => deserializer.deserialize_any(TokenVisitor),
            false => deserializer.deserialize_u64(TokenVisitor),
        }
    }
}

struct TokenVisitor;

impl Visitor<'_> for TokenVisitor {
    type Value = FencingToken;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fencing token")
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<FencingToken, E> {
        Ok(FencingToken::new(number))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<FencingToken, E> {
        FencingToken::try_from(number).map_err(E::custom)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FencingToken, E> {
        text.parse().map_err(E::custom)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Key::new(String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// A duration as a whole number of milliseconds.
pub(crate) mod millis {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    // By reference, as serde asks.
    #[allow(clippy::ref_option)]
    pub(crate) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_some(&u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::ErrorKind;
    use crate::types::event::LossReason;
    use crate::types::owner::Holder;

    #[test]
    fn a_token_is_text_in_json_and_is_read_from_text_and_numbers() {
        let token = FencingToken::new(1_763_000_000_000_001);
        assert_eq!(serde_json::to_string(&token).unwrap(), r#""1763000000000001""#);
        for text in [r#""1763000000000001""#, "1763000000000001"] {
            assert_eq!(serde_json::from_str::<FencingToken>(text).unwrap(), token);
        }
        for bad in ["-1", "1.5", r#""x""#, "null"] {
            assert!(serde_json::from_str::<FencingToken>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_is_checked_when_it_is_read() {
        assert_eq!(serde_json::from_str::<Key>(r#""a:1""#).unwrap(), Key::new("a:1").unwrap());
        assert!(serde_json::from_str::<Key>(r#""a\nb""#).is_err());
    }

    #[test]
    fn a_holder_has_its_times_in_milliseconds() {
        let holder = Holder::new(None, Some(FencingToken::new(9))).with_ttl_left(Some(Duration::from_millis(2_500)));
        let text = serde_json::to_string(&holder).unwrap();
        assert_eq!(text, r#"{"token":"9","ttl_left_ms":2500}"#);
        assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), holder);
    }

    #[test]
    fn reasons_and_kinds_have_the_words_of_logs_and_metrics() {
        assert_eq!(serde_json::to_value(LossReason::MaxHold).unwrap(), LossReason::MaxHold.as_str());
        assert_eq!(serde_json::to_value(ErrorKind::AlreadyHeld).unwrap(), ErrorKind::AlreadyHeld.as_str());
        assert_eq!(serde_json::from_str::<LossReason>(r#""expired""#).unwrap(), LossReason::Expired);
    }
}
