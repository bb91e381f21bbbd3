//! The servers that all contestants of an engine share.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use distlock_testkit::servers::{EtcdServer, RedisServer, RedlockNodes};

use crate::contestants::Engine;
use crate::monitor::{self, Calls, Origins};

const NODES: usize = 5;

pub(crate) enum Servers {
    Redis(Vec<RedisServer>),
    Redlock(RedlockNodes),
    Etcd(Box<EtcdServer>),
}

/// What the servers have done since they were started.
pub(crate) struct Reading {
    at: Instant,
    cpu_us: u64,
    requests: Requests,
}

enum Requests {
    Commands(Vec<Calls>),
    /// Messages that etcd received.
    Messages(f64),
}

impl Servers {
    pub(crate) fn start(engine: Engine) -> Servers {
        match engine {
            Engine::Redis => Servers::Redis(vec![RedisServer::start()]),
            Engine::Redlock => {
                let nodes = RedlockNodes::start(NODES);
                nodes.settle();
                Servers::Redlock(nodes)
            }
            Engine::Etcd => Servers::Etcd(Box::new(EtcdServer::start())),
        }
    }

    /// Returns the addresses as workers read them.
    pub(crate) fn addresses(&self) -> String {
        let all: Vec<SocketAddr> = match self {
            Servers::Etcd(server) => vec![server.address()],
            _ => self.nodes().iter().map(|server| server.address()).collect(),
        };
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn version(&self) -> String {
        match self {
            Servers::Etcd(server) => http_get(server.address(), "/version")
                .split('"')
                .nth(3)
                .map_or_else(|| "etcd".into(), |version| format!("etcd {version}")),
            _ => format!("Redis {}", self.nodes()[0].info("server", "redis_version").unwrap_or_default()),
        }
    }

    /// Returns which commands come from connections. Takes `time`.
    pub(crate) fn origins(&self, time: Duration) -> Origins {
        match self.nodes().first() {
            Some(server) => Origins::watch(server, time),
            None => {
                std::thread::sleep(time);
                Origins::default()
            }
        }
    }

    pub(crate) fn read(&self) -> Reading {
        let at = Instant::now();
        let cpu_us = match self {
            Servers::Etcd(server) => cpu_us(server.pid()),
            _ => self.nodes().iter().map(|server| cpu_us(server.pid())).sum(),
        };
        let requests = match self {
            Servers::Etcd(server) => Requests::Messages(messages(&http_get(server.address(), "/metrics"))),
            _ => Requests::Commands(self.nodes().into_iter().map(monitor::calls).collect()),
        };
        Reading { at, cpu_us, requests }
    }

    /// Returns how many of the locks `KEY:0:` to `KEY:N:` are there.
    pub(crate) fn held(&self, key: &str, count: usize) -> usize {
        let names = match self {
            Servers::Etcd(server) => server.etcdctl().run(&["get", "", "--prefix", "--keys-only"]),
            _ => self.nodes()[0].command(&["KEYS", &format!("*{key}:*")]).to_string(),
        };
        let prefix = format!("{key}:");
        let numbers = names.split(&prefix).skip(1).filter_map(|rest| rest.split(':').next()?.parse().ok());
        numbers.filter(|number: &usize| *number < count).collect::<HashSet<usize>>().len()
    }

    fn nodes(&self) -> Vec<&RedisServer> {
        match self {
            Servers::Redis(servers) => servers.iter().collect(),
            Servers::Redlock(nodes) => (0..NODES).map(|number| &nodes[number]).collect(),
            Servers::Etcd(_) => Vec::new(),
        }
    }
}

impl Reading {
    /// Returns the processor time of the servers in microseconds, and the commands or requests that clients sent, as if
    /// `time` had passed between the two readings.
    pub(crate) fn since(&self, before: &Reading, origins: &Origins, time: Duration) -> (f64, f64) {
        let requests = match (&self.requests, &before.requests) {
            (Requests::Commands(after), Requests::Commands(before)) => {
                after.iter().zip(before).map(|(after, before)| origins.sent(&monitor::difference(after, before))).sum()
            }
            (Requests::Messages(after), Requests::Messages(before)) => after - before,
            _ => 0.0,
        };
        let scale = time.as_secs_f64() / (self.at - before.at).as_secs_f64();
        ((self.cpu_us - before.cpu_us) as f64 * scale, requests * scale)
    }
}

/// Returns the processor time of all threads of a process.
fn cpu_us(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.filter_map(nanoseconds).sum::<u64>() / 1_000
}

/// Returns how many messages etcd has received: a request is one, and so is each order on a stream.
fn messages(metrics: &str) -> f64 {
    let of_line = |line: &str| {
        let rest = line.strip_prefix("grpc_server_msg_received_total{")?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    };
    metrics.lines().filter_map(of_line).sum()
}

fn http_get(address: SocketAddr, path: &str) -> String {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: etcd\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    let text = ask().unwrap_or_default();
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_of_every_method_counts() {
        let text = "# HELP x\ngrpc_server_msg_received_total{grpc_method=\"Txn\",grpc_type=\"unary\"} 12\n\
                    grpc_server_msg_received_total{grpc_method=\"Watch\",grpc_type=\"bidi_stream\"} 3\n\
                    grpc_server_msg_sent_total{grpc_method=\"Txn\"} 99\n";
        assert_eq!(messages(text), 15.0);
    }
}
