//! Many keys, read page by page.

use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{KeyValue, RangeRequest, RangeResponse};
use crate::engines::etcd::protocol::methods::RANGE;
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::wire::client::{Client, REQUEST_WAIT};
use crate::engines::shared::listing::{Allowance, in_time};
use crate::types::error::Result;

/// All keys that begin with `prefix`, in their order.
pub(crate) async fn list(client: &Client, prefix: &[u8], allowance: &mut Allowance) -> Result<Vec<KeyValue>> {
    let mut all = Vec::new();
    in_time(walk(client, prefix, &end_of(prefix), keep(&mut all, allowance))).await?;
    Ok(all)
}

/// Keeps what is taken, as long as there is room for it.
fn keep(all: &mut Vec<KeyValue>, allowance: &mut Allowance) -> impl FnMut(KeyValue) -> Result<()> {
    |kv| {
        allowance.spend(1, kv.key.len() + kv.value.len())?;
        all.push(kv);
        Ok(())
    }
}

/// Takes all keys from `first` on and before `end`, in their order.
pub(crate) async fn walk(
    client: &Client,
    first: &[u8],
    end: &[u8],
    take: impl FnMut(KeyValue) -> Result<()>,
) -> Result<()> {
    turn_pages(first, end, |page| client.call(RANGE, page, REQUEST_WAIT), take).await
}

async fn turn_pages<F: Future<Output = Result<RangeResponse, Failure>>>(
    first: &[u8],
    end: &[u8],
    ask: impl Fn(RangeRequest) -> F,
    mut take: impl FnMut(KeyValue) -> Result<()>,
) -> Result<()> {
    const PAGE: i64 = 500;
    let (mut from, mut revision) = (first.to_vec(), 0);
    // An empty key is not one; this is the first that can be.
    if from.is_empty() {
        from.push(0);
    }
    loop {
        let range_end = end.to_vec();
        let page = RangeRequest { key: from.clone(), range_end, limit: PAGE, revision, ..RangeRequest::default() };
        let answer = ask(page).await?;
        // All pages show the same moment.
        revision = answer.header.unwrap_or_default().revision;
        let next = next_page(&from, &answer)?;
        answer.kvs.into_iter().try_for_each(&mut take)?;
        match next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// Returns where the page after `answer` begins, if there is one.
pub(crate) fn next_page(from: &[u8], answer: &RangeResponse) -> Result<Option<Vec<u8>>, Failure> {
    let Some(last) = answer.kvs.last().filter(|_| answer.more) else { return Ok(None) };
    // A server that shows the same keys again and again would be asked for ever, and fill our memory.
    if last.key.as_slice() < from {
        return Err(Failure::new(Fault::Rejected, "etcd sent keys that come before those it was asked for"));
    }
    Ok(Some([last.key.as_slice(), b"\0"].concat()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::types::error::ErrorKind;

    #[test]
    fn a_server_that_shows_the_same_page_again_is_not_asked_for_ever() {
        let kvs = vec![KeyValue { key: b"locks/a/2a-1".to_vec(), ..KeyValue::default() }];
        let page = RangeResponse { kvs, more: true, ..RangeResponse::default() };
        let next = next_page(b"locks/a/", &page).unwrap().unwrap();
        assert!(next_page(&next, &page).is_err());
    }

    #[tokio::test]
    async fn a_server_that_always_has_more_keys_is_not_believed_for_ever() {
        let asked = Cell::new(0);
        let ask = |page: RangeRequest| {
            asked.set(asked.get() + 1);
            assert!(asked.get() < 2000, "it would go on for ever");
            // Each key is higher than the one before.
            let kvs = vec![KeyValue { key: page.key, value: vec![b'x'; 1 << 10], ..KeyValue::default() }];
            async { Ok(RangeResponse { kvs, more: true, ..RangeResponse::default() }) }
        };
        let (mut allowance, mut all) = (Allowance::of(1 << 20), Vec::new());
        let error = turn_pages(b"a", b"b", ask, keep(&mut all, &mut allowance)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(all.len() > 500, "as long as there is room: {}", all.len());
    }
}
