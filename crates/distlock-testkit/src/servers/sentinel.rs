//! A Redis master with replicas and the sentinels that watch them.

use std::net::SocketAddr;

use super::polling::eventually;
use super::redis::RedisServer;
use super::redis_options::{CONTROL_PASSWORD, CONTROL_USER, RedisOptions};

/// The name of the service that the sentinels watch.
pub const SERVICE: &str = "locks";

/// How many of the three sentinels must agree.
const QUORUM: usize = 2;

/// A server that is silent for this long is considered dead. With less, busy servers would be taken for dead.
const DOWN_AFTER_MS: u32 = 1000;

/// Sentinels begin no failover within twice this time after the previous one.
const FAILOVER_TIMEOUT_MS: u32 = 2000;

/// One master, two replicas, three sentinels. Dropping it kills them all.
#[derive(Debug)]
pub struct SentinelSetup {
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
}

impl SentinelSetup {
    /// Starts everything and waits until every sentinel knows the others and both replicas.
    #[track_caller]
    pub fn start() -> SentinelSetup {
        SentinelSetup::with(&RedisServer::options())
    }

    /// Like [`start`](Self::start), with options for the three data servers. The sentinels use TLS if the data servers
    /// do.
    #[track_caller]
    pub fn with(options: &RedisOptions) -> SentinelSetup {
        let setup = SentinelSetup::hasty(options);
        setup.servers[1..].iter().for_each(RedisServer::expect_in_sync);
        setup.expect_complete();
        setup
    }

    /// Like [`with`](Self::with), without waiting until replicas follow and sentinels know each other, which takes
    /// seconds: for tests in which only the master matters.
    #[track_caller]
    pub fn hasty(options: &RedisOptions) -> SentinelSetup {
        let master = options.clone().start();
        let address = master.address();
        let replicas = (0..2).map(|_| options.clone().replica_of(address).start());
        let servers: Vec<RedisServer> = std::iter::once(master).chain(replicas).collect();
        let sentinels = (0..3).map(|_| sentinel(options, address)).collect();
        SentinelSetup { sentinels, servers }
    }

    /// The URL that names all sentinels and the service.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        let password = self.servers[0].password().map(|password| format!(":{password}@")).unwrap_or_default();
        let scheme = if self.servers[0].is_encrypted() { "rediss+sentinel" } else { "redis+sentinel" };
        format!("{scheme}://{password}{}/{SERVICE}", hosts.join(","))
    }

    /// Returns the data servers; the first one was the first master.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// Returns the data servers, to kill and restart.
    pub fn servers_mut(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The sentinels, to kill and restart.
    pub fn sentinels_mut(&mut self) -> &mut [RedisServer] {
        &mut self.sentinels
    }

    /// Returns the index of the server that most sentinels name as the master; `None` while they disagree.
    pub fn master(&self) -> Option<usize> {
        let named: Vec<u16> = self.sentinels.iter().filter_map(master_by).collect();
        let votes = |server: &RedisServer| named.iter().filter(|port| **port == server.port()).count();
        self.servers.iter().position(|server| votes(server) >= QUORUM)
    }

    /// Orders a failover and waits until another server is the master according to most sentinels and to itself.
    /// Returns its index.
    #[track_caller]
    pub fn failover(&self) -> usize {
        let old = eventually("a master", || self.master());
        // Sentinels refuse while they know no suitable replica, for example in the first seconds.
        eventually("a failover to begin", || {
            let reply = self.sentinels[0].command(&["SENTINEL", "FAILOVER", SERVICE]);
            reply.error().is_none().then_some(())
        });
        self.expect_master_other_than(old)
    }

    /// Waits until a server other than `old` is the master according to most sentinels and to itself; returns its
    /// index.
    #[track_caller]
    pub fn expect_master_other_than(&self, old: usize) -> usize {
        eventually("a new master", || {
            let new = self.master().filter(|new| *new != old)?;
            let role = self.servers[new].try_command(&["ROLE"]).ok()?;
            (role.array()[0].text() == "master").then_some(new)
        })
    }

    fn expect_complete(&self) {
        for sentinel in &self.sentinels {
            eventually("sentinels to know each other and the replicas", || {
                let known = sentinel.info("sentinel", "master0")?;
                (known.contains("slaves=2") && known.contains("sentinels=3")).then_some(())
            });
        }
    }
}

/// Uses TLS if the data servers do.
fn sentinel(servers: &RedisOptions, master: SocketAddr) -> RedisServer {
    RedisOptions { tls: servers.tls.clone(), ..RedisOptions::default() }
        .argument("--sentinel")
        .config(format!("sentinel monitor {SERVICE} {} {} {QUORUM}", master.ip(), master.port()))
        .config(format!("sentinel auth-user {SERVICE} {CONTROL_USER}"))
        .config(format!("sentinel auth-pass {SERVICE} {CONTROL_PASSWORD}"))
        .config(format!("sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}"))
        .config(format!("sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}"))
        .start()
}

fn master_by(sentinel: &RedisServer) -> Option<u16> {
    let reply = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).ok()?;
    if reply.is_nil() || reply.error().is_some() {
        return None;
    }
    u16::try_from(reply.array()[1].int()).ok()
}
