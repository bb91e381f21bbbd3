//! The web console: the holders and waiters of all locks, and a way to break a hold that does not end.
//!
//! One page for any engine. The engine is listed at most once a second for any number of browsers, and not at all
//! while none is connected; browsers receive the changes. What it shows, who has access and who may break locks:
//! `docs/console.md`.
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

mod api;
mod assets;
mod audit;
mod console;
mod failure;
mod frame;
mod heat;
mod history;
mod lock;
mod locks;
mod losses;
mod metrics;
mod options;
mod request_filter;
mod routes;
mod ticks;
mod timeline;
mod viewers;
mod waits;
mod watcher;

pub use console::Console;
pub use distlock_http::{AccessToken, HostName, Refused};
pub use options::{DEFAULT_LISTEN, Options};
