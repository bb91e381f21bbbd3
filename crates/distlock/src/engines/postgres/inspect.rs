//! Locks seen from outside.

use std::sync::Arc;

use crate::contract::LockInfo;
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::{column, garbled};
use crate::engines::postgres::protocol::value;
use crate::engines::shared::listing::{self, Allowance};
use crate::engines::shared::record_text::read_record;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::token::FencingToken;

/// How many locks one statement lists.
const PAGE: i32 = 1000;

impl Client {
    pub(super) async fn list(&self, start: &str) -> Result<Vec<LockInfo>> {
        let (mut locks, mut allowance) = (Vec::new(), Allowance::new());
        let start = format!("{}{start}", self.options.prefix);
        listing::in_time(async {
            let mut after = String::new();
            while let Some(last) = self.list_page(&start, &after, PAGE, &mut locks, &mut allowance).await? {
                after = last;
            }
            Ok(())
        })
        .await?;
        Ok(locks)
    }

    /// Returns one lock; `None` when it has neither holder nor waiter.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        let name = self.name(key);
        let mut locks = Vec::new();
        // The lock itself is the first whose name begins with its name.
        self.list_page(&name, "", 1, &mut locks, &mut Allowance::new()).await?;
        Ok(locks.into_iter().find(|lock| lock.key == *key))
    }

    /// Adds the locks of one page. Returns the name of the last, or `None` when there are no more.
    async fn list_page(
        &self,
        start: &str,
        after: &str,
        most: i32,
        locks: &mut Vec<LockInfo>,
        allowance: &mut Allowance,
    ) -> Result<Option<String>> {
        let rows = self.query(&self.options.statements.show, &[&start, &after, &most]).await?;
        let (mut last, mut count) = (None, 0);
        let mut lock: Option<LockInfo> = None;
        for row in &rows {
            let (name, record): (&str, Option<&str>) = (column(row, 0)?, column(row, 5)?);
            allowance.spend(1, name.len() + record.map_or(0, str::len))?;
            let is_holder: Option<bool> = column(row, 1)?;
            match is_holder {
                None => {
                    locks.extend(lock.take().filter(is_used));
                    (last, count) = (Some(name.to_owned()), count + 1);
                    // A name that is not a key was written by hand.
                    let key = name.strip_prefix(&*self.options.prefix).and_then(|name| Key::new(name).ok());
                    lock = key.map(|key| LockInfo::new(key, [], Vec::new()));
                }
                Some(true) => {
                    let holder = value::holder(column(row, 2)?, column(row, 3)?, column(row, 4)?, record);
                    lock.iter_mut().for_each(|lock| lock.holders.push(holder.clone()));
                }
                Some(false) => {
                    let waiter = record.and_then(read_record).map(Arc::new);
                    lock.iter_mut().for_each(|lock| lock.waiters.extend(waiter.clone()));
                }
            }
        }
        locks.extend(lock.filter(is_used));
        Ok(last.filter(|_| count == most))
    }

    /// Ends the hold with `token`.
    pub(super) async fn force_release(&self, key: &Key, token: FencingToken) -> Result<()> {
        let not_held = || Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}"));
        let number = i64::try_from(token.get()).map_err(|_| not_held())?;
        let name = self.name(key);
        let rows = self.query(&self.options.statements.force_release, &[&name, &number]).await?;
        match column(rows.first().ok_or_else(garbled)?, 0)? {
            true => Ok(()),
            false => Err(not_held()),
        }
    }
}

fn is_used(lock: &LockInfo) -> bool {
    !lock.holders.is_empty() || !lock.waiters.is_empty()
}
