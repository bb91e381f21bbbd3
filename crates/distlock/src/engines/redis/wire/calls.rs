//! Claims and releases of many tasks over one connection, in few calls.

use std::future::poll_fn;

use redis::{Cmd, Value};

use crate::engines::redis::protocol::lean::{self, LeanOutcome, LeanReply, LeanRequest, Written};
use crate::engines::redis::protocol::outcome::read_short;
use crate::engines::redis::protocol::script::{CLAIM, Dialect, RELEASE, Reply, garbled, nonce};
use crate::engines::redis::wire::batcher::{self, Entry, HandOver, Path, SentBatch, SentCall};
pub(in crate::engines) use crate::engines::redis::wire::batcher::{CallKind, FullRequest, Request, RequestReply};
use crate::engines::redis::wire::connection::{Connection, Failure};
use crate::engines::redis::wire::socket::PendingReply;
use crate::types::error::{Error, Result};

type Asked = std::result::Result<Value, Failure>;

impl Connection {
    /// Sends one claim or release: alone, or in a batch with others that come at the same time.
    ///
    /// A request that is dropped before it is written is not written at all; later it runs on the server.
    pub(in crate::engines) async fn request(&self, kind: CallKind, request: Request) -> Result<RequestReply> {
        match self.path(kind, request) {
            Path::Alone(request, _single) => self.send_alone(kind, &request).await,
            Path::Last(reply) => {
                self.send_early();
                reply.await.unwrap_or_else(|_| Err(self.never_answered(kind)))
            }
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
        match self.path(kind, Request::Lean(request)) {
            Path::Alone(mut request, _single) => match self.send_native(&mut request, written) {
                Some(reply) => self.read_native(self.replied(reply.await)),
                None => self.send_alone(kind, &request).await,
            },
            Path::Last(reply) => {
                self.send_early();
                reply.await.unwrap_or_else(|_| Err(self.never_answered(kind)))
            }
            Path::Batched(reply) => reply.await.unwrap_or_else(|_| Err(self.never_answered(kind))),
            Path::Dead => Err(self.never_sent(kind)),
        }
    }

    fn path(&self, kind: CallKind, request: Request) -> Path<'_> {
        match self.dialect {
            // Only requests of one hash slot could share a call.
            Dialect::Sharded => Path::Alone(request, None),
            Dialect::Plain | Dialect::Guarded => self.batcher.enter(kind, request),
        }
    }

    /// Returns the error of a request whose reply did not come before the connection broke.
    fn never_answered(&self, kind: CallKind) -> Error {
        Failure::Dead.of(kind.name(), &self.place)
    }

    /// Returns the error of a request after the connection broke without it.
    fn never_sent(&self, kind: CallKind) -> Error {
        Failure::Unsent.of(kind.name(), &self.place)
    }

    /// Sends a request as a call of its own.
    async fn send_alone(&self, kind: CallKind, request: &Request) -> Result<RequestReply> {
        let (call, reply) = self.send_call(kind, request, false);
        match self.replied(reply.await) {
            // The same call on the same connection: the server carried out nothing of the first one. Boxed, because it is
            // seldom needed.
            Err(failure) if failure.is_no_script() => Box::pin(self.send_by_text(kind, request)).await,
            reply => self.read_one(call, reply),
        }
    }

    async fn send_by_text(&self, kind: CallKind, request: &Request) -> Result<RequestReply> {
        let (call, reply) = self.send_call(kind, request, true);
        self.read_one(call, self.replied(reply.await))
    }

    fn send_call(&self, kind: CallKind, request: &Request, by_text: bool) -> (SentCall, PendingReply) {
        let (command, call) = self.pack(kind, std::iter::once(request), by_text);
        (call, self.socket.send(&command))
    }

    /// Sends the batches that no caller sends, and delivers the replies to all. Runs in the task of the socket's driver,
    /// behind it.
    pub(super) async fn send_batches(&self) {
        loop {
            poll_fn(|context| {
                self.deliver();
                self.batcher.poll_due(context)
            })
            .await;
            // At the end of the round: requests of tasks that can run now join the batch.
            tokio::task::yield_now().await;
            while let Some((kind, entries)) = self.batcher.take() {
                self.add_batch(kind, entries, false);
            }
            self.socket.flush();
        }
    }

    /// Sends the batches that are worth a call before the end of the round: the server works on them while other tasks run.
    fn send_early(&self) {
        while let Some((kind, entries)) = self.batcher.take_early() {
            self.add_batch(kind, entries, false);
        }
        self.socket.flush();
    }

    /// Delivers the replies that have come. The server replies in the order of the calls.
    pub(super) fn deliver(&self) {
        while let Some(reply) = self.socket.batch_reply() {
            if let Some(batch) = self.batcher.answered() {
                self.land(batch, self.replied(reply));
            }
        }
    }

    /// Takes the reply to a batch.
    fn land(&self, batch: SentBatch, reply: Asked) {
        let SentBatch { call, by_text, entries } = batch;
        if !by_text && reply.as_ref().is_err_and(Failure::is_no_script) {
            self.add_batch(call.kind, entries, true);
            self.socket.flush();
            return;
        }
        self.batcher.landed(call.kind);
        let mut entries = entries.into_iter();
        let delivered = reply.and_then(|reply| {
            self.read(call, reply, |outcome| {
                if let Some(entry) = entries.next() {
                    let _ = entry.reply.send(outcome);
                }
            })
        });
        if let Err(failure) = delivered {
            self.fail(call.kind, entries, &failure);
        }
    }

    fn fail(&self, kind: CallKind, entries: impl Iterator<Item = Entry>, failure: &Failure) {
        entries.for_each(|entry| drop(entry.reply.send(Err(failure.clone().of(kind.name(), &self.place)))));
    }

    /// Adds one call for all entries whose callers still wait to what the socket writes next.
    ///
    /// A caller that drops a claim releases it next, and that release must arrive after the claim. So the call is handed
    /// to the socket under the lock that every request takes: either the claim was dropped before and is left out,
    /// or its release comes later than this call.
    fn add_batch(&self, kind: CallKind, mut entries: Vec<Entry>, by_text: bool) {
        loop {
            entries.retain(|entry| !entry.reply.is_closed());
            if entries.is_empty() {
                return self.batcher.landed(kind);
            }
            let (command, call) = self.pack(kind, entries.iter().map(|entry| &entry.request), by_text);
            match self.batcher.hand_over(SentBatch { call, by_text, entries }, || self.socket.add_batch(&command)) {
                HandOver::Sent => return,
                HandOver::Incomplete(left) => entries = left,
                HandOver::Refused(left, refusal) => {
                    self.batcher.landed(kind);
                    return self.fail(kind, left.into_iter(), &refusal.into());
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

    /// Sends the native command that releases the lock if its value is what was `written`.
    fn send_native(&self, request: &mut Request, written: Option<Written<'_>>) -> Option<PendingReply> {
        let (command, written) = self.native_release().zip(written)?;
        let Request::Lean(request) = request else { return None };
        let (lock, value) = request.lock_and_value(&written)?;
        Some(self.socket.send(&command.command(lock, value)))
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
