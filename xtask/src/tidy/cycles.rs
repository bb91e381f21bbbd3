//! Import cycles between the files of the library.
//!
//! A file of an engine imports what is below it and never what is above it, so that a request can be followed from the trait
//! to the wire without turning back.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::imports::imports;
use super::layers::module_of;
use super::rust_text::{RustText, words};

/// Modules whose files may import each other: their items are one vocabulary (an error names a key, and a key that is not
/// acceptable is an error).
const VOCABULARIES: &[&str] = &["types", "api"];

type Module = Vec<String>;

/// Finds the cycles among all files of the library, each reported once, at its first file.
pub(super) fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut texts = BTreeMap::new();
    for (path, text) in files {
        let module = module_of(path).filter(|module| module.first().is_some_and(|ring| !VOCABULARIES.contains(ring)));
        if let Some(module) = module {
            texts.insert(module.iter().map(ToString::to_string).collect::<Module>(), (path, RustText::new(text)));
        }
    }
    let known: BTreeSet<Module> = texts.keys().cloned().collect();
    let graph = texts.iter().map(|(module, (_, rust))| (module.clone(), targets(module, rust, &known))).collect();
    let report = |cycle: Vec<Module>| {
        let names: Vec<_> = cycle.iter().map(|module| module.join("/")).collect();
        let message = format!("import cycle: {}; a file imports only files below it", names.join(" -> "));
        Finding::new(texts[&cycle[0]].0, 1, "cycle", message)
    };
    cycles(&graph).into_iter().map(report).collect()
}

/// The other files that a file imports, its own submodules by their bare names included.
fn targets(module: &Module, rust: &RustText, known: &BTreeSet<Module>) -> BTreeSet<Module> {
    let own: Vec<&str> = module.iter().map(String::as_str).collect();
    let mut found = BTreeSet::new();
    for import in imports(rust.product(), &own) {
        let file =
            (1..=import.path.len()).rev().map(|length| &import.path[..length]).find(|path| known.contains(*path));
        found.extend(file.map(<[String]>::to_vec));
    }
    let code = rust.product();
    for (offset, word) in words(code) {
        let is_path = code[offset + word.len()..].starts_with("::");
        // `self::name` and a bare `name` are the same; `a::name` is another.
        let before = code[..offset].trim_end();
        if is_path && (!before.ends_with("::") || before.ends_with("self::")) {
            let child: Module = module.iter().cloned().chain([word.to_owned()]).collect();
            found.extend(known.get(&child).cloned());
        }
    }
    found.remove(module);
    found
}

/// One shortest cycle through the first module of each group that lies on one.
fn cycles(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<Vec<Module>> {
    let mut found: Vec<Vec<Module>> = Vec::new();
    for start in graph.keys() {
        if found.iter().flatten().any(|module| module == start) {
            continue;
        }
        found.extend(way_back(graph, start));
    }
    found
}

/// The shortest way from a module back to itself.
fn way_back(graph: &BTreeMap<Module, BTreeSet<Module>>, start: &Module) -> Option<Vec<Module>> {
    let mut seen = BTreeSet::new();
    let mut ways = std::collections::VecDeque::from([vec![start.clone()]]);
    while let Some(way) = ways.pop_front() {
        for next in graph.get(way.last()?).into_iter().flatten() {
            let longer: Vec<Module> = way.iter().chain([next]).cloned().collect();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push_back(longer);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::layers::LIBRARY;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("{LIBRARY}{path}"), (*text).to_owned())).collect();
        check(&files).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_cycle_is_found_and_named() {
        let files = [
            ("engines/redis/claim.rs", "use crate::engines::redis::wire::Link;"),
            ("engines/redis/wire.rs", "use super::claim::Claiming;"),
        ];
        let message = "import cycle: engines/redis/claim -> engines/redis/wire -> engines/redis/claim; a file imports only \
                       files below it";
        assert_eq!(found(&files), [message]);
    }

    #[test]
    fn a_module_and_its_submodule_are_a_cycle_when_both_import() {
        let parent = ("engines/etcd/mod.rs", "mod claim;\nfn f() { claim::claim() }");
        let up = ("engines/etcd/claim.rs", "use crate::engines::etcd::Etcd;");
        let down = ("engines/etcd/claim.rs", "use crate::engines::etcd::wire::Link;");
        assert_eq!(found(&[parent, up]).len(), 1);
        assert_eq!(found(&[parent, down, ("engines/etcd/wire.rs", "")]), [""; 0]);
    }

    #[test]
    fn what_goes_one_way_or_is_a_vocabulary_or_a_test_is_not() {
        let one_way =
            [("core/keeper.rs", "use crate::core::hold::Hold;"), ("core/hold.rs", "use crate::types::key::Key;")];
        let vocabulary = [("types/key.rs", "use crate::types::error::E;"), ("types/error.rs", "use super::key::Key;")];
        let test = [
            ("core/keeper.rs", "use crate::core::hold::Hold;"),
            ("core/hold.rs", "#[cfg(test)]\nmod tests { use crate::core::keeper::Keeper; }"),
        ];
        for files in [one_way, vocabulary, test] {
            assert_eq!(found(&files), [""; 0], "{files:?}");
        }
    }
}
