//! Releases of several callers in one statement.

use std::sync::Arc;

use crate::contract::Release;
use crate::engines::postgres::protocol::requests::{ReleaseItem, column, garbled};
use crate::engines::postgres::wire::batcher::{Sender, order_by};
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::links::Links;
use crate::engines::postgres::wire::options::Options;
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// The reply to one release.
pub(in crate::engines) struct ReleaseReply {
    pub(in crate::engines) outcome: Release,
    /// The waiter that must claim the lock next without having been notified.
    pub(in crate::engines) next: Option<AttemptId>,
    /// The id of the connection that it was sent over.
    pub(in crate::engines) over: u64,
}

/// Sends releases.
#[derive(Clone)]
pub(in crate::engines) struct ReleaseSender {
    pub(in crate::engines) links: Arc<Links>,
    pub(in crate::engines) options: Arc<Options>,
}

impl Sender for ReleaseSender {
    type Item = ReleaseItem;
    type Reply = ReleaseReply;

    async fn connection(&self) -> Result<Arc<Connection>> {
        self.links.for_release().await
    }

    async fn send(&self, connection: &Connection, items: Vec<ReleaseItem>) -> Result<Vec<ReleaseReply>> {
        let channel = self.links.listener.channel();
        let wake = channel.as_deref();
        // In the order in which the server locks their rows.
        let order = order_by(&items, |item| (&item.name, &item.attempt));
        let names: Vec<&str> = order.iter().map(|place| items[*place].name.as_str()).collect();
        let attempts: Vec<&str> = order.iter().map(|place| items[*place].attempt.as_str()).collect();
        let rows = connection.query(&self.options.statements.release, &[&wake, &names, &attempts]).await?;
        let mut replies: Vec<_> = items.iter().map(|_| None).collect();
        for (row, place) in rows.iter().zip(order) {
            let outcome = if column(row, 0)? { Release::Released } else { Release::NotOurs };
            let next = column::<Option<&str>>(row, 1)?.and_then(|next| next.parse().ok());
            replies[place] = Some(ReleaseReply { outcome, next, over: connection.id });
        }
        replies.into_iter().collect::<Option<_>>().ok_or_else(garbled)
    }
    async fn send_alone(&self, connection: &Connection, item: ReleaseItem) -> Result<ReleaseReply> {
        if item.is_lean {
            let statement = &self.options.statements.lean_release;
            let rows = connection.query(statement, &[&item.name, &item.attempt]).await?;
            if !rows.is_empty() {
                return Ok(ReleaseReply { outcome: Release::Released, next: None, over: connection.id });
            }
        }
        // Boxed: the future of a release without waiters stays small.
        let replies = Box::pin(self.send(connection, vec![item])).await?;
        replies.into_iter().next().ok_or_else(garbled)
    }
}
