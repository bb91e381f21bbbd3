//! Grants that count only when replicas have them, too.

use std::time::Duration;

use redis::Value;

use crate::contract::Claim;
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::{CONFIRM, garbled};
use crate::engines::redis::protocol::time::millis;
use crate::engines::redis::wire::link::Link;
use crate::types::error::{Error, ErrorKind, Result};

/// How long replicas have to acknowledge a grant. Short enough that a connection that waits does not seem dead.
const ACKNOWLEDGE_WAIT: Duration = Duration::from_millis(250);

/// A connection of its own: WAIT blocks every other request of a connection.
pub(in crate::engines) struct Replicas {
    needed: u32,
    link: Link,
}

impl Replicas {
    pub(in crate::engines) fn new(needed: u32, link: Link) -> Replicas {
        Replicas { needed, link }
    }

    /// Returns when enough replicas have the hold that `claim` became.
    ///
    /// # Errors
    /// Kind `Unavailable`, saying how many have it; any other when the server could not be asked. The caller gives the
    /// hold back.
    pub(in crate::engines) async fn confirm(&self, names: &Names, claim: &Claim) -> Result<()> {
        let connection = self.link.connection(ACKNOWLEDGE_WAIT).await?;
        // A server counts who has all that came before on the same connection, so the hold is written once more here.
        let fill = |command: &mut redis::Cmd, nonce| {
            command.arg(2).arg(&names.lock).arg(names.leases()).arg(nonce).arg(claim.attempt.to_string());
        };
        if connection.run(&CONFIRM, fill).await?.int()? != 1 {
            return Err(Error::unavailable("redis: the grant is gone before replicas could have it"));
        }
        let mut wait = redis::cmd("WAIT");
        wait.arg(self.needed).arg(millis(ACKNOWLEDGE_WAIT));
        match connection.send(&wait).await? {
            Value::Int(have) if have >= i64::from(self.needed) => Ok(()),
            Value::Int(have) => Err(Error::unavailable(format!(
                "redis: {have} of {} replicas acknowledged the grant within {ACKNOWLEDGE_WAIT:?}, so it was given back",
                self.needed
            ))
            .with_help("see to the replicas, or ask for fewer with wait_replicas")),
            _ => Err(garbled()),
        }
    }

    /// Returns when the connection is open and the server waits for replicas.
    pub(in crate::engines) async fn first(&self, wait: Duration) -> Result<()> {
        self.link.first(wait).await?;
        let connection = self.link.connection(wait).await?;
        // For no replica: the reply comes at once.
        match connection.send(redis::cmd("WAIT").arg(0).arg(0)).await {
            Err(error) if matches!(error.kind(), ErrorKind::Auth | ErrorKind::Unsupported) => {
                let place = &connection.place;
                let text = format!("redis: {place} refuses WAIT, which wait_replicas={} needs: {error}", self.needed);
                Err(Error::new(error.kind(), text))
            }
            reply => reply.map(drop),
        }
    }

    pub(in crate::engines) fn close(&self) {
        self.link.close();
    }
}
