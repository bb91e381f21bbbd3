//! TLS of connections to servers.

use std::fmt;

#[cfg(any(not(feature = "tls"), feature = "postgres", feature = "redis"))]
use crate::types::error::{Error, ErrorKind};

/// The trusted certificates, and the client's own.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    /// PEM; `None`: the certificates that the system trusts.
    pub(crate) ca: Option<Vec<u8>>,
    /// PEM: the client's certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

// Written by hand, so that a key is never printed.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tls { ca, identity } = self;
        f.debug_struct("Tls").field("ca", &ca.is_some()).field("identity", &identity.is_some()).finish()
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) fn not_built_in() -> Error {
    Error::new(ErrorKind::Unsupported, "encrypted connections are not part of this build")
        .with_help("turn on the feature \"tls\" of the crate distlock")
}

/// The client's half of handshakes.
#[cfg(all(feature = "tls", any(feature = "postgres", feature = "redis")))]
impl Tls {
    /// # Errors
    /// Kind `Config` when a certificate or the key cannot be used. The message contains neither.
    pub(crate) fn client(&self) -> crate::types::error::Result<std::sync::Arc<rustls::ClientConfig>> {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let refuse = |field: &str, fault: &dyn fmt::Display| Error::new(ErrorKind::Config, format!("{field}: {fault}"));
        let read = |field: &str, pem: &[u8]| -> crate::types::error::Result<Vec<CertificateDer<'static>>> {
            let found: Vec<_> =
                CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| refuse(field, &e))?;
            if found.is_empty() { Err(refuse(field, &"no certificate in it")) } else { Ok(found) }
        };
        let trusted = match &self.ca {
            Some(pem) => read("tls_ca", pem)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        let mut roots = rustls::RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(trusted);
        if added == 0 {
            return Err(refuse("tls_ca", &"no certificate to trust, neither given nor the system's"));
        }
        // Passed explicitly: the provider of the whole process is the application's choice.
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| refuse("tls", &e))?
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| refuse("tls_key", &e))?;
                let chain = read("tls_cert", certificate)?;
                config.with_client_auth_cert(chain, key).map_err(|e| refuse("tls_cert", &e))?
            }
        };
        Ok(std::sync::Arc::new(config))
    }
}
