//! A first-in-first-out queue in Redis whose release script hands the lock to the next waiter and tells it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, PushInfo, PushKind};
use tokio::sync::{mpsc, oneshot};

use super::redis_pair::load;
use crate::peer::Peer;

/// KEYS: lock, queue; ARGV: waiter, lease in ms. Returns 1 if the lock is granted, 0 if the waiter is queued.
const CLAIM: &str = "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end \
     redis.call('rpush', KEYS[2], ARGV[1]) return 0";
/// KEYS: lock, queue; ARGV: holder, lease in ms. Hands the lock over and publishes the next waiter on its client's channel.
const RELEASE: &str = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end \
     local next = redis.call('lpop', KEYS[2]) \
     if not next then return redis.call('del', KEYS[1]) end \
     redis.call('set', KEYS[1], next, 'PX', ARGV[2]) \
     redis.call('publish', string.match(next, '^[^.]+'), next) return 1";

type Waiters = Arc<Mutex<HashMap<String, oneshot::Sender<()>>>>;

/// One client: a connection that also receives the messages, as the engine has.
pub(crate) struct RedisQueue {
    connection: MultiplexedConnection,
    client: String,
    claim: String,
    release: String,
    ttl: Duration,
    last: AtomicU64,
    waiters: Waiters,
}

impl RedisQueue {
    pub(crate) async fn connect(server: &str, ttl: Duration) -> RedisQueue {
        let (sender, receiver) = mpsc::unbounded_channel();
        let client = redis::Client::open(format!("redis://{server}/?protocol=resp3")).expect("an address");
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await.expect("connected");
        let name = format!("queue-{}", std::process::id());
        connection.subscribe(&name).await.expect("subscribed");
        let waiters = Waiters::default();
        tokio::spawn(deliver(receiver, waiters.clone()));
        let (claim, release) = (load(&connection, CLAIM).await, load(&connection, RELEASE).await);
        RedisQueue { connection, client: name, claim, release, ttl, last: AtomicU64::new(0), waiters }
    }

    async fn call(&self, script: &str, key: &str, waiter: &str) -> i64 {
        let mut call = redis::cmd("EVALSHA");
        call.arg(script).arg(2).arg(key).arg(format!("{key}:queue")).arg(waiter).arg(self.ttl.as_millis() as u64);
        call.query_async(&mut self.connection.clone()).await.expect("a reply")
    }
}

impl Peer for RedisQueue {
    type Guard = (String, String);

    async fn lock(&self, key: &str) -> (String, String) {
        let waiter = format!("{}.{}", self.client, self.last.fetch_add(1, Ordering::Relaxed));
        let (sender, told) = oneshot::channel();
        // Before the claim: the message may arrive before the reply is read.
        self.waiters.lock().expect("no panic").insert(waiter.clone(), sender);
        if self.call(&self.claim, key, &waiter).await == 1 {
            self.waiters.lock().expect("no panic").remove(&waiter);
        } else {
            told.await.expect("told");
        }
        (key.to_owned(), waiter)
    }

    async fn unlock(&self, (key, waiter): (String, String)) {
        assert_eq!(self.call(&self.release, &key, &waiter).await, 1, "the lock was held");
    }
}

async fn deliver(mut messages: mpsc::UnboundedReceiver<PushInfo>, waiters: Waiters) {
    while let Some(PushInfo { kind, data }) = messages.recv().await {
        let waiter = data.into_iter().nth(1).and_then(|value| String::from_redis_value(value).ok());
        if let (PushKind::Message, Some(waiter)) = (kind, waiter)
            && let Some(sender) = waiters.lock().expect("no panic").remove(&waiter)
        {
            let _ = sender.send(());
        }
    }
}
