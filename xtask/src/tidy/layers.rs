//! Who may know whom in the library, as ARCHITECTURE.md draws it.

use super::finding::Finding;
use super::imports::imports;
use super::rust_text::{RustText, is_word};

const LIBRARY: &str = "crates/distlock/src/";

/// They know nobody but each other.
const LEAVES: &[&str] = &[
    "key", "token", "owner", "options", "error", "event", "clock", "mode", "watchdog", "ticket", "tls", "finding",
    "meter", "span", "history", "listing", "sync",
];

/// They know the contract and the leaves, and serve the public types, of which they know nothing.
const MIDDLE: &[&str] = &["family", "keeper", "hold", "holds", "journal", "observed", "shards", "wait"];

/// The modules of `backend/`, each with the other engines that it may use.
const ENGINES: &[(&str, &[&str])] =
    &[("memory", &[]), ("file", &[]), ("redis", &[]), ("redlock", &["redis"]), ("etcd", &[])];

/// The modules outside `backend/` that may name an engine. The crate's root is the empty name.
const KNOW_ENGINES: &[&str] = &["", "connect", "backend"];

/// What only one module may do: the rule, that module, how it looks, and why.
const MONOPOLIES: &[(&str, &str, &[&str], &str)] = &[
    ("clock", "clock", &["Instant::now", "SystemTime::now", "clock_gettime"], "only clock.rs reads clocks"),
    (
        "spawn",
        "keeper",
        &["tokio::spawn", "task::spawn", "thread::spawn", "thread::Builder", ".spawn(", ".spawn_on("],
        "only keeper.rs spawns",
    ),
];

/// Checks a file of the library; others see its public face only, and the compiler makes sure of that.
pub(super) fn check(path: &str, rust: &RustText) -> Vec<Finding> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let mut findings = monopolies(path, &module, rust);
    if let ["backend", name, ..] = module[..]
        && engine(name).is_none()
    {
        let message = format!("the engine {name} is new; add it to ENGINES in xtask/src/tidy/layers.rs");
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
fn module_of(path: &str) -> Option<Vec<&str>> {
    let mut module: Vec<&str> = path.strip_prefix(LIBRARY)?.strip_suffix(".rs")?.split('/').collect();
    if module.contains(&"tests") {
        return None;
    }
    if matches!(module[..], ["lib"] | [.., "mod"]) {
        module.pop();
    }
    Some(module)
}

fn engine(name: &str) -> Option<&'static [&'static str]> {
    ENGINES.iter().find(|(engine, _)| *engine == name).map(|(_, friends)| *friends)
}

fn may_name(module: &[&str], target: &[&str]) -> Result<(), &'static str> {
    let own = module.first().copied().unwrap_or_default();
    let top = target[0];
    let is_re_export = top.starts_with(char::is_uppercase);
    let is_leaf = LEAVES.contains(&top);
    match module {
        _ if !KNOW_ENGINES.contains(&own) && names_engine(target) => {
            Err("only connect.rs, backend.rs and lib.rs name concrete engines")
        }
        [] => Ok(()),
        _ if is_re_export && is_layered(own) => Err("name it by its module, so that its layer can be seen"),
        _ if LEAVES.contains(&own) && !is_leaf => Err("a leaf knows only leaves"),
        ["backend", name, ..] => engine_may_name(name, target),
        ["backend"] if !is_leaf && top != "backend" => Err("the contract knows only leaves"),
        _ if MIDDLE.contains(&own) && !is_leaf && !MIDDLE.contains(&top) && top != "backend" => {
            Err("keeper, holds and wait know only the contract and leaves")
        }
        _ => Ok(()),
    }
}

fn engine_may_name(name: &str, target: &[&str]) -> Result<(), &'static str> {
    match target {
        [top, ..] if LEAVES.contains(top) => Ok(()),
        ["backend", other, ..] if *other == name => Ok(()),
        ["backend", other, ..] if engine(other).is_some() => {
            let friends = engine(name).unwrap_or_default();
            if friends.contains(other) { Ok(()) } else { Err("an engine does not know the others") }
        }
        ["backend", ..] => Ok(()),
        _ => Err("an engine knows only the contract and leaves"),
    }
}

fn is_layered(own: &str) -> bool {
    LEAVES.contains(&own) || MIDDLE.contains(&own) || own == "backend"
}

fn names_engine(target: &[&str]) -> bool {
    matches!(target, ["backend", name, ..] if engine(name).is_some())
}

fn monopolies(path: &str, module: &[&str], rust: &RustText) -> Vec<Finding> {
    let own = module.first().copied().unwrap_or_default();
    let mut findings = Vec::new();
    for (rule, owner, patterns, reason) in MONOPOLIES.iter().filter(|(_, owner, ..)| *owner != own) {
        let seen = patterns.iter().flat_map(|pattern| occurrences(rust.product(), pattern));
        let lines: std::collections::BTreeSet<usize> = seen.map(|at| rust.line_of(at)).collect();
        findings
            .extend(lines.into_iter().map(|line| Finding::new(path, line, rule, format!("{reason} (see {owner})"))));
    }
    // `use crate::backend;` and then `backend::redis::…` escapes the imports.
    let may = KNOW_ENGINES.contains(&own);
    for (name, _) in ENGINES.iter().filter(|_| !may) {
        for at in occurrences(rust.product(), &format!("backend::{name}")) {
            if !rust.product()[..at].ends_with("::") {
                let reason = "only connect.rs, backend.rs and lib.rs name concrete engines";
                findings.push(Finding::new(path, rust.line_of(at), "layer", reason));
            }
        }
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
    fn what_reaches_upwards_or_sideways_is_found() {
        let cases = [
            ("key.rs", "use crate::locker::Locker;"),
            ("key.rs", "use super::backend::Claim;"),
            ("token.rs", "fn f() -> crate::Error { g() }"),
            ("backend.rs", "use crate::keeper::Keeper;"),
            ("keeper.rs", "use crate::guard::Guard;"),
            ("backend/file.rs", "use crate::{error::Result, holds::Holds};"),
            ("backend/etcd/session.rs", "use crate::backend::redis::Script;"),
            ("backend/redis/mod.rs", "use crate::backend::redlock::Quorum;"),
            ("backend/file.rs", "use super::memory::Memory;"),
            ("locker.rs", "use crate::backend::memory::Memory;"),
            ("locker.rs", "use crate::backend;\nfn f() { backend::redis::open() }"),
            ("backend/zookeeper.rs", "use crate::backend::Backend;"),
        ];
        for (file, text) in cases {
            assert_eq!(rules(file, text), ["layer"], "{file}: {text}");
        }
    }

    #[test]
    fn what_the_layers_allow_is_not() {
        let cases = [
            ("key.rs", "use crate::error::{Error, Result};"),
            ("owner.rs", "/// See [`crate::Locker`].\nuse crate::token::AttemptId;"),
            ("backend.rs", "pub mod memory;\nuse crate::clock::Moment; use crate::backend::redis::X;"),
            ("keeper.rs", "use crate::{backend::{Claim, DynBackend}, holds::Holds, clock::Clock};"),
            ("backend/file.rs", "use super::{Claim, Grant};\nuse crate::key::Key;"),
            ("backend/redis/script.rs", "use super::reply::Reply;\nuse crate::backend::{Claim, redis::conn::Conn};"),
            ("backend/redlock/mod.rs", "use crate::backend::redis::Script;"),
            ("locker.rs", "use crate::guard::Guard;\nuse crate::backend::Backend;\nuse crate::Error;"),
            ("connect.rs", "use crate::backend::{memory::Memory, redis::Redis};"),
            ("lib.rs", "pub use crate::backend::memory::Memory;"),
            ("key.rs", "#[cfg(test)]\nmod tests {\n use super::*;\n use crate::locker::Locker;\n}"),
            ("key/tests.rs", "use crate::locker::Locker;"),
        ];
        for (file, text) in cases {
            assert_eq!(rules(file, text), [""; 0], "{file}: {text}");
        }
    }

    #[test]
    fn clocks_are_read_in_one_place() {
        for text in ["let t = Instant::now();", "f(SystemTime::now)", "use rustix::time::clock_gettime;"] {
            assert_eq!(rules("keeper.rs", text), ["clock"], "{text}");
            assert_eq!(rules("clock.rs", text), [""; 0], "{text}");
        }
        assert_eq!(rules("keeper.rs", "let t = clock.now(); // not Instant::now\n"), [""; 0]);
        assert_eq!(rules("owner.rs", "#[cfg(test)]\nmod tests { fn f() { SystemTime::now(); } }"), [""; 0]);
    }

    #[test]
    fn tasks_and_threads_begin_in_one_place() {
        for text in ["tokio::spawn(f())", "std::thread::spawn(f)", "thread::Builder::new()", "handle.spawn(f())"] {
            assert_eq!(rules("locker.rs", text), ["spawn"], "{text}");
            assert_eq!(rules("keeper.rs", text), [""; 0], "{text}");
        }
        assert_eq!(rules("locker.rs", "tokio::task::spawn_blocking(f); x.respawn()"), [""; 0]);
    }

    #[test]
    fn other_crates_are_the_compilers_business() {
        let text = RustText::new("use crate::backend::memory; fn f() { tokio::spawn(g()); Instant::now(); }");
        assert_eq!(check("crates/distlock-cli/src/main.rs", &text), []);
        assert_eq!(check("crates/distlock/tests/conformance.rs", &text), []);
    }
}
