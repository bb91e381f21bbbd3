//! The HTTP server of `distlock console` and `distlock serve`: listeners, TLS, the access token, host names, and the limits
//! on connections and slow clients. Not a public API.

mod access;
mod gate;
mod host;
mod refused;
mod server;
mod stall_limit;
mod tls;

pub use access::AccessToken;
pub use gate::{Gate, check_listen};
pub use host::HostName;
pub use hyper::body::Incoming;
pub use refused::Refused;
pub use server::{Answer, Answers, Authenticated, Client, HttpServer, Listener, Peer};
pub use tls::server as tls_config;
