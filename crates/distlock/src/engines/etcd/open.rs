//! The engine's row: an etcd cluster.

#[cfg(feature = "etcd")]
use crate::contract::{BoxFuture, DynBackend};
#[cfg(feature = "etcd")]
use crate::engines::etcd::{Etcd, EtcdBuilder};
use crate::engines::shared::host::{Credentials, Host, percent_decode};
use crate::engines::shared::row::{EngineAddress, EngineRow, Scheme, WithoutUrl};
#[cfg(feature = "etcd")]
use crate::engines::shared::settings::EngineSettings;
use crate::engines::shared::settings::check_prefix;
use crate::engines::shared::url_parts::UrlParts;
use crate::types::error::Result;
#[cfg(feature = "etcd")]
use crate::types::finding::Finding;

const ETCD_PORT: u16 = 2379;

pub(crate) static ROW: EngineRow = EngineRow {
    name: "etcd",
    feature: Some("etcd"),
    needs_runtime: true,
    needs_username: true,
    schemes: &[
        Scheme { name: "etcd", tls: false, allows_at_in_path: false, options: &["names"], read: EtcdAddress::read },
        Scheme { name: "etcds", tls: true, allows_at_in_path: false, options: &["names"], read: EtcdAddress::read },
    ],
    without_url: WithoutUrl::Endpoints { plain: &["etcd", "http"], tls: &["etcds", "https"] },
};

/// An etcd cluster. With `verbatim` a slash in a lock's name is one in the key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EtcdAddress {
    pub(crate) hosts: Vec<Host>,
    pub(crate) credentials: Credentials,
    pub(crate) tls: bool,
    pub(crate) verbatim: bool,
}

impl EtcdAddress {
    fn read(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        let verbatim = url.option("names", |value| match value {
            "escaped" => Ok(false),
            "verbatim" => Ok(true),
            _ => Err("neither escaped nor verbatim".into()),
        })?;
        let (hosts, credentials) = url.cluster(ETCD_PORT)?;
        read_prefix(url)?;
        Ok(Box::new(EtcdAddress { hosts, credentials, tls: url.tls, verbatim: verbatim == Some(true) }))
    }
}

/// Takes the path behind its first slash for the prefix.
fn read_prefix(url: &mut UrlParts<'_>) -> Result<(), String> {
    let path = url.path.strip_prefix('/').unwrap_or_default();
    if path.is_empty() {
        return Ok(());
    }
    if url.prefix.is_some() {
        return Err("the prefix is given twice, as the path and as an option".into());
    }
    let prefix = percent_decode(path).and_then(|prefix| check_prefix(&prefix).map(|()| prefix));
    url.prefix = Some(prefix.map_err(|fault| format!("the path is to be a prefix: {fault}"))?);
    Ok(())
}

impl EngineAddress for EtcdAddress {
    fn row(&self) -> &'static EngineRow {
        &ROW
    }

    fn tls(&self) -> Option<bool> {
        Some(self.tls)
    }

    fn credentials_mut(&mut self) -> Vec<&mut Credentials> {
        vec![&mut self.credentials]
    }

    #[cfg(feature = "etcd")]
    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        let builder = self.builder(settings)?;
        Ok(Box::new(if self.verbatim { builder.verbatim_names() } else { builder }.build()?))
    }

    #[cfg(feature = "etcd")]
    fn examine<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async { Ok(self.builder(settings)?.build()?.examine(settings.default_ttl).await) })
    }
}

#[cfg(feature = "etcd")]
impl EtcdAddress {
    fn builder(&self, settings: &EngineSettings) -> Result<EtcdBuilder> {
        let mut builder = Etcd::builder(self.hosts.iter().map(ToString::to_string))
            .prefix(&settings.prefix)
            .dial_timeout(settings.dial_timeout);
        if let Credentials { username: Some(name), password: Some(password) } = &self.credentials {
            builder = builder.login(name, password.expose());
        }
        if self.tls {
            builder = builder.tls(settings.tls.read_ca()?);
            if let Some((certificate, key)) = settings.tls.read_identity()? {
                builder = builder.tls_identity(certificate, key);
            }
        }
        Ok(builder)
    }
}
