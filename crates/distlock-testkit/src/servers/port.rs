//! Loopback ports that no other test uses.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

/// Below the range from which Linux assigns the ports of outgoing connections (32768 upwards). A port of that range
/// can be taken while its server is down, even by a client that redials it: TCP then connects the client to itself.
const FIRST: u16 = 12_000;
const LAST: u16 = 31_999;

/// A TCP port on 127.0.0.1, reserved while this value lives, also while no server listens on it.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// The UDP port of the same number is the reservation: other test processes see it, and it ends with the process.
    _reservation: UdpSocket,
}

impl Port {
    /// Reserves a free port.
    pub fn free() -> Port {
        let count = LAST - FIRST + 1;
        let start = RandomState::new().hash_one(std::process::id()) % u64::from(count);
        let start = u16::try_from(start).expect("less than the count");
        let numbers = (0..count).map(|step| FIRST + (start + step) % count);
        numbers.filter_map(Port::reserve).next().expect("a free loopback port")
    }

    /// Returns the number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Returns the address of a server on this port.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }

    fn reserve(number: u16) -> Option<Port> {
        let reservation = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)).ok()?;
        // A process that does not know of reservations may listen there.
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, number)).ok()?;
        Some(Port { number, _reservation: reservation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_reserved_until_it_is_dropped() {
        let port = Port::free();
        assert!(Port::reserve(port.number()).is_none(), "reserved");
        let number = port.number();
        drop(port);
        // Another test may take the port first; that also shows that it was returned.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, number));
        assert!(listener.is_err() || Port::reserve(number).is_none(), "in use by a listener");
    }

    #[test]
    fn a_server_can_listen_on_a_reserved_port() {
        let port = Port::free();
        let listener = TcpListener::bind(port.address()).expect("a reservation does not stand in its owner's way");
        assert_eq!(listener.local_addr().unwrap().port(), port.number());
    }
}
