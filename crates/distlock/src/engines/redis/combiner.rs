//! Claims and releases of many tasks, in few calls.
//!
//! Whoever asks while nothing is under way sends its own call and waits for nobody. What is asked meanwhile gathers and
//! goes out together: one write, one script, one answer for each.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::{Arg, Cmd, Value};
use tokio::sync::{Notify, oneshot};

use crate::engines::redis::names::Names;
use crate::engines::redis::script::{CLAIM, RELEASE, Script};
use crate::engines::redis::session::{Failure, Session};
use crate::types::error::{Error, Result};

/// How many requests one call carries: a fraction of a millisecond of the server's time.
const MOST: usize = 32;

/// What a request asks for. Releases gather by themselves: they never wait behind claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Claim,
    Release,
}

impl Kind {
    pub(super) fn script(self) -> &'static Script {
        match self {
            Kind::Claim => &CLAIM,
            Kind::Release => &RELEASE,
        }
    }
}

/// One claim or release.
pub(super) struct Request {
    pub(super) names: Names,
    /// What all requests of a call have in common: for claims, the channel for messages to this process.
    pub(super) common: Option<String>,
    /// Its own arguments.
    pub(super) args: Cmd,
}

/// What the server says to one request.
pub(super) struct Answer {
    /// The server's clock, where the script reads it.
    pub(super) server_us: u64,
    pub(super) outcome: Value,
}

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Combiner {
    lanes: Mutex<[Lane; 2]>,
    due: [Notify; 2],
}

/// The requests of one kind.
#[derive(Default)]
struct Lane {
    /// Whether somebody's own call is under way.
    is_taken: bool,
    /// Whether a call for several is under way.
    is_calling: bool,
    queue: VecDeque<Entry>,
    last: u64,
}

struct Entry {
    number: u64,
    request: Request,
    answer: oneshot::Sender<Result<Answer>>,
}

/// How a request goes on.
enum Way<'a> {
    Alone(Request, Turn<'a>),
    Together(u64, oneshot::Receiver<Result<Answer>>),
}

impl Combiner {
    /// Sends a request over `session`, alone or together with others.
    ///
    /// Dropped before it was written, it is not written at all; later it runs on the server.
    pub(super) async fn ask(&self, session: &Session, kind: Kind, request: Request) -> Result<Answer> {
        match self.enter(kind, request) {
            Way::Alone(request, _turn) => session.call(kind, &request).await,
            Way::Together(number, mut answer) => tokio::select! {
                biased;
                answer = &mut answer => answer.unwrap_or_else(|_| Err(Failure::Dead.of(kind.script().name, &session.place))),
                () = session.died() => Err(self.withdraw(session, kind, number)),
            },
        }
    }

    fn enter(&self, kind: Kind, request: Request) -> Way<'_> {
        let mut lanes = self.lanes();
        let lane = &mut lanes[kind as usize];
        if !lane.is_taken && !lane.is_calling && lane.queue.is_empty() {
            lane.is_taken = true;
            return Way::Alone(request, Turn(self, kind));
        }
        let (answer, answered) = oneshot::channel();
        lane.last += 1;
        let number = lane.last;
        lane.queue.push_back(Entry { number, request, answer });
        if lane.queue.len() == 1 && !lane.is_calling {
            self.due[kind as usize].notify_one();
        }
        Way::Together(number, answered)
    }

    /// The connection broke. What still waits to be sent never is.
    fn withdraw(&self, session: &Session, kind: Kind, number: u64) -> Error {
        let mut lanes = self.lanes();
        let queue = &mut lanes[kind as usize].queue;
        match queue.iter().position(|entry| entry.number == number) {
            Some(place) => {
                queue.remove(place);
                let (place, what) = (&session.place, kind.script().name);
                Error::unavailable(format!("redis: {place}: the connection broke before {what} was sent"))
            }
            None => Failure::Dead.of(kind.script().name, &session.place),
        }
    }

    /// Sends what gathers. Runs beside the connection's driver.
    pub(super) async fn run(&self, session: &Session) {
        tokio::join!(self.serve(session, Kind::Claim), self.serve(session, Kind::Release));
    }

    async fn serve(&self, session: &Session, kind: Kind) {
        loop {
            self.due[kind as usize].notified().await;
            while let Some(mut entries) = self.take(kind) {
                let answers = match self.send(session, kind, &mut entries, false).await {
                    Err(failure) if failure.is_no_script() => self.send(session, kind, &mut entries, true).await,
                    answers => answers,
                };
                deliver(session, kind, entries, answers);
            }
        }
    }

    /// The next ones to go out together.
    fn take(&self, kind: Kind) -> Option<Vec<Entry>> {
        let mut lanes = self.lanes();
        let lane = &mut lanes[kind as usize];
        let count = lane.queue.len().min(MOST);
        lane.is_calling = count > 0;
        lane.is_calling.then(|| lane.queue.drain(..count).collect())
    }

    /// Sends one call for all who still wait for their answer.
    ///
    /// Whoever drops a claim releases it next, and that must arrive after the claim. So the call is handed to the
    /// connection under the lock that every request passes on its way: either the claim was dropped before and is left
    /// out, or its release comes later than this.
    async fn send(
        &self,
        session: &Session,
        kind: Kind,
        entries: &mut Vec<Entry>,
        by_text: bool,
    ) -> std::result::Result<Vec<Value>, Failure> {
        let mut call: Option<Pin<Box<dyn Future<Output = _> + Send>>> = None;
        poll_fn(|context: &mut Context<'_>| {
            if let Some(call) = &mut call {
                return call.as_mut().poll(context);
            }
            loop {
                entries.retain(|entry| !entry.answer.is_closed());
                if entries.is_empty() {
                    return Poll::Ready(Ok(Vec::new()));
                }
                let (command, nonce) = session.pack(kind, entries.iter().map(|entry| &entry.request), by_text);
                let asked = async move { session.ask_parts(&command, nonce).await };
                // Without a budget that could keep it from being handed over.
                let asked = call.insert(Box::pin(tokio::task::coop::unconstrained(asked)));
                let _lanes = self.lanes();
                if entries.iter().all(|entry| !entry.answer.is_closed()) {
                    return asked.as_mut().poll(context);
                }
                call = None;
            }
        })
        .await
    }

    fn lanes(&self) -> MutexGuard<'_, [Lane; 2]> {
        self.lanes.lock()
    }
}

/// The right to send without waiting for others.
struct Turn<'a>(&'a Combiner, Kind);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lanes()[self.1 as usize].is_taken = false;
    }
}

/// Adds the keys of all requests, then `nonce` and what they have in common, then the arguments of each.
pub(super) fn fill<'a>(command: &mut Cmd, nonce: u64, requests: impl Iterator<Item = &'a Request> + Clone) {
    command.arg(requests.clone().count() * Names::KEYS);
    requests.clone().for_each(|request| request.names.keys(command));
    command.arg(nonce);
    if let Some(common) = requests.clone().find_map(|request| request.common.as_deref()) {
        command.arg(common);
    }
    for arg in requests.flat_map(|request| request.args.args_iter()) {
        if let Arg::Simple(arg) = arg {
            command.arg(arg);
        }
    }
}

fn deliver(session: &Session, kind: Kind, entries: Vec<Entry>, parts: std::result::Result<Vec<Value>, Failure>) {
    match parts.and_then(|parts| session.read(kind, parts, entries.len())) {
        Ok(answers) => entries.into_iter().zip(answers).for_each(|(entry, answer)| drop(entry.answer.send(answer))),
        Err(failure) => {
            let script = kind.script();
            entries
                .into_iter()
                .for_each(|entry| drop(entry.answer.send(Err(failure.clone().of(script.name, &session.place)))));
        }
    }
}
