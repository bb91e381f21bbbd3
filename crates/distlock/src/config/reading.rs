//! Deserializing a configuration with serde.
//!
//! Written by hand: the errors of a derived implementation repeat values, and those of a format may print the line.
//! So deserializing does not fail, and the error is reported when the configuration is used.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::config::fields::Config;
use crate::config::value::Value;
use crate::engines::shared::host::is_plain_name;
#[cfg(feature = "config")]
use crate::types::error::{Error, ErrorKind};

#[cfg(feature = "config")]
impl Config {
    /// Reads TOML: the fields of this type by their names, and nothing else.
    ///
    /// ```
    /// use distlock::Config;
    ///
    /// let config = Config::from_toml("url = 'redis://db'\ndefault_ttl = '30s'\nprefix = 'shop:'")?;
    /// assert_eq!(config.prefix.as_deref(), Some("shop:"));
    /// assert!(Config::from_toml("prefixx = 'shop:'").is_err()); // says which line and column
    /// # Ok::<(), distlock::Error>(())
    /// ```
    ///
    /// # Errors
    /// Kind `Config` with the line, the column and what is wrong; the text itself is not repeated.
    pub fn from_toml(text: &str) -> crate::types::error::Result<Config> {
        toml::from_str(text).map(|Strict(config)| config).map_err(|error| {
            // Neither its `Display` nor the error as the source: both print the line, which may contain a password.
            let problem = error.message();
            match error.span().and_then(|span| text.get(..span.start)) {
                Some(before) => {
                    let line = before.matches('\n').count() + 1;
                    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
                    Error::new(ErrorKind::Config, format!("line {line}, column {column}: {problem}"))
                }
                None => Error::new(ErrorKind::Config, problem.to_owned()),
            }
        })
    }
}

impl<'de> Deserialize<'de> for Config {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
        deserializer.deserialize_any(Fields { is_strict: false })
    }
}

/// A configuration whose errors are returned while it is read, with their place. For callers that do not show the
/// format's own error.
#[cfg(feature = "config")]
struct Strict(Config);

#[cfg(feature = "config")]
impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Fields { is_strict: true }).map(Strict)
    }
}

struct Fields {
    is_strict: bool,
}

/// Returns the configuration for a value that is not a table. It is not repeated: it may be the password.
fn no_fields() -> Config {
    Config { fault: Some("not the fields of a configuration".into()), ..Config::default() }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Config;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the fields of a configuration")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Config, A::Error> {
        let mut config = Config::default();
        let mut seen = Vec::new();
        while let Some(name) = entries.next_key::<Value>()? {
            let name = name.text().unwrap_or_default();
            let repeated = seen.contains(&name);
            let field = Field { config: &mut config, name: &name, repeated, is_strict: self.is_strict };
            entries.next_value_seed(field)?;
            seen.push(name);
        }
        Ok(config)
    }

    fn visit_str<E>(self, _: &str) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_i64<E>(self, _: i64) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_u64<E>(self, _: u64) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_i128<E>(self, _: i128) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_u128<E>(self, _: u128) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_f64<E>(self, _: f64) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_bool<E>(self, _: bool) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_bytes<E>(self, _: &[u8]) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_none<E>(self) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_unit<E>(self) -> Result<Config, E> {
        Ok(no_fields())
    }
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Config, D::Error> {
        inner.deserialize_any(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Config, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(no_fields())
    }
}

/// One field; its value is checked while the format's reader still knows its place.
struct Field<'a> {
    config: &'a mut Config,
    name: &'a str,
    repeated: bool,
    is_strict: bool,
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value = Value::deserialize(deserializer)?;
        let done = if self.repeated { Err("given twice".into()) } else { self.config.set(self.name, value) };
        let Err(fault) = done else { return Ok(()) };
        let name = if is_plain_name(self.name) { self.name } else { "a field" };
        if self.is_strict {
            return Err(D::Error::custom(format_args!("{name}: {fault}")));
        }
        self.config.fault.get_or_insert_with(|| format!("{name}: {fault}"));
        Ok(())
    }
}

#[cfg(all(test, feature = "config"))]
mod tests {
    use super::*;
    use crate::config::fields::FIELDS;

    const PASSWORD: &str = "hunter2-s3cret";

    /// What a user has around it.
    #[derive(Debug, serde::Deserialize)]
    struct Service {
        #[serde(rename = "port")]
        _port: Option<u16>,
        lock: Config,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Flat {
        #[serde(rename = "port")]
        _port: Option<u16>,
        #[serde(flatten)]
        lock: Config,
    }

    /// Bodies of a table that are proper TOML and no configuration. The password is in each.
    fn wrong_bodies() -> Vec<Vec<String>> {
        let mut bodies = Vec::new();
        for value in
            ["'V'", "12", "['V']", "{ V = 1 }", "true", "1979-05-27", "[{ x = 'V' }]", "'redis://u:V@'", "\"V\""]
        {
            for field in FIELDS.map(|(name, _)| name).into_iter().chain(["pasword", "V", "url2"]) {
                let broken = format!("{field} = {value}").replace('V', PASSWORD);
                bodies.push(vec![broken.clone(), format!("password = '{PASSWORD}'")]);
                bodies.push(vec![format!("password = '{PASSWORD}'"), "default_ttl = 'x'".into(), broken]);
            }
        }
        let urls = ["redis://u:V@db:99999", "redi://u:V@db", "u:V@db", "redis://u:V@db?x=1", "redis://u:V/@", "V"];
        bodies.extend(urls.map(|url| vec![format!("url = '{url}'").replace('V', PASSWORD)]));
        // Two of one name are no TOML.
        let name = |line: &String| line.split(' ').next().map(str::to_owned);
        bodies.retain(|body| body.iter().map(name).collect::<std::collections::BTreeSet<_>>().len() == body.len());
        bodies
    }

    fn assert_hidden(text: &str, of: &str) {
        assert!(!text.contains("hunter2") && !text.contains("s3cret"), "{of}\n{text}");
    }

    /// Reading is well, and what is wrong is said later, without the password.
    fn judge(text: &str, config: &Config) -> usize {
        // A host, a name or a path that is the password looks like any other.
        if !["endpoints", "prefix", "username", "tls_"].iter().any(|field| text.contains(field)) {
            assert_hidden(&format!("{config:?} {config:#?}"), text);
        }
        let Err(error) = config.check() else { return 0 };
        assert_eq!(error.kind(), crate::types::error::ErrorKind::Config, "{text}");
        assert_hidden(&format!("{error} {error:?} {error:#?}"), text);
        1
    }

    #[test]
    fn a_wrong_configuration_inside_of_another_structure_never_shows_its_password() {
        let mut refused = 0;
        for body in wrong_bodies() {
            let dotted: Vec<_> = body.iter().map(|line| format!("lock.{line}")).collect();
            let tables = [
                format!("port = 1\n[lock]\n{}\n", body.join("\n")),
                format!("port = 1\nlock = {{ {} }}\n", body.join(", ")),
                dotted.join("\n"),
            ];
            for text in tables {
                let service = toml::from_str::<Service>(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
                refused += judge(&text, &service.lock);
                let table: toml::Value = toml::from_str(&text).expect("TOML");
                if let Ok(json) = serde_json::to_string(&table) {
                    let service =
                        serde_json::from_str::<Service>(&json).unwrap_or_else(|error| panic!("{json}\n{error}"));
                    refused += judge(&json, &service.lock);
                }
            }
            let text = body.join("\n");
            let flat = toml::from_str::<Flat>(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
            refused += judge(&text, &flat.lock);
        }
        assert!(refused > 1000, "{refused}");
    }

    #[test]
    fn what_is_no_table_is_refused_by_check() {
        for value in ["'redis://u:hunter2-s3cret@db'", "['hunter2-s3cret']", "1", "1.5", "true", "1979-05-27"] {
            let text = format!("lock = {value}");
            let service = toml::from_str::<Service>(&text).unwrap_or_else(|error| panic!("{text}\n{error}"));
            assert_eq!(judge(&text, &service.lock), 1, "{text}");
        }
        for text in ["{\"lock\": null}", "{\"lock\": \"hunter2-s3cret\"}", "{\"lock\": [\"hunter2-s3cret\"]}"] {
            let service = serde_json::from_str::<Service>(text).unwrap_or_else(|error| panic!("{text}\n{error}"));
            assert_eq!(judge(text, &service.lock), 1, "{text}");
        }
    }

    #[test]
    fn a_fault_is_not_hidden_by_what_is_laid_over_it() {
        let broken: Service = toml::from_str("lock = { default_ttl = 'x' }").unwrap();
        let error = Config::from_url("mem://").unwrap().or(broken.lock.clone()).check().unwrap_err();
        assert!(error.to_string().starts_with("default_ttl: "), "{error}");
        assert!(broken.lock.or(Config::from_url("mem://").unwrap()).check().is_err());
    }

    #[test]
    fn what_is_right_is_read_as_before() {
        let service: Service = toml::from_str("[lock]\nurl = 'redis://db'\ndefault_ttl = '5s'\n").unwrap();
        assert_eq!(service.lock, Config::from_toml("url = 'redis://db'\ndefault_ttl = '5s'\n").unwrap());
        service.lock.check().unwrap();
    }
}
