use std::any::Any;
use std::error::Error as _;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::fields::{Config, FIELDS};
use super::limits::DEFAULT_DIAL_TIMEOUT;
use super::registry::Driver;
use super::settings::Settings;
use crate::engines::file::open::FileAddress;
use crate::engines::memory::open::MemoryAddress;
use crate::engines::redis::open::{RedisAddress, RedisServers};
use crate::engines::redlock::open::RedlockAddress;
use crate::engines::shared::host::Credentials;
use crate::engines::shared::settings::TlsFiles;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::{DEFAULT_MAX_RETRIES, DEFAULT_RETRY_INTERVAL, DEFAULT_TTL};

const SENTINEL: &str = "hunter2-s3cret";

fn from_pairs(pairs: &[(&str, &str)]) -> Result<Config> {
    Config::from_vars(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
}

fn url(url: &str) -> Config {
    Config::from_url(url).unwrap()
}

fn with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = url("redis://db");
    change(&mut config);
    config
}

fn hosts(endpoints: &[&str]) -> Vec<String> {
    endpoints.iter().map(|&endpoint| endpoint.into()).collect()
}

fn full() -> Config {
    Config {
        driver: Some(Driver::Redis),
        url: Some("rediss://db/1".into()),
        endpoints: Vec::new(),
        prefix: Some("jobs:".into()),
        default_ttl: Some(Duration::from_secs(30)),
        retry_interval: Some(Duration::from_millis(250)),
        max_retries: Some(7),
        history: Some(500),
        dial_timeout: Some(Duration::from_millis(1500)),
        username: Some("app".into()),
        password: Some(SENTINEL.into()),
        password_file: None,
        tls_ca: Some("/ca.pem".into()),
        tls_cert: Some("/cert.pem".into()),
        tls_key: Some("/key.pem".into()),
        fault: None,
    }
}

/// The address of checked settings, as the type that its engine has for it.
fn address<T: 'static>(settings: Settings) -> T {
    let address: Box<dyn Any> = settings.address;
    *address.downcast().expect("the address is of another engine")
}

/// Everything in settings, with the passwords that `Debug` hides.
fn contents(mut settings: Settings) -> (String, Vec<Credentials>) {
    let shown = format!("{settings:?}");
    (shown, settings.address.credentials_mut().into_iter().map(|credentials| credentials.clone()).collect())
}

/// All that an error says to anybody.
fn said(error: &Error) -> String {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(!error.is_retryable());
    let sources = std::iter::successors(error.source(), |&source| source.source());
    sources.fold(format!("{error} {error:?} {error:#?}"), |text, source| format!("{text} {source} {source:?}"))
}

fn assert_hidden(text: &str, context: &str) {
    assert!(!text.contains("hunter2") && !text.contains("s3cret"), "{context}: {text}");
}

#[cfg(feature = "config")]
#[test]
fn toml_sets_every_field() {
    let text = r#"
        driver = "redis"
        url = "rediss://db/1"
        prefix = "jobs:"
        default_ttl = "30s"
        retry_interval = 0.25
        max_retries = 7
        history = 500
        dial_timeout = "1s 500ms"
        username = "app"
        password = "hunter2-s3cret"
        tls_ca = "/ca.pem"
        tls_cert = "/cert.pem"
        tls_key = "/key.pem"
    "#;
    assert_eq!(Config::from_toml(text).unwrap(), full());
    let listed = Config::from_toml("driver = 'redlock'\nendpoints = ['a', 'b', 'c']\npassword_file = '/pw'").unwrap();
    assert_eq!(listed.driver, Some(Driver::Redlock));
    assert_eq!(listed.endpoints, ["a", "b", "c"]);
    assert_eq!(listed.password_file.as_deref(), Some(Path::new("/pw")));
    assert_eq!(Config::from_toml("").unwrap(), Config::default());
}

#[test]
fn the_environment_sets_every_field() {
    let vars = [
        ("DISTLOCK_DRIVER", "redis"),
        ("DISTLOCK_URL", "rediss://db/1"),
        ("DISTLOCK_PREFIX", "jobs:"),
        ("DISTLOCK_DEFAULT_TTL", "30"),
        ("DISTLOCK_RETRY_INTERVAL", "250ms"),
        ("DISTLOCK_MAX_RETRIES", "7"),
        ("DISTLOCK_HISTORY", "500"),
        ("DISTLOCK_DIAL_TIMEOUT", "1.5"),
        ("DISTLOCK_USERNAME", "app"),
        ("DISTLOCK_PASSWORD", SENTINEL),
        ("DISTLOCK_TLS_CA", "/ca.pem"),
        ("DISTLOCK_TLS_CERT", "/cert.pem"),
        ("DISTLOCK_TLS_KEY", "/key.pem"),
    ];
    assert_eq!(from_pairs(&vars).unwrap(), full());
    let listed = from_pairs(&[("DISTLOCK_ENDPOINTS", "a:1,b"), ("DISTLOCK_PASSWORD_FILE", "/pw")]).unwrap();
    assert_eq!(listed.endpoints, ["a:1", "b"]);
    assert_eq!(listed.password_file.as_deref(), Some(Path::new("/pw")));
}

#[test]
fn other_variables_of_ours_are_left_alone() {
    let vars = [("DISTLOCK_LOCK_NAME", "x"), ("DISTLOCK_TOKEN", "7"), ("DISTLOCK_HELD", "1"), ("DISTLOCK_TTL_MS", "")];
    assert_eq!(from_pairs(&vars).unwrap(), Config::default());
}

#[test]
fn a_wrong_variable_is_refused_by_its_name() {
    let cases = [
        ("DISTLOCK_DRIVER", "mysql", "not one of memory, file, redis, redlock, etcd"),
        ("DISTLOCK_URL", "", "no scheme"),
        ("DISTLOCK_PREFIX", "a{b", "brace at byte 1"),
        ("DISTLOCK_DEFAULT_TTL", "50ms", "50ms is not accepted; accepted is 100ms to 1day, absent or 0 means 10s"),
        ("DISTLOCK_DEFAULT_TTL", "", "not a length of time"),
        ("DISTLOCK_RETRY_INTERVAL", "2h", "2h is not accepted; accepted is 1ms to 1h, absent or 0 means 100ms"),
        ("DISTLOCK_MAX_RETRIES", "-1", "not a whole number from 0 to 4294967295"),
        ("DISTLOCK_DIAL_TIMEOUT", "0", "0s is not accepted; accepted is 1ms to 10m, absent means 5s"),
    ];
    for (name, value, part) in cases {
        let error = from_pairs(&[(name, value)]).expect_err(name);
        assert!(said(&error).starts_with(&format!("{name}: ")) && said(&error).contains(part), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_utf8_is_refused_unless_it_names_a_file() {
    use std::os::unix::ffi::OsStringExt;
    let odd = || OsString::from_vec(b"/hunter2-s3cret\xff".to_vec());
    for (field, _) in FIELDS {
        let wanted = format!("DISTLOCK_{}", field.to_ascii_uppercase());
        let read = Config::from_vars(|name| (name == wanted).then(odd));
        if matches!(field, "password_file" | "tls_ca" | "tls_cert" | "tls_key") {
            assert!(read.is_ok(), "{field}");
            let changed = Config::vars_without_passwords(|name| (name == wanted).then(odd));
            assert!(changed.is_empty(), "handed on as it is: {changed:?}");
        } else {
            let error = read.expect_err(field);
            assert!(said(&error).starts_with(&wanted), "{error}");
            assert_hidden(&said(&error), field);
        }
    }
}

#[cfg(feature = "config")]
#[test]
fn a_wrong_toml_is_refused_with_the_place_and_the_field() {
    let known = "no such field; known are driver, url, endpoints";
    let cases = [
        ("tll = '3s'", "line 1, column 7: tll: no such field; known are driver, url, endpoints"),
        ("\n[redis]\nurl = 'redis://db'", known),
        ("prefix = 'é'\n  default_ttl = '50ms'", "line 2, column 17: default_ttl: 50ms is not accepted"),
        ("history = 10001", "line 1, column 11: history: 10001 is not from 0 to 10000"),
        ("default_ttl = true", "line 1, column 15: default_ttl: not a length of time"),
        ("default_ttl = -1", "default_ttl: not a length of time"),
        ("max_retries = 1.5", "max_retries: not a whole number from 0 to 4294967295"),
        ("max_retries = 4294967296", "max_retries: not a whole number"),
        ("url = 5", "line 1, column 7: url: not a text"),
        ("url = 'redis://db?x=1'", "url: option \"x\" is not known here"),
        ("endpoints = [1]", "endpoints: not a text"),
        ("endpoints = { a = 1 }", "endpoints: not a list of texts"),
        ("prefix = 1979-05-27", "prefix: not a text"),
        ("driver = 'redi'", "driver: not one of memory"),
        ("url = 'mem://'\nurl = 'mem://'", "line 2, column 1: duplicate key"),
        ("url = ", "line 1, column 7: "),
    ];
    for (text, part) in cases {
        let error = Config::from_toml(text).expect_err(text);
        assert!(said(&error).contains(part), "{text:?}: {error}");
    }
}

#[test]
fn other_formats_of_serde_work_and_may_leave_fields_null() {
    use serde::de::Deserialize;
    use serde::de::value::{Error as Plain, MapDeserializer};
    let read = |pairs: &[(&'static str, &'static str)]| {
        Config::deserialize(MapDeserializer::<_, Plain>::new(pairs.iter().copied())).unwrap()
    };
    assert_eq!(read(&[("url", "mem://"), ("default_ttl", "3s")]).default_ttl, Some(Duration::from_secs(3)));
    assert_eq!(read(&[("url", "mem://"), ("ttl", "3s")]).default_ttl, Some(Duration::from_secs(3)), "the old name");
    assert_eq!(read(&[("ttl", "4s"), ("default_ttl", "3s")]).default_ttl, Some(Duration::from_secs(3)));
    // Not while it is read: the format's own error may print the line.
    let refused = |pairs: &[(&'static str, &'static str)]| read(pairs).check().unwrap_err().to_string();
    assert_eq!(refused(&[("url", "mem://"), ("url", "mem://")]), "url: given twice");
    assert!(refused(&[("url", "mem://"), (SENTINEL, "1")]).starts_with("a field: no such field"));
    let null = Config::deserialize(MapDeserializer::<_, Plain>::new([("url", ())].into_iter()));
    assert_eq!(null.unwrap(), Config::default());
}

#[test]
fn the_upper_source_wins_field_by_field() {
    let lower = Config { prefix: Some("low:".into()), endpoints: Vec::new(), ..full() };
    let upper = with(|config| {
        config.prefix = Some("up:".into());
        config.default_ttl = Some(Duration::ZERO);
        config.max_retries = Some(0);
    });
    let both = upper.or(lower.clone());
    assert_eq!(both.url.as_deref(), Some("redis://db"));
    assert_eq!(both.prefix.as_deref(), Some("up:"));
    assert_eq!(both.default_ttl, Some(Duration::ZERO), "0 is said, and means the default");
    assert_eq!(both.max_retries, Some(0));
    assert_eq!(both.retry_interval, Some(Duration::from_millis(250)));
    assert_eq!(both.dial_timeout, Some(Duration::from_millis(1500)));
    assert_eq!((both.username, both.tls_ca), (lower.username.clone(), lower.tls_ca.clone()));
    assert_eq!(Config::default().or(lower.clone()), lower);
    assert_eq!(lower.clone().or(Config::default()), lower);
}

#[test]
fn what_belongs_together_is_replaced_together() {
    let listed = Config { driver: Some(Driver::Redlock), endpoints: hosts(&["a", "b", "c"]), ..Config::default() };
    let both = url("mem://").or(listed.clone());
    assert_eq!((both.driver, both.endpoints.len()), (None, 0), "a URL hides driver and endpoints");
    let both = Config { endpoints: hosts(&["x"]), ..Config::default() }.or(listed.clone());
    assert_eq!((both.driver, both.endpoints), (Some(Driver::Redlock), hosts(&["x"])), "the driver stays");
    let both = listed.or(url("mem://"));
    assert_eq!(both.url, None, "endpoints hide a URL");

    let file = Config { password_file: Some("/pw".into()), ..Config::default() };
    let text = Config { password: Some("x".into()), ..Config::default() };
    assert_eq!(text.clone().or(file.clone()), text);
    assert_eq!(file.clone().or(text), file);

    let cert = Config { tls_cert: Some("/c".into()), ..Config::default() };
    assert_eq!(cert.or(full()).tls_key, None, "a key of another certificate would not fit");
}

#[test]
fn a_url_counts_for_its_own_source_and_fields_win_inside_one() {
    let flags = url("redis://db?ttl=20s&prefix=url:");
    let file = Config { default_ttl: Some(Duration::from_secs(50)), prefix: Some("file:".into()), ..Config::default() };
    let settings = flags.clone().or(file.clone()).validate().unwrap();
    assert_eq!((settings.engine.default_ttl.as_secs(), settings.engine.prefix.as_str()), (20, "url:"), "the upper URL");
    let settings = file.or(flags.clone()).validate().unwrap();
    assert_eq!(
        (settings.engine.default_ttl.as_secs(), settings.engine.prefix.as_str()),
        (50, "file:"),
        "the upper fields"
    );
    let mut same = flags;
    same.default_ttl = Some(Duration::from_secs(5));
    assert_eq!(same.validate().unwrap().engine.default_ttl.as_secs(), 5);
}

#[test]
fn settings_have_every_default() {
    let settings = with(|config| {
        config.default_ttl = Some(Duration::ZERO);
        config.retry_interval = Some(Duration::ZERO);
    });
    for settings in [url("redis://db").validate().unwrap(), settings.validate().unwrap()] {
        assert_eq!(settings.engine.default_ttl, DEFAULT_TTL);
        assert_eq!(settings.retry_interval, DEFAULT_RETRY_INTERVAL);
        assert_eq!(settings.engine.dial_timeout, DEFAULT_DIAL_TIMEOUT);
        assert_eq!((settings.max_retries, settings.engine.prefix.as_str()), (DEFAULT_MAX_RETRIES, ""));
        assert_eq!(settings.engine.tls, TlsFiles::default());
    }
    let settings = full().validate().unwrap();
    assert_eq!(settings.max_retries, 7);
    assert_eq!(settings.engine.dial_timeout, Duration::from_millis(1500));
    let tls = TlsFiles { ca: Some("/ca.pem".into()), identity: Some(("/cert.pem".into(), "/key.pem".into())) };
    assert_eq!(settings.engine.tls, tls);
}

#[test]
fn contradictions_and_gaps_are_refused_by_the_field() {
    let secs = |n| Some(Duration::from_secs(n));
    let etcd = |change: fn(&mut Config)| {
        let mut config = url("etcd://h1");
        change(&mut config);
        config
    };
    let cases = [
        (Config::default(), "url: missing; set url, or driver and endpoints"),
        (Config { endpoints: hosts(&["a"]), ..Config::default() }, "driver: missing"),
        (Config { driver: Some(Driver::Etcd), ..Config::default() }, "endpoints: missing; the etcd driver needs them"),
        (with(|c| c.endpoints = hosts(&["a"])), "endpoints: given together with url"),
        (with(|c| c.driver = Some(Driver::Etcd)), "driver: etcd, but the scheme of url means redis"),
        (with(|c| c.url = Some(String::new())), "url: no scheme"),
        (with(|c| c.prefix = Some("x".repeat(257))), "prefix: 257 bytes, at most 256"),
        (with(|c| c.default_ttl = Some(Duration::from_nanos(99_999_999))), "default_ttl: 99ms 999us 999ns is not"),
        (with(|c| c.default_ttl = secs(86_401)), "default_ttl: 1day 1s is not accepted"),
        (with(|c| c.retry_interval = secs(3601)), "retry_interval: 1h 1s is not accepted; accepted is 1ms to 1h"),
        (with(|c| c.dial_timeout = secs(601)), "dial_timeout: 10m 1s is not accepted; accepted is 1ms to 10m"),
        (with(|c| c.dial_timeout = secs(0)), "dial_timeout: 0s is not accepted"),
        (with(|c| c.username = Some(String::new())), "username: empty"),
        (with(|c| c.username = Some("app".into())), "password: missing; a user name is given"),
        (with(|c| c.password = Some("".into())), "password: empty"),
        (
            with(|c| (c.password, c.password_file) = (Some("x".into()), Some("/x".into()))),
            "password_file: given together",
        ),
        (with(|c| c.tls_ca = Some("/ca".into())), "tls_ca: given, but the connection is not encrypted"),
        (with(|c| c.tls_ca = Some("".into())), "tls_ca: the file name is empty"),
        (with(|c| c.tls_cert = Some("/c".into())), "tls_key: missing; tls_cert needs it"),
        (with(|c| c.tls_key = Some("/c".into())), "tls_cert: missing; tls_key needs it"),
        (etcd(|c| c.password = Some("x".into())), "username: missing; a password is given"),
        (url("redis://app@db"), "password: missing; a user name is given"),
    ];
    for (config, part) in cases {
        let error = config.validate().expect_err(part);
        assert!(said(&error).starts_with(part), "{error}");
        assert!(config.check().is_err());
    }
}

#[test]
fn endpoints_mean_what_a_url_means() {
    let cases: [(Driver, &[&str], &str); 8] = [
        (Driver::Redis, &["db"], "redis://db"),
        (Driver::Redis, &["rediss://u:p@db:1/"], "rediss://u:p@db:1"),
        (Driver::Redlock, &["a", "u:p@b:1", "[::1]"], "redlock://a,u:p@b:1,[::1]"),
        (Driver::Redlock, &["rediss://a", "rediss://b", "redlocks://c"], "redlocks://a,b,c"),
        (Driver::Etcd, &["a", "b:1"], "etcd://a,b:1"),
        (Driver::Etcd, &["http://a:2379/", "http://b"], "etcd://a,b"),
        (Driver::Etcd, &["https://a", "https://b"], "etcds://a,b"),
        (Driver::Etcd, &["root:pw@a", "b"], "etcd://root:pw@a,b"),
    ];
    for (driver, endpoints, same) in cases {
        let config = Config { driver: Some(driver), endpoints: hosts(endpoints), ..Config::default() };
        let [found, same] = [config, url(same)].map(|config| contents(config.validate().unwrap()));
        assert_eq!(found, same, "{endpoints:?}");
    }
    let mut encrypted = Config { driver: Some(Driver::Etcd), endpoints: hosts(&["a"]), ..Config::default() };
    encrypted.tls_ca = Some("/ca".into());
    let mut same = url("etcds://a");
    same.tls_ca = Some("/ca".into());
    assert_eq!(contents(encrypted.validate().unwrap()), contents(same.validate().unwrap()));
    let local = |driver| Config { driver: Some(driver), ..Config::default() }.validate().unwrap();
    assert_eq!(address::<MemoryAddress>(local(Driver::Memory)), MemoryAddress { name: None });
    assert_eq!(address::<FileAddress>(local(Driver::File)), FileAddress { dir: None });
}

#[test]
fn wrong_endpoints_are_refused() {
    let cases: [(Driver, &[&str], &str); 8] = [
        (Driver::Memory, &["a"], "the memory driver has none"),
        (Driver::Redis, &["a", "b"], "2 hosts where one belongs"),
        (Driver::Redis, &["a/1"], "host 1: not of the form"),
        (Driver::Redis, &[""], "host 1: the host is empty"),
        (Driver::Redis, &["http://a"], "host 1: a scheme that is not one of redis, rediss"),
        (Driver::Redlock, &["a", "b"], "2 nodes; below 3"),
        (Driver::Etcd, &["a", "b:x"], "host 2: the port"),
        (Driver::Etcd, &["http://a", "https://b"], "host 2: some are to be encrypted and some are not"),
    ];
    for (driver, endpoints, part) in cases {
        let config = Config { driver: Some(driver), endpoints: hosts(endpoints), ..Config::default() };
        let error = config.validate().expect_err(part);
        assert!(said(&error).starts_with(&format!("endpoints: {part}")), "{error}");
    }
    let mut plain = Config { driver: Some(Driver::Etcd), endpoints: hosts(&["http://a"]), ..Config::default() };
    plain.tls_ca = Some("/ca".into());
    assert!(plain.validate().unwrap_err().to_string().starts_with("tls_ca: given, but"));
}

#[test]
fn fields_fill_credentials_that_the_url_leaves_open_and_never_mix_users() {
    let cases = [
        ("redis://db", Some("app"), Some(("app", "field"))),
        ("redis://db", None, Some(("", "field"))),
        ("redis://app@db", None, Some(("app", "field"))),
        ("redis://app@db", Some("app"), Some(("app", "field"))),
        ("redis://own:url@db", Some("app"), Some(("own", "url"))),
        ("redis://:url@db", Some("app"), Some(("", "url"))),
        ("redis://own@db", Some("app"), None),
    ];
    for (text, username, expected) in cases {
        let mut config = url(text);
        config.username = username.map(Into::into);
        config.password = Some("field".into());
        let found = config.validate().map(|settings| {
            let RedisAddress { servers, credentials: Credentials { username, password }, .. } = address(settings);
            assert!(matches!(servers, RedisServers::One(_)), "{servers:?}");
            (username.unwrap_or_default(), password.unwrap().expose().to_owned())
        });
        match expected {
            Some((username, password)) => assert_eq!(found.unwrap(), (username.into(), password.into()), "{text}"),
            None => assert!(found.unwrap_err().to_string().starts_with("username: not the user")),
        }
    }
    let mut config = url("redlock://a:x@h1,h2,h3");
    config.password = Some("field".into());
    let RedlockAddress { nodes, .. } = address(config.validate().unwrap());
    let passwords: Vec<_> = nodes.iter().map(|node| node.credentials.password.as_ref().unwrap().expose()).collect();
    assert_eq!(passwords, ["x", "field", "field"]);
}

#[test]
fn a_password_file_is_read_without_its_line_end() {
    let dir = std::env::temp_dir().join(format!("distlock-config-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let cases: [(&[u8], Result<&str, &str>); 8] = [
        (b"pw", Ok("pw")),
        (b"pw\n", Ok("pw")),
        (b"pw\r\n", Ok("pw")),
        (b" p w \n\n", Ok(" p w \n")),
        (b"", Err("the file is empty")),
        (b"\n", Err("the file is empty")),
        (b"hunter2-s3cret\xff", Err("the file is not UTF-8")),
        (&[b'x'; 65_537], Err("the file is longer than 65536 bytes")),
    ];
    for (i, (content, expected)) in cases.into_iter().enumerate() {
        let file = dir.join(i.to_string());
        std::fs::write(&file, content).unwrap();
        let found = with(|config| config.password_file = Some(file)).validate();
        match expected {
            Ok(password) => {
                let RedisAddress { credentials, .. } = address(found.unwrap());
                assert_eq!(credentials.password, Some(password.into()));
            }
            Err(part) => {
                let error = found.unwrap_err();
                assert_eq!(error.to_string(), format!("password_file: {part}"));
                assert_hidden(&said(&error), part);
            }
        }
    }
    let missing = with(|config| config.password_file = Some(dir.join(SENTINEL))).validate().unwrap_err();
    assert!(missing.to_string().starts_with("password_file: the file cannot be read: "));
    assert_hidden(&said(&missing), "missing file");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_password_is_in_no_debug_output() {
    let mut odd = url("redlock://u:hunter2-s3cret@h1,:hunter2-s3cret@h2,h3");
    odd.password = Some(SENTINEL.into());
    let mut listed = Config { driver: Some(Driver::Etcd), ..full() };
    listed.url = None;
    listed.endpoints = hosts(&["https://u:hunter2-s3cret@h1", "h2"]);
    for config in [odd.clone(), listed, full()] {
        let settings = config.validate().unwrap();
        for text in [format!("{config:?}"), format!("{config:#?}"), format!("{settings:?}"), format!("{settings:#?}")] {
            assert_hidden(&text, "debug");
            assert!(text.contains("***") && text.contains("h3") | text.contains("h2") | text.contains("db"), "{text}");
        }
    }
    odd.url = Some("redis://u:hunter2-s3cret".into());
    odd.endpoints = hosts(&["u:hunter2-s3cret", "hunter2/s3cret@h"]);
    odd.password_file = Some(SENTINEL.into());
    assert_hidden(&format!("{odd:?}"), "a configuration that was never checked");
}

#[test]
fn a_password_in_the_wrong_place_is_in_no_error() {
    let urls = [
        "hunter2-s3cret",
        "hunter2-s3cret://db",
        "user:hunter2-s3cret@db",
        "redis:/user:hunter2-s3cret@db",
        "redis://user:hunter2-s3cret@:bad",
        "redis://user:hunter2-s3cret",
        "redis://user:hunter2/s3cret@db",
        "redis://user:hunter2?s3cret@db",
        "redis://user:hunter2#s3cret@db",
        "redis://user:hunter2,s3cret@db",
        "redis://user:hunter2@s3cret@db",
        "redis://user:hunter2%s3cret@db",
        "redis://user:hunter2-s3cret@db:x",
        "redis://user:hunter2-s3cret@db/x",
        "redis://db/hunter2-s3cret",
        "redis://db?hunter2-s3cret",
        "redis://db?password=hunter2-s3cret",
        "redis://db?ttl=hunter2-s3cret",
        "redis://db?db=hunter2-s3cret",
        "redis://db?protocol=hunter2-s3cret",
        "redis://db?restart_guard=hunter2-s3cret",
        "redis://[hunter2-s3cret]",
        "redlock://u:hunter2-s3cret@h1,h2",
        "redlock://u:hunter2-s3cret@h1,h1,h1",
        "redis+sentinel://u:hunter2-s3cret@h1",
        "etcd://u:hunter2-s3cret@h1,u:hunter2-s3cret@h2",
        "mem://u:hunter2-s3cret@h1",
        "file://u:hunter2-s3cret@h1/dir",
        "redis+unix://u:hunter2-s3cret@/run/sock",
    ];
    for text in urls {
        let mut errors =
            vec![Config::from_url(text).expect_err(text), from_pairs(&[("DISTLOCK_URL", text)]).unwrap_err()];
        errors.push(with(|config| config.url = Some(text.into())).validate().expect_err(text));
        #[cfg(feature = "config")]
        errors.push(Config::from_toml(&format!("url = {text:?}")).expect_err(text));
        errors.iter().for_each(|error| assert_hidden(&said(error), text));
        assert_hidden(&format!("{:?}", with(|config| config.url = Some(text.into()))), text);
    }
    for (field, _) in FIELDS {
        let name = format!("DISTLOCK_{}", field.to_ascii_uppercase());
        if let Err(error) = from_pairs(&[(&name, SENTINEL)]) {
            assert_hidden(&said(&error), field);
        }
    }
}

#[cfg(feature = "config")]
#[test]
fn a_broken_toml_never_shows_the_password_in_it() {
    let whole =
        "url = \"redis://u:hunter2-s3cret@db\"\npassword = 'hunter2-s3cret'\nendpoints = ['u:hunter2-s3cret@h']\n";
    let mut refused = 0;
    let mut check = |text: &str| {
        let config = Config::from_toml(text);
        if let Err(error) = &config {
            refused += 1;
            assert_hidden(&said(error), text);
        }
        config.map(|config| format!("{config:?}")).unwrap_or_default()
    };
    for (at, _) in whole.char_indices() {
        check(&whole[..at]);
        for junk in ["\"", "'", "=", "[", "]", "{", "\n", "#", "\\", "@", ",", ".", "é", "\0", "[x]\n", "\n\"\"\"", "1"]
        {
            for rest in [&whole[at..], &whole[at + 1..]] {
                let text = format!("{}{junk}{rest}", &whole[..at]);
                assert!(!check(&text).contains(SENTINEL), "{text}");
            }
        }
    }
    for (field, _) in FIELDS {
        for value in [
            "{ x = 'V' }",
            "['V']",
            "[['V']]",
            "V",
            "'V",
            "\"V\\q\"",
            "'''V",
            "'V'",
            "1979-05-27",
            "[{ V = 1 }]",
            "{ V = 1 }",
        ] {
            let value = value.replace('V', SENTINEL);
            check(&format!("{field} = {value}"));
            check(&format!("{field}.{value}"));
            check(&format!("[{field}]\n{value} = 1"));
        }
    }
    check("hunter2-s3cret = 1");
    check("[hunter2-s3cret]");
    check("password = 1\n'hunter2-s3cret' = 1\n'hunter2-s3cret' = 2");
    check("hunter2-s3cret");
    assert!(refused > 1000, "{refused}");
}

#[cfg(feature = "config")]
#[test]
fn fuzz_toml() {
    distlock_testkit::fuzz("toml.txt", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(config) = Config::from_toml(&text) {
            distlock_testkit::assert_in_proportion(input, &config);
            let _ = config.check();
        }
    });
}

#[test]
fn of_variables_that_are_handed_on_passwords_are_taken_out_and_nothing_else() {
    let value = |name: &str| match name {
        "DISTLOCK_URL" => format!("redis://app:{SENTINEL}@db/1?ttl=5s"),
        "DISTLOCK_ENDPOINTS" => format!("app:{SENTINEL}@db,:{SENTINEL}@db2:7000"),
        "DISTLOCK_PASSWORD" => SENTINEL.into(),
        other => format!("{other}:a@b"),
    };
    let all = Config::vars_without_passwords(|name| Some(value(name).into()));
    let expected = [
        ("DISTLOCK_URL", Some("redis://app@db/1?ttl=5s")),
        ("DISTLOCK_ENDPOINTS", Some("app@db,db2:7000")),
        ("DISTLOCK_PASSWORD", None),
    ];
    assert_eq!(all, expected.map(|(name, rest)| (name.to_owned(), rest.map(str::to_owned))));
    let plain = |name: &str| Some(if name == "DISTLOCK_URL" { "redis://app@db" } else { "app@db,db2" }.into());
    let changed = Config::vars_without_passwords(plain);
    assert_eq!(changed, [("DISTLOCK_PASSWORD".to_owned(), None)], "what has no password in it stays as it is");
}

#[test]
fn a_prefix_of_another_engine_is_no_error_for_one_without_servers() {
    let file = Config { prefix: Some("jobs:".into()), url: Some("redis://db".into()), ..Config::default() };
    let memory = url("mem://").or(file.clone());
    assert_eq!((memory.prefix.as_deref(), memory.check().is_ok()), (None, true));
    assert_eq!(url("redis://other").or(file).prefix.as_deref(), Some("jobs:"));
    let own = url("mem://?prefix=jobs:").or(Config::default());
    assert_eq!(own.prefix.as_deref(), Some("jobs:"), "its own prefix is refused when it is opened");
}
