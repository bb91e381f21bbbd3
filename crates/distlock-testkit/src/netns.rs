//! Two network namespaces that can be partitioned. Needs root.
//!
//! Unlike the [`proxy`](crate::proxy), this loses packets below TCP: neither side sees an error, and lost data arrives
//! late when the network is healed.

mod namespace;

pub use namespace::Namespace;
use rustix::thread::{CapabilitySet, capabilities};

/// How packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A firewall drops them.
    Firewall,
    /// There is no route to the other side: the sender gets an error.
    Blackhole,
    /// They go to a machine that does not exist: the sender gets no error.
    WrongNeighbour,
}

/// One side of a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where clients run.
    Client,
    /// Where servers run.
    Server,
}

/// Returns whether this process may create networks: root in a container often may not.
#[must_use]
pub fn is_permitted() -> bool {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
    capabilities(None).is_ok_and(|ours| ours.effective.contains(needed))
}

/// Two network namespaces with a cable between them. Dropping it removes them.
#[derive(Debug)]
pub struct Network {
    client: Namespace,
    server: Namespace,
}

impl Network {
    /// Creates a network that is isolated from everything outside.
    #[track_caller]
    pub fn new() -> Network {
        namespace::sweep();
        let network = Network { client: Namespace::new([10, 231, 0, 1]), server: Namespace::new([10, 231, 0, 2]) };
        let (client, server) = (&network.client, &network.server);
        let (here, there) = (["netns", client.name()], ["netns", server.name()]);
        let cable = ["type", "veth", "peer", "name", namespace::DEVICE];
        let link = [&["link", "add", namespace::DEVICE], &here[..], &cable[..], &there[..]];
        namespace::ip(&link.concat());
        client.up();
        server.up();
        network
    }

    /// Returns the namespace of one side.
    pub fn side(&self, side: Side) -> &Namespace {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// From now on loses the packets that `from` sends to the other side, and only those.
    #[track_caller]
    pub fn lose(&self, from: Side, how: Loss) {
        let (here, there) = self.ends(from);
        let to = there.address().to_string();
        match how {
            Loss::Firewall => here.nft(&format!(
                "add table inet testkit; \
                 add chain inet testkit out {{ type filter hook output priority 0; }}; \
                 add rule inet testkit out ip daddr {to} drop"
            )),
            Loss::Blackhole => here.ip(&["route", "replace", "blackhole", &format!("{to}/32")]),
            // An unused address; the bit for locally administered addresses keeps it out of the assigned ones.
            Loss::WrongNeighbour => here.neighbour(&to, "02:00:00:00:00:99"),
        }
    }

    /// Ends all packet loss.
    #[track_caller]
    pub fn heal(&self) {
        for side in [Side::Client, Side::Server] {
            let (here, there) = self.ends(side);
            let to = there.address().to_string();
            here.nft("add table inet testkit; delete table inet testkit");
            // The route exists only while it was lost by a blackhole.
            let _ = here.try_ip(&["route", "del", "blackhole", &format!("{to}/32")]);
            let _ = here.try_ip(&["neigh", "del", &to, "dev", namespace::DEVICE]);
        }
    }

    fn ends(&self, from: Side) -> (&Namespace, &Namespace) {
        match from {
            Side::Client => (&self.client, &self.server),
            Side::Server => (&self.server, &self.client),
        }
    }
}

impl Default for Network {
    fn default() -> Self {
        Network::new()
    }
}
