//! Claims and releases of many tasks over one connection, in few calls.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::{Cmd, Value};

use crate::engines::redis::protocol::script::{Dialect, Reply, garbled, nonce};
use crate::engines::redis::wire::batcher::{self, Entry, Path};
pub(in crate::engines) use crate::engines::redis::wire::batcher::{CallKind, Request, RequestReply};
use crate::engines::redis::wire::connection::{Connection, Failure};
use crate::types::error::{Error, Result};

impl Connection {
    /// Sends one claim or release: alone, or in a batch with others that come at the same time.
    ///
    /// A request that is dropped before it is written is not written at all; later it runs on the server.
    pub(in crate::engines) async fn request(&self, kind: CallKind, request: Request) -> Result<RequestReply> {
        let path = match self.dialect {
            // Only requests of one hash slot could share a call.
            Dialect::Sharded => return self.send_alone(kind, &request).await,
            Dialect::Plain | Dialect::Guarded => self.batcher.enter(kind, request),
        };
        match path {
            Path::Alone(request, _single) => self.send_alone(kind, &request).await,
            Path::Batched(number, mut reply) => tokio::select! {
                biased;
                reply = &mut reply => reply.unwrap_or_else(|_| Err(Failure::Dead.of(kind.script().name, &self.place))),
                () = self.died() => Err(self.withdraw(kind, number)),
            },
        }
    }

    /// Returns the error of a batched request after the connection broke. A request in the queue is never sent.
    fn withdraw(&self, kind: CallKind, number: u64) -> Error {
        let (place, what) = (&self.place, kind.script().name);
        match self.batcher.withdraw(kind, number) {
            true => Error::unavailable(format!("redis: {place}: the connection broke before {what} was sent")),
            false => Failure::Dead.of(what, place),
        }
    }

    async fn send_alone(&self, kind: CallKind, request: &Request) -> Result<RequestReply> {
        let requests = || std::iter::once(request);
        let (command, nonce) = self.pack(kind, requests(), false);
        let parts = match self.ask_parts(&command, nonce).await {
            Err(failure) if failure.is_no_script() => {
                // The same call on the same connection: the server carried out nothing of the first one.
                let (command, nonce) = self.pack(kind, requests(), true);
                self.ask_parts(&command, nonce).await
            }
            parts => parts,
        };
        let replies = parts.and_then(|parts| self.read(kind, parts, 1));
        let mut replies = replies.map_err(|failure| failure.of(kind.script().name, &self.place))?;
        replies.pop().unwrap_or_else(|| Err(garbled()))
    }

    /// Sends the batches. Runs beside the connection's driver.
    pub(super) async fn send_batches(&self) {
        tokio::join!(self.send_batches_of(CallKind::Claim), self.send_batches_of(CallKind::Release));
    }

    async fn send_batches_of(&self, kind: CallKind) {
        loop {
            self.batcher.due(kind).await;
            while let Some(mut entries) = self.batcher.take(kind) {
                let parts = match self.send_batch(kind, &mut entries, false).await {
                    Err(failure) if failure.is_no_script() => self.send_batch(kind, &mut entries, true).await,
                    parts => parts,
                };
                self.deliver(kind, entries, parts);
            }
        }
    }

    /// Sends one call for all entries whose callers still wait.
    ///
    /// A caller that drops a claim releases it next, and that release must arrive after the claim. So the call is handed
    /// to the connection under the lock that every request takes: either the claim was dropped before and is left out,
    /// or its release comes later than this call.
    async fn send_batch(
        &self,
        kind: CallKind,
        entries: &mut Vec<Entry>,
        by_text: bool,
    ) -> std::result::Result<Vec<Value>, Failure> {
        let mut call: Option<Pin<Box<dyn Future<Output = _> + Send>>> = None;
        poll_fn(|context: &mut Context<'_>| {
            if let Some(call) = &mut call {
                return call.as_mut().poll(context);
            }
            loop {
                entries.retain(|entry| !entry.reply.is_closed());
                if entries.is_empty() {
                    return Poll::Ready(Ok(Vec::new()));
                }
                let (command, nonce) = self.pack(kind, entries.iter().map(|entry| &entry.request), by_text);
                let asked = async move { self.ask_parts(&command, nonce).await };
                // Unconstrained: a task budget must not keep the call from being handed over.
                let asked = call.insert(Box::pin(tokio::task::coop::unconstrained(asked)));
                let handed_over = self.batcher.before_others(|| {
                    let is_complete = entries.iter().all(|entry| !entry.reply.is_closed());
                    is_complete.then(|| asked.as_mut().poll(context))
                });
                match handed_over {
                    Some(polled) => return polled,
                    None => call = None,
                }
            }
        })
        .await
    }

    fn deliver(&self, kind: CallKind, entries: Vec<Entry>, parts: std::result::Result<Vec<Value>, Failure>) {
        match parts.and_then(|parts| self.read(kind, parts, entries.len())) {
            Ok(replies) => entries.into_iter().zip(replies).for_each(|(entry, reply)| drop(entry.reply.send(reply))),
            Err(failure) => entries.into_iter().for_each(|entry| {
                drop(entry.reply.send(Err(failure.clone().of(kind.script().name, &self.place))));
            }),
        }
    }

    /// Returns the call for some requests, and its nonce.
    fn pack<'a>(
        &self,
        kind: CallKind,
        requests: impl Iterator<Item = &'a Request> + Clone,
        by_text: bool,
    ) -> (Cmd, u64) {
        let (nonce, script) = (nonce(), kind.script());
        let command = if by_text { script.by_text(self.dialect) } else { script.by_hash(self.dialect) };
        (self.call(command, |command| batcher::fill(command, &self.fences, nonce, requests)), nonce)
    }

    /// Sends a call; returns the parts of the reply behind the nonce.
    async fn ask_parts(&self, command: &Cmd, nonce: u64) -> std::result::Result<Vec<Value>, Failure> {
        let reply = self.ask_whole(command).await?;
        Reply::check(reply, nonce).map(Reply::rest).map_err(|error| {
            self.distrust(&error);
            Failure::Garbled
        })
    }

    /// Returns the replies to `count` requests that shared a call. Each has its own error.
    fn read(
        &self,
        kind: CallKind,
        parts: Vec<Value>,
        count: usize,
    ) -> std::result::Result<Vec<Result<RequestReply>>, Failure> {
        let mut parts = parts.into_iter();
        let server_us = match (kind, parts.len().checked_sub(count)) {
            (CallKind::Release, Some(0)) => 0,
            (CallKind::Claim, Some(1)) => match parts.next() {
                Some(Value::Int(now)) => u64::try_from(now).map_err(|_| Failure::Garbled)?,
                _ => return Err(Failure::Garbled),
            },
            _ if count == 0 => return Ok(Vec::new()),
            _ => return Err(Failure::Garbled),
        };
        let read = |outcome| match outcome {
            Value::ServerError(error) => Err(self.refused(error.into()).of(kind.script().name, &self.place)),
            outcome => Ok(RequestReply { server_us, outcome }),
        };
        Ok(parts.map(read).collect())
    }
}
