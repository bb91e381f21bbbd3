//! What the parts of a claim and a release cost: raw pairs with some parts more each, in turn in one run, and ours.

use std::time::{Duration, Instant};

use distlock::Locker;
use distlock_testkit::servers::EtcdServer;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::messages::{
    Compare, CompareTarget, DeleteRangeRequest, PutRequest, RangeRequest, Request as Op, RequestOp, SortOrder,
    SortTarget, TxnRequest, TxnResponse,
};
use super::raw::{Raw, created};
use super::{engine, median};

const ROUNDS: usize = 100;
/// Pairs of one kind in a row. The first of them finds cold caches, and does not count.
const BLOCK: usize = 20;

/// What a pair has beyond the raw one.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// The connection is on a thread apart.
    apart: bool,
    /// A task sends each request, and goes on when the caller's future is dropped.
    task: bool,
    /// The claim compares all keys of the queue, and the release the lease too.
    conditions: bool,
    /// Where the lock is taken, the claim puts its key behind the others and reads the queue.
    otherwise: bool,
}

/// A connection, and the runtime that drives it.
struct Connected {
    raw: Raw,
    runtime: Handle,
}

pub(super) async fn measure(server: &EtcdServer) {
    let raw = Parts::default();
    let near = Parts { task: true, conditions: true, ..raw };
    let variants = [
        ("raw", raw),
        ("+ task", Parts { task: true, ..raw }),
        ("+ task, conditions", near),
        ("+ task, conditions, otherwise", Parts { otherwise: true, ..near }),
        ("raw, apart", Parts { apart: true, ..raw }),
        ("+ task, conditions, otherwise, apart", Parts { otherwise: true, apart: true, ..near }),
    ];
    let inside = Connected { raw: Raw::connect(&server.endpoint()).await, runtime: Handle::current() };
    let (raw, runtime) = Raw::connect_apart_with(server);
    let apart = Connected { raw, runtime };
    let lease = apart.raw.grant(600).await;
    let (locker, _) = engine(&server.address().to_string());
    let mut times = vec![Vec::new(); variants.len() + 1];
    for _ in 0..ROUNDS {
        for (number, times) in times.iter_mut().enumerate() {
            for again in 0..BLOCK {
                let pair = match variants.get(number) {
                    Some((_, parts)) => {
                        let connected = if parts.apart { &apart } else { &inside };
                        raw_pair(connected, &format!("raw/parts{number}/{lease:x}-0"), lease, *parts).await
                    }
                    None => our_pair(&locker).await,
                };
                times.extend((again > 0).then_some(pair));
            }
        }
    }
    let times: Vec<Duration> = times.into_iter().map(median).collect();
    println!("parts of a pair, p50:");
    for (name, time) in variants.iter().map(|(name, _)| *name).chain(["ours"]).zip(&times) {
        println!("  {name:40} {time:?} ({:.2}×)", time.as_secs_f64() / times[0].as_secs_f64());
    }
}

async fn our_pair(locker: &Locker) -> Duration {
    let start = Instant::now();
    locker.lock("parts").await.expect("granted").unlock().await.expect("released");
    start.elapsed()
}

async fn raw_pair(connected: &Connected, key: &str, lease: i64, parts: Parts) -> Duration {
    let start = Instant::now();
    let made = send(connected, parts.task, claim(key, lease, parts)).await;
    send(connected, parts.task, release(key, lease, made, parts)).await;
    start.elapsed()
}

async fn send(Connected { raw, runtime }: &Connected, by_task: bool, request: TxnRequest) -> i64 {
    let sent = {
        let raw = raw.clone();
        async move { raw.call::<_, TxnResponse>("/etcdserverpb.KV/Txn", request).await }
    };
    let reply = if by_task {
        let (tell, told) = oneshot::channel();
        runtime.spawn(async move { tell.send(sent.await).ok() });
        told.await.expect("answered")
    } else {
        sent.await
    };
    assert!(reply.succeeded);
    reply.header.expect("a header").revision
}

fn claim(key: &str, lease: i64, parts: Parts) -> TxnRequest {
    let put = || -> RequestOp {
        let value = vec![b'x'; 200];
        Op::Put(PutRequest { key: key.into(), value, lease, ..PutRequest::default() }).into()
    };
    let (lock, _) = key.split_at(key.rfind('/').expect("a queue") + 1);
    // '0' comes after '/'.
    let end = format!("{}0", lock.trim_end_matches('/'));
    let range_end = if parts.conditions { end.as_bytes().to_vec() } else { Vec::new() };
    let free = Compare { range_end, ..created(if parts.conditions { lock } else { key }, 0) };
    let sorted = |order: SortOrder, limit, keys_only| RangeRequest {
        key: lock.into(),
        range_end: end.as_bytes().to_vec(),
        limit,
        sort_order: order.into(),
        sort_target: SortTarget::Create.into(),
        keys_only,
        ..RangeRequest::default()
    };
    let mut failure = Vec::new();
    if parts.otherwise {
        let make = TxnRequest { compare: vec![created(key, 0)], success: vec![put()], failure: Vec::new() };
        let own = RangeRequest { key: key.into(), keys_only: true, ..RangeRequest::default() };
        let reads = [own, sorted(SortOrder::Ascend, 1, false), sorted(SortOrder::Descend, 2, true)];
        failure.push(Op::Txn(make).into());
        failure.extend(reads.map(|read| RequestOp::from(Op::Range(read))));
    }
    TxnRequest { compare: vec![free], success: vec![put()], failure }
}

fn release(key: &str, lease: i64, made: i64, parts: Parts) -> TxnRequest {
    let lease =
        Compare { target: CompareTarget::Lease.into(), create_revision: None, lease: Some(lease), ..created(key, 0) };
    let delete = Op::DeleteRange(DeleteRangeRequest { key: key.into() });
    TxnRequest {
        compare: std::iter::once(created(key, made)).chain(parts.conditions.then_some(lease)).collect(),
        success: vec![delete.into()],
        failure: Vec::new(),
    }
}
