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
    link: Mutex<Link>,
}

#[derive(Debug)]
enum Source {
    Dialled(Box<Dial>),
    /// Made by the application, which looks after it.
    Given(Channel),
}

/// The connection, made when it is first needed.
#[derive(Debug, Default)]
struct Link {
    channel: Option<Channel>,
    /// Which connection in a row this is.
    number: u64,
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
        Ok(Endpoint { source: Source::Dialled(Box::new(dial)), link: Mutex::default() })
    }

    /// A server behind a channel that the application has made.
    pub(crate) fn given(channel: Channel) -> Self {
        Endpoint { source: Source::Given(channel), link: Mutex::default() }
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

    /// The connection and its number. It lives on `runtime`, whichever task asks first.
    pub(crate) fn channel(&self, runtime: &Handle) -> (Channel, u64) {
        let mut link = self.link.lock();
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

    /// Which connection in a row it is.
    pub(crate) fn number(&self) -> u64 {
        self.link.lock().number
    }

    /// Gives up the connection with this number: it did not answer, and tonic never leaves a half-open one by itself.
    pub(crate) fn abandon(&self, number: u64) {
        let mut link = self.link.lock();
        if link.number == number {
            *link = Link { channel: None, number: number + 1 };
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
        // tidy-allow(spawn): a connection runs on the keeper's runtime
        self.0.spawn(task);
    }
}
