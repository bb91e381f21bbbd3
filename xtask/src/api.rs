//! `cargo xtask api`: the public items of the library, as `api/distlock.txt` lists them.
//!
//! Read from the pages that rustdoc writes, since its machine-readable form needs an unstable compiler. The list has items,
//! methods, fields, variants and the traits that a type implements, but no signatures: how rustdoc words those changes with
//! its version.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use crate::test;

const LIST: &str = "api/distlock.txt";
const LIBRARY: &str = "distlock";
/// The parts of items that have an anchor of their own.
const PARTS: [&str; 6] = ["method", "tymethod", "variant", "structfield", "associatedconstant", "associatedtype"];
/// What begins the part of a page that is not the type's own: auto traits, blanket implementations, implementors of a trait.
const FOREIGN: [&str; 3] =
    ["id=\"synthetic-implementations\"", "id=\"blanket-implementations\"", "id=\"implementors\""];

/// Compares the list with the library, whose pages have been written. Returns whether they agree.
pub(crate) fn check() -> bool {
    let (listed, found) = match (fs::read_to_string(LIST), read()) {
        (Ok(listed), Ok(found)) => (listed, found),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("{LIST} cannot be compared: {error}");
            return false;
        }
    };
    let difference = difference(&listed.lines().collect(), &found.iter().map(String::as_str).collect());
    difference.iter().for_each(|line| eprintln!("{line}"));
    if !difference.is_empty() {
        eprintln!("the public items are not those of {LIST}. If that is meant, say so in CHANGELOG.md and run");
        eprintln!("    cargo xtask api --write");
    }
    difference.is_empty()
}

/// Writes the list anew. Returns whether that went well.
pub(crate) fn write() -> bool {
    let written = read().and_then(|found| {
        fs::create_dir_all(Path::new(LIST).parent().unwrap_or(Path::new(".")))?;
        fs::write(LIST, found.into_iter().map(|line| line + "\n").collect::<String>())
    });
    written.map_err(|error| eprintln!("{LIST}: {error}")).is_ok()
}

/// Returns the lines that only one of two lists has, the removed ones first.
fn difference(listed: &BTreeSet<&str>, found: &BTreeSet<&str>) -> Vec<String> {
    let gone = listed.difference(found).map(|line| format!("removed: {line}"));
    gone.chain(found.difference(listed).map(|line| format!("added:   {line}"))).collect()
}

/// Returns the lines of the list as rustdoc's pages have them.
fn read() -> io::Result<BTreeSet<String>> {
    let pages = test::target_directory().join("doc").join(LIBRARY);
    let index = fs::read_to_string(pages.join("all.html"))?;
    let mut lines = BTreeSet::new();
    for file in items(&index) {
        let Some((path, kind)) = item(file) else { continue };
        lines.insert(format!("{path} {kind}"));
        let page = fs::read_to_string(pages.join(file))?;
        lines.extend(parts(&page).into_iter().map(|part| format!("{path} {part}")));
    }
    // Pages of another form would make an empty list.
    let is_complete =
        [" struct", " method ", " variant ", " impl "].iter().all(|it| lines.iter().any(|line| line.contains(it)));
    if is_complete { Ok(lines) } else { Err(io::Error::other("rustdoc's pages have another form than this knows")) }
}

/// Returns the pages that the index links to.
fn items(index: &str) -> impl Iterator<Item = &str> {
    let list = index.split_once("<h1>List of all items").map_or("", |(_, list)| list);
    list.split("<li><a href=\"").skip(1).filter_map(|rest| rest.split('"').next())
}

/// Returns path and kind of the item at a page: `backend/file/struct.FileBackend.html`.
fn item(file: &str) -> Option<(String, &str)> {
    let (directory, name) = file.rsplit_once('/').unwrap_or(("", file));
    let (kind, name) = name.strip_suffix(".html")?.split_once('.')?;
    let modules = directory.split('/').filter(|module| !module.is_empty());
    let path: Vec<&str> = [LIBRARY].into_iter().chain(modules).chain([name]).collect();
    Some((path.join("::"), kind))
}

/// Returns the parts of an item that are its own.
fn parts(page: &str) -> BTreeSet<String> {
    let end = FOREIGN.iter().filter_map(|mark| page.find(mark)).min().unwrap_or(page.len());
    let anchors = page[..end].split(" id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    anchors.filter_map(|(anchor, rest)| part(anchor, rest.split('>').next().unwrap_or_default())).collect()
}

/// Returns the part with an anchor, if it is one; the attributes say whether it belongs to the implementation of a trait.
fn part(anchor: &str, attributes: &str) -> Option<String> {
    if let Some((name, _)) = anchor.strip_prefix("impl-").and_then(|rest| rest.rsplit_once("-for-")) {
        // Not a trait that can be named.
        return (name != "StructuralPartialEq").then(|| format!("impl {}", decoded(name)));
    }
    let (kind, name) = anchor.split_once('.')?;
    let is_own = PARTS.contains(&kind) && !attributes.contains("trait-impl");
    is_own.then(|| format!("{} {name}", kind.trim_start_matches("ty")))
}

/// Returns an anchor as text: `From%3C%26str%3E` is `From<&str>`.
fn decoded(anchor: &str) -> String {
    let mut parts = anchor.split('%');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                text.push(char::from(byte));
                text.push_str(&part[2..]);
            }
            None => text.push_str(part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_modules_have_their_paths() {
        let index = "<li><a href=\"#structs\"></a></li><h1>List of all items</h1><li><a href=\"struct.Key.html\">Key</a></li>\
                     <li><a href=\"backend/file/fn.default_dir.html\">x</a></li>";
        let found: Vec<_> = items(index).filter_map(item).collect();
        assert_eq!(found, [("distlock::Key".into(), "struct"), ("distlock::backend::file::default_dir".into(), "fn")]);
    }

    #[test]
    fn parts_are_the_items_own_and_the_traits_that_it_implements() {
        let page = "<span id=\"structfield.host\" class=\"structfield\"></span><section id=\"method.new\" class=\"method\">\
                    <section id=\"tymethod.claim\" class=\"method\"><section id=\"impl-Key\" class=\"impl\">\
                    <section id=\"impl-From%3C%26str%3E-for-Key\" class=\"impl\"><section id=\"method.from\" class=\"method trait-impl\">\
                    <section id=\"impl-StructuralPartialEq-for-Key\"><h2 id=\"blanket-implementations\">\
                    <section id=\"impl-Any-for-T\" class=\"impl\"><section id=\"method.other\" class=\"method\">";
        let found: Vec<_> = parts(page).into_iter().collect();
        assert_eq!(found, ["impl From<&str>", "method claim", "method new", "structfield host"]);
    }

    #[test]
    fn a_renamed_item_is_removed_and_added() {
        let (old, new) = (BTreeSet::from(["a", "b"]), BTreeSet::from(["a", "c"]));
        assert_eq!(difference(&old, &new), ["removed: b", "added:   c"]);
        assert_eq!(difference(&old, &old), [""; 0]);
    }
}
