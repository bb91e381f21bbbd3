//! Packages built from their own files alone.
//!
//! `cargo package` would build them, too, but only once: it takes the packages of a version for unchanged, both the files that it
//! has unpacked and what it has built from them. So they are unpacked here, each time, as crates with a path.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::files::empty;
use crate::cmd::Cmd;
use crate::debian::failed;

/// Unpacks the packages into `directory`, as a workspace in which each is built with the others, and with the versions of
/// `lock`. Returns the manifest of the workspace.
pub(super) fn unpack(packages: &[(&str, PathBuf)], lock: &Path, directory: &Path) -> io::Result<PathBuf> {
    empty(directory)?;
    for (_, package) in packages {
        // With the present time: cargo builds anew what is newer than the last build, and packages have one old time.
        let tar = Cmd::new("tar").args(&["-C", &directory.to_string_lossy(), "--touch", "-xzf"]);
        let tar = tar.args(&[&package.to_string_lossy()]);
        if !tar.succeeds() {
            return Err(failed(format!("{tar} failed")));
        }
    }
    let members = packages.iter().filter_map(|(name, package)| Some((*name, package.file_stem()?.to_str()?)));
    let manifest = directory.join("Cargo.toml");
    fs::write(&manifest, workspace(members))?;
    fs::copy(lock, directory.join("Cargo.lock"))?;
    Ok(manifest)
}

/// Returns the manifest of a workspace of crates, each with its directory. What one needs of the others is found there, and
/// not in the registry.
fn workspace<'a>(crates: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let (mut members, mut patches) = (String::new(), String::new());
    for (name, directory) in crates {
        let _ = writeln!(members, "    \"{directory}\",");
        let _ = writeln!(patches, "{name} = {{ path = \"{directory}\" }}");
    }
    // Foreign crates are built without debug information in the repository, too, and are found there.
    format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\n{members}]\n\n[profile.dev]\ndebug = false\n\n[patch.crates-io]\n{patches}"
    )
}

/// Builds one of the unpacked crates, with all its features. Returns whether that succeeded.
pub(super) fn build(name: &str, manifest: &Path, into: &Path) -> bool {
    let build = Cmd::cargo(&["build", "--all-features", "-p", name, "--manifest-path", &manifest.to_string_lossy()]);
    build.args(&["--target-dir", &into.to_string_lossy()]).succeeds()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Makes a package as cargo does: its files have an old time.
    fn pack(directory: &Path, files: &[(&str, &str)]) -> PathBuf {
        let root = directory.join("x-0.1.0");
        empty(&root).expect("a directory");
        for (name, text) in files {
            super::super::files::put(&root.join(name), text.as_bytes(), 0o644).expect("a file");
        }
        let package = directory.join("x-0.1.0.crate");
        let words =
            ["-C", &directory.to_string_lossy(), "--mtime=@1153704088", "-czf", &package.to_string_lossy(), "x-0.1.0"];
        assert!(Cmd::new("tar").args(&words).succeeds());
        package
    }

    #[test]
    fn a_package_of_the_same_version_replaces_the_one_before() {
        let directory = std::env::temp_dir().join(format!("distlock-unpacked-{}", std::process::id()));
        empty(&directory).expect("a directory");
        let (lock, into) = (directory.join("Cargo.lock"), directory.join("unpacked"));
        fs::write(&lock, "version = 4\n").expect("a file");
        let read = |name: &str| fs::read_to_string(into.join("x-0.1.0").join(name)).ok();

        let package = pack(&directory, &[("src/lib.rs", "mod gone;"), ("src/gone.rs", "")]);
        unpack(&[("x", package)], &lock, &into).expect("unpacked");
        assert_eq!(read("src/lib.rs").as_deref(), Some("mod gone;"));
        let package = pack(&directory, &[("src/lib.rs", "// new")]);
        let manifest = unpack(&[("x", package)], &lock, &into).expect("unpacked");
        assert_eq!((read("src/lib.rs").as_deref(), read("src/gone.rs")), (Some("// new"), None));

        let changed = fs::metadata(into.join("x-0.1.0/src/lib.rs")).and_then(|file| file.modified()).expect("a time");
        let age = SystemTime::now().duration_since(changed).unwrap_or_default();
        assert!(age < Duration::from_secs(600), "cargo would take it for built: {age:?}");
        let text = fs::read_to_string(manifest).expect("a manifest");
        assert!(text.contains("\n[patch.crates-io]\nx = { path = \"x-0.1.0\" }\n"), "{text}");
        assert!(into.join("Cargo.lock").exists());
        fs::remove_dir_all(&directory).expect("removed");
    }
}
