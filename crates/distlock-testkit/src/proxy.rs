//! A TCP proxy that loses, delays and cuts on demand.
//!
//! What it does to bytes is decided at the moment they would leave it, under one lock: when a method returns, not one
//! more byte is treated by the old rules. It runs on a thread of its own, so a test that blocks does not hold it up.

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
/// A client of a server that is down sees a connection that is cut at once, not a refused one; for that, see
/// [`Door::Refuse`].
#[derive(Debug)]
pub struct Proxy {
    place: Arc<Place>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy to `target` that passes everything.
    pub fn start(target: SocketAddr) -> Proxy {
        Proxy::start_at(Place { port: Port::free(), network: None }, target)
    }

    /// The same for clients in `network`: it listens on the server's side there, and reaches `target` from outside.
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

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.place.address()
    }

    /// The port where clients connect.
    pub fn port(&self) -> u16 {
        self.place.port.number()
    }

    /// Sets what happens to the bytes of one direction, on present and future connections.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.shared.change(|state| state.flows[direction] = flow);
    }

    /// Passes everything, also what was held or frozen; forgets a cut to come and opens the door.
    pub fn pass(&self) {
        self.shared.change(|state| {
            state.flows = flow::PerDirection::default();
            state.cut_after = flow::PerDirection::default();
        });
        self.door(Door::Open);
    }

    /// The server hears everything; its answers are lost.
    pub fn drop_replies(&self) {
        self.set(Direction::Replies, Flow::Drop);
    }

    /// The server hears nothing more.
    pub fn drop_requests(&self) {
        self.set(Direction::Requests, Flow::Drop);
    }

    /// Nothing moves in either direction, not even the end of a connection.
    pub fn freeze(&self) {
        self.shared.change(|state| {
            state.flows[Direction::Requests] = Flow::Freeze;
            state.flows[Direction::Replies] = Flow::Freeze;
        });
    }

    /// Requests wait in the proxy until [`pass`](Self::pass), even if their client has gone by then.
    pub fn hold_requests(&self) {
        self.set(Direction::Requests, Flow::Hold);
    }

    /// Everything takes `by` longer, in each direction.
    pub fn delay(&self, by: Duration) {
        self.shared.change(|state| {
            state.flows[Direction::Requests] = Flow::Delay(by);
            state.flows[Direction::Replies] = Flow::Delay(by);
        });
    }

    /// Cuts all connections with a reset; returns when they are gone. New ones are served.
    pub fn cut(&self) {
        let mut below = 0;
        self.shared.change(|state| {
            state.cut_below = state.next_connection;
            below = state.cut_below;
        });
        self.shared.wait("connections to be cut", |state| state.open.range(..below).next().is_none());
    }

    /// Forwards `bytes` more of one direction, counted over all connections, then cuts the connection that carried the
    /// last of them. With 0, the connection is cut at the first byte that comes, which is lost. Happens once.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.shared.change(|state| state.cut_after[direction] = Some(bytes));
    }

    /// Sets what becomes of new connections; returns when it is so.
    pub fn door(&self, door: Door) {
        self.shared.change(|state| state.door = door);
        self.shared.wait("a proxy's door", |state| state.door_in_force == Some(door));
    }

    /// Sends new connections to another server.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.change(|state| state.target = target);
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// Waits until enough has happened, and panics when it does not. `what` completes the sentence "waited for …".
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
