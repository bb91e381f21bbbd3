//! Renewals of holds, in one call for many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Lease, Renewal, Term};
use crate::engines::redis::client::Client;
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::{RENEW, RENEW_GROUP, garbled};
use crate::engines::redis::protocol::time::millis;
use crate::engines::redis::wire::cluster::is_moving;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::join_all::join_all;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::redis::wire::servers::{Moving, Servers};
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;

/// How many locks one call renews: a fraction of a millisecond of the server's time.
const MOST: usize = 256;
/// The shortest time between two small calls to one server. Meanwhile the keeper collects a larger batch, so that many
/// locks need few calls also where leases are of many lengths. Shorter where leases are short.
const SPACING: Duration = Duration::from_millis(20);
const SPACING_PART: u32 = 250;
/// A batch of this size is not held back.
const LARGE: usize = MOST / 2;
/// How long a renewal waits for a connection that is being opened again.
const RENEWAL_CONNECT_WAIT: Duration = Duration::from_millis(400);

/// What is sent of a lease.
struct Item {
    names: Names,
    attempt: String,
    ttl: Duration,
    lease: Duration,
    /// Whether others may hold the lock too: such a hold is renewed by another script.
    is_shared: bool,
}

impl Client {
    /// Renews leases. The keeper has grouped them by server; in a cluster every hash slot needs its own call.
    pub(super) async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let items: Result<Vec<_>> = leases.iter().map(|lease| self.item(lease)).collect();
        self.note_leases(leases.iter().map(|lease| &lease.claim));
        match (items, &*self.servers) {
            (Err(error), _) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
            (Ok(items), Servers::Cluster(_)) => self.renew_by_slot(&items).await,
            (Ok(items), Servers::One(_)) => self.renew_spaced(&items).await,
        }
    }

    fn item(&self, lease: &Lease) -> Result<Item> {
        let claim = &lease.claim;
        Ok(Item {
            names: self.names(&claim.key)?,
            attempt: claim.attempt.to_string(),
            ttl: claim.ttl,
            lease: claim.lease(),
            is_shared: !claim.mode().is_exclusive(),
        })
    }

    /// Renews on one server: large batches one after the other, because the server works on one at a time; small ones with
    /// a pause between their starts, so that one that hangs does not delay the next by more than that.
    async fn renew_spaced(&self, items: &[Item]) -> Vec<Result<Renewal>> {
        let mut last = self.last_renewal.lock().await;
        if items.len() < LARGE {
            let shortest = items.iter().map(|item| item.ttl).min().unwrap_or_default();
            self.clock.sleep_until(last.after(SPACING.min(shortest / SPACING_PART))).await;
            *last = self.clock.now();
            drop(last);
            return self.renew_by_slot(items).await;
        }
        let renewals = self.renew_by_slot(items).await;
        *last = self.clock.now();
        renewals
    }

    /// Renews the locks of one hash slot in one call, and all hash slots at the same time.
    async fn renew_by_slot(&self, items: &[Item]) -> Vec<Result<Renewal>> {
        let mut slots = BTreeMap::<(u16, bool), Vec<(usize, &Item)>>::new();
        for (at, item) in items.iter().enumerate() {
            slots.entry((self.servers.hash_slot(&item.names.lock), item.is_shared)).or_default().push((at, item));
        }
        let calls = slots.values().flat_map(|slot| slot.chunks(MOST)).map(|call| async move {
            let items: Vec<&Item> = call.iter().map(|(_, item)| *item).collect();
            (call, self.renew_items(&items).await)
        });
        let done = join_all(calls).await;
        let mut renewals: Vec<_> =
            done.into_iter().flat_map(|(call, renewals)| call.iter().map(|(at, _)| *at).zip(renewals)).collect();
        renewals.sort_by_key(|(at, _)| *at);
        renewals.into_iter().map(|(_, renewal)| renewal).collect()
    }

    async fn renew_items(&self, items: &[&Item]) -> Vec<Result<Renewal>> {
        match self.try_renew(items).await {
            Ok(renewals) => renewals.into_iter().map(Ok).collect(),
            // Some of the locks may have moved to another node and some not yet.
            Err(error) if items.len() > 1 && is_moving(&error) => {
                let one = |item| async move { self.try_renew(&[item]).await?.pop().ok_or_else(garbled) };
                join_all(items.iter().map(|item| one(*item))).await
            }
            Err(error) => items.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }

    async fn try_renew(&self, items: &[&Item]) -> Result<Vec<Renewal>> {
        let Some(first) = items.first() else { return Ok(Vec::new()) };
        let moving = if items.len() == 1 { Moving::FollowAsk } else { Moving::GiveUp };
        let request = |server: Arc<ServerConnections>, is_asking| async move {
            let connection = server.for_renewal(RENEWAL_CONNECT_WAIT).await?;
            self.renew_over(&connection, items, is_asking).await
        };
        self.servers.routed(&first.names.lock, moving, request).await
    }

    async fn renew_over(&self, connection: &Connection, items: &[&Item], is_asking: bool) -> Result<Vec<Renewal>> {
        // All items of a call are of one kind.
        let is_shared = items.first().is_some_and(|item| item.is_shared);
        let start = self.clock.now();
        let fill = |command: &mut redis::Cmd, nonce: u64| {
            command.arg(if is_shared { items.len() * 3 } else { items.len() });
            items.iter().for_each(|item| {
                command.arg(&item.names.lock);
                if is_shared {
                    command.arg(item.names.holders()).arg(item.names.leases());
                }
            });
            command.arg(nonce);
            items.iter().for_each(|item| {
                command.arg(&item.attempt).arg(millis(item.lease));
            });
        };
        let script = if is_shared { &RENEW_GROUP } else { &RENEW };
        let mut reply = match is_asking {
            true => connection.run_asking(script, fill).await?,
            false => connection.run(script, fill).await?,
        };
        let renewals = items
            .iter()
            .map(|item| match reply.int()? {
                1 => Ok(Renewal::Renewed(Some(Term { start, ttl: item.ttl }))),
                0 => Ok(Renewal::Lost(LossReason::Revoked)),
                _ => Err(garbled()),
            })
            .collect::<Result<_>>()?;
        if reply.is_empty() { Ok(renewals) } else { Err(garbled()) }
    }
}
