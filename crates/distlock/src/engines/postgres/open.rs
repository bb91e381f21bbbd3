//! The engine's row: a PostgreSQL server with its replicas.

use std::path::PathBuf;

#[cfg(feature = "postgres")]
use crate::contract::{BoxFuture, DynBackend};
use crate::engines::postgres::schema_name::check_schema;
#[cfg(feature = "postgres")]
use crate::engines::postgres::{Postgres, PostgresBuilder};
use crate::engines::shared::host::{Credentials, Host, percent_decode};
use crate::engines::shared::row::{EngineAddress, EngineRow, Scheme, WithoutUrl};
#[cfg(feature = "postgres")]
use crate::engines::shared::settings::EngineSettings;
use crate::engines::shared::url_parts::UrlParts;
use crate::types::error::Result;
#[cfg(feature = "postgres")]
use crate::types::finding::Finding;

const POSTGRES_PORT: u16 = 5432;

const OPTIONS: &[&str] = &["schema", "host", "port", "sslmode", "target_session_attrs"];

pub(crate) static ROW: EngineRow = EngineRow {
    name: "postgres",
    feature: Some("postgres"),
    needs_runtime: true,
    needs_username: false,
    schemes: &[scheme("postgres", false), scheme("postgresql", false), scheme("postgress", true)],
    without_url: WithoutUrl::Endpoints { plain: &["postgres", "postgresql"], tls: &["postgress"] },
};

const fn scheme(name: &'static str, tls: bool) -> Scheme {
    Scheme { name, tls, allows_at_in_path: false, options: OPTIONS, read: PostgresAddress::read }
}

/// A PostgreSQL server with its replicas.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PostgresAddress {
    pub(crate) servers: PostgresServers,
    pub(crate) credentials: Credentials,
    pub(crate) tls: bool,
    /// `None`: the one with the user's name.
    pub(crate) database: Option<String>,
    /// `None`: the engine's own default.
    pub(crate) schema: Option<String>,
}

/// How the servers are found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PostgresServers {
    Hosts(Vec<Host>),
    /// The directory of a socket, and the port in its name.
    Unix(PathBuf, u16),
}

impl PostgresAddress {
    fn read(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        let asked = url.option("sslmode", read_sslmode)?;
        if url.tls && asked == Some(false) {
            return Err("sslmode=disable contradicts the scheme".into());
        }
        let tls = url.tls || asked == Some(true);
        url.option("target_session_attrs", |value| match value {
            "read-write" | "primary" => Ok(()),
            _ => Err("neither read-write nor primary; locks need a server that can be written to".into()),
        })?;
        let (servers, credentials) = match url.option("host", read_directory)? {
            Some(directory) => read_unix(url, directory, tls)?,
            None => {
                if url.option("port", |_| Ok(()))?.is_some() {
                    return Err("the option \"port\" goes with the option \"host\"; write host:port".into());
                }
                let (hosts, credentials) = url.cluster(POSTGRES_PORT)?;
                (PostgresServers::Hosts(hosts), credentials)
            }
        };
        let database = percent_decode(url.path.strip_prefix('/').unwrap_or_default());
        let database = database.map_err(|fault| format!("the database: {fault}"))?;
        let schema = url.option("schema", |value| check_schema(value).map(|()| value.to_owned()))?;
        let database = Some(database).filter(|database| !database.is_empty());
        Ok(Box::new(PostgresAddress { servers, credentials, tls, database, schema }))
    }
}

/// Reads `user@` before an empty host, for a server on a socket.
fn read_unix(url: &UrlParts<'_>, directory: PathBuf, tls: bool) -> Result<(PostgresServers, Credentials), String> {
    if tls {
        return Err("a socket of this machine is not encrypted".into());
    }
    let port = url.option("port", |value| {
        let digits = value.bytes().all(|b| b.is_ascii_digit());
        let port = if digits { value.parse().ok().filter(|port| *port != 0) } else { None };
        port.ok_or_else(|| "not a number from 1 to 65535".into())
    })?;
    let credentials = match url.hosts {
        "" => Credentials::default(),
        hosts if hosts.ends_with('@') => url.with_host("localhost")?,
        _ => return Err("a host besides the option \"host\"".into()),
    };
    Ok((PostgresServers::Unix(directory, port.unwrap_or(POSTGRES_PORT)), credentials))
}

/// Connections are encrypted with a verified certificate, or not at all: without the verification, an attacker between
/// client and server can read them.
fn read_sslmode(value: &str) -> Result<bool, String> {
    match value {
        "disable" => Ok(false),
        "require" | "verify-full" => Ok(true),
        _ => Err("not one of disable, require, verify-full; the last two verify the certificate and its host".into()),
    }
}

fn read_directory(value: &str) -> Result<PathBuf, String> {
    match value {
        value if value.contains('\0') => Err("a zero byte".into()),
        value if value.starts_with('/') => Ok(value.into()),
        _ => Err("not the directory of a socket; write other hosts before the path".into()),
    }
}

impl EngineAddress for PostgresAddress {
    fn row(&self) -> &'static EngineRow {
        &ROW
    }

    fn tls(&self) -> Option<bool> {
        match self.servers {
            PostgresServers::Unix(..) => None,
            PostgresServers::Hosts(_) => Some(self.tls),
        }
    }

    fn credentials_mut(&mut self) -> Vec<&mut Credentials> {
        vec![&mut self.credentials]
    }

    /// The server may trust the user of a socket, or the password is in a password file.
    fn needs_password(&self) -> bool {
        false
    }

    #[cfg(feature = "postgres")]
    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        Ok(Box::new(self.builder(settings)?.build()?))
    }

    #[cfg(feature = "postgres")]
    fn examine<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async { Ok(self.builder(settings)?.build()?.examine(settings.default_ttl).await) })
    }

    #[cfg(feature = "postgres")]
    fn setup_sql(&self, settings: &EngineSettings) -> Result<Option<String>> {
        Ok(Some(self.builder(settings)?.build()?.setup_sql()))
    }

    #[cfg(feature = "postgres")]
    fn set_up<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { self.builder(settings)?.build()?.setup().await })
    }
}

#[cfg(feature = "postgres")]
impl PostgresAddress {
    fn builder(&self, settings: &EngineSettings) -> Result<PostgresBuilder> {
        let mut builder = match &self.servers {
            PostgresServers::Hosts(hosts) => Postgres::any_of(hosts.iter().map(|host| (&*host.name, host.port))),
            PostgresServers::Unix(directory, port) => Postgres::unix(directory, *port),
        };
        if let Some(username) = &self.credentials.username {
            builder = builder.user(username);
        }
        if let Some(password) = &self.credentials.password {
            builder = builder.password(password.expose());
        }
        if let Some(database) = &self.database {
            builder = builder.database(database);
        }
        if let Some(schema) = &self.schema {
            builder = builder.schema(schema);
        }
        if self.tls {
            builder = builder.tls(settings.tls.read_ca()?);
            if let Some((certificate, key)) = settings.tls.read_identity()? {
                builder = builder.tls_identity(certificate, key);
            }
        }
        Ok(builder.prefix(&settings.prefix).dial_timeout(settings.dial_timeout))
    }
}
