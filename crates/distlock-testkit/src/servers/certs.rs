//! Certificates for tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::directory::Directory;
use super::program::find_program;

/// A certificate authority with one certificate for servers on loopback and one for clients, as PEM files.
///
/// Clones share the files; they are removed with the last clone.
#[derive(Debug, Clone)]
pub struct Certs(Arc<Directory>);

impl Certs {
    /// Creates an authority. Two authorities do not trust each other.
    #[track_caller]
    pub fn new() -> Certs {
        let certs = Certs(Arc::new(Directory::new()));
        certs.issue("ca", &["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"], &[]);
        // Servers of one cluster are clients of each other.
        for (name, usage) in [("server", "serverAuth,clientAuth"), ("client", "clientAuth")] {
            let usage = format!("extendedKeyUsage={usage}");
            let extensions = ["basicConstraints=CA:FALSE", &usage, "subjectAltName=DNS:localhost,IP:127.0.0.1"];
            certs.issue(name, &extensions, &["-CA", "ca.pem", "-CAkey", "ca.key"]);
        }
        certs
    }

    /// The authority's certificate.
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// The servers' certificate, for `localhost` and 127.0.0.1.
    pub fn server_cert(&self) -> PathBuf {
        self.file("server.pem")
    }

    /// The servers' key.
    pub fn server_key(&self) -> PathBuf {
        self.file("server.key")
    }

    /// The clients' certificate; its common name is `client`.
    pub fn client_cert(&self) -> PathBuf {
        self.file("client.pem")
    }

    /// The clients' key.
    pub fn client_key(&self) -> PathBuf {
        self.file("client.key")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Creates a key and its certificate in one run of the program: most tests with TLS begin with this.
    fn issue(&self, name: &str, extensions: &[&str], signer: &[&str]) {
        let (subject, key, out) = (format!("/CN={name}"), format!("{name}.key"), format!("{name}.pem"));
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        let rest = ["-nodes", "-days", "2", "-sha256", "-keyout", &key, "-out", &out, "-subj", &subject];
        let extensions: Vec<&str> = extensions.iter().flat_map(|extension| ["-addext", extension]).collect();
        openssl(self.0.path(), &[&["req", "-x509"], &curve[..], &rest[..], &extensions[..], signer].concat());
    }
}

impl Default for Certs {
    fn default() -> Self {
        Certs::new()
    }
}

fn openssl(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new(find_program("openssl", "openssl"));
    let output = command.args(arguments).current_dir(directory).stdin(Stdio::null()).output().expect("openssl runs");
    assert!(output.status.success(), "openssl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_trusted(authority: &Certs, cert: &Path) -> bool {
        let mut verify = Command::new(find_program("openssl", "openssl"));
        let output = verify.arg("verify").arg("-CAfile").arg(authority.ca()).arg(cert).output();
        output.unwrap().status.success()
    }

    #[test]
    fn an_authority_trusts_only_its_own_certificates() {
        let (ours, theirs) = (Certs::new(), Certs::new());
        for cert in [ours.server_cert(), ours.client_cert()] {
            assert!(is_trusted(&ours, &cert));
            assert!(!is_trusted(&theirs, &cert));
        }
    }
}
