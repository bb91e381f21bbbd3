//! Packages of other Debian suites, unpacked beside the machine's own.
//!
//! apt fetches a package with everything that it needs, and checks the signatures, in directories of its own: the machine's
//! packages and lists stay as they are.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cmd::Cmd;

/// How long fetching packages with their libraries may take.
const FETCH_LIMIT: Duration = Duration::from_secs(300);
/// Where a Debian archive's signatures are checked with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const LOADER: &str = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];

/// Unpacks packages and what they depend on into `root`. What apt needs for that is kept in `directory`.
pub(crate) fn fetch(suite: &str, packages: &[&str], directory: &Path, root: &Path) -> io::Result<()> {
    let apt = Apt::prepare(suite, directory)?;
    let install = apt.get(&["install", "--download-only", "--yes", "-t", suite]).args(packages);
    if apt.get(&["update"]).read().is_none() || install.read().is_none() {
        return Err(failed(format!("apt-get cannot fetch {} of {suite}", packages.join(" "))));
    }
    fs::create_dir_all(root)?;
    for archive in fs::read_dir(directory.join("cache/archives"))? {
        let archive = archive?.path();
        if archive.extension().is_some_and(|extension| extension == "deb") {
            let unpack = Cmd::new("dpkg").args(&["-x", &archive.to_string_lossy(), &root.to_string_lossy()]);
            if !unpack.succeeds() {
                return Err(failed(format!("{} cannot be unpacked", archive.display())));
            }
        }
    }
    fs::remove_dir_all(directory.join("cache"))
}

/// apt with lists, cache and installed packages of its own.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn prepare(suite: &str, directory: &Path) -> io::Result<Apt> {
        let at = |name: &str| directory.join(name);
        for name in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(at(name))?;
        }
        // Without installed packages every library is fetched.
        fs::write(at("status"), "")?;
        let archive = archive_of_machine()?;
        let suites = base_of(suite).into_iter().chain([suite]);
        let lines: String = suites.map(|suite| format!("deb [signed-by={KEYRING}] {archive} {suite} main\n")).collect();
        fs::write(at("sources.list"), lines)?;
        let set = |name: &str, file: &str| format!("{name}={}", at(file).display());
        let options = [
            set("Dir::Etc::sourcelist", "sources.list"),
            set("Dir::State::lists", "lists"),
            set("Dir::State::status", "status"),
            set("Dir::Cache", "cache"),
            "Dir::Etc::sourceparts=/dev/null".into(),
            "Debug::NoLocking=1".into(),
            "APT::Sandbox::User=root".into(),
            "APT::Install-Recommends=false".into(),
            "Acquire::Languages=none".into(),
        ];
        Ok(Apt { options: options.into() })
    }

    fn get(&self, words: &[&str]) -> Cmd {
        let cmd = self.options.iter().fold(Cmd::new("apt-get").args(&["-q"]), |cmd, option| cmd.args(&["-o", option]));
        cmd.args(words).hidden_env("DEBIAN_FRONTEND", "noninteractive").limit(FETCH_LIMIT)
    }
}

/// Returns the suite that has the libraries of the packages of `suite`, if that is another one.
fn base_of(suite: &str) -> Option<&str> {
    if suite == "experimental" { Some("sid") } else { suite.strip_suffix("-backports") }
}

/// Returns the address of the archive that the machine's own packages come from.
fn archive_of_machine() -> io::Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(parts) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(parts.flatten().map(|part| part.path()));
    }
    files.sort();
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let found = texts.filter_map(|text| archive_in(&text)).next();
    found.ok_or_else(|| failed("no Debian archive is configured on this machine".into()))
}

/// Returns the first archive of a file in either of apt's formats.
fn archive_in(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let words = line.strip_prefix("URIs:").or_else(|| line.strip_prefix("deb "))?;
        words.split_whitespace().find(|word| word.contains("://")).map(|uri| uri.trim_end_matches('/').to_owned())
    })
}

/// Writes the script `server` that runs `program` of `root` with the libraries of `root`, and with `args` before its own.
pub(crate) fn wrap(root: &Path, program: &str, args: &[&str], server: &Path) -> io::Result<()> {
    let real = ["usr/bin", "usr/sbin"].map(|directory| root.join(directory).join(program));
    let real = real.iter().find(|path| path.exists()).ok_or_else(|| failed(format!("no {program} in its package")))?;
    let name = server.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    write_script(root, real, &name, args, server)
}

/// Replaces all programs in `folder` of `root` by scripts that run them with the libraries of `root`. A program is told the
/// path of its script: it finds its other files, and programs that it starts, from there.
pub(crate) fn wrap_folder(root: &Path, folder: &str) -> io::Result<()> {
    let scripts = root.join(folder);
    let programs = scripts.with_extension("programs");
    fs::rename(&scripts, &programs)?;
    for program in fs::read_dir(&programs)? {
        let program = program?;
        let script = scripts.join(program.file_name());
        write_script(root, &program.path(), &script.to_string_lossy(), &[], &script)?;
    }
    Ok(())
}

/// Writes a script that runs the program `real` under the name `name`.
fn write_script(root: &Path, real: &Path, name: &str, args: &[&str], server: &Path) -> io::Result<()> {
    let loader = root.join(LOADER);
    if !loader.exists() {
        return Err(failed(format!("no loader for {}: only amd64 is known", real.display())));
    }
    let libraries = LIBRARIES.map(|directory| root.join(directory).to_string_lossy().into_owned()).join(":");
    let (loader, real) = (loader.display(), real.display());
    let args: String = args.iter().map(|arg| format!(" '{arg}'")).collect();
    let script =
        format!("#!/bin/sh\nexec '{loader}' --library-path '{libraries}' --argv0 '{name}' '{real}'{args} \"$@\"\n");
    fs::create_dir_all(server.parent().unwrap_or(root))?;
    // Complete before it has its name: an interrupted run leaves no half of it.
    let draft = server.with_extension("draft");
    fs::write(&draft, script)?;
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
    fs::rename(&draft, server)
}

/// Returns an error with this message.
pub(crate) fn failed(message: String) -> io::Error {
    io::Error::other(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_is_read_in_both_formats() {
        let new = "Types: deb\n# x\nURIs: http://archive.example/debian/\nSuites: bookworm\n";
        let old = "# comment\ndeb [arch=amd64] http://archive.example/debian bookworm main\n";
        for text in [new, old] {
            assert_eq!(archive_in(text).as_deref(), Some("http://archive.example/debian"));
        }
        assert_eq!(archive_in("# nothing\n"), None);
    }

    #[test]
    fn a_suite_that_is_not_complete_has_another_below_it() {
        let cases = [("sid", None), ("experimental", Some("sid")), ("bookworm-backports", Some("bookworm"))];
        for (suite, base) in cases {
            assert_eq!(base_of(suite), base);
        }
    }

    #[test]
    fn a_wrapped_program_runs_with_its_own_libraries() {
        let root = std::env::temp_dir().join(format!("distlock-matrix-{}", std::process::id()));
        fs::create_dir_all(root.join("usr/bin")).unwrap();
        fs::create_dir_all(root.join("usr/lib/x86_64-linux-gnu")).unwrap();
        fs::write(root.join("usr/bin/real"), "").unwrap();
        let server = root.join("bin/redis-server");
        assert!(wrap(&root, "real", &["--first"], &server).is_err(), "without a loader");
        // A loader that shows how it is called.
        fs::write(root.join(LOADER), "#!/bin/sh\necho \"$@\"\n").unwrap();
        fs::set_permissions(root.join(LOADER), fs::Permissions::from_mode(0o755)).unwrap();
        wrap(&root, "real", &["--first"], &server).unwrap();
        let shown = Cmd::new(&server.to_string_lossy()).args(&["--port", "1"]).read().unwrap();
        assert!(
            shown.contains("--argv0 redis-server") && shown.ends_with("usr/bin/real --first --port 1\n"),
            "{shown}"
        );
        fs::create_dir_all(root.join("usr/lib/server/bin")).unwrap();
        fs::write(root.join("usr/lib/server/bin/first"), "").unwrap();
        wrap_folder(&root, "usr/lib/server/bin").unwrap();
        let script = root.join("usr/lib/server/bin/first");
        let shown = Cmd::new(&script.to_string_lossy()).args(&["--port", "1"]).read().unwrap();
        assert!(shown.contains(&format!("--argv0 {} ", script.display())), "{shown}");
        assert!(shown.ends_with("usr/lib/server/bin.programs/first --port 1\n"), "{shown}");
        fs::remove_dir_all(&root).unwrap();
    }
}
