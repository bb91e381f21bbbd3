//! The web console: who holds which lock and since when, who waits, and the way to end a hold that nobody else will end.
//!
//! One page over any engine. The engine is listed at most once a second however many browsers look, and not at all when
//! none does; browsers are sent what changed. What it shows, who may look and who may break: `docs/console.md`.
//!
//! ```no_run
//! # async fn f() -> Result<(), Box<dyn std::error::Error>> {
//! use distlock_console::{AccessToken, Console, Options};
//!
//! let locker = distlock::Locker::connect("mem://").await?;
//! let console = Console::bind(locker, "mem://", Options::new(AccessToken::random())).await?;
//! println!("{}", console.url_with_token());
//! console.serve(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

mod access;
mod api;
mod assets;
mod audit;
mod chronicle;
mod console;
mod door;
mod failure;
mod frame;
mod gate;
mod heat;
mod host;
mod lock;
mod locks;
mod losses;
mod metrics;
mod options;
mod patient;
mod routes;
mod timeline;
mod tls;
mod viewers;
mod waits;
mod watcher;

pub use access::AccessToken;
pub use console::Console;
pub use host::HostName;
pub use options::{DEFAULT_LISTEN, Options, Refused};
