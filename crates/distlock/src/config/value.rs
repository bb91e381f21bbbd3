//! A value of any source.

use std::ffi::OsString;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// A value before its field is known.
///
/// serde's own error about a wrong type repeats the value (`invalid type: string "…"`), and the value may be a
/// password. So every type is accepted here, and the accessors return faults that do not repeat the value.
pub(crate) enum Value {
    /// `null` and the like: the field counts as absent.
    Absent,
    Text(OsString),
    Number(f64),
    List(Vec<Value>),
    Other,
}

impl Value {
    pub(crate) fn text(self) -> Result<String, String> {
        match self {
            Value::Text(text) => text.into_string().map_err(|_| "not UTF-8".into()),
            _ => Err("not a text".into()),
        }
    }

    pub(crate) fn os_text(self) -> Result<OsString, String> {
        match self {
            Value::Text(text) => Ok(text),
            _ => Err("not a text".into()),
        }
    }

    /// Returns a list, or text with commas.
    pub(crate) fn list(self) -> Result<Vec<String>, String> {
        match self {
            Value::List(items) => items.into_iter().map(Value::text).collect(),
            Value::Text(_) => Ok(self.text()?.split(',').map(str::to_owned).collect()),
            _ => Err("not a list of texts".into()),
        }
    }

    pub(crate) fn count(self) -> Result<u32, String> {
        let count = match self {
            Value::Text(text) => text.to_str().and_then(|text| text.parse().ok()),
            // In range and whole, so the cast loses nothing.
            Value::Number(n) if n.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&n) => Some(n as u32),
            _ => None,
        };
        count.ok_or_else(|| format!("not a whole number from 0 to {}", u32::MAX))
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.into()))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number as f64))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Value::Number(number))
    }
    fn visit_i128<E>(self, _: i128) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_u128<E>(self, _: u128) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_bytes<E>(self, _: &[u8]) -> Result<Value, E> {
        Ok(Value::Other)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Absent)
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Absent)
    }
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Value, D::Error> {
        Value::deserialize(inner)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Value::Other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_a_whole_number_of_32_bits_in_text_or_digits() {
        assert_eq!(Value::Text("7".into()).count(), Ok(7));
        assert_eq!(Value::Number(4_294_967_295.0).count(), Ok(u32::MAX));
        for wrong in [Value::Text("-1".into()), Value::Number(-1.0), Value::Number(1.5), Value::Number(4_294_967_296.0)]
        {
            assert_eq!(wrong.count().unwrap_err(), "not a whole number from 0 to 4294967295");
        }
        assert!(Value::Other.count().is_err());
    }

    #[test]
    fn a_list_is_also_text_with_commas() {
        assert_eq!(Value::Text("a,b:1".into()).list().unwrap(), ["a", "b:1"]);
        assert_eq!(Value::List(vec![Value::Text("a".into())]).list().unwrap(), ["a"]);
        assert!(Value::List(vec![Value::Number(1.0)]).list().is_err());
        assert!(Value::Number(1.0).list().is_err());
    }
}
