//! What every engine tells the registry: its URL schemes, its feature, how to open it and how to examine it.

use std::any::Any;
use std::fmt;

use crate::contract::{BoxFuture, DynBackend};
use crate::engines::shared::host::Credentials;
use crate::engines::shared::settings::EngineSettings;
use crate::engines::shared::url_parts::UrlParts;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::finding::Finding;

/// One row of the registry in `config/registry.rs`.
///
/// A row exists for every engine, also for one that is not built in: its URLs are still parsed and redacted, and
/// opening it says what is missing.
#[derive(Debug)]
pub(crate) struct EngineRow {
    /// The engine's name in a configuration, in errors and in metrics.
    pub(crate) name: &'static str,
    /// The cargo feature that compiles the engine; `None` if it is always compiled, at least on Linux.
    pub(crate) feature: Option<&'static str>,
    /// Whether opening the engine needs a tokio runtime.
    pub(crate) needs_runtime: bool,
    /// Whether a password without a user name is refused.
    pub(crate) needs_username: bool,
    /// The schemes of the engine's URLs.
    pub(crate) schemes: &'static [Scheme],
    /// What a configuration with `driver` and without `url` means.
    pub(crate) without_url: WithoutUrl,
}

/// One URL scheme of an engine.
#[derive(Debug)]
pub(crate) struct Scheme {
    /// The text before `://`, in lower case.
    pub(crate) name: &'static str,
    /// Whether connections are encrypted.
    pub(crate) tls: bool,
    /// Whether an `@` may stand behind the hosts. If not, it is taken for a password that ends the hosts too early.
    pub(crate) allows_at_in_path: bool,
    /// The options of the URL beside [`COMMON_OPTIONS`](crate::engines::shared::url_parts::COMMON_OPTIONS).
    pub(crate) options: &'static [&'static str],
    /// Reads the URL. The fault says which part is wrong and never repeats it.
    pub(crate) read: fn(&mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String>,
}

/// What a configuration with `driver` and without `url` means.
#[derive(Debug)]
pub(crate) enum WithoutUrl {
    /// The engine has no servers: `endpoints` are refused, and this is its default address.
    Default(fn() -> Box<dyn EngineAddress>),
    /// The engine needs `endpoints`. An endpoint may have one of these schemes; the first of each list is the scheme of
    /// the equivalent URL.
    Endpoints { plain: &'static [&'static str], tls: &'static [&'static str] },
}

/// Where an engine's locks live, as a URL or a configuration says it.
pub(crate) trait EngineAddress: Any + fmt::Debug + Send + Sync {
    /// Returns the row of the engine whose address this is.
    fn row(&self) -> &'static EngineRow;

    /// Returns whether the connections are encrypted; `None` where nothing leaves this machine.
    fn tls(&self) -> Option<bool> {
        None
    }

    /// Returns all credentials of the address, so that fields of a configuration can complete them.
    fn credentials_mut(&mut self) -> Vec<&mut Credentials> {
        Vec::new()
    }

    /// Returns whether a user name without a password is refused.
    fn needs_password(&self) -> bool {
        true
    }

    /// Returns the commands that prepare the servers for the engine; `None` if they need no preparation. The default is that
    /// of an engine that needs none.
    fn setup_sql(&self, settings: &EngineSettings) -> Result<Option<String>> {
        let _ = settings;
        Ok(None)
    }

    /// Prepares the servers for the engine. The default is that of an engine that needs no preparation.
    fn set_up<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<()>> {
        let _ = settings;
        Box::pin(async { Ok(()) })
    }

    /// Opens the engine. The default is that of an engine that is not built in.
    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        let _ = settings;
        Err(self.row().not_built_in())
    }

    /// Examines the engine for what makes locks there unsafe, slow or impossible. The default is that of an engine
    /// that is not built in.
    fn examine<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        let _ = settings;
        Box::pin(async { Err(self.row().not_built_in()) })
    }
}

impl EngineRow {
    /// Returns the error for an engine that is not built in.
    pub(crate) fn not_built_in(&self) -> Error {
        let EngineRow { name, feature, .. } = self;
        let error = Error::new(ErrorKind::Unsupported, format!("the {name} engine is not part of this build"));
        error.with_help(match feature {
            Some(feature) => format!("turn on the feature \"{feature}\" of the crate distlock"),
            None => format!("the {name} engine runs on Linux only: use a server, or mem:// for tests"),
        })
    }
}
