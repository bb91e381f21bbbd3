//! Waits for the nodes to notify a waiter that the lock is free.

use std::time::Duration;

use crate::contract::Wake;
use crate::engines::redlock::wire::nodes::Nodes;
use crate::types::token::AttemptId;

/// How long a waiter that one node has notified waits for a majority, so that it does not claim before they are free.
const MAJORITY_NOTIFY_WAIT: Duration = Duration::from_millis(10);

/// Keeps notifications for `attempt`, of those nodes as well that its claim was not sent to.
pub(super) fn keep_listening(nodes: &Nodes, attempt: AttemptId) {
    nodes.iter().for_each(|state| state.node.keep_listening(attempt));
}

/// Drops the notifications for `attempt`.
pub(super) fn forget(nodes: &Nodes, attempt: AttemptId) {
    nodes.iter().for_each(|state| state.node.forget(attempt));
}

/// Returns when the nodes have notified `attempt`.
pub(super) async fn wait(nodes: &Nodes, attempt: AttemptId) -> Wake {
    let mut notifications = nodes.call_all(|state| async move { state.node.hint(attempt).await });
    notifications.next().await;
    // One node is free. The others are about to be, and a claim needs a majority of them.
    let mut notified = 1;
    notifications
        .collect(MAJORITY_NOTIFY_WAIT, Duration::ZERO, |_, ()| {
            notified += 1;
            notified >= nodes.quorum()
        })
        .await;
    Wake::Retry
}
