//! Redis servers in several configurations, each a set-up of the conformance suite.

use distlock::backend::redis::{Protocol, Redis, RedisBuilder};
use distlock_testkit::Setup;
use distlock_testkit::servers::{RedisCluster, RedisOptions, RedisServer, SERVICE, SentinelSetup};

/// The minimal rights of a user of the engine, as docs/backends/redis.md lists them.
const LEAST_RIGHTS: &str = "resetchannels ~locks:* ~{locks:* &distlock:wake:* -@all +hello +auth +ping +select +role \
                            +time +subscribe +scan +eval +evalsha +get +getrange +setrange +set +del +exists +type +pttl +pexpire \
                            +zadd +zrem +zrange +zrank +zcard +zscore +hset +hget +hmget +hgetall +hdel +publish \
                            +xadd +xrevrange";

/// A server and how to connect to it.
pub(crate) struct Server<K> {
    server: RedisServer,
    kind: std::marker::PhantomData<fn() -> K>,
}

/// What distinguishes a set-up.
pub(crate) trait Kind: 'static {
    /// How the server is started.
    fn server() -> RedisOptions {
        RedisServer::options()
    }

    /// How a client is made.
    fn client(builder: RedisBuilder) -> RedisBuilder {
        builder
    }
}

impl<K: Kind> Setup for Server<K> {
    type Engine = Redis;

    async fn start() -> Self {
        Server { server: K::server().start(), kind: std::marker::PhantomData }
    }

    async fn client(&self) -> Redis {
        K::client(Redis::tcp("127.0.0.1", self.server.port())).build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        left_on(&self.server, &["0", "3"])
    }
}

fn left_on(server: &RedisServer, databases: &[&str]) -> Vec<String> {
    let keys = databases.iter().flat_map(|database| {
        let mut client = server.client().expect("the kit's own connection");
        client.command(&["SELECT", database]).expect("a database");
        let keys = client.command(&["KEYS", "*"]).expect("keys");
        keys.array().iter().map(ToString::to_string).collect::<Vec<_>>()
    });
    // The fence outlives the lock by a week, which makes tokens rise.
    keys.filter(|key| !key.ends_with(":f")).collect()
}

/// The newest protocol.
pub(crate) struct Plain;
impl Kind for Plain {}

/// The old protocol, with a separate connection for messages.
pub(crate) struct Resp2;
impl Kind for Resp2 {
    fn client(builder: RedisBuilder) -> RedisBuilder {
        builder.protocol(Protocol::Resp2)
    }
}

/// With a prefix, in another database.
pub(crate) struct Prefix;
impl Kind for Prefix {
    fn client(builder: RedisBuilder) -> RedisBuilder {
        builder.prefix("locks of [app]*:").database(3)
    }
}

/// With a password, as a user with the minimal rights.
pub(crate) struct Acl;
impl Kind for Acl {
    fn server() -> RedisOptions {
        RedisServer::options().password("secret").user("locker", "open sesame".replace(' ', "-").as_str(), LEAST_RIGHTS)
    }
    fn client(builder: RedisBuilder) -> RedisBuilder {
        builder.prefix("locks:").username("locker").password("open-sesame")
    }
}

/// A user without access to channels: waiters poll.
pub(crate) struct NoChannel;
impl Kind for NoChannel {
    fn server() -> RedisOptions {
        RedisServer::options().user("deaf", "deaf", "resetchannels ~* +@all")
    }
    fn client(builder: RedisBuilder) -> RedisBuilder {
        builder.username("deaf").password("deaf")
    }
}

/// With TLS and a client certificate.
#[cfg(feature = "tls")]
pub(crate) struct Tls {
    server: RedisServer,
    certs: distlock_testkit::servers::Certs,
}

#[cfg(feature = "tls")]
impl Setup for Tls {
    type Engine = Redis;

    async fn start() -> Self {
        let certs = distlock_testkit::servers::Certs::new();
        let server = RedisServer::options().tls(&certs).config("tls-auth-clients yes").start();
        Tls { server, certs }
    }

    async fn client(&self) -> Redis {
        let read = |file: std::path::PathBuf| std::fs::read(file).expect("a certificate");
        Redis::tcp("localhost", self.server.port())
            .tls(Some(read(self.certs.ca())))
            .tls_identity(read(self.certs.client_cert()), read(self.certs.client_key()))
            .build()
            .expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        left_on(&self.server, &["0"])
    }
}

/// A master with replicas, found by its sentinels.
pub(crate) struct Sentinel(SentinelSetup);

impl Setup for Sentinel {
    type Engine = Redis;

    async fn start() -> Self {
        Sentinel(SentinelSetup::hasty(&RedisServer::options()))
    }

    async fn client(&self) -> Redis {
        let ports = self.0.sentinels().iter().map(|sentinel| ("127.0.0.1", sentinel.port()));
        Redis::sentinel(ports, SERVICE).build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        left_on(&self.0.servers()[0], &["0"])
    }
}

/// Three masters that share the locks.
pub(crate) struct Cluster(RedisCluster);

impl Setup for Cluster {
    type Engine = Redis;

    async fn start() -> Self {
        Cluster(RedisCluster::start())
    }

    async fn client(&self) -> Redis {
        // One node is enough to find the others.
        Redis::cluster([("127.0.0.1", self.0.nodes()[0].port())]).build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        self.0.nodes().iter().flat_map(|node| left_on(node, &["0"])).collect()
    }
}
