//! Which ring of the library may import which, as ARCHITECTURE.md draws it.

use super::finding::Finding;
use super::imports::imports;
use super::rust_text::{RustText, is_word};

pub(super) const LIBRARY: &str = "crates/distlock/src/";

/// The rings of the library, the outermost first, each with the rings that it may import beside itself. The crate's
/// root may import all of them.
const RINGS: &[(&str, &[&str])] = &[
    ("config", &["api", "core", "contract", "engines", "types"]),
    ("api", &["core", "contract", "types"]),
    ("core", &["contract", "types"]),
    ("engines", &["contract", "types"]),
    ("contract", &["types"]),
    ("types", &[]),
];

/// The module of `engines/` that every engine may import. All others are engines.
const SHARED: &str = "shared";

/// The engines that use another engine, each with that one. No other engine imports an engine.
const BORROWERS: &[(&str, &str)] = &[("redlock", "redis")];

/// The only file of `config/` that names engines: the table of them.
const REGISTRY: &str = "registry";

/// What only some files may do.
struct Monopoly {
    rule: &'static str,
    owners: &'static [&'static [&'static str]],
    /// How it looks in code.
    patterns: &'static [&'static str],
    /// What to do elsewhere.
    advice: &'static str,
}

const MONOPOLIES: &[Monopoly] = &[
    Monopoly {
        rule: "clock",
        owners: &[&["types", "clock"]],
        patterns: &["Instant::now", "SystemTime::now", "clock_gettime"],
        advice: "only types/clock.rs reads clocks; take a Clock",
    },
    Monopoly {
        rule: "spawn",
        owners: &[&["core", "keeper"], &["core", "reporter"]],
        patterns: &["tokio::spawn", "task::spawn", "thread::spawn", "thread::Builder", ".spawn(", ".spawn_on("],
        advice: "only core/keeper.rs and core/reporter.rs spawn without a reason; an engine says why its task must \
                 not end with the caller's future: // tidy-allow(spawn): why",
    },
];

/// Checks a file of the library; others see its public face only, and the compiler makes sure of that.
pub(super) fn check(path: &str, rust: &RustText) -> Vec<Finding> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let mut findings = monopolies(path, &module, rust);
    if let Some(message) = stranger(&module) {
        findings.push(Finding::new(path, 1, "layer", message));
    }
    for import in imports(rust.product(), &module) {
        let target: Vec<&str> = import.path.iter().map(String::as_str).collect();
        if let Err(reason) = may_name(&module, &target) {
            let message = format!("{} is out of reach here: {reason}", target.join("::"));
            findings.push(Finding::new(path, rust.line_of(import.offset), "layer", message));
        }
    }
    findings
}

/// The module that a file of the library is; `None` for other files and for files of tests.
pub(super) fn module_of(path: &str) -> Option<Vec<&str>> {
    let mut module: Vec<&str> = path.strip_prefix(LIBRARY)?.strip_suffix(".rs")?.split('/').collect();
    if module.contains(&"tests") {
        return None;
    }
    if matches!(module[..], ["lib"] | [.., "mod"]) {
        module.pop();
    }
    Some(module)
}

/// Why a module is in no ring, if it is in none.
fn stranger(module: &[&str]) -> Option<String> {
    match module {
        [] => None,
        [ring, ..] if friends(RINGS, ring).is_none() => {
            Some(format!("{ring} is in no ring; put it into one of those in xtask/src/tidy/layers.rs"))
        }
        _ => None,
    }
}

fn friends(table: &[(&str, &'static [&'static str])], name: &str) -> Option<&'static [&'static str]> {
    table.iter().find(|(known, _)| *known == name).map(|(_, friends)| *friends)
}

fn may_name(module: &[&str], target: &[&str]) -> Result<(), String> {
    let [ring, ..] = module else { return Ok(()) };
    let top = target[0];
    if friends(RINGS, top).is_none() {
        return Err("name it by its ring, so that its place can be seen".into());
    }
    let may = friends(RINGS, ring).unwrap_or_default();
    if top != *ring && !may.contains(&top) {
        return Err(format!("{ring} imports only itself and {}", list(may)));
    }
    match (module, target) {
        (["engines", own, ..], ["engines", other, ..]) if own != other && *other != SHARED => {
            let is_borrowed = BORROWERS.contains(&(own, other));
            if is_borrowed { Ok(()) } else { Err(format!("of engines, {own} imports only itself and {SHARED}")) }
        }
        (["config", own, ..], ["engines", rest @ ..]) if *own != REGISTRY && rest.first() != Some(&SHARED) => {
            Err(format!("only config/{REGISTRY}.rs names engines"))
        }
        _ => Ok(()),
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "nothing".into() } else { names.join(", ") }
}

fn monopolies(path: &str, module: &[&str], rust: &RustText) -> Vec<Finding> {
    let mut findings = Vec::new();
    for Monopoly { rule, patterns, advice, .. } in MONOPOLIES.iter().filter(|row| !row.owners.contains(&module)) {
        let seen = patterns.iter().flat_map(|pattern| occurrences(rust.product(), pattern));
        let lines: std::collections::BTreeSet<usize> = seen.map(|at| rust.line_of(at)).collect();
        findings.extend(lines.into_iter().map(|line| Finding::new(path, line, rule, *advice)));
    }
    findings
}

/// Where `pattern` stands as whole words.
fn occurrences<'a>(code: &'a str, pattern: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_whole = move |at: &usize| {
        let before = code[..*at].chars().next_back().is_some_and(is_word) && pattern.starts_with(is_word);
        let after = code[at + pattern.len()..].starts_with(is_word) && pattern.ends_with(is_word);
        !before && !after
    };
    code.match_indices(pattern).map(|(at, _)| at).filter(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(file: &str, text: &str) -> Vec<&'static str> {
        let path = format!("{LIBRARY}{file}");
        check(&path, &RustText::new(text)).iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn an_import_against_the_rings_is_found() {
        let cases = [
            ("types/key.rs", "use crate::api::locker::Locker;"),
            ("types/key.rs", "use super::super::contract::Claim;"),
            ("types/token.rs", "fn f() -> crate::Error { g() }"),
            ("contract/claim.rs", "use crate::core::keeper::Keeper;"),
            ("core/keeper.rs", "use crate::api::guard::Guard;"),
            ("core/keeper.rs", "use crate::engines::memory::Memory;"),
            ("core/keeper.rs", "use crate::backend::memory::Memory;"),
            ("api/locker.rs", "use crate::engines::memory::Memory;"),
            ("api/locker.rs", "use crate::config::Config;"),
            ("engines/file/mod.rs", "use crate::{types::error::Result, core::holds::Holds};"),
            ("engines/etcd/session.rs", "use crate::engines::redis::Script;"),
            ("engines/redis/mod.rs", "use crate::engines::redlock::Quorum;"),
            ("engines/shared/tls.rs", "use crate::engines::redis::Script;"),
            ("engines/file/mod.rs", "use super::memory::Memory;"),
            ("engines/zookeeper/mod.rs", "use crate::engines::redis::Script;"),
            ("engines/shared/mod.rs", "use super::redlock::open::ROW;"),
            ("config/connect.rs", "use crate::engines::redis::Redis;"),
            ("config/settings.rs", "use crate::engines;"),
            ("helpers.rs", "use std::fmt;"),
        ];
        for (file, text) in cases {
            assert_eq!(rules(file, text), ["layer"], "{file}: {text}");
        }
    }

    #[test]
    fn what_the_rings_allow_is_not() {
        let cases = [
            ("types/key.rs", "use crate::types::error::{Error, Result};"),
            ("types/owner.rs", "/// See [`crate::Locker`].\nuse crate::types::token::AttemptId;"),
            ("contract/backend.rs", "use crate::types::clock::Moment; use crate::contract::claim::Claim;"),
            ("core/keeper.rs", "use crate::{contract::{Claim, DynBackend}, core::holds::Holds, types::clock::Clock};"),
            ("engines/file/mod.rs", "use crate::contract::{Claim, Grant};\nuse crate::types::key::Key;"),
            ("engines/redis/script.rs", "use super::reply::Reply;\nuse crate::engines::shared::tls::Tls;"),
            ("engines/redlock/mod.rs", "use crate::engines::redis::Script;"),
            ("api/locker.rs", "use crate::api::guard::Guard;\nuse crate::contract::Backend;"),
            ("engines/zookeeper/mod.rs", "use crate::contract::Backend;\nuse crate::engines::shared::row::EngineRow;"),
            ("config/connect.rs", "use crate::engines::shared::row::Address;\nuse crate::api::locker::Locker;"),
            ("config/registry.rs", "use crate::engines::{memory::open, redis::Redis};"),
            ("lib.rs", "pub use crate::engines::memory;"),
            ("types/key.rs", "#[cfg(test)]\nmod tests {\n use super::*;\n use crate::api::locker::Locker;\n}"),
            ("types/key/tests.rs", "use crate::api::locker::Locker;"),
        ];
        for (file, text) in cases {
            assert_eq!(rules(file, text), [""; 0], "{file}: {text}");
        }
    }

    #[test]
    fn clocks_are_read_in_one_place() {
        for text in ["let t = Instant::now();", "f(SystemTime::now)", "use rustix::time::clock_gettime;"] {
            assert_eq!(rules("core/keeper.rs", text), ["clock"], "{text}");
            assert_eq!(rules("types/clock.rs", text), [""; 0], "{text}");
        }
        assert_eq!(rules("core/keeper.rs", "let t = clock.now(); // not Instant::now\n"), [""; 0]);
        assert_eq!(rules("types/owner.rs", "#[cfg(test)]\nmod tests { fn f() { SystemTime::now(); } }"), [""; 0]);
    }

    #[test]
    fn tasks_and_threads_begin_in_two_places() {
        for text in ["tokio::spawn(f())", "std::thread::spawn(f)", "thread::Builder::new()", "handle.spawn(f())"] {
            assert_eq!(rules("api/locker.rs", text), ["spawn"], "{text}");
            assert_eq!(rules("core/keeper.rs", text), [""; 0], "{text}");
            assert_eq!(rules("core/reporter.rs", text), [""; 0], "{text}");
        }
        assert_eq!(rules("api/locker.rs", "tokio::task::spawn_blocking(f); x.respawn()"), [""; 0]);
    }

    #[test]
    fn other_crates_are_the_compilers_business() {
        let text = RustText::new("use crate::backend::memory; fn f() { tokio::spawn(g()); Instant::now(); }");
        assert_eq!(check("crates/distlock-cli/src/main.rs", &text), []);
        assert_eq!(check("crates/distlock/tests/conformance.rs", &text), []);
    }
}
