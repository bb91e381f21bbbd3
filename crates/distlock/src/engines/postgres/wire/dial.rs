//! Dialling a server that is asked for TLS before the handshake.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::engines::shared::dial::{Address, Dialer, open_tcp};
use crate::engines::shared::encryption::Encryption;

/// Asks the server for TLS: a length, and the number that stands for the request.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// Returns a dialer of TCP streams, encrypted where `encryption` is given.
pub(in crate::engines) fn dial_tcp(address: Address, encryption: Option<Encryption>) -> Dialer {
    let Some(encryption) = encryption else { return Dialer::tcp(&address, None) };
    Dialer::new(&address.to_string(), move || {
        let (address, encryption) = (address.clone(), encryption.clone());
        async move {
            let mut stream = open_tcp(address.clone()).await?;
            ask_for_tls(&mut stream).await?;
            encryption.over(&address.host, stream).await
        }
    })
}

/// Fails where the server does not encrypt.
async fn ask_for_tls(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&SSL_REQUEST).await?;
    match stream.read_u8().await? {
        b'S' => Ok(()),
        _ => Err(io::Error::other("the server does not offer TLS")),
    }
}
