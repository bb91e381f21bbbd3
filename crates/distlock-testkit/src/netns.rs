//! Two machines in one: networks of their own that can be taken apart. Needs root.
//!
//! Unlike the [`proxy`](crate::proxy), this loses packets under a TCP connection: nobody is told, and what was sent comes
//! late when the network is healed.

mod namespace;

pub use namespace::Namespace;
use rustix::thread::{CapabilitySet, capabilities};

/// How packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A firewall drops them.
    Firewall,
    /// There is no way to the other side: who sends is told so by an error.
    Blackhole,
    /// They go to a machine that does not exist: nobody can know.
    WrongNeighbour,
}

/// One end of a [`Network`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where clients run.
    Client,
    /// Where servers run.
    Server,
}

/// Whether this process may make networks: root in a container often may not.
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
    /// A network of its own; nothing outside can reach it, nor it anything outside.
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

    /// The namespace of one side.
    pub fn side(&self, side: Side) -> &Namespace {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    /// From now on loses what `from` sends to the other side, and only that.
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
            // An address that nobody has; the mark for locally administered ones keeps it from being anybody's.
            Loss::WrongNeighbour => here.neighbour(&to, "02:00:00:00:00:99"),
        }
    }

    /// Ends all losses.
    #[track_caller]
    pub fn heal(&self) {
        for side in [Side::Client, Side::Server] {
            let (here, there) = self.ends(side);
            let to = there.address().to_string();
            here.nft("add table inet testkit; delete table inet testkit");
            // Not there unless it was lost.
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
