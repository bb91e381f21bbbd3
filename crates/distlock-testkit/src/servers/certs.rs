//! Certificates for tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::directory::Directory;
use super::program::find_program;

/// A certificate authority of its own with one certificate for servers on loopback and one for clients, as PEM files.
///
/// Clones share the files; they are removed with the last clone.
#[derive(Debug, Clone)]
pub struct Certs(Arc<Directory>);

impl Certs {
    /// A new authority. Two of them do not trust each other.
    #[track_caller]
    pub fn new() -> Certs {
        let certs = Certs(Arc::new(Directory::new()));
        let authority = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign,cRLSign\n";
        certs.request("ca", "distlock test authority");
        certs.sign("ca", authority, &["-signkey", "ca.key"]);
        for (name, usage) in [("server", "serverAuth,clientAuth"), ("client", "clientAuth")] {
            // Servers of one cluster are clients of each other.
            let usage = format!(
                "basicConstraints=CA:FALSE\nextendedKeyUsage={usage}\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n"
            );
            certs.request(name, name);
            certs.sign(name, &usage, &["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]);
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

    fn request(&self, name: &str, subject: &str) {
        let (subject, key, out) = (format!("/CN={subject}"), format!("{name}.key"), format!("{name}.csr"));
        let curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
        let rest = ["-nodes", "-keyout", &key, "-out", &out, "-subj", &subject];
        openssl(self.0.path(), &[&["req"], &curve[..], &rest[..]].concat());
    }

    fn sign(&self, name: &str, extensions: &str, signer: &[&str]) {
        let extension_file = format!("{name}.ext");
        self.0.write(&extension_file, extensions);
        let (request, out) = (format!("{name}.csr"), format!("{name}.pem"));
        let rest = ["-in", &request, "-out", &out, "-days", "2", "-sha256", "-extfile", &extension_file];
        openssl(self.0.path(), &[&["x509", "-req"], &rest[..], signer].concat());
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
    fn an_authority_trusts_its_own_and_no_others() {
        let (ours, theirs) = (Certs::new(), Certs::new());
        for cert in [ours.server_cert(), ours.client_cert()] {
            assert!(is_trusted(&ours, &cert));
            assert!(!is_trusted(&theirs, &cert));
        }
    }
}
