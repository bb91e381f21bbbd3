//! Encrypted streams.

use std::io;

use tokio::net::TcpStream;

use crate::engines::shared::tls::Tls;
use crate::types::error::Result;

/// What is needed to encrypt the connections of an engine.
#[cfg(feature = "tls")]
#[derive(Clone)]
pub(in crate::engines) struct Encryption {
    connector: tokio_rustls::TlsConnector,
    /// Whose certificate the servers show; `None`: that of the host that was dialled.
    server_name: Option<rustls::pki_types::ServerName<'static>>,
}

#[cfg(feature = "tls")]
impl Encryption {
    /// # Errors
    /// Kind `Config`, naming what cannot be used.
    pub(in crate::engines) fn new(tls: &Tls, server_name: Option<&str>) -> Result<Encryption> {
        use crate::types::error::{Error, ErrorKind};
        let refuse = |_| Error::new(ErrorKind::Config, "tls_server_name: not the name of a server");
        let server_name = server_name.map(|name| name.to_owned().try_into().map_err(refuse)).transpose()?;
        Ok(Encryption { connector: tls.client()?.into(), server_name })
    }

    /// Encrypts the stream to `host`.
    pub(in crate::engines) async fn over(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => host.to_owned().try_into().map_err(io::Error::other)?,
        };
        self.connector.connect(name, stream).await
    }
}

/// Does not exist in a build without the feature.
#[cfg(not(feature = "tls"))]
#[derive(Clone)]
pub(in crate::engines) enum Encryption {}

#[cfg(not(feature = "tls"))]
impl Encryption {
    pub(in crate::engines) fn new(_tls: &Tls, _server_name: Option<&str>) -> Result<Encryption> {
        Err(crate::engines::shared::tls::not_built_in())
    }

    pub(in crate::engines) async fn over(&self, _host: &str, _stream: TcpStream) -> io::Result<TcpStream> {
        match *self {}
    }
}
