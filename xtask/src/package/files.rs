//! The files that are installed, below a root directory, and the archive of a release.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::deb;
use crate::cmd::Cmd;
use crate::debian::failed;

/// Where each shell looks for completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/distlock"),
    ("zsh", "usr/share/zsh/vendor-completions/_distlock"),
    ("fish", "usr/share/fish/vendor_completions.d/distlock.fish"),
];
/// Directories of `deploy`, and where their files go.
const DEPLOYED: [(&str, &str); 4] = [
    ("deploy/systemd", "usr/lib/systemd/system"),
    ("deploy/tmpfiles.d", "usr/lib/tmpfiles.d"),
    ("deploy/prometheus", "usr/share/doc/distlock/examples/prometheus"),
    ("deploy/grafana", "usr/share/doc/distlock/examples/grafana"),
];
const MANUAL: &str = "usr/share/man/man1";

/// Installs the program and all that belongs to it into `root`.
pub(super) fn install(program: &Path, root: &Path) -> io::Result<()> {
    let installed = root.join("usr/bin/distlock");
    put(&installed, &fs::read(program)?, 0o755)?;
    for (shell, place) in COMPLETIONS {
        put(&root.join(place), ask(program, &["completions", shell])?.as_bytes(), 0o644)?;
    }
    for (name, text) in manual(program)? {
        put(&root.join(MANUAL).join(name), text.as_bytes(), 0o644)?;
    }
    for (from, place) in DEPLOYED {
        for file in fs::read_dir(from)? {
            let file = file?;
            put(&root.join(place).join(file.file_name()), &fs::read(file.path())?, 0o644)?;
        }
    }
    Ok(())
}

/// Returns the manual pages: of the program, and of each command that the program's page names.
fn manual(program: &Path) -> io::Result<Vec<(String, String)>> {
    let page = ask(program, &["man"])?;
    let mut pages = Vec::new();
    for command in commands(&page) {
        pages.push((format!("distlock-{command}.1"), ask(program, &["man", &command])?));
    }
    if pages.is_empty() {
        return Err(failed("the manual page names no command".into()));
    }
    pages.push(("distlock.1".into(), page));
    Ok(pages)
}

/// Returns the commands in a page: `distlock\-run(1)`.
fn commands(page: &str) -> Vec<String> {
    let named = page.lines().filter_map(|line| line.strip_prefix("distlock\\-")?.strip_suffix("(1)"));
    named.map(|name| name.replace('\\', "")).collect()
}

fn ask(program: &Path, words: &[&str]) -> io::Result<String> {
    let cmd = Cmd::new(&program.to_string_lossy()).args(words);
    cmd.output().ok_or_else(|| failed(format!("{cmd} failed")))
}

/// Writes a file with its directories.
pub(super) fn put(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(path, content)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Lets all users read what is below `root`, whatever this user's mask is.
pub(super) fn open_to_all(root: &Path) -> io::Result<()> {
    let cmd = Cmd::new("chmod").args(&["-R", "u=rwX,go=rX", &root.to_string_lossy()]);
    if cmd.succeeds() { Ok(()) } else { Err(failed(format!("{cmd} failed"))) }
}

/// Removes what an earlier run left, and makes the directory.
pub(super) fn empty(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::create_dir_all(directory)
}

/// Makes the files of a release in `into`. Returns the file with their checksums.
pub(super) fn release(program: &Path, into: &Path) -> io::Result<PathBuf> {
    let name = format!("distlock-{}-{}-linux", version()?, std::env::consts::ARCH);
    let root = into.join(&name);
    empty(&root)?;
    install(program, &root)?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "README.md"] {
        put(&root.join(license), &fs::read(license)?, 0o644)?;
    }
    open_to_all(&root)?;
    let archive = format!("{name}.tar.gz");
    let owner = ["--owner=0", "--group=0", "--numeric-owner", "--sort=name"];
    let directory = into.to_string_lossy();
    let tar = Cmd::new("tar").args(&["-C", &directory]).args(&owner);
    let tar =
        tar.args(&[&format!("--mtime=@{}", commit_time()), "-czf", &into.join(&archive).to_string_lossy(), &name]);
    if !tar.succeeds() {
        return Err(failed(format!("{tar} failed")));
    }
    fs::remove_dir_all(&root)?;
    let package = deb::build(program, into)?;
    let package = package.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let sums = Cmd::new("sh").args(&["-c", "cd \"$0\" && sha256sum -- \"$@\"", &directory, &archive, &package]);
    let sums = sums.output().ok_or_else(|| failed("sha256sum failed".into()))?;
    put(&into.join("SHA256SUMS"), sums.as_bytes(), 0o644)?;
    Ok(into.join("SHA256SUMS"))
}

/// Returns the version of the workspace.
pub(super) fn version() -> io::Result<String> {
    let text = fs::read_to_string("Cargo.toml")?;
    let version = crate::manifest::value(&text, "workspace.package", "version");
    version.map(str::to_owned).ok_or_else(|| failed("Cargo.toml has no version".into()))
}

/// Returns the time of the commit in seconds, so that two builds of one commit are the same.
pub(super) fn commit_time() -> String {
    let time = Cmd::new("git").args(&["log", "-1", "--format=%ct"]).output();
    time.map(|time| time.trim().to_owned()).filter(|time| !time.is_empty()).unwrap_or_else(|| "0".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_from_the_manual_page() {
        let page = ".TP\ndistlock\\-run(1)\nRun a command\n.TP\ndistlock\\-a\\-b(1)\n.B distlock\\-x(1)\n";
        assert_eq!(commands(page), ["run", "a-b"]);
    }

    #[test]
    fn all_that_is_deployed_is_installed() {
        let known: Vec<&str> = DEPLOYED.iter().map(|(from, _)| *from).collect();
        for directory in fs::read_dir(crate::root().join("deploy")).unwrap() {
            let name = format!("deploy/{}", directory.unwrap().file_name().to_string_lossy());
            assert!(known.contains(&name.as_str()), "{name} has no place in the package");
        }
    }
}
