//! Notifies a waiter when a file it waits for is closed or removed.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// One inotify instance for all waiters of a process: a user may have only 128 of them.
#[derive(Debug)]
pub(crate) struct Inotify {
    instance: Arc<Instance>,
    reader: AbortHandle,
}

impl Inotify {
    /// Starts to read events, on the runtime of `keeper`.
    pub(crate) fn start(keeper: &Handle) -> io::Result<Inotify> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let instance = Arc::new(Instance { descriptor: inotify, listeners: Mutex::default() });
        // tidy-allow(spawn): on the keeper's runtime, one task for all waiters of the engine.
        let reader = keeper.spawn(reader(instance.clone())).abort_handle();
        Ok(Inotify { instance, reader })
    }

    /// Whether events are still read: the runtime may have ended.
    pub(crate) fn is_alive(&self) -> bool {
        !self.reader.is_finished()
    }

    /// Notifies `listener` of every event of `events` on the file that is at `path` now, until dropped.
    pub(crate) fn subscribe(
        &self,
        path: &Path,
        events: WatchFlags,
        listener: &Arc<Notify>,
    ) -> io::Result<Subscription> {
        // The kernel's calls are made under the mutex, so that no subscriber removes the watch that another just
        // joined.
        let mut listeners = self.instance.listeners();
        let watch = inotify::add_watch(&self.instance.descriptor, path, events | WatchFlags::MASK_ADD)?;
        listeners.entry(watch).or_default().push(listener.clone());
        Ok(Subscription { instance: self.instance.clone(), watch, listener: listener.clone() })
    }
}

impl Drop for Inotify {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A listener's watch of a file, until dropped.
#[derive(Debug)]
pub(crate) struct Subscription {
    instance: Arc<Instance>,
    watch: i32,
    listener: Arc<Notify>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut listeners = self.instance.listeners();
        let Some(here) = listeners.get_mut(&self.watch) else { return };
        if let Some(at) = here.iter().position(|listener| Arc::ptr_eq(listener, &self.listener)) {
            here.swap_remove(at);
        }
        if here.is_empty() {
            listeners.remove(&self.watch);
            // The file may be gone, and the watch with it.
            let _ = inotify::remove_watch(&self.instance.descriptor, self.watch);
        }
    }
}

#[derive(Debug)]
struct Instance {
    descriptor: OwnedFd,
    listeners: Mutex<HashMap<i32, Vec<Arc<Notify>>>>,
}

impl Instance {
    fn listeners(&self) -> MutexGuard<'_, HashMap<i32, Vec<Arc<Notify>>>> {
        self.listeners.lock()
    }

    /// Notifies the listeners of all pending events.
    fn drain(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.descriptor, &mut buffer);
        loop {
            let (watch, flags) = match events.next() {
                Ok(event) => (event.wd(), event.events()),
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut listeners = self.listeners();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                listeners.values().flatten().for_each(|listener| listener.notify_one());
            }
            listeners.get(&watch).into_iter().flatten().for_each(|listener| listener.notify_one());
            if flags.contains(ReadFlags::IGNORED) {
                listeners.remove(&watch);
            }
        }
    }
}

struct Source(Arc<Instance>);

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }
}

async fn reader(instance: Arc<Instance>) {
    #[allow(
        deprecated,
        reason = "what replaces it is unsafe; the source owns its descriptor, which is all that asks for"
    )]
    let Ok(source) = AsyncFd::with_interest(Source(instance), Interest::READABLE) else { return };
    // Any failure ends the task; the waiters poll then.
    while let Ok(mut ready) = source.readable().await {
        if source.get_ref().0.drain().is_err() {
            return;
        }
        ready.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::engines::file::tests::Scratch;

    #[tokio::test]
    async fn a_close_is_told_to_all_who_listen_and_to_nobody_else() {
        let scratch = Scratch::new();
        let inotify = Inotify::start(&Handle::current()).unwrap();
        let path = scratch.path().join("a");
        let file = File::create(&path).unwrap();
        let ears: [Arc<Notify>; 3] = std::array::from_fn(|_| Arc::default());
        let listen = |listening| inotify.subscribe(&path, WatchFlags::CLOSE_WRITE, listening).unwrap();
        let (_first, second, _third) = (listen(&ears[0]), listen(&ears[1]), listen(&ears[2]));
        drop(second);
        drop(file);
        ears[0].notified().await;
        ears[2].notified().await;
        let deaf = tokio::time::timeout(std::time::Duration::from_millis(20), ears[1].notified()).await;
        assert!(deaf.is_err());
    }

    #[tokio::test]
    async fn a_watch_ends_with_its_file_or_its_last_listener() {
        let scratch = Scratch::new();
        let inotify = Inotify::start(&Handle::current()).unwrap();
        let path = scratch.path().join("a");
        drop(File::create(&path).unwrap());
        let listening = Arc::<Notify>::default();
        let subscription = inotify.subscribe(&path, WatchFlags::DELETE_SELF, &listening).unwrap();
        std::fs::remove_file(&path).unwrap();
        listening.notified().await;
        drop(File::create(&path).unwrap());
        drop(inotify.subscribe(&path, WatchFlags::DELETE_SELF, &listening).unwrap());
        drop(subscription);
        assert!(inotify.instance.listeners().is_empty());
        assert!(inotify.is_alive());
    }
}
