//! Which commands a contestant sends, and which only its scripts call.
//!
//! `INFO commandstats` counts both alike; `MONITOR` tells them apart. It is read during the warm-up, so that it does not
//! slow the measured time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use distlock_testkit::servers::RedisServer;

/// How often each command was called.
pub(crate) type Calls = HashMap<String, u64>;

/// What the driver itself sends.
const OWN: [&str; 5] = ["info", "auth", "monitor", "keys", "client"];

/// How often commands came from a connection and from a script.
#[derive(Debug, Default)]
pub(crate) struct Origins(HashMap<String, [u64; 2]>);

impl Origins {
    /// Reads the server's commands for so long.
    pub(crate) fn watch(server: &RedisServer, time: Duration) -> Origins {
        let mut origins = Origins::default();
        let start = Instant::now();
        let Ok(mut client) = server.client() else { return origins };
        client.set_timeout(Duration::from_millis(100));
        let _ = client.command(&["MONITOR"]);
        while start.elapsed() < time {
            if let Ok(line) = client.receive() {
                origins.read(&line.to_string());
            }
        }
        origins
    }

    /// Reads a line such as `1.5 [0 127.0.0.1:99] "SET" "k"` or, from a script, `1.5 [0 lua] "get" "k"`.
    fn read(&mut self, line: &str) {
        let Some((origin, rest)) = line.split_once("] \"") else { return };
        let command = rest.split('"').next().unwrap_or_default().to_lowercase();
        self.0.entry(command).or_default()[usize::from(origin.ends_with(" lua"))] += 1;
    }

    /// Returns how many commands of `calls` were sent by a connection.
    pub(crate) fn sent(&self, calls: &Calls) -> f64 {
        calls.iter().map(|(command, count)| *count as f64 * self.share(command)).sum()
    }

    fn share(&self, command: &str) -> f64 {
        match self.0.get(command) {
            _ if OWN.iter().any(|own| command.split('|').next() == Some(own)) => 0.0,
            Some([sent, called]) => *sent as f64 / (sent + called) as f64,
            // No script can call a script.
            None if command.starts_with("eval") || command.starts_with("fcall") => 1.0,
            None => 0.0,
        }
    }
}

/// Returns how often the server has run each command since it was started.
pub(crate) fn calls(server: &RedisServer) -> Calls {
    let stats = server.command(&["INFO", "commandstats"]).to_string();
    let read = |line: &str| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((command.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    stats.lines().filter_map(read).collect()
}

/// Returns what was called between two readings.
pub(crate) fn difference(after: &Calls, before: &Calls) -> Calls {
    let since = |(command, count): (&String, &u64)| (command.clone(), count - before.get(command).unwrap_or(&0));
    after.iter().map(since).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_connection_sent_counts() {
        let mut origins = Origins::default();
        for line in [
            r#"1.5 [0 127.0.0.1:99] "SET" "k" "v""#,
            r#"1.5 [0 127.0.0.1:99] "EVALSHA" "x""#,
            r#"1.5 [0 lua] "get" "k""#,
            r#"1.5 [0 lua] "set" "k""#,
            "OK",
        ] {
            origins.read(line);
        }
        let calls = [("set", 10), ("evalsha", 4), ("get", 4), ("info", 9), ("eval", 2), ("del", 7), ("client|list", 3)];
        let calls: Calls = calls.map(|(command, count)| (command.to_owned(), count)).into();
        assert_eq!(origins.sent(&calls), 5.0 + 4.0 + 2.0);
        let later: Calls = [("set".to_owned(), 12), ("blpop".to_owned(), 3)].into();
        let expected: Calls = [("set".to_owned(), 2), ("blpop".to_owned(), 3)].into();
        assert_eq!(difference(&later, &[("set".to_owned(), 10)].into()), expected);
    }
}
