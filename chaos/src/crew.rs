//! The worker processes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use distlock::{Clock, Moment};
use distlock_testkit::netns::Namespace;
use distlock_testkit::servers::{Process, poll_until};

use crate::plan::WORKERS;
use crate::worker::Duty;

/// What is said of a worker that waits in vain, or does not stop.
pub(crate) const NOT_ENDED: &str = "did not end";

/// One process that was a worker.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    /// Its place among the workers.
    pub(crate) worker: usize,
    pub(crate) journal: PathBuf,
    /// A moment at which it still lived, taken right before it was killed.
    pub(crate) killed: Option<Moment>,
}

/// What the workers of a place are told, and where they run.
pub(crate) struct Position {
    pub(crate) duty: Duty,
    /// The network namespace, if not ours.
    pub(crate) namespace: Option<String>,
}

struct Post {
    process: Process,
    /// The number of the life that it is in.
    life: usize,
}

/// The workers that run, and all that ever ran.
pub(crate) struct Crew {
    program: PathBuf,
    positions: Vec<Position>,
    directory: PathBuf,
    posts: Vec<Post>,
    pub(crate) lives: Vec<Life>,
    clock: Clock,
}

impl Crew {
    /// Starts one worker for each of `positions`; each life of each has a journal of its own in `directory`.
    pub(crate) fn start(program: PathBuf, directory: PathBuf, positions: Vec<Position>) -> Crew {
        let clock = Clock::system();
        let mut crew = Crew { program, positions, directory, posts: Vec::new(), lives: Vec::new(), clock };
        for worker in 0..WORKERS {
            let post = crew.spawn(worker);
            crew.posts.push(post);
        }
        crew
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

    /// Kills a worker and starts another in its place.
    pub(crate) fn kill(&mut self, worker: usize) {
        let killed = self.clock.now();
        self.posts[worker].process.kill9();
        self.lives[self.posts[worker].life].killed = Some(killed);
        self.posts[worker] = self.spawn(worker);
    }

    /// Stops a worker; the number of its life, for [`go_on`](Self::go_on). `None` when it has just ended.
    pub(crate) fn stop(&mut self, worker: usize) -> Option<usize> {
        let post = &mut self.posts[worker];
        if post.process.ended().is_some() {
            return None;
        }
        post.process.stop();
        Some(post.life)
    }

    /// Lets a worker go on, unless it was killed meanwhile.
    pub(crate) fn go_on(&mut self, worker: usize, life: usize) {
        if self.posts[worker].life == life {
            self.posts[worker].process.cont();
        }
    }

    /// Waits until all have ended by themselves. What became of those that did not end well: their lives, and what they
    /// printed. Those that still run are killed.
    pub(crate) fn finish(&mut self, patience: Duration) -> BTreeMap<usize, String> {
        poll_until(patience, || self.posts.iter_mut().all(|post| post.process.ended().is_some()).then_some(()));
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
                    odd.insert(post.life, format!("{NOT_ENDED} within {patience:?}"));
                }
            }
        }
        odd
    }
}
