//! The Debian package: built, installed into a root directory of its own, used there, and removed.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

/// A directory for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("package-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn output(program: &str, words: &[&str]) -> Output {
    Command::new(program).args(words).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program that must succeed, and returns its stdout.
#[track_caller]
fn run(program: &str, words: &[&str]) -> String {
    let done = output(program, words);
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}: {}\n{stderr}", done.status);
    String::from_utf8(done.stdout).unwrap()
}

/// Builds the package of the tested program in `into`, as `cargo xtask package deb` does with a release.
fn build(into: &str) -> String {
    pack("deb", into)
}

/// Packs the tested program by `cargo xtask package`, and returns the path that it prints.
fn pack(what: &str, into: &str) -> String {
    // Without its debug information, which would take most of the time.
    static STRIPPED: LazyLock<(Scratch, String)> = LazyLock::new(|| {
        let scratch = Scratch::new("program");
        let program = scratch.path("distlock");
        run("strip", &["-o", &program, env!("CARGO_BIN_EXE_distlock")]);
        (scratch, program)
    });
    let mut xtask = Command::new(env!("CARGO"));
    xtask.args([
        "run",
        "--quiet",
        "--package",
        "xtask",
        "--",
        "package",
        what,
        "--program",
        &STRIPPED.1,
        "--into",
        into,
    ]);
    // Build scripts of other packages take cargo's variables for this package as a change.
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            xtask.env_remove(name);
        }
    }
    let done = xtask.output().expect("cargo runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Returns all paths below `root` but dpkg's own data.
fn files(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let shown = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if entry.file_type().unwrap().is_dir() && shown != "var/lib/dpkg" {
                directories.push(entry.path());
            }
            found.insert(shown);
        }
    }
    found
}

/// A root directory in which dpkg knows the packages `installed` of this machine and no others.
fn new_root(scratch: &Scratch, name: &str, installed: &[&str]) -> String {
    let root = scratch.path(name);
    let data = format!("{root}/var/lib/dpkg");
    for directory in ["info", "updates", "triggers"] {
        std::fs::create_dir_all(format!("{data}/{directory}")).unwrap();
    }
    let mut status = String::new();
    for package in installed {
        // Without what the package itself needs: that is no question here.
        let stanza = run("dpkg-query", &["--status", package]);
        let is_kept = |line: &&str| !line.starts_with("Depends:") && !line.starts_with("Pre-Depends:");
        status.extend(stanza.lines().filter(is_kept).map(|line| format!("{line}\n")));
        status.push('\n');
    }
    std::fs::write(format!("{data}/status"), status).unwrap();
    root
}

fn dpkg(root: &str, words: &[&str]) -> Output {
    let root = format!("--root={root}");
    output("dpkg", &[&[root.as_str(), "--force-script-chrootless"], words].concat())
}

#[test]
fn the_package_is_installed_used_and_removed_needs_root() {
    let scratch = Scratch::new("install");
    let deb = build(&scratch.path("debs"));
    let lacking = new_root(&scratch, "lacking", &[]);
    let refused = dpkg(&lacking, &["--install", &deb]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("depends on libc6 (>= 2."), "without libc6: {why}");

    let root = new_root(&scratch, "root", &["libc6", "libgcc-s1"]);
    let before = files(Path::new(&root));
    let installed = dpkg(&root, &["--install", &deb]);
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let verified = dpkg(&root, &["--verify", "distlock"]);
    assert!(verified.status.success() && verified.stdout.is_empty(), "{}", String::from_utf8_lossy(&verified.stdout));
    use_program(&scratch, &root);

    let removed = dpkg(&root, &["--purge", "distlock"]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    assert_eq!(files(Path::new(&root)), before, "nothing is left");
}

/// Takes a lock with the installed program, and looks at the files that came with it.
fn use_program(scratch: &Scratch, root: &str) {
    let program = format!("{root}/usr/bin/distlock");
    let mut command = Command::new(&program);
    command.args(["run", "-n", "job", "--", "sh", "-c", "echo $DISTLOCK_LOCK_NAME"]);
    let done = command.env("DISTLOCK_LOCK_DIR", scratch.path("locks")).env_remove("DISTLOCK_URL").output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stdout), "job\n", "{}", String::from_utf8_lossy(&done.stderr));

    let page = run("gzip", &["-dc", &format!("{root}/usr/share/man/man1/distlock-run.1.gz")]);
    assert!(page.contains(".TH distlock-run 1"), "{page}");
    let places = [
        ("bash", "usr/share/bash-completion/completions/distlock"),
        ("zsh", "usr/share/zsh/vendor-completions/_distlock"),
        ("fish", "usr/share/fish/vendor_completions.d/distlock.fish"),
    ];
    for (shell, place) in places {
        let script = std::fs::read_to_string(format!("{root}/{place}")).unwrap();
        assert_eq!(script, run(&program, &["completions", shell]), "{shell}");
    }
    for unit in ["distlock-console@.service", "distlock-serve@.service", "distlock-serve@.socket"] {
        let text = std::fs::read_to_string(format!("{root}/usr/lib/systemd/system/{unit}")).unwrap();
        let program = text.lines().filter_map(|line| line.strip_prefix("ExecStart=")?.split(' ').next());
        assert!(program.clone().all(|program| program == "/usr/bin/distlock"), "{unit}");
        let page = text.lines().find_map(|line| line.strip_prefix("Documentation=man:")?.strip_suffix("(1)"));
        let is_there = |page| Path::new(root).join(format!("usr/share/man/man1/{page}.1.gz")).exists();
        assert!(page.is_none_or(is_there), "{unit}: {page:?}");
    }
    let directory = std::fs::read_to_string(format!("{root}/usr/lib/tmpfiles.d/distlock.conf")).unwrap();
    assert!(directory.contains("d /run/distlock 1777 root root"), "{directory}");
}

#[test]
fn the_package_says_what_it_needs_and_who_wrote_it() {
    let scratch = Scratch::new("fields");
    let deb = build(&scratch.path("a"));
    let field = |name: &str| run("dpkg-deb", &["--field", &deb, name]).trim().to_owned();
    assert_eq!((field("Package").as_str(), field("Version").as_str()), ("distlock", env!("CARGO_PKG_VERSION")));
    let depends = field("Depends");
    assert!(depends.contains("libc6 (>= 2.") && depends.contains("libgcc-s1 (>= "), "{depends}");
    let owners = run("dpkg-deb", &["--contents", &deb]);
    assert!(owners.lines().all(|line| line.contains(" root/root ")), "{owners}");
    assert!(!run("dpkg-deb", &["--info", &deb]).contains("/bin/sh"), "no maintainer script");

    run("dpkg-deb", &["--extract", &deb, &scratch.path("files")]);
    let copyright = std::fs::read_to_string(scratch.path("files/usr/share/doc/distlock/copyright")).unwrap();
    for part in
        ["License: MIT or Apache-2.0\n", "\n tokio 1.", "Permission is hereby granted", "common-licenses/Apache-2.0"]
    {
        assert!(copyright.contains(part), "{part:?}: {copyright}");
    }
    // One page for each command.
    let commands: Vec<_> =
        distlock_cli::flags::definition().get_subcommands().map(|it| it.get_name().to_owned()).collect();
    for command in commands {
        let page = scratch.path(&format!("files/usr/share/man/man1/distlock-{command}.1.gz"));
        assert!(Path::new(&page).exists(), "{page}");
    }
    let again = build(&scratch.path("b"));
    assert!(std::fs::read(&deb).unwrap() == std::fs::read(&again).unwrap(), "two builds are the same");
}

#[test]
fn a_release_has_the_program_with_all_that_belongs_to_it_and_checksums() {
    let scratch = Scratch::new("release");
    let sums = pack("release", &scratch.path("files"));
    let checked = run("sh", &["-c", "cd \"$0\" && sha256sum --check SHA256SUMS", &scratch.path("files")]);
    assert_eq!(sums, scratch.path("files/SHA256SUMS"));
    let name = format!("distlock-{}-{}-linux", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    assert!(checked.contains(&format!("{name}.tar.gz: OK\n")), "{checked}");
    assert!(checked.lines().count() == 2 && checked.contains(".deb: OK\n"), "{checked}");
    // Nothing is published that has no checksum.
    assert_eq!(std::fs::read_dir(scratch.path("files")).unwrap().count(), 3);

    run("tar", &["-C", &scratch.path(""), "-xzf", &scratch.path(&format!("files/{name}.tar.gz"))]);
    let file = |path: &str| scratch.path(&format!("{name}/{path}"));
    assert_eq!(run(&file("usr/bin/distlock"), &["--version"]), format!("distlock {}\n", env!("CARGO_PKG_VERSION")));
    for path in [
        "LICENSE-MIT",
        "CHANGELOG.md",
        "usr/share/man/man1/distlock-run.1",
        "usr/share/bash-completion/completions/distlock",
        "usr/share/zsh/vendor-completions/_distlock",
        "usr/share/fish/vendor_completions.d/distlock.fish",
        "usr/lib/systemd/system/distlock-console@.service",
        "usr/lib/tmpfiles.d/distlock.conf",
    ] {
        assert!(Path::new(&file(path)).exists(), "{path}");
    }
}
