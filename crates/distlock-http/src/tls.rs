//! The TLS configuration of the server.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::refused::Refused;

/// Reads a certificate chain and its key, both PEM. Error messages contain neither.
///
/// # Errors
/// Names the file that cannot be used.
pub fn server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, Refused> {
    let refuse = |path: &Path, problem: &dyn Display| Refused::new(format!("{}: {problem}", path.display()));
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|problem| refuse(certificate, &problem))?;
    if chain.is_empty() {
        return Err(refuse(certificate, &"no certificate in it"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|problem| refuse(key, &problem))?;
    // Set explicitly: the process-wide provider is for the application to choose.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|problem| refuse(certificate, &problem))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|problem| refuse(certificate, &problem))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
