//! The engines that can be simulated.

use distlock::backend::redis::{Redis, RedisBuilder};
use distlock::backend::redlock::Redlock;
use distlock::{Locker, LockerBuilder};
use turmoil::net::TcpStream;

use crate::server;

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// One server.
    Redis,
    /// A majority of three servers.
    Redlock,
}

impl Engine {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Engine::Redis => "redis",
            Engine::Redlock => "redlock",
        }
    }

    /// Returns the engine of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Engine> {
        [Engine::Redis, Engine::Redlock].into_iter().find(|engine| engine.name() == name)
    }

    /// Returns the number of servers.
    pub(crate) fn servers(self) -> usize {
        match self {
            Engine::Redis => 1,
            Engine::Redlock => 3,
        }
    }

    /// Returns whether waiters are served in order.
    pub(crate) fn is_fair(self) -> bool {
        self == Engine::Redis
    }

    /// Returns a locker over the simulated network.
    pub(crate) fn locker(self, builder: LockerBuilder, has_guard: bool) -> distlock::Result<Locker> {
        match self {
            Engine::Redis => builder.build(over(0).restart_guard(has_guard).build()?),
            Engine::Redlock => {
                let engine = Redlock::of((0..self.servers()).map(over));
                let engine = if has_guard { engine } else { engine.without_restart_guard() };
                builder.build(engine.build()?)
            }
        }
    }
}

fn over(number: usize) -> RedisBuilder {
    let name = server::name(number);
    Redis::over(&name.clone(), move || TcpStream::connect((name.clone(), server::PORT)))
}
