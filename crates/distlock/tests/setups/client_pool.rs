//! A small pool of PostgreSQL connections, as an application has one.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, Error, NoTls};

/// Opens connections when they are asked for, and lends them again.
pub(crate) struct ClientPool {
    address: String,
    room: Arc<Semaphore>,
    idle: Mutex<Vec<Entry>>,
}

/// What is lent dereferences to the client in two steps, as with the pools of others.
pub(crate) struct Entry(Client);

impl Deref for Entry {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

/// A connection that goes back when it is dropped.
pub(crate) struct Lent {
    entry: Option<Entry>,
    pool: Arc<ClientPool>,
    _room: OwnedSemaphorePermit,
}

impl Deref for Lent {
    type Target = Entry;

    fn deref(&self) -> &Entry {
        self.entry.as_ref().expect("taken in drop alone")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let entry = self.entry.take().filter(|entry| !entry.is_closed());
        self.pool.idle.lock().expect("no panic").extend(entry);
    }
}

impl ClientPool {
    pub(crate) fn new(address: &str, size: usize) -> Arc<ClientPool> {
        let room = Arc::new(Semaphore::new(size));
        Arc::new(ClientPool { address: address.into(), room, idle: Mutex::default() })
    }

    /// Returns how many connections are not lent.
    #[allow(dead_code, reason = "not every test binary counts them")]
    pub(crate) fn free(&self) -> usize {
        self.room.available_permits()
    }

    pub(crate) async fn get(self: &Arc<Self>) -> Result<Lent, Error> {
        let room = self.room.clone().acquire_owned().await.expect("never closed");
        let idle = self.idle.lock().expect("no panic").pop();
        let entry = match idle {
            Some(entry) => entry,
            None => self.open().await?,
        };
        Ok(Lent { entry: Some(entry), pool: self.clone(), _room: room })
    }

    /// Opens a connection that outlives the runtime of the test that asked for it.
    async fn open(&self) -> Result<Entry, Error> {
        let address = self.address.clone();
        let opening = async move {
            let (client, connection) = tokio_postgres::connect(&address, NoTls).await?;
            tokio::spawn(connection);
            Ok(Entry(client))
        };
        runtime().spawn(opening).await.expect("no panic")
    }
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    RUNTIME.get_or_init(|| build().expect("a runtime"))
}
