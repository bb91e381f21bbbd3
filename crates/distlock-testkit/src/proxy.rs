//! A TCP proxy that loses, delays and cuts on demand.
//!
//! The rules are applied at the moment when bytes would leave the proxy, under one lock: after a method returns, not
//! one more byte is treated by the old rules. The proxy runs on its own thread, so a test that blocks does not hold it
//! up.

mod connection;
mod counts;
mod door;
mod flow;
mod pump;
mod shared;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub use counts::{Counts, Traffic};
pub use door::Door;
pub use flow::{Direction, Flow};

use crate::netns::Network;
use crate::servers::Port;
use door::Place;
use shared::Shared;

/// A proxy in front of a server. Dropping it cuts its connections and closes its port.
///
/// While the server is down, a client sees a connection that is cut at once, not a refused one; for that, see
/// [`Door::Refuse`].
#[derive(Debug)]
pub struct Proxy {
    place: Arc<Place>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to `target` that passes everything.
    pub fn start(target: SocketAddr) -> Proxy {
        Proxy::start_at(Place { port: Port::free(), network: None }, target)
    }

    /// Like [`start`](Self::start), for clients in `network`: the proxy listens on the server's side there, and
    /// reaches `target` from outside.
    pub fn start_in(network: &Arc<Network>, target: SocketAddr) -> Proxy {
        Proxy::start_at(Place { port: Port::free(), network: Some(network.clone()) }, target)
    }

    fn start_at(place: Place, target: SocketAddr) -> Proxy {
        let (place, shared) = (Arc::new(place), Arc::new(Shared::new(target)));
        let (there, theirs) = (place.clone(), shared.clone());
        let serve = move || door::serve(&there, &theirs);
        let thread = std::thread::Builder::new().name("testkit-proxy".into()).spawn(serve).expect("a thread");
        shared.wait("a proxy's port", |state| state.door_in_force == Some(Door::Open));
        Proxy { place, shared, thread: Some(thread) }
    }

    /// Returns the address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.place.address()
    }

    /// Returns the port to which clients connect.
    pub fn port(&self) -> u16 {
        self.place.port.number()
    }

    /// Sets the rule for the bytes of one direction, on present and future connections.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.change(|state| state.flows[direction] = flow);
    }

    /// Passes everything, including held and frozen bytes; clears a pending cut and opens the door.
    pub fn pass(&self) {
        self.shared.change(|state| {
            state.flows = flow::PerDirection::default();
            state.cut_after = flow::PerDirection::default();
        });
        self.door(Door::Open);
    }

    /// The server receives all requests; its replies are lost.
    pub fn drop_replies(&self) {
        self.set(Direction::Replies, Flow::Drop);
    }

    /// The server receives no more requests.
    pub fn drop_requests(&self) {
        self.set(Direction::Requests, Flow::Drop);
    }

    /// No bytes move in either direction, not even the end of a connection.
    pub fn freeze(&self) {
        self.shared.change(|state| {
            state.flows[Direction::Requests] = Flow::Freeze;
            state.flows[Direction::Replies] = Flow::Freeze;
        });
    }

    /// Requests wait in the proxy until [`pass`](Self::pass), even if their client has disconnected by then.
    pub fn hold_requests(&self) {
        self.set(Direction::Requests, Flow::Hold);
    }

    /// Delays all bytes by `by`, in each direction.
    pub fn delay(&self, by: Duration) {
        self.shared.change(|state| {
            state.flows[Direction::Requests] = Flow::Delay(by);
            state.flows[Direction::Replies] = Flow::Delay(by);
        });
    }

    /// Resets all connections and returns when they are closed. New connections are served.
    pub fn cut(&self) {
        let mut below = 0;
        self.shared.change(|state| {
            state.cut_below = state.next_connection;
            below = state.cut_below;
        });
        self.shared.wait("connections to be cut", |state| state.open.range(..below).next().is_none());
    }

    /// Forwards `bytes` more bytes of one direction, counted over all connections, then cuts the connection that
    /// carried the last of them. With 0, the connection is cut at the next byte, which is lost. Happens once.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.shared.change(|state| state.cut_after[direction] = Some(bytes));
    }

    /// Sets how new connections are treated; returns when this is in effect.
    pub fn door(&self, door: Door) {
        self.shared.change(|state| state.door = door);
        self.shared.wait("a proxy's door", |state| state.door_in_force == Some(door));
    }

    /// Sends new connections to another server.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.change(|state| state.target = target);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Waits until `is_enough` returns true, and panics on timeout. `what` completes the sentence "waited for …".
    #[track_caller]
    pub fn wait_for(&self, what: &str, mut is_enough: impl FnMut(&Counts) -> bool) -> Counts {
        self.shared.wait(what, |state| is_enough(&state.counts()));
        self.counts()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|state| state.is_closed = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
