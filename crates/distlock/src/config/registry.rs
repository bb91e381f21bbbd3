//! The one table of engines. A new engine is a folder in `engines/` and a row here.

use std::fmt;
use std::str::FromStr;

use crate::engines;
use crate::engines::shared::row::{EngineRow, Scheme};
use crate::types::error::{Error, ErrorKind, Result};

/// Makes the public enum and the table of rows from one list, so that neither can miss an engine.
macro_rules! engines {
    ($($(#[$doc:meta])* $driver:ident => $module:ident,)*) => {
        /// An engine, as a configuration names it: [`Config::driver`](crate::Config::driver).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Driver {
            $($(#[$doc])* $driver,)*
        }

        /// The rows in the order of [`Driver`].
        pub(crate) static ROWS: &[&EngineRow] = &[$(&engines::$module::open::ROW,)*];

        impl Driver {
            pub(crate) const ALL: &[Driver] = &[$(Driver::$driver,)*];
        }
    };
}

engines! {
    /// `memory`: locks inside this process.
    Memory => memory,
    /// `file`: locks on this machine.
    File => file,
    /// `redis`: one Redis or Valkey, with its replicas, or a Redis Cluster.
    Redis => redis,
    /// `redlock`: a majority of independent Redis nodes.
    Redlock => redlock,
    /// `etcd`: an etcd cluster.
    Etcd => etcd,
    /// `postgres`: a PostgreSQL server with its replicas.
    Postgres => postgres,
}

/// Returns the schemes of all engines.
pub(crate) fn schemes() -> impl Iterator<Item = &'static Scheme> {
    ROWS.iter().flat_map(|row| row.schemes)
}

impl Driver {
    /// Returns the engine's row.
    pub(crate) fn row(self) -> &'static EngineRow {
        ROWS[self as usize]
    }

    /// Returns the name in a configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    pub(crate) fn parse(name: &str) -> Result<Driver, String> {
        let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
        let found = Driver::ALL.iter().find(|driver| driver.as_str() == name);
        found.copied().ok_or_else(|| format!("not one of {}", known()))
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Driver {
    type Err = Error;
    fn from_str(name: &str) -> Result<Driver> {
        Driver::parse(name).map_err(|fault| Error::new(ErrorKind::Config, format!("driver: {fault}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_is_found_by_its_printed_name_and_no_other() {
        for driver in Driver::ALL {
            assert_eq!(driver.to_string().parse::<Driver>().unwrap(), *driver);
        }
        let error = "Redis".parse::<Driver>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.to_string(), "driver: not one of memory, file, redis, redlock, etcd, postgres");
    }

    #[test]
    fn no_scheme_belongs_to_two_engines() {
        let mut names: Vec<_> = schemes().map(|scheme| scheme.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
    }

    #[test]
    fn an_engine_that_is_not_built_in_names_its_feature() {
        for (driver, feature) in [
            (Driver::Redis, "redis"),
            (Driver::Redlock, "redis"),
            (Driver::Etcd, "etcd"),
            (Driver::Postgres, "postgres"),
        ] {
            let error = driver.row().not_built_in();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains(&format!("feature \"{feature}\"")), "{error}");
        }
    }
}
