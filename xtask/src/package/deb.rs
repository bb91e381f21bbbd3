//! The Debian package of the program. It has no maintainer scripts: `docs/decisions/0040-a-package-without-scripts.md`.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::depends;
use super::files::{self, commit_time, empty, open_to_all, put, version};
use crate::cmd::Cmd;
use crate::debian::failed;

const DOCUMENTATION: &str = "usr/share/doc/distlock";

/// Builds the package of a built program in `into`. Returns its path.
pub(super) fn build(program: &Path, into: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(into)?;
    let (version, architecture) = (version()?, read(&Cmd::new("dpkg").args(&["--print-architecture"]))?);
    let root = into.join("distlock.root");
    empty(&root)?;
    files::install(program, &root)?;
    put(&root.join(DOCUMENTATION).join("copyright"), copyright()?.as_bytes(), 0o644)?;
    put(&root.join(DOCUMENTATION).join("changelog"), &fs::read("CHANGELOG.md")?, 0o644)?;
    compress(&root)?;
    let control = control(&version, architecture.trim(), installed_kib(&root)?, &depends::of(program)?);
    let sums = read(&Cmd::new("sh").args(&["-c", SUMS, &root.to_string_lossy()]))?;
    put(&root.join("DEBIAN/md5sums"), sums.as_bytes(), 0o644)?;
    put(&root.join("DEBIAN/control"), control.as_bytes(), 0o644)?;
    open_to_all(&root)?;
    let package = into.join(format!("distlock_{version}_{}.deb", architecture.trim()));
    let build = Cmd::new("dpkg-deb").args(&["--root-owner-group", "-Zgzip", "-z6", "--build"]);
    let build = build.args(&[&root.to_string_lossy(), &package.to_string_lossy()]);
    // Files that are newer than the commit get its time: two builds of one program are the same.
    read(&build.hidden_env("SOURCE_DATE_EPOCH", &commit_time()))?;
    fs::remove_dir_all(&root)?;
    Ok(package)
}

/// Prints the checksum of each file below the directory.
const SUMS: &str = "cd \"$0\" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";

fn read(cmd: &Cmd) -> io::Result<String> {
    cmd.output().ok_or_else(|| failed(format!("{cmd} failed")))
}

fn control(version: &str, architecture: &str, kib: u64, depends: &str) -> String {
    let mut text = String::new();
    let fields = [
        ("Package", "distlock"),
        ("Version", version),
        ("Architecture", architecture),
        ("Maintainer", "The distlock maintainers <distlock@localhost>"),
        ("Installed-Size", &kib.to_string()),
        ("Depends", depends),
        ("Section", "admin"),
        ("Priority", "optional"),
        ("Description", "run a command while holding a lock, here or across machines"),
    ];
    for (name, value) in fields {
        let _ = writeln!(text, "{name}: {value}");
    }
    text + DESCRIPTION
}

const DESCRIPTION: &str = " distlock runs a command while it holds a lock that others respect: on this machine
 without any server, or across machines with Redis, etcd or PostgreSQL. It ends the
 command before a lost lock can have two holders, and gives each holder a fencing
 token that rises.
 .
 The package also has the web console and the daemon for programs in other
 languages, with units for systemd that are not enabled.
";

/// Returns the size of the files below a directory as dpkg counts it: in KiB, each file rounded up.
fn installed_kib(directory: &Path) -> io::Result<u64> {
    let mut kib = 1;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let is_directory = entry.file_type()?.is_dir();
        kib += if is_directory { installed_kib(&entry.path())? } else { entry.metadata()?.len().div_ceil(1024) };
    }
    Ok(kib)
}

/// Compresses manual pages and the changelog, without their time.
fn compress(root: &Path) -> io::Result<()> {
    let manual = root.join("usr/share/man/man1");
    let mut files = vec![root.join(DOCUMENTATION).join("changelog")];
    for page in fs::read_dir(manual)? {
        files.push(page?.path());
    }
    let paths: Vec<_> = files.iter().map(|file| file.to_string_lossy()).collect();
    let paths: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
    read(&Cmd::new("gzip").args(&["-9", "--no-name"]).args(&paths)).map(|_| ())
}

/// Returns the copyright file: of the project, and of every crate that is linked into the program.
fn copyright() -> io::Result<String> {
    let mit = fs::read_to_string("LICENSE-MIT")?;
    let mut lines = mit.lines();
    let holder = lines.by_ref().find_map(|line| line.strip_prefix("Copyright (c) "));
    let holder = holder.ok_or_else(|| failed("LICENSE-MIT names no holder of the copyright".into()))?;
    let indented = |line: &str| if line.is_empty() { " .\n".into() } else { format!(" {line}\n") };
    let mit: String = lines.skip_while(|line| line.is_empty()).map(indented).collect();
    let list = ["tree", "-p", "distlock-cli", "--edges", "normal", "--prefix", "none", "--format", "{p}: {l}"];
    let crates = read(&Cmd::cargo(&list))?;
    let mut crates: Vec<String> = crates.lines().filter_map(linked_crate).collect();
    crates.sort();
    crates.dedup();
    let crates: String = crates.iter().map(|line| format!(" {line}\n")).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: distlock\n\n\
         Files: *\nCopyright: {holder}\nLicense: MIT or Apache-2.0\n\
         Comment: These crates are linked into the program, each under its own license:\n{crates}\n\
         License: MIT\n{mit}\n\
         License: Apache-2.0\n On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n"
    ))
}

/// Returns a foreign crate of `cargo tree` as `name version: license`. Repeated crates are marked, our own have a path.
fn linked_crate(line: &str) -> Option<String> {
    let line = line.trim_end_matches(" (*)");
    let is_foreign = !line.is_empty() && !line.contains("(/") && !line.contains(" (proc-macro)");
    is_foreign.then(|| line.replacen(" v", " ", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_foreign_crates_that_are_linked_have_a_line() {
        assert_eq!(linked_crate("tokio v1.47.0: MIT (*)").as_deref(), Some("tokio 1.47.0: MIT"));
        for line in ["", "distlock v0.1.0 (/src/x): MIT", "serde_derive v1.0.0 (proc-macro): MIT"] {
            assert_eq!(linked_crate(line), None, "{line}");
        }
    }

    #[test]
    fn the_description_has_no_empty_line() {
        let text = control("1.2.3", "amd64", 7, "libc6");
        assert!(text.contains("\nInstalled-Size: 7\nDepends: libc6\n") && text.starts_with("Package: distlock\n"));
        assert!(DESCRIPTION.lines().all(|line| line.starts_with(' ') && line.len() > 1 && line.len() <= 88), "{text}");
    }
}
