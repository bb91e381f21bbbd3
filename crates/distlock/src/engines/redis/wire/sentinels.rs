//! The sentinels of a service, and which server they call its master.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, RedisConnectionInfo, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::contract::Attachment;
use crate::engines::redis::error::{Stage, classify};
use crate::engines::shared::dial::{Address, BoxStream, Dialer};
use crate::engines::shared::encryption::Encryption;
use crate::types::error::{Error, Result};

/// How long one sentinel may take to name the master.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before a sentinel is listened to again.
const LISTEN_AGAIN: Duration = Duration::from_millis(500);

/// The sentinels of a service.
#[derive(Clone)]
pub(in crate::engines) struct Sentinels {
    pub(in crate::engines) addresses: Vec<Address>,
    pub(in crate::engines) service: Arc<str>,
    /// The log-in for the sentinels.
    pub(in crate::engines) login: RedisConnectionInfo,
    pub(in crate::engines) encryption: Option<Encryption>,
    /// Changes when the master may have.
    switched: watch::Sender<()>,
}

impl Sentinels {
    pub(in crate::engines) fn new(addresses: Vec<Address>, service: &str) -> Sentinels {
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let switched = watch::Sender::new(());
        Sentinels { addresses, service: service.into(), login, encryption: None, switched }
    }

    /// Returns a receiver that changes when the master may have changed.
    pub(in crate::engines) fn switches(&self) -> watch::Receiver<()> {
        self.switched.subscribe()
    }

    /// Returns the server that most of the sentinels call the master. One of them alone may be cut off from the others and name
    /// the old one, so it takes more than half of all, whether they answer or not.
    pub(in crate::engines) async fn master(&self) -> Result<Address> {
        let mut asked = JoinSet::new();
        for sentinel in self.addresses.iter().cloned() {
            let this = self.clone();
            // tidy-allow(spawn): asks them side by side; they end with the set
            asked.spawn(async move {
                let answer = tokio::time::timeout(REPLY_TIMEOUT, this.ask(&sentinel)).await;
                let answer = answer.unwrap_or_else(|_| Err(Error::unavailable("it does not answer")));
                (sentinel, answer)
            });
        }
        let mut votes = BTreeMap::<Address, usize>::new();
        let mut said = Vec::new();
        while let Some(answer) = asked.join_next().await {
            let Ok((sentinel, answer)) = answer else { continue };
            match answer {
                Ok(named) => {
                    let count = votes.entry(named.clone()).or_default();
                    *count += 1;
                    if *count * 2 > self.addresses.len() {
                        return Ok(named);
                    }
                    said.push(format!("{sentinel} names {named}"));
                }
                Err(error) => said.push(format!("{sentinel}: {error}")),
            }
        }
        let (service, said) = (&self.service, said.join("; "));
        Err(Error::unavailable(format!("redis: most sentinels do not agree on a master of {service:?}: {said}")))
    }

    async fn ask(&self, sentinel: &Address) -> Result<Address> {
        let stream = self.dial(sentinel).await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(REPLY_TIMEOUT));
        let opened = MultiplexedConnection::new_with_config(&self.login, stream, config).await;
        let (mut connection, driver) = opened.map_err(|error| classify(&error, Stage::Opening))?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let answer = tokio::select! {
            answer = connection.send_packed_command(&question) => answer.and_then(Value::extract_error),
            () = driver => return Err(Error::unavailable("the connection broke")),
        };
        let answer = answer.map_err(|error| classify(&error, Stage::Opening))?;
        let named: Option<(String, u16)> =
            redis::from_redis_value(answer).map_err(|_| Error::unavailable("its answer is not understood"))?;
        let (host, port) = named.ok_or_else(|| Error::unavailable("it does not know the service"))?;
        Ok(Address::new(&host, port))
    }

    async fn dial(&self, sentinel: &Address) -> Result<BoxStream> {
        let dialled = Dialer::tcp(sentinel, self.encryption.as_ref()).connect().await;
        dialled.map_err(|error| Error::unavailable(format!("cannot be reached: {error}")).with_source(error))
    }

    /// Listens to all sentinels until it is dropped.
    pub(in crate::engines) fn watch(&self, attachment: &Attachment) -> JoinSet<()> {
        let mut listening = JoinSet::new();
        for sentinel in &self.addresses {
            let (this, sentinel) = (self.clone(), sentinel.clone());
            // tidy-allow(spawn): listens on the keeper's runtime, so that a blocked application follows the master
            listening.spawn_on(async move { this.follow(&sentinel).await }, &attachment.keeper_runtime);
        }
        listening
    }

    async fn follow(&self, sentinel: &Address) {
        loop {
            let _ = self.listen(sentinel).await;
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    async fn listen(&self, sentinel: &Address) -> Result<()> {
        let opening = async {
            let stream = self.dial(sentinel).await?;
            let mut listener =
                PubSub::new(&self.login, stream).await.map_err(|error| classify(&error, Stage::Opening))?;
            listener.subscribe("+switch-master").await.map_err(|error| classify(&error, Stage::Opening))?;
            Ok(listener)
        };
        let late = |_| Err(Error::unavailable("it does not answer"));
        let listener = tokio::time::timeout(REPLY_TIMEOUT, opening).await.unwrap_or_else(late)?;
        let mut messages = listener.into_on_message();
        // A switch before the subscription was missed.
        self.switched.send_replace(());
        let next = |stream: &mut redis::aio::PubSubStream, context: &mut std::task::Context<'_>| {
            futures_core::Stream::poll_next(Pin::new(stream), context)
        };
        // `name old-host old-port new-host new-port`
        let ours = format!("{} ", self.service);
        while let Some(message) = std::future::poll_fn(|context| next(&mut messages, context)).await {
            if message.get_payload_bytes().starts_with(ours.as_bytes()) {
                self.switched.send_replace(());
            }
        }
        Ok(())
    }
}

// By hand: a password is never printed.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sentinels { addresses, service, .. } = self;
        f.debug_struct("Sentinels").field("addresses", addresses).field("service", service).finish_non_exhaustive()
    }
}
