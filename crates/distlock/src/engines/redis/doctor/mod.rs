//! Looks for what makes locks on Redis unsafe, slow or impossible: one server, sentinels, or a cluster.

mod cluster;
mod facts;
mod sentinel;
mod server;

use std::time::Duration;

pub(in crate::engines) use self::facts::Facts;
use self::server::examine_server;
pub(in crate::engines) use self::server::{CLOCKS_APART, Expectations, check, unreachable};
use crate::engines::redis::client::Redis;
use crate::engines::redis::node::NodeOptions;
use crate::engines::redis::wire::options::Options;
use crate::types::error::Result;
use crate::types::finding::Finding;

/// The name of the lock that is tried; no application uses it.
const LOCK: &str = "distlock-doctor";

impl Redis {
    /// Everything that was found; leases are to last `ttl`. `history` says whether histories are to be kept.
    pub(crate) async fn examine(&self, ttl: Duration, history: bool) -> Vec<Finding> {
        let options = &*self.options;
        let lock = format!("{}{LOCK}", options.prefix);
        let expected = Expectations { history, ..expectations(options, ttl) };
        match &options.sentinels {
            Some(sentinels) => sentinel::examine(options, sentinels, &expected, &lock).await,
            None if options.is_cluster => cluster::examine(options, &self.seeds, &expected, &lock).await,
            None => examine_server(options, &options.dialer, &expected, &lock).await,
        }
    }
}

impl NodeOptions {
    /// What the node says about itself.
    pub(in crate::engines) async fn facts(&self) -> Result<Facts> {
        let options = self.options();
        Facts::collect(options, &options.dialer, &format!("{}{LOCK}", options.prefix), false).await
    }

    /// What to expect of one of several.
    pub(in crate::engines) fn expectations(&self, ttl: Duration) -> Expectations {
        expectations(self.options(), ttl)
    }
}

fn expectations(options: &Options, ttl: Duration) -> Expectations {
    let encrypted = options.encryption.is_some();
    let (guarded, is_cluster) = (options.guard.is_some(), options.is_cluster);
    Expectations { ttl, encrypted, guarded, is_cluster, fails_over: false, history: false }
}
