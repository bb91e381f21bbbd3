//! The program of the child process.

use std::collections::{HashMap, HashSet};
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock::{AttemptId, Clock, Error, LockGuard, Locker, Moment};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::VARIABLE;
use super::answer::{Answer, Outcome};
use super::fork::in_a_fork;

/// Executes orders until the parent hangs up, if this process is a child. An error names the order that was not
/// understood.
#[doc(hidden)]
pub fn serve() -> Result<(), String> {
    let Some(socket) = std::env::var_os(VARIABLE) else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stream = UnixStream::connect(socket).await.map_err(|error| error.to_string())?;
        Program::default().obey(stream).await
    })
}

/// Returns the outcome of a future that must complete without waiting: nothing runs in a fork that could wake it.
fn at_once<T>(work: impl Future<Output = distlock::Result<T>>) -> distlock::Result<T> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(Error::unknown("it waits")),
    }
}

/// How many ids a process and its fork draw: more than are fetched at a time.
const IDS: usize = 100;

fn draw(count: usize) -> String {
    let ids: Vec<_> = (0..count).map(|_| AttemptId::random().to_string()).collect();
    ids.join(" ")
}

fn ending(outcome: &distlock::Result<()>) -> String {
    outcome.as_ref().map_or_else(|error| format!("{:?}", error.kind()), |()| "Ok".into())
}

#[derive(Default)]
struct Program {
    locker: Option<Locker>,
    guards: HashMap<String, LockGuard>,
}

impl Program {
    async fn obey(mut self, stream: UnixStream) -> Result<(), String> {
        let (orders, mut answers) = stream.into_split();
        let mut orders = BufReader::new(orders).lines();
        let clock = Clock::system();
        while let Ok(Some(order)) = orders.next_line().await {
            let began = clock.now();
            let outcome = match self.follow(&order).await? {
                Ok(outcome) => outcome,
                Err(error) => Outcome::Failed { kind: format!("{:?}", error.kind()), message: error.to_string() },
            };
            let answer = Answer { began, ended: clock.now(), outcome };
            if answers.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn follow(&mut self, order: &str) -> Result<distlock::Result<Outcome>, String> {
        let words: Vec<&str> = order.split(' ').collect();
        let strange = || format!("not understood: {order:?}");
        let ttl = || words.get(2).and_then(|ms| ms.parse().ok()).map(Duration::from_millis).ok_or_else(strange);
        let locker = || self.locker.as_ref().ok_or_else(|| "not connected".to_owned());
        let guard = |key: &str| self.guards.get(key).ok_or_else(|| format!("{key} was never taken"));
        match words[..] {
            ["connect", url] => Ok(self.connect(url).await),
            ["lock", key, _] => {
                let guard = locker()?.lock(key).ttl(ttl()?).await;
                Ok(guard.map(|guard| self.keep(key, guard)))
            }
            ["read", key, _] => {
                let guard = locker()?.read(key).ttl(ttl()?).await;
                Ok(guard.map(|guard| self.keep(key, guard)))
            }
            ["permit", key, _, of] => {
                let of = of.parse().map_err(|_| strange())?;
                let guard = locker()?.semaphore(key, of).acquire().ttl(ttl()?).await;
                Ok(guard.map(|guard| self.keep(key, guard)))
            }
            ["enter", key, _, owner] => {
                let guard = locker()?.lock(key).ttl(ttl()?).owner(owner).reentrant().await;
                Ok(guard.map(|guard| self.keep(key, guard)))
            }
            ["try", key, _] => {
                let guard = locker()?.try_lock(key).ttl(ttl()?).await;
                Ok(guard.map(|guard| guard.map_or(Outcome::Busy, |guard| self.keep(key, guard))))
            }
            ["unlock", key] => {
                let guard = self.guards.remove(key).ok_or_else(strange)?;
                Ok(guard.unlock().await.map(|()| Outcome::Done))
            }
            ["drop", key] => Ok(self.guards.remove(key).map(|_| Ok(Outcome::Done)).ok_or_else(strange)?),
            ["state", key] => Ok(Ok(Outcome::State(format!("{:?}", guard(key)?.state())))),
            ["fork", key] => {
                let said = in_a_fork(|| self.as_a_fork(key))?;
                Ok(Ok(Outcome::State(said)))
            }
            ["draw"] => {
                // The copy is made after the first id: the child has random bytes left then.
                let first = draw(1);
                let (theirs, ours) = (in_a_fork(|| draw(IDS))?, draw(IDS));
                let all: Vec<&str> = [&*first, &*theirs, &*ours].into_iter().flat_map(|ids| ids.split(' ')).collect();
                let different = all.iter().collect::<HashSet<_>>().len();
                Ok(Ok(Outcome::State(format!("{} {different}", all.len()))))
            }
            ["lost", key] => Ok(Ok(Outcome::Lost(format!("{:?}", guard(key)?.lost().await)))),
            _ => Err(strange()),
        }
    }

    /// Runs in the copy of this process; locks taken here end with it.
    fn as_a_fork(&mut self, key: &str) -> String {
        let (Some(guard), Some(locker)) = (self.guards.remove(key), self.locker.take()) else {
            return "nothing to use".into();
        };
        let said = [
            format!("{:?}", guard.state()),
            ending(&guard.check()),
            ending(&at_once(guard.extend(Duration::from_secs(1)))),
            ending(&at_once(guard.unlock())),
            ending(&at_once(locker.try_lock("another").into_future()).map(drop)),
        ];
        self.guards.clear();
        drop(locker);
        said.join(" ")
    }

    async fn connect(&mut self, url: &str) -> Result<Outcome, Error> {
        self.locker = Some(Locker::connect(url).await?);
        Ok(Outcome::Done)
    }

    fn keep(&mut self, key: &str, guard: LockGuard) -> Outcome {
        let deadline = guard.deadline().unwrap_or(Moment::NEVER);
        let taken = Outcome::Taken { token: guard.fencing_token().get(), deadline };
        self.guards.insert(key.to_owned(), guard);
        taken
    }
}
