//! The flags of `distlock serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use distlock_console::HostName;

use super::{Engine, Output};

/// `distlock serve`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  distlock serve\n  distlock serve --url redis://db1 --socket /run/locks.sock")]
pub struct Serve {
    /// The unix socket to listen on; default serve.sock in the lock directory of this user
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub socket: Option<PathBuf>,
    /// Listen on this address instead, for clients with the token
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
    /// A host name that clients may use, besides localhost and addresses; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub hosts: Vec<HostName>,
    /// Read the token from this file instead of creating and printing a random one
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Encrypt with this certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Accept other machines without encryption
    #[arg(long)]
    pub insecure_listen: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub output: Output,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub engine: Engine,
}
