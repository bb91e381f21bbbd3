//! Renewals as they are sent to every node, and the votes in a node's reply.

use redis::Cmd;

use crate::contract::Lease;
use crate::engines::redis::node::{self, Connection, Keys};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::error::no_connection;
use crate::engines::redlock::options::RedlockOptions;
use crate::engines::redlock::protocol::scripts::RENEW;
use crate::engines::redlock::state::renew_votes::RenewVote;
use crate::engines::shared::record_text::write_record;
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// Renewals as every node gets them.
pub(crate) struct NodeRenewal {
    note_key: String,
    locks: Vec<RenewedLock>,
    restart_guard: bool,
}

#[derive(Clone)]
struct RenewedLock {
    keys: Keys,
    attempt: AttemptId,
    ballot: u64,
    ttl_ms: u64,
    channel_and_record: String,
    /// The higher ballot by which the node is asked to set the lock again; 0 for none.
    known_ballot: u64,
}

impl NodeRenewal {
    pub(crate) fn new(options: &RedlockOptions, leases: &[Lease]) -> Result<NodeRenewal> {
        let lock = |lease: &Lease| -> Result<RenewedLock> {
            let record = write_record(&lease.claim.record)?;
            Ok(RenewedLock {
                keys: options.keys(&lease.claim.key)?,
                attempt: lease.claim.attempt,
                ballot: lease.token.get(),
                ttl_ms: node::millis(lease.claim.ttl),
                channel_and_record: format!("{} {record}", options.wake),
                known_ballot: 0,
            })
        };
        let locks = leases.iter().map(lock).collect::<Result<_>>()?;
        Ok(NodeRenewal { note_key: options.note_key(), locks, restart_guard: options.restart_guard })
    }

    pub(crate) fn name(&self, lock: usize) -> &str {
        &self.locks[lock].keys.lock
    }

    pub(crate) fn attempt(&self, lock: usize) -> AttemptId {
        self.locks[lock].attempt
    }

    /// Returns the renewals of some locks, each by the higher ballot that the node has told.
    pub(crate) fn by_known_ballots(&self, known: &[(usize, u64)]) -> NodeRenewal {
        let lock =
            |(at, known_ballot): &(usize, u64)| RenewedLock { known_ballot: *known_ballot, ..self.locks[*at].clone() };
        let locks = known.iter().map(lock).collect();
        NodeRenewal { note_key: self.note_key.clone(), locks, restart_guard: self.restart_guard }
    }

    /// Sends the renewals to a node, if there is a connection to it. Returns its vote on each lock.
    pub(crate) async fn run(&self, connection: Option<&Connection>) -> Result<Vec<RenewVote>> {
        let connection = connection.ok_or_else(no_connection)?;
        let fill = |command: &mut Cmd, nonce| {
            command.arg(1 + 2 * self.locks.len()).arg(&self.note_key);
            for RenewedLock { keys, .. } in &self.locks {
                command.arg(&keys.lock).arg(&keys.fence);
            }
            command.arg(nonce).arg(u8::from(self.restart_guard));
            for lock in &self.locks {
                command.arg(lock.attempt.to_string()).arg(lock.ballot).arg(lock.ttl_ms);
                command.arg(&lock.channel_and_record).arg(lock.known_ballot);
            }
        };
        let mut reply = connection.run(&RENEW, fill).await?;
        let votes = self.locks.iter().map(|_| read_vote(reply.int()?)).collect::<Result<_>>()?;
        if reply.is_empty() { Ok(votes) } else { Err(garbled()) }
    }
}

fn read_vote(number: i64) -> Result<RenewVote> {
    match number {
        1 => Ok(RenewVote::Renewed),
        2 => Ok(RenewVote::Healed),
        0 => Ok(RenewVote::Ended),
        -1 => Ok(RenewVote::Held),
        -2 => Ok(RenewVote::NoMemory),
        _ => u64::try_from(number).map(RenewVote::Passed).map_err(|_| garbled()),
    }
}
