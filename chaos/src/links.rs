//! The ways from workers to servers: a proxy for each server and half of the workers.

use std::net::SocketAddr;

use distlock_testkit::proxy::{Direction, Door, Proxy};

use crate::fault::Trouble;
use crate::plan::SIDES;

/// All proxies, by server and side.
#[derive(Debug)]
pub(crate) struct Links(Vec<Vec<Proxy>>);

impl Links {
    pub(crate) fn to(servers: impl IntoIterator<Item = SocketAddr>) -> Links {
        let sides = |server| (0..SIDES).map(|_| Proxy::start(server)).collect();
        Links(servers.into_iter().map(sides).collect())
    }

    /// Where a worker finds the servers.
    pub(crate) fn addresses(&self, worker: usize) -> String {
        let addresses: Vec<String> = self.0.iter().map(|sides| sides[worker % SIDES].address().to_string()).collect();
        addresses.join(",")
    }

    pub(crate) fn begin(&self, server: usize, side: usize, trouble: Trouble) {
        let proxy = &self.0[server][side];
        match trouble {
            Trouble::NoReplies => proxy.drop_replies(),
            Trouble::NoRequests => proxy.drop_requests(),
            Trouble::Silence => proxy.freeze(),
            Trouble::LateRequests => proxy.hold_requests(),
            Trouble::Delay(by) => proxy.delay(by),
            Trouble::Cut => proxy.cut(),
            Trouble::CutAfter(bytes) => proxy.cut_after(Direction::Replies, bytes),
            Trouble::Refused => {
                proxy.door(Door::Refuse);
                proxy.cut();
            }
        }
    }

    pub(crate) fn end(&self, server: usize, side: usize) {
        self.0[server][side].pass();
    }
}
