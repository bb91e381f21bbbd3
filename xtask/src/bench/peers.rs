//! `cargo xtask bench peers`: lock libraries of other projects, raw lower bounds and this one in one run.
//!
//! The driver and the workers are the crate `bench/peers`, which is no part of the workspace. Libraries in other
//! languages are installed below the target directory. One that cannot be had is skipped by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::figures::Results;
use super::page;
use super::table::{SCENARIOS, table};
use crate::cmd::Cmd;
use crate::matrix::{commit, today};
use crate::test::target_directory;

const MANIFEST: &str = "bench/peers/Cargo.toml";
const WHEELS: [&str; 2] = ["redis==8.1.0", "python-redis-lock==4.0.1"];
const PACKAGES: [&str; 2] = ["redlock@5.0.0-beta.2", "ioredis@5.4.1"];
const LIBRARIES: &str = "rslock 0.10.0, distributed-lock 0.2.0, redis-py 8.1.0, python-redis-lock 4.0.1, \
                         node-redlock 5.0.0-beta.2 with ioredis 5.4.1, etcd's client for Go 3.5.9 or as installed";
/// Where Debian installs the sources of Go packages.
const DEBIAN_GO: &str = "/usr/share/gocode";

/// Runs all scenarios and writes the page; or with `--short` or named scenarios, prints their tables. `--page FILE…`
/// writes the page from the files of earlier runs.
pub(super) fn run(rest: &[&str]) -> bool {
    if let ["--page", files @ ..] = rest {
        return write_page(&files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect::<String>());
    }
    let directory = target_directory().join("peers");
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    if let Err(error) = fs::create_dir_all(&directory) {
        eprintln!("{}: {error}", directory.display());
        return false;
    }
    let start = Instant::now();
    let Some(driver) = build() else { return false };
    let out = directory.join(if rest.is_empty() { "results.txt".into() } else { file_name(rest) });
    let mut skipped = Vec::new();
    let mut command = Cmd::new(&driver).args(&["--out", &out.to_string_lossy()]);
    for (flag, names, provided) in [
        ("--python", "redis-py, python-redis-lock", python(&directory)),
        ("--node", "node-redlock", node(&directory)),
        ("--go", "go-mutex", go(&directory)),
    ] {
        match provided {
            Ok(path) => command = command.args(&[flag, &path.to_string_lossy()]),
            Err(reason) => {
                println!("skipped: {names}: {reason}");
                skipped.push(format!("# skipped {names}: {reason}\n"));
            }
        }
    }
    if !command.args(rest).succeeds() {
        return false;
    }
    let measured = fs::read_to_string(&out).unwrap_or_default();
    let remarks =
        format!("# run {}, commit `{}`\n# machine {}\n# libraries {LIBRARIES}\n", today(), commit(), machine());
    let text = format!("{remarks}{}{measured}", skipped.concat());
    let _ = fs::write(&out, &text);
    print_tables(&Results::parse(&text));
    println!("{} skipped, {} s, results in {}", skipped.len(), start.elapsed().as_secs(), out.display());
    !rest.is_empty() || write_page(&text)
}

fn file_name(rest: &[&str]) -> PathBuf {
    format!("{}.txt", rest.join("-").trim_start_matches('-').replace('/', "-")).into()
}

fn write_page(text: &str) -> bool {
    let results = Results::parse(text);
    if results.figures.is_empty() {
        eprintln!("no results");
        return false;
    }
    if let Err(error) = page::write(&results) {
        eprintln!("{} cannot be written: {error}", page::PATH);
        return false;
    }
    println!("written: {}", page::PATH);
    true
}

fn print_tables(results: &Results) {
    for scenario in SCENARIOS {
        if let Some(table) = table(scenario, results) {
            println!("\n{table}");
        }
    }
}

/// Builds the driver in the workspace's target directory: both share the dependencies.
fn build() -> Option<String> {
    let target = target_directory();
    let target = std::path::absolute(&target).unwrap_or(target);
    let arguments = ["build", "--release", "--locked", "--manifest-path", MANIFEST, "--target-dir"];
    println!("building the driver and the peers in Rust …");
    let built = Cmd::cargo(&arguments).args(&[&target.to_string_lossy()]).succeeds();
    built.then(|| target.join("release/distlock-peers").to_string_lossy().into_owned())
}

/// Returns a Python interpreter that has the libraries, or why there is none.
fn python(directory: &Path) -> Result<PathBuf, &'static str> {
    let home = directory.join("python");
    let program = home.join("bin/python");
    let here = program.to_string_lossy();
    let has_all = Cmd::new(&here).args(&["-c", "import redis, redis_lock"]);
    if has_all.succeeds_silently() {
        return Ok(program);
    }
    println!("installing {} …", WHEELS.join(" "));
    if !Cmd::new("python3").args(&["-m", "venv", &home.to_string_lossy()]).succeeds_silently() {
        return Err("python3 with venv is not here");
    }
    let install = Cmd::new(&here).args(&["-m", "pip", "install", "--quiet"]).args(&WHEELS);
    let installed = install.succeeds_silently() && has_all.succeeds_silently();
    if installed { Ok(program) } else { Err("they cannot be installed") }
}

/// Returns a directory with `node_modules`, or why there is none.
fn node(directory: &Path) -> Result<PathBuf, &'static str> {
    let home = directory.join("node");
    if !Cmd::new("node").args(&["--version"]).succeeds_silently() {
        return Err("node is not here");
    }
    if home.join("node_modules/redlock/package.json").exists() {
        return Ok(home);
    }
    println!("installing {} …", PACKAGES.join(" "));
    let flags = ["install", "--silent", "--no-audit", "--no-fund", "--no-save", "--ignore-scripts", "--prefix"];
    let install = Cmd::new("npm").args(&flags).args(&[&home.to_string_lossy()]).args(&PACKAGES);
    if install.succeeds_silently() { Ok(home) } else { Err("it cannot be installed") }
}

/// Returns the worker in Go, or why there is none. It is built in a copy: the go tool writes beside its sources.
fn go(directory: &Path) -> Result<PathBuf, &'static str> {
    if !Cmd::new("go").args(&["version"]).succeeds_silently() {
        return Err("Go is not here");
    }
    let home = directory.join("go");
    let copied = fs::create_dir_all(&home)
        .and_then(|()| fs::copy("bench/peers/go/go.mod", home.join("go.mod")))
        .and_then(|_| fs::copy("bench/peers/go/main.go", home.join("main.go")));
    let with_modules = Cmd::new("sh").args(&["-c", "cd \"$0\" && go mod tidy && go build -o worker ."]);
    let is_built = copied.is_ok()
        && (with_modules.args(&[&home.to_string_lossy()]).succeeds_silently() || is_built_by_path(&home));
    if is_built { Ok(home.join("worker")) } else { Err("its client for etcd cannot be downloaded") }
}

/// Builds the worker with the sources of a Go path, where the client has the name that it had before modules.
fn is_built_by_path(home: &Path) -> bool {
    let path = std::env::var("GOPATH").unwrap_or_else(|_| DEBIAN_GO.into());
    let main = home.join("main.go");
    let source = fs::read_to_string(&main).unwrap_or_default();
    let build = Cmd::new("go").args(&["build", "-o", &home.join("worker").to_string_lossy(), &main.to_string_lossy()]);
    fs::write(&main, source.replace("go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/clientv3")).is_ok()
        && build.env("GO111MODULE", "off").env("GOPATH", &path).succeeds_silently()
}

/// Returns the number of cores, the processor and the kernel.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores, {}, Linux {}", model.unwrap_or("unknown processor"), kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The versions that the page names are those that are built and installed.
    #[test]
    fn the_versions_of_the_page_are_those_that_are_installed() {
        let manifest = fs::read_to_string(format!("{}/../{MANIFEST}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert!(manifest.contains("rslock = { version = \"=0.10.0\"") && LIBRARIES.contains("rslock 0.10.0"));
        assert!(
            manifest.contains("distributed-lock-redis = \"=0.2.0\"") && LIBRARIES.contains("distributed-lock 0.2.0")
        );
        let installed = WHEELS
            .iter()
            .flat_map(|wheel| wheel.split_once("=="))
            .chain(PACKAGES.iter().flat_map(|it| it.split_once('@')));
        for (name, version) in installed {
            assert!(LIBRARIES.contains(version), "{name} {version}");
        }
    }

    /// `cargo xtask deny` does not look at the peers: they must come from where the workspace's dependencies come from.
    #[test]
    fn the_peers_come_from_the_workspaces_sources() {
        let sources = |lock: &str| -> Vec<String> {
            let text = fs::read_to_string(format!("{}/../{lock}", env!("CARGO_MANIFEST_DIR"))).unwrap();
            text.lines().filter(|line| line.starts_with("source = ")).map(str::to_owned).collect()
        };
        let (ours, theirs) = (sources("Cargo.lock"), sources("bench/peers/Cargo.lock"));
        assert!(theirs.len() > 50, "every crate of the lock file has its source");
        assert!(theirs.iter().all(|source| ours.contains(source)), "{theirs:?}");
    }

    #[test]
    fn each_partial_run_has_its_own_file() {
        assert_eq!(file_name(&["--short", "redis/alone"]), PathBuf::from("short-redis-alone.txt"));
    }
}
