//! Releases, of holds and of places in the queue.

use std::sync::Arc;

use crate::contract::{Claim, Release};
use crate::engines::postgres::claim::order_by;
use crate::engines::postgres::client::{Client, Links};
use crate::engines::postgres::protocol::requests::{ReleaseItem, column, garbled};
use crate::engines::postgres::state::late_claims::Progress;
use crate::engines::postgres::wire::batcher::Sender;
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::options::Options;
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// The reply to one release.
pub(super) struct ReleaseReply {
    outcome: Release,
    /// The waiter that must claim the lock next without having been notified.
    next: Option<AttemptId>,
    /// The id of the connection that it was sent over.
    over: u64,
}

impl Client {
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        self.waiting.forget(claim.attempt);
        let item = ReleaseItem { name: self.name(&claim.key), attempt: claim.attempt.to_string() };
        let released = self.releases.request(item, &Progress::default()).await?;
        // A waiter of this process that only polls need not wait for its next poll.
        if let Some(next) = released.next {
            self.waiting.wake(next);
        }
        self.late_claims.released(claim.attempt, released.over);
        Ok(released.outcome)
    }
}

/// Sends releases.
#[derive(Clone)]
pub(super) struct ReleaseSender {
    pub(super) links: Arc<Links>,
    pub(super) options: Arc<Options>,
}

impl Sender for ReleaseSender {
    type Item = ReleaseItem;
    type Reply = ReleaseReply;

    async fn connection(&self) -> Result<Arc<Connection>> {
        self.links.for_release().await
    }

    async fn send(&self, connection: &Connection, items: Vec<ReleaseItem>) -> Result<Vec<ReleaseReply>> {
        // In the order in which the server locks their rows.
        let order = order_by(&items, |item| &item.name);
        let names: Vec<&str> = order.iter().map(|place| items[*place].name.as_str()).collect();
        let attempts: Vec<&str> = order.iter().map(|place| items[*place].attempt.as_str()).collect();
        let channel = self.links.listener.channel();
        let wake = channel.as_deref();
        let rows = connection.query(&self.options.statements.release, &[&wake, &names, &attempts]).await?;
        let mut replies: Vec<_> = items.iter().map(|_| None).collect();
        for (row, place) in rows.iter().zip(order) {
            let outcome = if column(row, 0)? { Release::Released } else { Release::NotOurs };
            let next = column::<Option<&str>>(row, 1)?.and_then(|next| next.parse().ok());
            replies[place] = Some(ReleaseReply { outcome, next, over: connection.id });
        }
        replies.into_iter().collect::<Option<_>>().ok_or_else(garbled)
    }
}
