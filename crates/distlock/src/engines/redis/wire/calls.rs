//! Claims and releases of many tasks over one connection, in few calls.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::{Cmd, Value};

use crate::engines::redis::protocol::lean::{self, LeanOutcome, LeanReply, LeanRequest, Written};
use crate::engines::redis::protocol::outcome::read_short;
use crate::engines::redis::protocol::script::{CLAIM, Dialect, RELEASE, Reply, garbled, nonce};
use crate::engines::redis::wire::batcher::{self, Entry, HandOver, Path};
pub(in crate::engines) use crate::engines::redis::wire::batcher::{CallKind, FullRequest, Request, RequestReply};
use crate::engines::redis::wire::connection::{Connection, Failure};
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};

/// What tells the replies of one call apart.
#[derive(Debug, Clone, Copy)]
struct SentCall {
    kind: CallKind,
    nonce: u64,
    /// When it was handed over, and how many requests it carries.
    sent: Moment,
    count: usize,
}

/// A batch that is in flight.
struct Flying<'a> {
    call: SentCall,
    by_text: bool,
    asked: Pin<Box<dyn Future<Output = Asked> + Send + 'a>>,
    /// The reply, if it came at once.
    reply: Option<Asked>,
}

type Asked = std::result::Result<Value, Failure>;

impl Connection {
    /// Sends one claim or release: alone, or in a batch with others that come at the same time.
    ///
    /// A request that is dropped before it is written is not written at all; later it runs on the server.
    pub(in crate::engines) async fn request(&self, kind: CallKind, request: Request) -> Result<RequestReply> {
        let path = match self.dialect {
            // Only requests of one hash slot could share a call.
            Dialect::Sharded => return Box::pin(self.send_beside(kind, &request)).await,
            Dialect::Plain | Dialect::Guarded => self.batcher.enter(kind, request),
        };
        match path {
            Path::Alone(request, _single) => self.send_alone(kind, &request).await,
            Path::Batched(reply) => reply.await.unwrap_or_else(|_| Err(self.never_answered(kind))),
            Path::Dead => Err(self.never_sent(kind)),
        }
    }

    /// Sends one release as [`request`](Connection::request) does, or by the server's native command if it has one and the
    /// release shares no call with others. `written`: what the native command compares the lock's value with. It deletes
    /// no lock that the lean script would not delete.
    pub(in crate::engines) async fn release_lean(
        &self,
        request: LeanRequest,
        written: Option<Written<'_>>,
    ) -> Result<RequestReply> {
        let kind = CallKind::LeanRelease;
        let path = match self.dialect {
            Dialect::Sharded => return Box::pin(self.release_beside(request, written)).await,
            Dialect::Plain | Dialect::Guarded => self.batcher.enter(kind, Request::Lean(request)),
        };
        match path {
            Path::Alone(mut request, _single) => match self.pack_native(&mut request, written) {
                Some(command) => self.read_native(self.ask_alone(kind, command).await),
                None => self.send_alone(kind, &request).await,
            },
            Path::Batched(reply) => reply.await.unwrap_or_else(|_| Err(self.never_answered(kind))),
            Path::Dead => Err(self.never_sent(kind)),
        }
    }

    /// Sends a release as [`send_beside`](Connection::send_beside) does, or by the native command.
    async fn release_beside(&self, request: LeanRequest, written: Option<Written<'_>>) -> Result<RequestReply> {
        let mut request = Request::Lean(request);
        match self.pack_native(&mut request, written) {
            Some(command) => self.read_native(self.ask_whole(&command).await),
            None => self.send_beside(CallKind::LeanRelease, &request).await,
        }
    }

    /// Returns the error of a request whose reply did not come before the connection broke.
    fn never_answered(&self, kind: CallKind) -> Error {
        Failure::Dead.of(kind.name(), &self.place)
    }

    /// Returns the error of a request after the connection broke without it.
    fn never_sent(&self, kind: CallKind) -> Error {
        Error::unavailable(format!("redis: {}: the connection broke before {} was sent", self.place, kind.name()))
    }

    /// Sends a request as a call of its own: no other of its kind is sent so at the same time.
    async fn send_alone(&self, kind: CallKind, request: &Request) -> Result<RequestReply> {
        let (command, call) = self.pack(kind, std::iter::once(request), false);
        let reply = match self.ask_alone(kind, command).await {
            Err(failure) if failure.is_no_script() => {
                // The same call on the same connection: the server carried out nothing of the first one.
                let (command, call) = self.pack(kind, std::iter::once(request), true);
                let reply = self.ask_alone(kind, command).await;
                return self.read_one(call, reply);
            }
            reply => reply,
        };
        self.read_one(call, reply)
    }

    /// Sends a request as a call of its own, beside any number of others.
    async fn send_beside(&self, kind: CallKind, request: &Request) -> Result<RequestReply> {
        let (command, mut call) = self.pack(kind, std::iter::once(request), false);
        let mut reply = self.ask_whole(&command).await;
        if reply.as_ref().is_err_and(Failure::is_no_script) {
            let (command, again) = self.pack(kind, std::iter::once(request), true);
            call = again;
            reply = self.ask_whole(&command).await;
        }
        self.read_one(call, reply)
    }

    /// Sends a call. Boxed: the client crate's future is large, and that of a claim must be small.
    fn ask_alone<'a>(&'a self, kind: CallKind, command: Cmd) -> Pin<Box<dyn Future<Output = Asked> + Send + 'a>> {
        Box::pin(async move {
            let _in_flight = self.enter_flight();
            let mut multiplexed = self.multiplexed.clone();
            let mut asked = std::pin::pin!(multiplexed.send_packed_command(&command));
            let reply = poll_fn(|context| {
                if let Poll::Ready(reply) = asked.as_mut().poll(context) {
                    return Poll::Ready(Some(reply));
                }
                // First the watch: a connection that breaks later wakes this task.
                self.batcher.watch_alone(kind, context);
                if self.is_dead() { Poll::Ready(None) } else { Poll::Pending }
            });
            self.replied(reply.await.ok_or(Failure::Dead)?)
        })
    }

    /// Sends the batches, and delivers their replies. Runs beside the connection's driver.
    pub(super) async fn send_batches(&self) {
        let mut flying = VecDeque::new();
        loop {
            poll_fn(|context| self.poll_batches(&mut flying, context)).await;
            // At the end of the round: requests of tasks that can run now join the batch.
            tokio::task::yield_now().await;
            poll_fn(|context| {
                while let Some((kind, entries)) = self.batcher.take() {
                    flying.extend(self.send_batch(kind, entries, false, context));
                }
                Poll::Ready(())
            })
            .await;
        }
    }

    /// Delivers replies. Returns when there is a batch to send.
    fn poll_batches<'a>(&'a self, flying: &mut VecDeque<Flying<'a>>, context: &mut Context<'_>) -> Poll<()> {
        // The server replies in the order of the calls.
        while let Some(first) = flying.front_mut() {
            let reply = match first.reply.take() {
                Some(reply) => reply,
                None => match first.asked.as_mut().poll(context) {
                    Poll::Ready(reply) => reply,
                    Poll::Pending => break,
                },
            };
            if let Some(Flying { call, by_text, .. }) = flying.pop_front() {
                flying.extend(self.land(call, by_text, reply, context));
            }
        }
        self.batcher.poll_due(context)
    }

    /// Takes the reply to the batch that was sent first. Returns the batch when it was sent again, by text.
    fn land(&self, call: SentCall, by_text: bool, reply: Asked, context: &mut Context<'_>) -> Option<Flying<'_>> {
        let (kind, entries) = self.batcher.answered()?;
        if !by_text && reply.as_ref().is_err_and(Failure::is_no_script) {
            return self.send_batch(kind, entries, true, context);
        }
        self.batcher.landed(kind);
        let mut entries = entries.into_iter();
        let delivered = reply.and_then(|reply| {
            self.read(call, reply, |outcome| {
                if let Some(entry) = entries.next() {
                    let _ = entry.reply.send(outcome);
                }
            })
        });
        if let Err(failure) = delivered {
            entries.for_each(|entry| drop(entry.reply.send(Err(failure.clone().of(kind.name(), &self.place)))));
        }
        None
    }

    /// Sends one call for all entries whose callers still wait. Returns it while it is in flight.
    ///
    /// A caller that drops a claim releases it next, and that release must arrive after the claim. So the call is handed
    /// to the connection under the lock that every request takes: either the claim was dropped before and is left out,
    /// or its release comes later than this call.
    fn send_batch(
        &self,
        kind: CallKind,
        mut entries: Vec<Entry>,
        by_text: bool,
        context: &mut Context<'_>,
    ) -> Option<Flying<'_>> {
        loop {
            entries.retain(|entry| !entry.reply.is_closed());
            if entries.is_empty() {
                self.batcher.landed(kind);
                return None;
            }
            let (command, call) = self.pack(kind, entries.iter().map(|entry| &entry.request), by_text);
            let asked = async move { self.ask_unwatched(&command).await };
            // Unconstrained: a task budget must not keep the call from being handed over.
            let mut asked: Pin<Box<dyn Future<Output = Asked> + Send>> =
                Box::pin(tokio::task::coop::unconstrained(asked));
            match self.batcher.hand_over(kind, entries, || asked.as_mut().poll(context)) {
                HandOver::Sent(Poll::Pending) => return Some(Flying { call, by_text, asked, reply: None }),
                HandOver::Sent(Poll::Ready(reply)) => return Some(Flying { call, by_text, asked, reply: Some(reply) }),
                HandOver::Incomplete(left) => entries = left,
                HandOver::Dead(left) => {
                    left.into_iter().for_each(|entry| drop(entry.reply.send(Err(self.never_sent(kind)))));
                    return None;
                }
            }
        }
    }

    /// Fails every request that is in a batch or waits for one.
    pub(super) fn end_batches(&self) {
        let remains = self.batcher.end();
        for (kind, entry) in remains.queued {
            let _ = entry.reply.send(Err(self.never_sent(kind)));
        }
        for (kind, entry) in remains.sent {
            let _ = entry.reply.send(Err(self.never_answered(kind)));
        }
    }

    /// Returns the call for some requests.
    fn pack<'a>(
        &self,
        kind: CallKind,
        requests: impl Iterator<Item = &'a Request> + Clone,
        by_text: bool,
    ) -> (Cmd, SentCall) {
        let call = SentCall { kind, nonce: nonce(), sent: self.now(), count: requests.clone().count() };
        let script = match kind {
            CallKind::LeanClaim | CallKind::LeanRelease => {
                let requests = requests.filter_map(Request::lean);
                return (lean::call(requests, &self.fences, call.nonce, by_text), call);
            }
            CallKind::Claim => &CLAIM,
            CallKind::Release => &RELEASE,
        };
        let requests = requests.filter_map(Request::full);
        let mut command = batcher::with_room(requests.clone());
        script.begin(&mut command, self.dialect, by_text);
        (self.call(command, |command| batcher::fill(command, &self.fences, call.nonce, requests)), call)
    }

    /// Returns the native command that releases the lock if its value is what was `written`.
    fn pack_native(&self, request: &mut Request, written: Option<Written<'_>>) -> Option<Cmd> {
        let (command, written) = self.native_release().zip(written)?;
        let Request::Lean(request) = request else { return None };
        let (lock, value) = request.lock_and_value(&written)?;
        Some(command.command(lock, value))
    }

    /// Returns the reply to a native command. It has no nonce: it is a number, as no reply to a script is.
    fn read_native(&self, reply: Asked) -> Result<RequestReply> {
        let kind = CallKind::LeanRelease;
        match reply {
            Ok(Value::Int(1)) => Ok(RequestReply::Lean(LeanOutcome::Done(0))),
            // Another value or none: the full script finds out whose the lock is.
            Ok(Value::Int(0)) => Ok(RequestReply::Lean(LeanOutcome::Odd)),
            Ok(_) => {
                let error = garbled();
                self.distrust(&error);
                Err(error)
            }
            Err(failure) => {
                self.native_failed(&failure);
                Err(failure.of(kind.name(), &self.place))
            }
        }
    }

    /// Returns the reply to the one request of a call.
    fn read_one(&self, call: SentCall, reply: Asked) -> Result<RequestReply> {
        let mut only = None;
        let read = reply.and_then(|reply| self.read(call, reply, |outcome| only = Some(outcome)));
        read.map_err(|failure| failure.of(call.kind.name(), &self.place))?;
        only.unwrap_or_else(|| Err(garbled()))
    }

    /// Delivers the replies to the requests of a call, one after the other. Each has its own error.
    fn read(
        &self,
        call: SentCall,
        reply: Value,
        mut deliver: impl FnMut(Result<RequestReply>),
    ) -> std::result::Result<(), Failure> {
        let SentCall { kind, nonce, sent, count } = call;
        let distrusted = |error: Error| {
            self.distrust(&error);
            Failure::Garbled
        };
        if let CallKind::LeanClaim | CallKind::LeanRelease = kind {
            let reply = LeanReply::read(&reply, nonce, count, kind == CallKind::LeanClaim);
            let reply = reply.ok_or_else(garbled).map_err(distrusted)?;
            if let Some(server_us) = reply.server_us {
                self.saw_clock(sent, server_us);
            }
            (0..count).for_each(|at| deliver(Ok(RequestReply::Lean(reply.outcome(at)))));
            return Ok(());
        }
        let reply = match reply {
            Value::BulkString(text) if count == 1 => {
                let read = read_short(text, nonce, kind == CallKind::Claim);
                let (server_us, outcome) = read.ok_or_else(garbled).map_err(distrusted)?;
                deliver(Ok(RequestReply::Full { server_us, outcome }));
                return Ok(());
            }
            reply => reply,
        };
        let mut parts = Reply::check(reply, nonce).map(Reply::rest).map_err(distrusted)?.into_iter();
        let server_us = match (kind, parts.len().checked_sub(count)) {
            (CallKind::Release, Some(0)) => 0,
            (CallKind::Claim, Some(1)) => match parts.next() {
                Some(Value::Int(now)) => u64::try_from(now).map_err(|_| Failure::Garbled)?,
                _ => return Err(Failure::Garbled),
            },
            _ => return Err(Failure::Garbled),
        };
        parts.for_each(|outcome| match outcome {
            Value::ServerError(error) => deliver(Err(self.refused(error.into()).of(kind.name(), &self.place))),
            outcome => deliver(Ok(RequestReply::Full { server_us, outcome })),
        });
        Ok(())
    }
}
