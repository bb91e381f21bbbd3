//! What tasks ask of the nodes in the same moment goes to each node as one request.
//!
//! Whoever is alone asks the nodes itself. Otherwise the first begins a volley, which is sent when the tasks that run at
//! that moment have had their say. Nobody waits for another's answer, and no caller is needed for a volley to come to its
//! end: it has a task of its own.

use crate::types::sync::{Mutex, MutexGuard};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::Cmd;
use tokio::runtime::{Handle, Id};

use crate::engines::redis::node::{Connection, Keys, Lane, Trust};
use crate::engines::redis::script::Reply;
use crate::engines::redlock::claim::Request;
use crate::engines::redlock::protocol::scripts::ROUND;
use crate::engines::redlock::release::Parting;
use crate::engines::redlock::wire::calls::{Race, run_until};
use crate::engines::redlock::wire::nodes::{Crew, no_answer};
use crate::types::error::{Error, Result};

/// How much one request asks at the most: a fraction of a millisecond of the node's time.
const MOST: usize = 64;

/// What is asked of nodes about one lock.
pub(crate) enum Ask {
    Claim(Box<Request>),
    /// `wake`: whether whoever waits is told.
    Release {
        parting: Arc<Parting>,
        wake: bool,
    },
}

impl Ask {
    fn keys(&self) -> &Keys {
        match self {
            Ask::Claim(request) => &request.keys,
            Ask::Release { parting, .. } => &parting.keys,
        }
    }

    fn fill(&self, command: &mut Cmd, to: &Connection) {
        match self {
            Ask::Claim(request) => request.fill(command, to),
            Ask::Release { parting, wake } => parting.fill(command, *wake),
        }
    }
}

/// What one node says to one [`Ask`].
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// The node's clock; 0 when it did not matter.
    pub(crate) now_us: u64,
    /// Whether messages from that node come in.
    pub(crate) hears: bool,
    pub(crate) trust: Trust,
}

/// Something that was asked, and what came back of it so far.
struct Asked {
    ask: Ask,
    nodes: Vec<usize>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    answers: Vec<(usize, Result<Answer>)>,
    taken: usize,
    /// No more will come.
    is_closed: bool,
    waker: Option<Waker>,
}

impl Asked {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock()
    }

    fn deliver(&self, node: usize, answer: Result<Answer>) {
        let mut inbox = self.inbox();
        inbox.answers.push((node, answer));
        // Fewer decide nothing.
        if inbox.taken + inbox.answers.len() > self.nodes.len() / 2 {
            wake(inbox);
        }
    }

    /// The next answer; that of `last` is none when no more come.
    fn poll_next(&self, last: usize, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Answer>)>> {
        let mut inbox = self.inbox();
        let answered = match inbox.answers.pop() {
            Some(answered) => answered,
            None if inbox.is_closed => (last, Err(no_answer())),
            None => {
                inbox.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        };
        inbox.taken += 1;
        Poll::Ready(Some(answered))
    }

    fn close(&self) {
        let mut inbox = self.inbox();
        inbox.is_closed = true;
        wake(inbox);
    }
}

fn wake(mut inbox: MutexGuard<'_, Inbox>) {
    let waker = inbox.waker.take();
    drop(inbox);
    waker.into_iter().for_each(Waker::wake);
}

/// The answers to one [`Ask`], as they come. Dropped before it was sent, it is not sent.
pub(crate) struct Answers {
    source: Source,
    behind: Vec<usize>,
    crew: Arc<Crew>,
}

enum Source {
    /// Nobody else asked anything.
    Own(Race<Result<Answer>>),
    Volley(Arc<Asked>),
}

impl Answers {
    fn new(crew: &Arc<Crew>, source: Source, nodes: Vec<usize>) -> Answers {
        crew.volleys.open.fetch_add(1, Ordering::Relaxed);
        Answers { source, behind: nodes, crew: crew.clone() }
    }

    /// The nodes that have not answered yet.
    pub(crate) fn behind(&self) -> &[usize] {
        &self.behind
    }

    pub(crate) fn is_over(&self) -> bool {
        self.behind.is_empty()
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<Answer>)>> {
        let Some(last) = self.behind.last() else { return Poll::Ready(None) };
        let answered = match &mut self.source {
            Source::Own(race) => race.poll_next(context),
            Source::Volley(asked) => asked.poll_next(*last, context),
        };
        answered.map(|answered| {
            self.behind.retain(|other| answered.as_ref().is_none_or(|(node, _)| node != other));
            answered
        })
    }

    /// Takes answers as [`run_until`] says, for `limit` at the longest.
    pub(crate) async fn run(
        &mut self,
        limit: Duration,
        grace: Duration,
        take: impl FnMut(usize, Result<Answer>) -> bool,
    ) {
        let mut wait = pin!(tokio::time::sleep(limit));
        run_until(wait.as_mut(), grace, |context| self.poll_next(context), take).await;
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.crew.volleys.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Volleys that were begun and not sent yet.
#[derive(Default)]
pub(crate) struct Volleys {
    begun: Mutex<Begun>,
    /// How much was asked whose answers somebody waits for.
    open: AtomicUsize,
}

#[derive(Default)]
struct Begun {
    volleys: Vec<Volley>,
    next: u64,
}

/// One for each runtime: nobody's requests depend on a runtime that is not theirs.
struct Volley {
    number: u64,
    runtime: Id,
    asks: Vec<Arc<Asked>>,
}

impl Volleys {
    fn begun(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock()
    }

    fn take(&self, number: u64) -> Vec<Arc<Asked>> {
        let mut begun = self.begun();
        let at = begun.volleys.iter().position(|volley| volley.number == number);
        at.map(|at| begun.volleys.swap_remove(at).asks).unwrap_or_default()
    }
}

/// Asks some nodes: at once if nobody else asks anything, otherwise soon, with what others ask.
pub(crate) fn ask(crew: &Arc<Crew>, ask: Ask, nodes: Vec<usize>) -> Answers {
    if crew.volleys.open.load(Ordering::Relaxed) == 0 {
        return Answers::new(crew, Source::Own(alone(crew, ask, &nodes)), nodes);
    }
    let asked = Arc::new(Asked { ask, nodes: nodes.clone(), inbox: Mutex::default() });
    let answers = Answers::new(crew, Source::Volley(asked.clone()), nodes);
    let runtime = Handle::try_current().unwrap_or_else(|_| crew.runtime.clone());
    let mut begun = crew.volleys.begun();
    let id = runtime.id();
    if let Some(volley) = begun.volleys.iter_mut().find(|volley| volley.runtime == id && volley.asks.len() < MOST) {
        volley.asks.push(asked);
        return answers;
    }
    let number = begun.next;
    begun.next += 1;
    begun.volleys.push(Volley { number, runtime: id, asks: vec![asked] });
    drop(begun);
    let sending = Sending { crew: crew.clone(), number, asks: Vec::new() };
    // tidy-allow(spawn): one task for all who ask in this moment; it ends when each node has answered or timed out
    runtime.spawn(sending.run());
    answers
}

fn alone(crew: &Arc<Crew>, ask: Ask, nodes: &[usize]) -> Race<Result<Answer>> {
    let ask = Arc::new(ask);
    Race::new(nodes.iter().map(|at| {
        let (crew, ask, at) = (crew.clone(), ask.clone(), *at);
        (at, async move {
            let mut answers = send(&crew, at, std::iter::once(&*ask)).await;
            answers.pop().unwrap_or_else(|| Err(no_answer()))
        })
    }))
}

/// A volley on its way. When it ends, whatever happens, nobody waits for it any more.
struct Sending {
    crew: Arc<Crew>,
    number: u64,
    asks: Vec<Arc<Asked>>,
}

impl Sending {
    async fn run(mut self) {
        // Behind those who are about to ask.
        tokio::task::yield_now().await;
        self.asks = self.crew.volleys.take(self.number);
        // Whose caller is gone was not sent, and never is.
        self.asks.retain(|asked| Arc::strong_count(asked) > 1);
        let asked_of =
            |at| -> Vec<Arc<Asked>> { self.asks.iter().filter(|asked| asked.nodes.contains(&at)).cloned().collect() };
        let nodes = (0..self.crew.nodes.len()).map(|at| (at, asked_of(at))).filter(|(_, asks)| !asks.is_empty());
        let mut race = Race::new(nodes.map(|(at, asks)| {
            let crew = self.crew.clone();
            (at, async move {
                let answers = send(&crew, at, asks.iter().map(|asked| &asked.ask)).await;
                asks.iter().zip(answers).for_each(|(asked, answer)| asked.deliver(at, answer));
            })
        }));
        while race.next().await.is_some() {}
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let unsent = self.crew.volleys.take(self.number);
        self.asks.iter().chain(&unsent).for_each(|asked| asked.close());
    }
}

/// Sends to one node what is asked of it, as one request. Answers each in its order.
pub(crate) async fn send<'a>(
    crew: &Crew,
    at: usize,
    asks: impl Iterator<Item = &'a Ask> + Clone,
) -> Vec<Result<Answer>> {
    let member = &crew.nodes[at];
    let main = member.connection(Lane::Main);
    // A release that cannot go the way of its claim goes the other way.
    let may_go = |ask: &Ask| main.is_ok() || matches!(ask, Ask::Release { .. });
    let going = asks.clone().filter(|ask| may_go(ask));
    let count = going.clone().count();
    let answers = match main.as_ref().map(Connection::clone).or_else(|_| member.connection(Lane::Reserved)) {
        Ok(connection) if count > 0 => send_over(crew, &connection, going, count).await,
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let copy = |error: &Error| Error::new(error.kind(), error.to_string());
    let mut answers = answers.map(|answers| answers.into_iter());
    asks.map(|ask| match (&main, &mut answers) {
        (Err(error), _) if !may_go(ask) => Err(copy(error)),
        (_, Ok(answers)) => answers.next().unwrap_or_else(|| Err(no_answer())),
        (_, Err(error)) => Err(copy(error)),
    })
    .collect()
}

async fn send_over<'a>(
    crew: &Crew,
    connection: &Connection,
    asks: impl Iterator<Item = &'a Ask> + Clone,
    count: usize,
) -> Result<Vec<Result<Answer>>> {
    let life = if crew.options.restart_guard { connection.life().await? } else { "" };
    let sent = crew.now();
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1 + 4 * count).arg(&crew.node_key);
        for Keys { lock, queue, waiters, fence } in asks.clone().map(Ask::keys) {
            command.arg(lock).arg(queue).arg(waiters).arg(fence);
        }
        command.arg(nonce).arg(life);
        asks.clone().for_each(|ask| ask.fill(command, connection));
    };
    let mut reply = connection.run(&ROUND, fill).await?;
    let now_us = reply.unsigned()?;
    // A release may not tell the time, and needs no trust. Without the guard there is nothing that makes up for a leap.
    let seen = (now_us > 0).then(|| connection.saw_clock(sent, now_us));
    let trust = seen.filter(|_| crew.options.restart_guard).unwrap_or(Trust::Full);
    let hears = connection.hears();
    Ok((0..count).map(|_| Ok(Answer { reply: reply.part()?, now_us, hears, trust })).collect())
}
