//! `SET NX PX`, and a script that compares and deletes, on one server or on a majority of several.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::peer::Peer;

const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const COMPARE_AND_EXTEND: &str = "local n = 0 for i = 1, #KEYS do if redis.call('get', KEYS[i]) == ARGV[1] then \
     n = n + redis.call('pexpire', KEYS[i], ARGV[2]) end end return n";
/// As long as an attempt id.
const VALUE: &str = "0123456789abcdef0123456789abcdef";
/// How many locks one call renews.
const BATCH: usize = 128;

/// One server.
pub(crate) struct RedisPair(Node);

impl RedisPair {
    pub(crate) async fn connect(server: &str, ttl: Duration) -> RedisPair {
        RedisPair(Node::connect(server, ttl).await)
    }
}

impl Peer for RedisPair {
    type Guard = String;

    async fn lock(&self, key: &str) -> String {
        assert!(self.0.set(key).await, "only for locks that are free");
        key.to_owned()
    }

    async fn unlock(&self, key: String) {
        assert!(self.0.delete(&key).await, "the lock was held");
    }

    /// Renews in batches, each third of the lease.
    async fn keep_many(self: Arc<Self>, keys: Vec<String>) {
        for key in &keys {
            assert!(self.0.set(key).await, "the lock is free");
        }
        let extend = load(&self.0.connection, COMPARE_AND_EXTEND).await;
        tokio::spawn(async move {
            let mut turn = tokio::time::interval(self.0.ttl / 3);
            loop {
                turn.tick().await;
                for batch in keys.chunks(BATCH) {
                    let mut call = redis::cmd("EVALSHA");
                    call.arg(&extend).arg(batch.len()).arg(batch).arg(VALUE).arg(self.0.ttl.as_millis() as u64);
                    let _: i64 = call.query_async(&mut self.0.connection.clone()).await.expect("renewed");
                }
            }
        });
    }
}

/// Several servers: all are asked at once, and a majority decides.
pub(crate) struct RedlockPair(Vec<Arc<Node>>);

impl RedlockPair {
    pub(crate) async fn connect(servers: &[&str], ttl: Duration) -> RedlockPair {
        let mut nodes = Vec::new();
        for server in servers {
            nodes.push(Arc::new(Node::connect(server, ttl).await));
        }
        RedlockPair(nodes)
    }
}

/// Requests under way. The caller's task polls them: tasks of their own would cost more than the requests.
#[derive(Default)]
pub(crate) struct Pending(Vec<Pin<Box<dyn Future<Output = bool> + Send>>>);

impl Pending {
    /// Waits until `enough` were successful, or all have ended; returns how many were successful.
    async fn wait(&mut self, enough: usize) -> usize {
        let mut good = 0;
        poll_fn(|context| {
            self.0.retain_mut(|request| match request.as_mut().poll(context) {
                Poll::Ready(is_good) => {
                    good += usize::from(is_good);
                    false
                }
                Poll::Pending => true,
            });
            if good >= enough || self.0.is_empty() { Poll::Ready(good) } else { Poll::Pending }
        })
        .await
    }
}

impl Peer for RedlockPair {
    /// The releases follow the claims that were still under way when a majority had answered.
    type Guard = (String, Pending);

    async fn lock(&self, key: &str) -> Self::Guard {
        let mut claims = Pending::default();
        for node in &self.0 {
            let (node, key) = (node.clone(), key.to_owned());
            claims.0.push(Box::pin(async move { node.set(&key).await }));
        }
        let majority = self.0.len() / 2 + 1;
        assert!(claims.wait(majority).await >= majority, "only for locks that are free");
        (key.to_owned(), claims)
    }

    async fn unlock(&self, (key, mut requests): Self::Guard) {
        for node in &self.0 {
            let (node, key) = (node.clone(), key.clone());
            requests.0.push(Box::pin(async move { node.delete(&key).await }));
        }
        requests.wait(usize::MAX).await;
    }
}

struct Node {
    connection: MultiplexedConnection,
    delete: String,
    ttl: Duration,
}

impl Node {
    async fn connect(server: &str, ttl: Duration) -> Node {
        let client = redis::Client::open(format!("redis://{server}/?protocol=resp3")).expect("an address");
        let connection = client.get_multiplexed_async_connection().await.expect("connected");
        Node { delete: load(&connection, COMPARE_AND_DELETE).await, connection, ttl }
    }

    async fn set(&self, key: &str) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(VALUE).arg("NX").arg("PX").arg(self.ttl.as_millis() as u64);
        let reply: Option<String> = set.query_async(&mut self.connection.clone()).await.expect("a reply");
        reply.is_some()
    }

    async fn delete(&self, key: &str) -> bool {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.delete).arg(1).arg(key).arg(VALUE);
        let deleted: i64 = call.query_async(&mut self.connection.clone()).await.expect("a reply");
        deleted == 1
    }
}

pub(super) async fn load(connection: &MultiplexedConnection, script: &str) -> String {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(script);
    load.query_async(&mut connection.clone()).await.expect("a script")
}
