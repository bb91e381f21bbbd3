//! The command-line client of etcd.

use std::process::{Command, Stdio};

use super::etcd_options::EtcdOptions;
use super::program::find_program;

/// `etcdctl` for some endpoints, with the certificates and the password that they require.
#[derive(Debug, Clone)]
pub struct Etcdctl {
    arguments: Vec<String>,
}

impl Etcdctl {
    pub(super) fn new(options: &EtcdOptions, endpoints: &[String]) -> Etcdctl {
        let mut arguments = vec![format!("--endpoints={}", endpoints.join(","))];
        if let Some(certs) = &options.tls {
            arguments.push(format!("--cacert={}", certs.ca().display()));
            arguments.push(format!("--cert={}", certs.client_cert().display()));
            arguments.push(format!("--key={}", certs.client_key().display()));
        }
        if let Some(password) = &options.root_password {
            arguments.push(format!("--user=root:{password}"));
        }
        Etcdctl { arguments }
    }

    /// Runs a subcommand and returns its output. Panics when it fails.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        self.try_run(arguments).unwrap_or_else(|said| panic!("etcdctl {arguments:?} failed: {said}"))
    }

    /// Runs a subcommand and returns its stdout, or its stderr when it fails.
    pub fn try_run(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.command(arguments).stdin(Stdio::null()).output().expect("etcdctl runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Returns the command of a subcommand that the caller runs itself, such as `lock`, which runs until it is
    /// signalled.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(find_program("etcdctl", "etcd-client"));
        command.env("ETCDCTL_API", "3").args(&self.arguments).args(arguments);
        command
    }
}
