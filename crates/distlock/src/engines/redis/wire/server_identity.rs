//! Which server answers: its product, its version, whether it is part of a cluster.

use std::collections::HashMap;
use std::fmt;

use redis::Value;

/// What a server tells of itself; `None` where it does not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::engines) struct ServerIdentity {
    /// What the product calls itself, in lower case: `redis`, `valkey`, or another that speaks the protocol.
    pub(in crate::engines) product: Option<String>,
    pub(in crate::engines) version: Option<String>,
    pub(in crate::engines) is_cluster: Option<bool>,
    pub(in crate::engines) is_master: Option<bool>,
}

impl ServerIdentity {
    /// Reads the reply to `HELLO`, to which every user has a right.
    pub(in crate::engines) fn of_hello(reply: Value) -> ServerIdentity {
        let fields: HashMap<String, Value> = redis::from_redis_value(reply).unwrap_or_default();
        let text = |name: &str| redis::from_redis_value::<String>(fields.get(name)?.clone()).ok();
        ServerIdentity {
            product: text("server"),
            version: text("version"),
            is_cluster: text("mode").map(|mode| mode == "cluster"),
            is_master: text("role").map(|role| role == "master"),
        }
    }

    /// Reads the fields of `INFO`. A product that is like Redis has a version of its own beside that of Redis.
    pub(in crate::engines) fn of_info(fields: &HashMap<String, String>) -> ServerIdentity {
        let own = fields.iter().find_map(|(name, version)| {
            let product = name.strip_suffix("_version")?;
            let is_own = !matches!(product, "redis" | "gcc") && version.starts_with(|c: char| c.is_ascii_digit());
            is_own.then(|| (product.to_owned(), version.clone()))
        });
        let redis = || Some(("redis".to_owned(), fields.get("redis_version")?.clone()));
        let (product, version) = own.or_else(redis).unzip();
        let mode = ["redis_mode", "server_mode"].iter().find_map(|name| fields.get(*name));
        let enabled = fields.get("cluster_enabled").map(|enabled| enabled == "1");
        let is_master = fields.get("role").map(|role| role == "master");
        ServerIdentity { product, version, is_cluster: enabled.or(mode.map(|mode| mode == "cluster")), is_master }
    }

    /// Returns what `self` tells, and `other` where it does not.
    pub(in crate::engines) fn or(self, other: ServerIdentity) -> ServerIdentity {
        ServerIdentity {
            product: self.product.or(other.product),
            version: self.version.or(other.version),
            is_cluster: self.is_cluster.or(other.is_cluster),
            is_master: self.is_master.or(other.is_master),
        }
    }
}

impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.product.as_deref() {
            Some("redis") => f.write_str("Redis")?,
            Some("valkey") => f.write_str("Valkey")?,
            Some(other) => write!(f, "{other} (neither Redis nor Valkey)")?,
            None => f.write_str("a product that it does not name")?,
        }
        if let Some(version) = &self.version {
            write!(f, " {version}")?;
        }
        f.write_str(match self.is_cluster {
            Some(true) => ", a node of a cluster",
            Some(false) => ", no cluster",
            None => "",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(lines: &[(&str, &str)]) -> String {
        let fields = lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        ServerIdentity::of_info(&fields).to_string()
    }

    #[test]
    fn a_product_is_told_by_its_own_version() {
        let like_redis = ("redis_version", "7.2.4");
        let cases = [
            (info(&[("redis_version", "8.0.2"), ("redis_mode", "standalone")]), "Redis 8.0.2, no cluster"),
            (
                info(&[like_redis, ("valkey_version", "9.1.2"), ("server_mode", "cluster")]),
                "Valkey 9.1.2, a node of a cluster",
            ),
            (info(&[like_redis, ("redict_version", "7.3.6")]), "redict (neither Redis nor Valkey) 7.3.6"),
            (info(&[like_redis, ("gcc_version", "15.2.0"), ("cluster_enabled", "0")]), "Redis 7.2.4, no cluster"),
            (info(&[]), "a product that it does not name"),
        ];
        for (found, expected) in cases {
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn hello_is_read_in_both_protocols() {
        let words = ["server", "valkey", "version", "9.1.2", "mode", "cluster", "role", "replica"];
        let words = words.map(|word| Value::BulkString(word.into()));
        let pairs = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        for reply in [Value::Array(words.to_vec()), Value::Map(pairs)] {
            let identity = ServerIdentity::of_hello(reply);
            assert_eq!((identity.is_cluster, identity.is_master), (Some(true), Some(false)));
            assert_eq!(identity.to_string(), "Valkey 9.1.2, a node of a cluster");
        }
        assert_eq!(ServerIdentity::of_hello(Value::Array(vec![])), ServerIdentity::default());
    }
}
