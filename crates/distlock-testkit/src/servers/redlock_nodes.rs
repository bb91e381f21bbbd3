//! Independent Redis servers for Redlock.

use std::ops::{Index, IndexMut};

use super::redis::RedisServer;
use super::redis_options::RedisOptions;

/// Servers that are independent of each other.
#[derive(Debug)]
pub struct RedlockNodes {
    servers: Vec<RedisServer>,
}

impl RedlockNodes {
    /// Starts `count` new servers without data.
    #[track_caller]
    pub fn start(count: usize) -> RedlockNodes {
        RedlockNodes::with(vec![RedisServer::options(); count])
    }

    /// A server for each of `options`, all started at once.
    #[track_caller]
    pub fn with(options: Vec<RedisOptions>) -> RedlockNodes {
        let starting: Vec<_> = options.into_iter().map(|options| std::thread::spawn(|| options.start())).collect();
        RedlockNodes { servers: starting.into_iter().map(|server| server.join().expect("it starts")).collect() }
    }

    /// Marks the nodes as in use for long (without a prefix), so that none waits for older leases to end.
    #[track_caller]
    pub fn settle(&self) {
        for server in &self.servers {
            let run_id = server.info("server", "run_id").expect("every server has one");
            server.command(&["SET", "{}:f", &format!("{run_id} 1 0 1 1 1")]);
        }
    }

    /// Returns the `redlock://` URL of all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.servers.iter().map(|server| server.address().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }

    /// Their ports.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.servers.iter().map(RedisServer::port)
    }

    /// Returns the keys of one node without the fences, which stay for a week.
    #[track_caller]
    pub fn keys(&self, node: usize) -> Vec<String> {
        let keys = self.servers[node].command(&["KEYS", "*"]);
        keys.array().iter().map(ToString::to_string).filter(|key| !key.ends_with(":f")).collect()
    }
}

impl Index<usize> for RedlockNodes {
    type Output = RedisServer;

    fn index(&self, node: usize) -> &RedisServer {
        &self.servers[node]
    }
}

impl IndexMut<usize> for RedlockNodes {
    fn index_mut(&mut self, node: usize) -> &mut RedisServer {
        &mut self.servers[node]
    }
}
