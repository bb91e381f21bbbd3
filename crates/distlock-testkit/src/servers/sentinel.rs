//! A Redis master with replicas and the sentinels that watch them.

use std::net::SocketAddr;

use super::patience::eventually;
use super::redis::RedisServer;
use super::redis_options::{CONTROL_PASSWORD, CONTROL_USER, RedisOptions};

/// The name of the service that the sentinels watch.
pub const SERVICE: &str = "locks";

/// How many sentinels must agree; of three.
const QUORUM: usize = 2;

/// A server that is silent for so long is taken for dead; shorter, and a busy machine makes the dead.
const DOWN_AFTER_MS: u32 = 1000;

/// Sentinels begin no failover within twice this time after the one before.
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

    /// The same, with options for the three servers that hold data. The sentinels are encrypted if these are.
    #[track_caller]
    pub fn with(options: &RedisOptions) -> SentinelSetup {
        let setup = SentinelSetup::hasty(options);
        setup.servers[1..].iter().for_each(RedisServer::expect_in_sync);
        setup.expect_complete();
        setup
    }

    /// The same without waiting until replicas follow and sentinels know each other, which takes them seconds: for tests in
    /// which nobody but the master has to do anything.
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

    /// The servers that hold data; the first was the first master.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The servers that hold data, to kill and restart.
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

    /// The place among the servers of the one that most sentinels call the master; `None` while they disagree.
    pub fn master(&self) -> Option<usize> {
        let named: Vec<u16> = self.sentinels.iter().filter_map(master_by).collect();
        let votes = |server: &RedisServer| named.iter().filter(|port| **port == server.port()).count();
        self.servers.iter().position(|server| votes(server) >= QUORUM)
    }

    /// Orders a failover and waits until another server is the master by word of most sentinels and in its own view.
    /// Answers its place.
    #[track_caller]
    pub fn failover(&self) -> usize {
        let old = eventually("a master", || self.master());
        // Sentinels refuse while they believe that no replica is good enough, for the first seconds, say.
        eventually("a failover to begin", || {
            let reply = self.sentinels[0].command(&["SENTINEL", "FAILOVER", SERVICE]);
            reply.error().is_none().then_some(())
        });
        self.expect_master_other_than(old)
    }

    /// Waits until a server other than `old` is the master by word of most sentinels and in its own view; answers its
    /// place.
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

/// Encrypted as the servers are.
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
