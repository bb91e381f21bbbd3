//! Accepts connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;

use super::connection;
use super::shared::Shared;
use crate::netns::{Network, Side};
use crate::servers::Port;

/// How new connections are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// They are served.
    Open,
    /// They are refused, as by a machine where no server runs.
    Refuse,
    /// They are accepted by the kernel and get no reply. They are served when the door opens.
    Silent,
}

/// Where a proxy listens.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) port: Port,
    /// The network on whose server side the proxy listens, if not on loopback.
    pub(super) network: Option<Arc<Network>>,
}

impl Place {
    pub(super) fn address(&self) -> SocketAddr {
        match &self.network {
            Some(network) => (network.side(Side::Server).address(), self.port.number()).into(),
            None => self.port.address(),
        }
    }

    fn bind(&self) -> std::io::Result<TcpListener> {
        let bind = || std::net::TcpListener::bind(self.address());
        // A socket belongs to the namespace in which it was created, whichever thread uses it.
        let listener = match &self.network {
            Some(network) => network.side(Side::Server).run(bind),
            None => bind(),
        }?;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }
}

/// Serves until the proxy is closed.
pub(super) fn serve(place: &Place, shared: &Arc<Shared>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(accept(place, shared));
}

async fn accept(place: &Place, shared: &Arc<Shared>) {
    let mut rules = shared.rules();
    let mut listener = None;
    loop {
        rules.borrow_and_update();
        let (door, is_closed) = shared.act(|state| (state.door, state.is_closed));
        if is_closed {
            return;
        }
        match (door, &listener) {
            (Door::Refuse, _) => listener = None,
            (_, None) => listener = Some(place.bind().expect("the port is reserved")),
            _ => {}
        }
        shared.act(|state| state.door_in_force = Some(door));
        tokio::select! {
            biased;
            _ = rules.changed() => {}
            accepted = next(listener.as_ref()), if door == Door::Open => {
                if let Ok((client, _)) = accepted {
                    let number = shared.act(super::shared::State::enter);
                    tokio::spawn(connection::serve(client, number, shared.clone()));
                }
            }
        }
    }
}

async fn next(listener: Option<&TcpListener>) -> std::io::Result<(tokio::net::TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}
