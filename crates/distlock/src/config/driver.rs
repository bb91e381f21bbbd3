//! The engines by name.

use std::fmt;
use std::str::FromStr;

use crate::types::error::{Error, ErrorKind, Result};

/// An engine, as a configuration names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Driver {
    /// `memory`: locks inside this process.
    Memory,
    /// `file`: locks on this machine.
    File,
    /// `redis`: one Redis or Valkey, with its replicas, or a Redis Cluster.
    Redis,
    /// `redlock`: a majority of independent Redis nodes.
    Redlock,
    /// `etcd`: an etcd cluster.
    Etcd,
}

impl Driver {
    pub(crate) const ALL: [Driver; 5] = [Driver::Memory, Driver::File, Driver::Redis, Driver::Redlock, Driver::Etcd];

    /// The name in a configuration.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Driver::Memory => "memory",
            Driver::File => "file",
            Driver::Redis => "redis",
            Driver::Redlock => "redlock",
            Driver::Etcd => "etcd",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Driver, String> {
        let known = || Driver::ALL.map(Driver::as_str).join(", ");
        Driver::ALL.into_iter().find(|driver| driver.as_str() == name).ok_or_else(|| format!("not one of {}", known()))
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
            assert_eq!(driver.to_string().parse::<Driver>().unwrap(), driver);
        }
        let error = "Redis".parse::<Driver>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert_eq!(error.to_string(), "driver: not one of memory, file, redis, redlock, etcd");
    }
}
