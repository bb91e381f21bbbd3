//! The worker processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use distlock::{Clock, Moment};
use distlock_testkit::netns::Namespace;
use distlock_testkit::servers::{Process, poll_until};

use crate::plan::WORKERS;
use crate::worker::Duty;

/// The text for a worker that waits in vain, or does not stop.
pub(crate) const NOT_ENDED: &str = "did not end";

/// One worker process.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    /// Its worker number.
    pub(crate) worker: usize,
    pub(crate) journal: PathBuf,
    /// A moment at which it was still alive, taken right before it was killed.
    pub(crate) killed: Option<Moment>,
}

/// The orders of a worker number, and where its processes run.
pub(crate) struct Position {
    pub(crate) duty: Duty,
    /// The network namespace, if it has its own.
    pub(crate) namespace: Option<String>,
}

struct Post {
    process: Process,
    /// The index of its current process.
    life: usize,
}

/// The running workers, and all worker processes so far.
pub(crate) struct Workers {
    program: PathBuf,
    positions: Vec<Position>,
    directory: PathBuf,
    posts: Vec<Post>,
    pub(crate) lives: Vec<Life>,
    clock: Clock,
}

impl Workers {
    /// Starts one worker for each of `positions`; each process has its own journal in `directory`.
    pub(crate) fn start(program: PathBuf, directory: PathBuf, positions: Vec<Position>) -> Workers {
        let clock = Clock::system();
        let mut workers = Workers { program, positions, directory, posts: Vec::new(), lives: Vec::new(), clock };
        for worker in 0..WORKERS {
            let post = workers.spawn(worker);
            workers.posts.push(post);
        }
        workers
    }

    fn spawn(&mut self, worker: usize) -> Post {
        let life = self.lives.len();
        let journal = self.directory.join(format!("journal-{life}"));
        let Position { duty, namespace } = &self.positions[worker];
        let duty = Duty { journal: journal.clone(), seed: life as u64, ..duty.clone() };
        let log = self.directory.join(format!("log-{life}"));
        let (program, before) = match namespace {
            Some(namespace) => Namespace::wrap(namespace, &self.program),
            None => (self.program.clone(), Vec::new()),
        };
        let process = Process::start(&program, &log, |command| {
            command.args(before).arg("worker").args(duty.words());
        });
        self.lives.push(Life { worker, journal, killed: None });
        Post { process: process.expect("our own program starts"), life }
    }

    /// Kills a worker and starts a new process for it.
    pub(crate) fn kill(&mut self, worker: usize) {
        let killed = self.clock.now();
        self.posts[worker].process.kill9();
        self.lives[self.posts[worker].life].killed = Some(killed);
        self.posts[worker] = self.spawn(worker);
    }

    /// Stops a worker and returns the index of its process, for [`go_on`](Self::go_on). Returns `None` if the process
    /// has just ended.
    pub(crate) fn stop(&mut self, worker: usize) -> Option<usize> {
        let post = &mut self.posts[worker];
        if post.process.ended().is_some() {
            return None;
        }
        post.process.stop();
        Some(post.life)
    }

    /// Continues a worker, unless it was killed in the meantime.
    pub(crate) fn go_on(&mut self, worker: usize, life: usize) {
        if self.posts[worker].life == life {
            self.posts[worker].process.cont();
        }
    }

    /// Waits until all workers have exited. Returns the process index and output of those that failed. Workers that
    /// still run are killed.
    pub(crate) fn finish(&mut self, limit: Duration) -> BTreeMap<usize, String> {
        poll_until(limit, || self.posts.iter_mut().all(|post| post.process.ended().is_some()).then_some(()));
        let mut odd = BTreeMap::new();
        for post in &mut self.posts {
            match post.process.ended() {
                Some(status) if status.success() => {}
                Some(status) => {
                    odd.insert(post.life, format!("{status}: {}", post.process.log()));
                }
                None => {
                    self.lives[post.life].killed = Some(self.clock.now());
                    post.process.kill9();
                    odd.insert(post.life, format!("{NOT_ENDED} within {limit:?}"));
                }
            }
        }
        odd
    }
}
