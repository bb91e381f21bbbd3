//! One server of the cluster and the connection to it.

use crate::types::sync::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use tokio::runtime::Handle;
use tonic::transport::{Channel, Endpoint as Dial};

use crate::engines::shared::tls::Tls;
use crate::types::error::{Error, ErrorKind, Result};

/// etcd closes connections that ping more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// One server of the cluster.
#[derive(Debug)]
pub(crate) struct Endpoint {
    source: Source,
    links: Mutex<Links>,
}

#[derive(Debug)]
enum Source {
    Dialled(Box<Dial>),
    /// Made by the application, which looks after it.
    Given(Channel),
}

/// Where a connection is driven, and the tasks that use it run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// The keeper's runtime.
    Keeper,
    /// The runtime of the callers, which may block or end at any time.
    Caller,
}

/// The connections of both runtimes.
#[derive(Debug, Default)]
struct Links {
    keeper: Link,
    caller: Link,
}

/// A connection, made when it is first needed.
#[derive(Debug, Default)]
struct Link {
    channel: Option<Channel>,
    /// Which connection in a row this is.
    number: u64,
}

impl Links {
    fn of(&mut self, home: Home) -> &mut Link {
        match home {
            Home::Keeper => &mut self.keeper,
            Home::Caller => &mut self.caller,
        }
    }
}

impl Link {
    fn abandon(&mut self) {
        *self = Link { channel: None, number: self.number + 1 };
    }
}

impl Endpoint {
    /// The server at `address`, which is `host:port`.
    pub(crate) fn dial(address: &str, tls: Option<&Tls>, timeout: Duration) -> Result<Self> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let refuse = |e: &dyn std::fmt::Display| Error::new(ErrorKind::Config, format!("endpoints: {address:?}: {e}"));
        let mut dial = Dial::from_shared(format!("{scheme}://{address}"))
            .map_err(|e| refuse(&e))?
            .connect_timeout(timeout)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(PING_EVERY))
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT);
        if let Some(tls) = tls {
            dial = encrypted(dial, tls)?;
        }
        Ok(Endpoint { source: Source::Dialled(Box::new(dial)), links: Mutex::default() })
    }

    /// A server behind a channel that the application has made.
    pub(crate) fn given(channel: Channel) -> Self {
        Endpoint { source: Source::Given(channel), links: Mutex::default() }
    }

    /// Where it is, for messages.
    pub(crate) fn place(&self) -> String {
        match &self.source {
            Source::Dialled(dial) => dial.uri().authority().map(ToString::to_string).unwrap_or_default(),
            Source::Given(_) => "the given channel".into(),
        }
    }

    /// Whether it is dialled over TLS. What the application looks after is its own business.
    pub(crate) fn is_encrypted(&self) -> bool {
        match &self.source {
            Source::Dialled(dial) => dial.uri().scheme_str() == Some("https"),
            Source::Given(_) => true,
        }
    }

    /// Returns the connection of `home` and its number. It lives on `runtime`, whichever task asks first.
    pub(crate) fn channel(&self, home: Home, runtime: &Handle) -> (Channel, u64) {
        let mut links = self.links.lock();
        let link = links.of(home);
        let number = link.number;
        let channel = link.channel.get_or_insert_with(|| match &self.source {
            Source::Given(channel) => channel.clone(),
            Source::Dialled(dial) => {
                // The connector looks for a runtime when it is made, not only when it runs.
                let _inside = runtime.enter();
                dial.as_ref().clone().executor(OnRuntime(runtime.clone())).connect_lazy()
            }
        });
        (channel.clone(), number)
    }

    /// Opens the connection of the callers' runtime. Returns whether it is open.
    pub(crate) async fn connect_caller(&self, runtime: &Handle) -> bool {
        let Source::Dialled(dial) = &self.source else { return true };
        let dial = dial.as_ref().clone().executor(OnRuntime(runtime.clone()));
        let Ok(channel) = dial.connect().await else { return false };
        self.links.lock().caller.channel.get_or_insert(channel);
        true
    }

    /// Returns which connection in a row that of `home` is.
    pub(crate) fn number(&self, home: Home) -> u64 {
        self.links.lock().of(home).number
    }

    /// Gives up the connection of `home` with this number: it did not answer, and tonic never leaves a half-open one by
    /// itself. Where the keeper's does not answer, that of the callers does not either. The callers' runtime may have
    /// been blocked, which says nothing about the keeper's.
    pub(crate) fn abandon(&self, home: Home, number: u64) {
        let mut links = self.links.lock();
        if links.of(home).number == number {
            links.caller.abandon();
            if home == Home::Keeper {
                links.keeper.abandon();
            }
        }
    }
}

#[cfg(feature = "tls")]
fn encrypted(dial: Dial, tls: &Tls) -> Result<Dial> {
    use tonic::transport::{Certificate, ClientTlsConfig, Identity};
    let mut config = match &tls.ca {
        Some(pem) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    let refuse = |e| Error::new(ErrorKind::Config, "the TLS files cannot be used").with_source(e);
    dial.tls_config(config).map_err(refuse)
}

#[cfg(not(feature = "tls"))]
fn encrypted(_dial: Dial, _tls: &Tls) -> Result<Dial> {
    Err(crate::engines::shared::tls::not_built_in())
}

/// Runs connections on one runtime, so that they outlive the one that a lock was asked for in.
#[derive(Debug, Clone)]
struct OnRuntime(Handle);

impl hyper::rt::Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for OnRuntime {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        // tidy-allow(spawn): a connection runs on the keeper's runtime, or on the callers'
        self.0.spawn(task);
    }
}
