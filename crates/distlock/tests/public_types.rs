//! Every public type: what it can be used for across threads, tasks and panics.

#![cfg(all(feature = "serde", feature = "blocking", feature = "config"))]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};

use distlock::*;

fn value<T: Send + Sync + Debug + UnwindSafe + RefUnwindSafe + 'static>() {}
fn handle<T: Send + Sync + Debug + 'static>() {}
fn request<T: Send + Debug + 'static>() {}
fn borrowing<T: Send + Debug>() {}

macro_rules! types {
    ($($check:ident: $($type:ident $(<$life:lifetime>)?),* ;)*) => {
        const NAMES: &[&str] = &[$($(stringify!($type)),*),*];
        #[test]
        fn every_type_is_send_and_debug_and_most_are_more() {
            $($($check::<$type $(<$life>)?>();)*)*
            assert!(!NAMES.is_empty());
        }
    };
}

types! {
    value: AttemptId, FencingToken, Key, OwnerId, Process, Record, Holder, HoldTicket, HoldState, LossReason, ErrorKind, Mode,
        HistoryEntry, HistoryKind, Finding, Severity, Secret, Config, Driver, Watchdog, Moment, Leader, Change, Asked, Tick,
        TickNote, ClockSkew;
    handle: Error, Locker, Blocking, LockerBuilder, LockGuard, MultiGuard, Election, Leadership, Semaphore, Inspect, Clock,
        ManualClock, Watch, OnceGuard, OnceOutcome;
    request: LockRequest, TryLockRequest, UnlockRequest, LockAllRequest, CampaignRequest, AskRequest, Once, OnceRequest;
    borrowing: Leaders<'static>, Event<'static>, EventKind<'static>;
}

/// Names of `lib.rs` that are no types of values: traits, aliases, functions, constants and modules.
const OTHERS: [&str; 6] = ["Observer", "Result", "RequestFuture", "examine", "redact", "without_passwords"];

#[test]
fn the_list_names_every_type_that_the_crate_exports() {
    let text = include_str!("../src/lib.rs");
    let exports = text.split("pub use ").skip(1).filter_map(|rest| rest.split_once(';')).map(|(export, _)| export);
    let names = exports.filter(|export| !export.starts_with("crate::")).flat_map(|export| {
        let (_, last) = export.rsplit_once("::").expect("a path");
        last.trim_matches(['{', '}', '\n', ' ']).split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>()
    });
    let is_type =
        |name: &String| name.chars().any(char::is_lowercase) && name.chars().next().is_some_and(char::is_uppercase);
    let exported: BTreeSet<String> = names.filter(is_type).filter(|name| !OTHERS.contains(&name.as_str())).collect();
    let listed: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(exported, listed);
}

#[test]
fn keys_are_made_of_any_text_and_of_numbers() {
    let shared: std::sync::Arc<str> = "a".into();
    let owned = String::from("a");
    let keys = [
        Key::try_from("a"),
        Key::try_from(&owned),
        Key::try_from(String::from("a")),
        Key::try_from(std::borrow::Cow::Borrowed("a")),
        Key::try_from(shared),
        Key::try_from(&b"a"[..]),
    ];
    assert!(keys.into_iter().all(|key| key.expect("a name").as_str() == "a"));
    assert_eq!((Key::from(42_u64).as_str(), Key::from(-7_i32).as_str()), ("42", "-7"));
}

#[test]
fn a_configuration_is_written_without_its_secrets() {
    let mut config = Config::from_url("redis://app:hunter2@db/?default_ttl=30s").expect("a URL");
    config.password = Some("hunter2".into());
    config.password_file = Some("hunter2".into());
    config.endpoints = vec!["app:hunter2@db:6379".into()];
    config.max_retries = Some(3);
    let text = serde_json::to_string(&config).expect("written");
    assert!(!text.contains("hunter2"), "{text}");
    assert!(text.contains(r#""password":"***""#) && text.contains(r#""max_retries":3"#), "{text}");
}
