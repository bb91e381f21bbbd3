//! The links from workers to servers: a proxy for each server and each half of the workers.
//!
//! If this process may create networks, the second half of the workers is in its own network, whose packets can be
//! lost.

use std::net::SocketAddr;
use std::sync::Arc;

use distlock_testkit::netns::{self, Loss, Network, Side};
use distlock_testkit::proxy::{Direction, Door, Proxy};

use crate::fault::Trouble;
use crate::plan::SIDES;

/// The half of the workers that is in its own network.
const OUTSIDE: usize = 1;

/// All proxies, by server and side.
#[derive(Debug)]
pub(crate) struct Links {
    proxies: Vec<Vec<Proxy>>,
    network: Option<Arc<Network>>,
}

impl Links {
    pub(crate) fn to(servers: impl IntoIterator<Item = SocketAddr>) -> Links {
        let network = netns::is_permitted().then(|| Arc::new(Network::new()));
        let proxy = |server, side| match &network {
            Some(network) if side == OUTSIDE => Proxy::start_in(network, server),
            _ => Proxy::start(server),
        };
        let sides = |server| (0..SIDES).map(|side| proxy(server, side)).collect();
        Links { proxies: servers.into_iter().map(sides).collect(), network }
    }

    /// Returns the network namespace of a worker, if it has its own.
    pub(crate) fn namespace(&self, worker: usize) -> Option<String> {
        let network = self.network.as_ref().filter(|_| worker % SIDES == OUTSIDE)?;
        Some(network.side(Side::Client).name().to_owned())
    }

    /// Returns the addresses of the servers for a worker.
    pub(crate) fn addresses(&self, worker: usize) -> String {
        let addresses: Vec<String> =
            self.proxies.iter().map(|sides| sides[worker % SIDES].address().to_string()).collect();
        addresses.join(",")
    }

    pub(crate) fn begin(&self, server: usize, side: usize, trouble: Trouble) {
        strike(&self.proxies[server][side], trouble);
    }

    pub(crate) fn end(&self, server: usize, side: usize) {
        self.proxies[server][side].pass();
    }

    /// Sends new connections to a server to `address`.
    pub(crate) fn retarget(&self, server: usize, address: SocketAddr) {
        self.proxies[server].iter().for_each(|proxy| proxy.retarget(address));
    }

    pub(crate) fn part(&self, how: Loss, from: &[Side]) {
        let network = self.network.as_ref().expect("only where there is one");
        from.iter().for_each(|side| network.lose(*side, how));
    }

    pub(crate) fn heal(&self) {
        self.network.iter().for_each(|network| network.heal());
    }
}

/// Begins trouble on one link.
pub(crate) fn strike(proxy: &Proxy, trouble: Trouble) {
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
