//! The tasks of one client, which run on the keeper's runtime and end with the client.

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use crate::contract::BoxFuture;
use crate::engines::etcd::error::{Failure, Fault};
use crate::types::sync::Mutex;

/// What runs in the background.
#[derive(Debug, Default)]
pub(crate) struct Tasks(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    set: JoinSet<()>,
    started: bool,
    stopped: bool,
}

impl Tasks {
    /// Returns true the first time: what runs for ever is to be started.
    pub(crate) fn start(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().started, true)
    }

    /// Runs `task` on `runtime` until it is done or the client stops; `None` when the client has stopped.
    pub(crate) fn run(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut table = self.0.lock();
        while table.set.try_join_next().is_some() {}
        // tidy-allow(spawn): what must outlive a caller's future runs on the keeper's runtime
        (!table.stopped).then(|| table.set.spawn_on(task, runtime))
    }

    /// Returns the result of `task`, which runs on `runtime` and goes on when the caller's future is dropped or not
    /// polled.
    pub(crate) async fn finish<T, E>(&self, runtime: &Handle, task: BoxFuture<'static, Result<T, E>>) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Failure> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        self.run(runtime, async move {
            let _ = tell.send(task.await);
        });
        told.await.unwrap_or_else(|_| Err(Failure::new(Fault::Unknown, "the engine was closed").into()))
    }

    /// Ends all tasks; no new one is started.
    pub(crate) fn stop(&self) {
        let mut table = self.0.lock();
        table.stopped = true;
        table.set.abort_all();
    }
}
