//! Requests to the cluster: which server is asked, for how long, and as whom.

use crate::types::sync::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use prost::Message;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::contract::BoxFuture;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{
    AuthenticateRequest, AuthenticateResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};
use crate::engines::etcd::protocol::methods::{AUTHENTICATE, TXN, WATCH};
use crate::engines::etcd::wire::caller_runtime::CallerRuntime;
use crate::engines::etcd::wire::endpoint::{Endpoint, Home};
use crate::engines::etcd::wire::unary::{ShortCodec, UnaryChannel};

/// A client that sends no more requests than these has one connection, the keeper's.
const FEW_REQUESTS: u64 = 8;

/// How long a request may take unless its sender knows better.
pub(crate) const REQUEST_WAIT: Duration = Duration::from_secs(5);

/// Who we are to the cluster.
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Sends requests to one server at a time, and to the next when that one fails.
///
/// tonic could balance over all of them, but it also hands requests to servers that are down; and it cannot tell which
/// of them was asked, which one needs to know to leave a connection that hangs.
#[derive(Debug)]
pub(crate) struct Client {
    endpoints: Arc<[Endpoint]>,
    /// The one that is asked now.
    current: AtomicUsize,
    login: Option<Login>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    runtime: OnceLock<Handle>,
    caller: OnceLock<CallerRuntime>,
    sent: AtomicU64,
    /// Counts the connections that were given up.
    abandoned: watch::Sender<u64>,
    /// Makes replies as short as those of etcd 3.7, which no test has at hand.
    #[cfg(test)]
    pub(crate) as_of_3_7: std::sync::atomic::AtomicBool,
}

/// The last connection that a request was sent over.
type LastRoute = Mutex<Option<Route>>;

/// Which connection a request went over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Route {
    home: Home,
    endpoint: usize,
    link: u64,
}

impl Client {
    pub(crate) fn new(endpoints: Vec<Endpoint>, login: Option<Login>) -> Self {
        Client {
            endpoints: endpoints.into(),
            current: AtomicUsize::new(0),
            login,
            token: Mutex::default(),
            runtime: OnceLock::new(),
            caller: OnceLock::new(),
            sent: AtomicU64::new(0),
            abandoned: watch::Sender::new(0),
            #[cfg(test)]
            as_of_3_7: Default::default(),
        }
    }

    /// Everything of this client runs on `keeper` from now on, and short requests of tasks on `caller` there.
    pub(crate) fn run_on(&self, keeper: &Handle, caller: Option<&Handle>) {
        let _ = self.runtime.set(keeper.clone());
        if let Some(caller) = caller.filter(|caller| caller.id() != keeper.id()) {
            let _ = self.caller.set(CallerRuntime::new(caller.clone()));
        }
    }

    /// Returns where a request of the current task is to run, and the runtime.
    pub(crate) fn home(&self) -> (Home, &Handle) {
        match self.caller.get() {
            Some(caller) if self.sent() >= FEW_REQUESTS && caller.is_current() && self.is_open_in(caller) => {
                (Home::Caller, caller.handle())
            }
            _ => (Home::Keeper, self.runtime()),
        }
    }

    /// Returns whether a connection was opened in the callers' runtime.
    fn is_open_in(&self, caller: &CallerRuntime) -> bool {
        caller.is_proven(|| {
            let (endpoints, current) = (self.endpoints.clone(), self.current.load(Ordering::Relaxed));
            let handle = caller.handle().clone();
            async move { endpoints[current].connect_caller(&handle).await }
        })
    }

    /// The runtime that everything runs on; the caller's when the engine is used without a locker.
    pub(crate) fn runtime(&self) -> &Handle {
        self.runtime.get_or_init(Handle::current)
    }

    /// How many requests were sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Sends `request` and waits for its reply, for `timeout` at the longest.
    ///
    /// A server that certainly did nothing is followed by the next one; after an unknown outcome it is the caller's
    /// turn to repeat the request, which then goes to another server over a new connection.
    ///
    /// Boxed: tonic's future is larger than all that is around it, where it would be moved several times.
    pub(crate) fn call<'a, Q, A>(
        &'a self,
        path: &'static str,
        request: Q,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<A, Failure>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        Box::pin(async move {
            let asked = Mutex::new(None);
            match tokio::time::timeout(timeout, self.ask_around(path, request, &asked)).await {
                Ok(answer) => answer,
                Err(_) => Err(Failure::timeout()),
            }
            .inspect_err(|failure| {
                if failure.fault == Fault::Unknown
                    && let Some(route) = *asked.lock()
                {
                    self.leave(route);
                }
            })
        })
    }

    /// Sends a transaction by itself.
    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let reply: TxnResponse = self.call(TXN, request, REQUEST_WAIT).await?;
        if reply.header.is_none() {
            return Err(Failure::new(Fault::Unknown, "etcd sent an answer without a header"));
        }
        Ok(reply)
    }

    /// Asks this server and no other, for `timeout` at the longest.
    pub(crate) async fn call_at<Q, A>(
        &self,
        endpoint: usize,
        path: &'static str,
        request: Q,
        timeout: Duration,
    ) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let asking = async {
            self.log_in(false).await?;
            let (channel, _) = self.endpoints[endpoint].channel(Home::Keeper, self.runtime());
            self.ask(channel, path, request).await
        };
        tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| Err(Failure::timeout()))
    }

    /// Where the servers are, for messages.
    pub(crate) fn places(&self) -> Vec<String> {
        self.endpoints.iter().map(Endpoint::place).collect()
    }

    pub(crate) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.endpoints.iter().all(Endpoint::is_encrypted)
    }

    /// Opens the stream of watches.
    pub(crate) async fn watch(
        &self,
        orders: UnboundedReceiverStream<WatchRequest>,
    ) -> Result<(Streaming<WatchResponse>, Route), Failure> {
        if self.login.is_some() {
            self.log_in(false).await?;
        }
        let (channel, route) = self.choose((Home::Keeper, self.runtime()));
        let mut grpc = Grpc::new(channel);
        let open = async {
            grpc.ready().await.map_err(|e| Failure::from(tonic::Status::from_error(e.into())))?;
            let request = self.dress(orders);
            Ok(grpc.streaming(request, PathAndQuery::from_static(WATCH), codec()).await?.into_inner())
        };
        let opened = match tokio::time::timeout(REQUEST_WAIT, open).await {
            Ok(opened) => opened,
            Err(_) => Err(Failure::timeout()),
        };
        match opened {
            Ok(stream) => Ok((stream, route)),
            Err(failure) => {
                self.leave(route);
                if failure.fault == Fault::LoggedOut {
                    self.log_in(true).await?;
                }
                Err(failure)
            }
        }
    }

    /// Turns away from a server that failed.
    pub(crate) fn leave(&self, route: Route) {
        self.endpoints[route.endpoint].abandon(route.home, route.link);
        self.pass_over(route.endpoint);
        self.abandoned.send_modify(|count| *count += 1);
    }

    /// Returns once the connection of `route` was given up.
    pub(crate) async fn left(&self, route: Route) {
        let mut abandoned = self.abandoned.subscribe();
        while self.endpoints[route.endpoint].number(route.home) == route.link {
            // The sender lives in self, so waiting cannot fail.
            let _ = abandoned.changed().await;
        }
    }

    /// Logs in anew before the next request.
    pub(crate) fn forget_login(&self) {
        *self.token.lock() = None;
    }

    fn pass_over(&self, endpoint: usize) {
        let next = (endpoint + 1) % self.endpoints.len();
        // The second request that fails on the same server must not pass over the next one too.
        let _ = self.current.compare_exchange(endpoint, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn choose(&self, (home, runtime): (Home, &Handle)) -> (Channel, Route) {
        let endpoint = self.current.load(Ordering::Relaxed);
        let (channel, link) = self.endpoints[endpoint].channel(home, runtime);
        (channel, Route { home, endpoint, link })
    }

    /// Asks one server after the other until one answers; the last one that was asked is put into `asked`.
    async fn ask_around<Q, A>(&self, path: &'static str, mut request: Q, asked: &LastRoute) -> Result<A, Failure>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        if self.login.is_some() && path != AUTHENTICATE {
            self.log_in(false).await?;
        }
        let mut servers = self.endpoints.len();
        let mut may_log_in = self.login.is_some() && path != AUTHENTICATE;
        loop {
            let (channel, route) = self.choose(self.home());
            *asked.lock() = Some(route);
            let again = (servers > 1 || may_log_in).then(|| request.clone());
            let failure = match self.ask(channel, path, request).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match failure.fault {
                Fault::Unreachable | Fault::Refused => {
                    self.pass_over(route.endpoint);
                    servers -= 1;
                    if servers == 0 {
                        return Err(failure);
                    }
                }
                Fault::LoggedOut if may_log_in => {
                    may_log_in = false;
                    self.log_in(true).await?;
                }
                _ => return Err(failure),
            }
            request = again.ok_or(failure)?;
        }
    }

    async fn ask<Q, A>(&self, channel: Channel, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(UnaryChannel(channel));
        grpc.ready().await.map_err(|e| Failure::from(tonic::Status::from_error(e.into())))?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        #[cfg(test)]
        let asked = self.as_of_3_7.load(Ordering::Relaxed).then(|| request.encode_to_vec());
        let codec = ShortCodec::default();
        let answer = grpc.unary(self.dress(request), PathAndQuery::from_static(path), codec).await?;
        #[cfg(test)]
        if let Some(asked) = asked {
            return Ok(crate::engines::etcd::wire::keys_only::without_leases(path, &asked, answer.into_inner()));
        }
        Ok(answer.into_inner())
    }

    /// Adds what every request carries.
    fn dress<Q>(&self, request: Q) -> Request<Q> {
        let mut request = Request::new(request);
        // A server that is cut off from the leader says so instead of keeping a stream silent.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &*self.token.lock() {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    /// Gets a token for our login, if there is none yet or the old one is `stale`.
    async fn log_in(&self, stale: bool) -> Result<(), Failure> {
        let Some(Login { name, password }) = &self.login else { return Ok(()) };
        {
            let mut token = self.token.lock();
            if stale {
                *token = None;
            } else if token.is_some() {
                return Ok(());
            }
        }
        let request = AuthenticateRequest { name: name.clone(), password: password.clone() };
        // Boxed: asking may need a login, and a login asks.
        let asked = Mutex::new(None);
        let answer: Result<AuthenticateResponse, _> = Box::pin(self.ask_around(AUTHENTICATE, request, &asked)).await;
        let answer = answer.map_err(|failure| match failure.fault {
            // The request that needed the login certainly was not sent.
            Fault::Unknown => Failure::new(Fault::Unreachable, "the login was not answered"),
            _ => failure,
        })?;
        let mut token: MetadataValue<Ascii> =
            answer.token.parse().map_err(|_| Failure::new(Fault::Rejected, "etcd gave an odd token"))?;
        // So that no Debug output shows it.
        token.set_sensitive(true);
        *self.token.lock() = Some(token);
        Ok(())
    }
}

fn codec<Q: Message + 'static, A: Message + Default + 'static>() -> ProstCodec<Q, A> {
    ProstCodec::default()
}
