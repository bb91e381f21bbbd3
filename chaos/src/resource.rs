//! The protected resources, in the runner's process: one checks fencing tokens, the other does not.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock::FencingToken;
use distlock::fencing;

/// A write to the fenced resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) lock: usize,
    pub(crate) token: u64,
    pub(crate) accepted: bool,
}

/// Both resources. Workers reach them over a socket, so that a worker that is killed or stopped in the middle of a
/// write blocks no other worker.
#[derive(Debug)]
pub(crate) struct Resource {
    state: Mutex<State>,
    is_open: bool,
}

#[derive(Debug, Default)]
struct State {
    fenced: HashMap<usize, FencingToken>,
    unfenced: HashMap<usize, FencingToken>,
    writes: Vec<Written>,
    overwritten: u64,
}

impl Resource {
    /// Serves at `socket` as long as the process lives. If `is_open`, the fence accepts every token.
    pub(crate) fn serve(socket: &Path, is_open: bool) -> io::Result<Arc<Resource>> {
        let listener = UnixListener::bind(socket)?;
        let resource = Arc::new(Resource { state: Mutex::default(), is_open });
        let shared = resource.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let resource = shared.clone();
                std::thread::spawn(move || resource.listen(stream));
            }
        });
        Ok(resource)
    }

    fn listen(&self, stream: UnixStream) {
        let Ok(mut answers) = stream.try_clone() else { return };
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let words = line.split_once(' ').and_then(|(lock, token)| Some((lock.parse().ok()?, token.parse().ok()?)));
            let Some((lock, token)) = words else { return };
            let answer = if self.write(lock, token) { "accepted\n" } else { "stale\n" };
            if answers.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn write(&self, lock: usize, number: u64) -> bool {
        let (token, mut state) = (FencingToken::new(number), self.state());
        let accepted = self.is_open || fencing::check(token, state.fenced.get(&lock).copied()).is_ok();
        if accepted {
            state.fenced.insert(lock, token);
        }
        state.writes.push(Written { lock, token: number, accepted });
        // The unfenced resource accepts everything: a lower token overwrites the write of a later holder.
        let before = state.unfenced.insert(lock, token);
        state.overwritten += u64::from(before.is_some_and(|before| token < before));
        accepted
    }

    /// Returns all writes to the fenced resource, in order.
    pub(crate) fn writes(&self) -> Vec<Written> {
        self.state().writes.clone()
    }

    /// Returns how often a stale write overwrote a later holder's write in the unfenced resource.
    pub(crate) fn overwritten(&self) -> u64 {
        self.state().overwritten
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's connection to both resources.
#[derive(Debug)]
pub(crate) struct Writer(BufReader<UnixStream>);

impl Writer {
    pub(crate) fn connect(socket: &Path) -> io::Result<Writer> {
        Ok(Writer(BufReader::new(UnixStream::connect(socket)?)))
    }

    /// Writes to both resources; returns whether the fenced one accepted the write.
    pub(crate) fn write(&mut self, lock: usize, token: u64) -> io::Result<bool> {
        self.0.get_mut().write_all(format!("{lock} {token}\n").as_bytes())?;
        let mut answer = String::new();
        self.0.read_line(&mut answer)?;
        Ok(answer == "accepted\n")
    }
}
