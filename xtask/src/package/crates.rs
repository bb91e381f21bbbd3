//! The crates that are published, each built from its package alone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::files::version;
use super::unpacked;
use crate::cmd::Cmd;
use crate::{manifest, test};

/// What every published crate says of itself.
const NEEDED: [&str; 8] = [
    "version.workspace",
    "edition.workspace",
    "rust-version.workspace",
    "license.workspace",
    "description",
    "keywords",
    "categories",
    "readme",
];
/// The published crate that is a program alone, and has no page on docs.rs to configure.
const PROGRAM: &str = "distlock-cli";
/// The largest package, in bytes.
const MOST_BYTES: u64 = 1 << 20;
/// What the names of files with secrets end in.
const SECRETS: [&str; 6] = [".pem", ".key", ".p12", ".pfx", ".env", "id_rsa"];

/// Checks and builds the packages. Returns whether all of them are good.
pub(super) fn check() -> bool {
    let crates = published(Path::new("crates"));
    let names: Vec<&str> = crates.iter().map(|(name, _)| name.as_str()).collect();
    println!("published: {}", names.join(", "));
    let mut faults: Vec<String> = crates.iter().flat_map(|(name, text)| missing(name, text)).collect();
    for name in &names {
        let list = Cmd::cargo(&["package", "--list", "--allow-dirty", "-p", name]).output().unwrap_or_default();
        faults.extend(unwanted(name, &list));
    }
    let each: Vec<&str> = names.iter().flat_map(|name| ["-p", name]).collect();
    // All in one call: the packages depend on each other.
    if faults.is_empty() && !Cmd::cargo(&["package", "--no-verify", "--allow-dirty"]).args(&each).succeeds() {
        faults.push("cargo does not package them".into());
    }
    if faults.is_empty() {
        faults = built(&names).unwrap_or_else(|error| vec![format!("the packages cannot be unpacked: {error}")]);
    }
    faults.iter().for_each(|fault| eprintln!("{fault}"));
    faults.is_empty()
}

/// Returns the name and the manifest of each crate in `directory` that is published.
fn published(directory: &Path) -> Vec<(String, String)> {
    let directories = fs::read_dir(directory).into_iter().flatten().flatten();
    let manifests = directories.filter_map(|directory| fs::read_to_string(directory.path().join("Cargo.toml")).ok());
    let is_published = |text: &String| !manifest::keys(text, "package").iter().any(|key| key.starts_with("publish"));
    let named = |text: String| Some((manifest::package_name(&text)?.to_owned(), text));
    let mut crates: Vec<_> = manifests.filter(is_published).filter_map(named).collect();
    crates.sort();
    crates
}

/// Returns what a manifest does not say.
fn missing(name: &str, text: &str) -> Vec<String> {
    let keys = manifest::keys(text, "package");
    let absent = NEEDED.iter().filter(|key| !keys.contains(key));
    let mut faults: Vec<_> = absent.map(|key| format!("{name}: its manifest has no {key}")).collect();
    if name != PROGRAM && !manifest::keys(text, "package.metadata.docs.rs").contains(&"all-features") {
        faults.push(format!("{name}: docs.rs would leave its features out"));
    }
    faults
}

/// Returns the files of a package that must not be there, or are not.
fn unwanted(name: &str, list: &str) -> Vec<String> {
    let is_secret = |file: &&str| SECRETS.iter().any(|end| file.ends_with(end));
    let mut faults: Vec<_> =
        list.lines().filter(is_secret).map(|file| format!("{name}: {file} may be a secret")).collect();
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        if !list.lines().any(|file| file == license) {
            faults.push(format!("{name}: no {license} in its package"));
        }
    }
    faults
}

/// Builds each of the packages from its files alone. Returns what is wrong with them.
fn built(names: &[&str]) -> io::Result<Vec<String>> {
    let target = test::target_directory();
    let directory = target.join("package");
    let mut packages = Vec::new();
    for name in names {
        packages.push((*name, package(name, &directory)?));
    }
    let mut faults = Vec::new();
    for (name, package) in &packages {
        let bytes = fs::metadata(package)?.len();
        println!("{name}: {} KiB", bytes >> 10);
        if bytes > MOST_BYTES {
            faults.push(format!("{name}: more than {} KiB", MOST_BYTES >> 10));
        }
    }
    let manifest = unpacked::unpack(&packages, Path::new("Cargo.lock"), &directory.join("unpacked"))?;
    let bad = names.iter().filter(|name| !unpacked::build(name, &manifest, &target));
    faults.extend(bad.map(|name| format!("{name}: its package does not build by itself")));
    Ok(faults)
}

/// Returns the package of a crate, in the version of the workspace.
fn package(name: &str, directory: &Path) -> io::Result<PathBuf> {
    Ok(directory.join(format!("{name}-{}.crate", version()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_manifest_lacks_is_named() {
        let given: String =
            NEEDED.iter().filter(|key| **key != "categories").map(|key| format!("{key} = x\n")).collect();
        let docs = "[package.metadata.docs.rs]\nall-features = true\n";
        assert_eq!(missing("x", &format!("[package]\n{given}{docs}")), ["x: its manifest has no categories"]);
        assert_eq!(
            missing("x", &format!("[package]\n{given}categories = x\n")),
            ["x: docs.rs would leave its features out"]
        );
    }

    #[test]
    fn secrets_and_missing_licenses_are_found() {
        let list = "Cargo.toml\nLICENSE-MIT\nsrc/lib.rs\ntests/server.key\n";
        assert_eq!(unwanted("x", list), ["x: tests/server.key may be a secret", "x: no LICENSE-APACHE in its package"]);
    }

    /// What `cargo xtask package` refuses without building anything is refused by the tests too.
    #[test]
    fn every_published_manifest_is_complete() {
        let crates = published(&crate::root().join("crates"));
        assert_eq!(crates.iter().flat_map(|(name, text)| missing(name, text)).collect::<Vec<_>>(), [""; 0]);
        let page = fs::read_to_string(crate::root().join("docs/versions.md")).expect("the page");
        for (name, _) in &crates {
            assert!(page.contains(&format!("| `{name}` |")), "docs/versions.md says what {name} promises");
        }
    }

    #[test]
    fn the_pages_name_the_oldest_compiler() {
        let read = |path: &str| fs::read_to_string(crate::root().join(path)).expect("a file");
        let manifest = read("Cargo.toml");
        let oldest = manifest::value(&manifest, "workspace.package", "rust-version").expect("a version");
        for (page, words) in
            [("README.md", format!("Rust {oldest} or newer")), ("docs/versions.md", format!("now {oldest}."))]
        {
            assert!(read(page).contains(&words), "{page}: {words}");
        }
    }

    #[test]
    fn the_test_kit_is_not_published_and_the_library_is() {
        let names: Vec<_> = published(&crate::root().join("crates")).into_iter().map(|(name, _)| name).collect();
        assert!(names.contains(&"distlock".into()) && names.contains(&"distlock-cli".into()), "{names:?}");
        assert!(!names.contains(&"distlock-testkit".into()), "{names:?}");
    }
}
