//! The step that installs missing tools of the tests.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::Outcome;
use super::service_policy::ServicesStayDown;
use crate::cmd::Cmd;
use crate::tally::Tally;

/// A Debian package that tests need.
struct Tool {
    package: &'static str,
    /// The program that shows that the package is installed.
    program: &'static str,
    why: &'static str,
}

/// Needed only by tests with `needs_browser` in their names; without it, they are skipped.
const BROWSER: &[Tool] = &[
    Tool { package: "chromium", program: "chromium", why: "shows the console's page" },
    Tool { package: "chromium-driver", program: "chromedriver", why: "does to that page what people do" },
];

/// The required tools.
const TOOLS: &[Tool] = &[
    Tool { package: "util-linux", program: "flock", why: "holds file locks from outside, as shell jobs do" },
    Tool { package: "util-linux", program: "setpriv", why: "ties servers to the test runner that started them" },
    Tool { package: "redis-server", program: "redis-server", why: "is the server of the Redis engine" },
    Tool { package: "etcd-server", program: "etcd", why: "is the server of the etcd engine" },
    Tool { package: "etcd-client", program: "etcdctl", why: "administers etcd, and locks as others do" },
    // Not on the path.
    Tool {
        package: "postgresql-15",
        program: "/usr/lib/postgresql/15/bin/postgres",
        why: "is the server of the PostgreSQL engine",
    },
    Tool { package: "pgbouncer", program: "pgbouncer", why: "lends sessions of PostgreSQL by the transaction" },
    Tool {
        package: "python3-pip",
        program: "pip3",
        why: "fetches redis-py and a second version of etcd, installs our client",
    },
    Tool { package: "python3", program: "python3", why: "runs redis-py, which locks on the same keys, and our client" },
    Tool { package: "nodejs", program: "node", why: "runs node-redlock, which locks on the same keys, and our client" },
    Tool { package: "npm", program: "npm", why: "fetches node-redlock" },
    Tool { package: "curl", program: "curl", why: "runs the requests of docs/serve.md" },
    Tool { package: "sqlite3", program: "sqlite3", why: "runs the SQL of docs/fencing.md" },
    Tool { package: "openssl", program: "openssl", why: "makes certificates for servers with TLS" },
    Tool { package: "gcc", program: "gcc", why: "compiles the shim that shifts a server's clock" },
    Tool { package: "libc6-dev", program: "gencat", why: "has the headers for that shim" },
    Tool { package: "iproute2", program: "ip", why: "makes networks that can be taken apart" },
    Tool { package: "nftables", program: "nft", why: "loses packets on purpose" },
];

/// Optional tools: a test without its tool is skipped by its name, and counted.
const WELCOME: &[Tool] = &[
    Tool { package: "prometheus", program: "promtool", why: "reads the rules of deploy/prometheus" },
    Tool { package: "zsh", program: "zsh", why: "completes names of locks" },
    Tool { package: "fish", program: "fish", why: "completes names of locks" },
];

/// The parts of a toolchain that a minimal installation of Rust leaves out.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt"), ("clippy", "clippy")];

/// Installs the missing tools.
pub(super) fn run() -> Outcome {
    let good = [install_packages(TOOLS), install_components()];
    for tools in [WELCOME, BROWSER] {
        if !install_packages(tools) {
            println!("the tests that need it are skipped");
        }
    }
    Outcome::new(Tally::one(good == [true, true]), "cargo xtask test tools")
}

/// Returns whether this process runs as root.
pub(super) fn is_root() -> bool {
    // The directory belongs to the process's effective user; std has no call for it.
    std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Returns whether a browser and its driver are installed.
pub(super) fn has_browser() -> bool {
    BROWSER.iter().all(|tool| is_installed(tool.program))
}

/// Returns whether zsh is installed.
pub(super) fn has_zsh() -> bool {
    is_installed("zsh")
}

/// Returns whether fish is installed.
pub(super) fn has_fish() -> bool {
    is_installed("fish")
}

fn install_packages(tools: &[Tool]) -> bool {
    let missing: Vec<&Tool> = tools.iter().filter(|tool| !is_installed(tool.program)).collect();
    if missing.is_empty() {
        return true;
    }
    for Tool { package, program, why } in &missing {
        println!("`{program}` of the package {package} is missing; it {why}");
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    let (update, install) = apt_get(&packages);
    let done = is_root() && {
        let _policy = ServicesStayDown::begin();
        update.succeeds() && install.succeeds()
    };
    let still_missing: Vec<&str> = missing.iter().map(|tool| tool.program).filter(|p| !is_installed(p)).collect();
    let good = done && still_missing.is_empty();
    if !good {
        let cause = if is_root() { "apt-get did not install them" } else { "only root can install them" };
        eprintln!("missing: {}; {cause}. By hand:", packages.join(", "));
        eprintln!("    sudo apt-get update && sudo apt-get install {}", packages.join(" "));
    }
    good
}

fn apt_get(packages: &[&str]) -> (Cmd, Cmd) {
    let apt_get = Cmd::new("apt-get").hidden_env("DEBIAN_FRONTEND", "noninteractive");
    let install = apt_get.clone().args(&["install", "--yes", "--no-install-recommends"]).args(packages);
    (apt_get.args(&["update"]), install)
}

fn install_components() -> bool {
    let missing = |command: &str| !Cmd::cargo(&[command, "--version"]).succeeds_silently();
    let mut good = true;
    for (component, _) in COMPONENTS.iter().filter(|(_, command)| missing(command)) {
        let add = Cmd::new("rustup").args(&["component", "add", component]);
        println!("{component} is missing: {add}");
        if !add.succeeds() {
            eprintln!("{component} could not be installed. By hand:\n    {add}");
            good = false;
        }
    }
    good
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Daemons are in sbin, which is not on every user's path.
    let sbin = [PathBuf::from("/usr/sbin"), PathBuf::from("/sbin")];
    std::env::split_paths(&path).chain(sbin).any(|directory| is_executable(&directory.join(program)))
}

fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_the_path_or_is_not() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
        assert!(!is_executable(Path::new("/")), "a directory is no program");
    }

    #[test]
    fn only_missing_packages_are_installed_without_prompts() {
        let (update, install) = apt_get(&["redis-server", "etcd-server"]);
        assert_eq!(update.to_string(), "apt-get update");
        let expected = "apt-get install --yes --no-install-recommends redis-server etcd-server";
        assert_eq!(install.to_string(), expected);
    }

    #[test]
    fn every_tool_has_a_reason() {
        for tool in TOOLS.iter().chain(WELCOME).chain(BROWSER) {
            assert!(!tool.package.is_empty() && !tool.program.is_empty() && !tool.why.is_empty(), "{}", tool.package);
        }
    }
}
