//! etcd: a transaction that creates a key and one that deletes it; and a queue that one synced watch serves.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use self::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest,
    LeaseGrantResponse, PutRequest, RangeRequest, Request as Op, RequestOp, Response, SortOrder, SortTarget,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchOrder, WatchRequest, WatchResponse,
};
use crate::peer::Peer;

// The engine's own messages: the requests are the same bytes.
#[path = "../../../../crates/distlock/src/engines/etcd/protocol/messages.rs"]
#[allow(dead_code, reason = "the engine uses the rest")]
mod messages;

/// The size of the engine's record.
const VALUE: [u8; 200] = [b'x'; 200];
const DELETE_EVENT: i32 = 1;

struct Client {
    channel: Channel,
    lease: i64,
}

impl Client {
    async fn connect(server: &str, ttl: Duration) -> Client {
        let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address").tcp_nodelay(true);
        let mut client = Client { channel: endpoint.connect().await.expect("connected"), lease: 0 };
        let request = LeaseGrantRequest { ttl: ttl.as_secs() as i64, id: 0 };
        let granted: LeaseGrantResponse = client.call("/etcdserverpb.Lease/LeaseGrant", request).await;
        client.lease = granted.id;
        client
    }

    async fn call<Q: Message + 'static, A: Message + Default + 'static>(&self, path: &'static str, request: Q) -> A {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.expect("ready");
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let reply = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await;
        reply.expect("a reply").into_inner()
    }

    async fn txn(&self, compare: Compare, success: Vec<RequestOp>) -> TxnResponse {
        self.call("/etcdserverpb.KV/Txn", TxnRequest { compare: vec![compare], success, failure: Vec::new() }).await
    }

    fn put(&self, key: &str) -> RequestOp {
        let put = PutRequest { key: key.into(), value: VALUE.into(), lease: self.lease, ..PutRequest::default() };
        Op::Put(put).into()
    }
}

fn created(key: &str, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.into(),
        create_revision: Some(revision),
        ..Compare::default()
    }
}

fn revision(reply: &TxnResponse) -> i64 {
    reply.header.as_ref().expect("every reply has a header").revision
}

/// Two transactions.
pub(crate) struct EtcdPair(Client);

impl EtcdPair {
    pub(crate) async fn connect(server: &str, ttl: Duration) -> EtcdPair {
        // No keepalive: the lease must outlive the measurement.
        EtcdPair(Client::connect(server, ttl * 6).await)
    }
}

impl Peer for EtcdPair {
    type Guard = (String, i64);

    async fn lock(&self, key: &str) -> (String, i64) {
        let made = self.0.txn(created(key, 0), vec![self.0.put(key)]).await;
        assert!(made.succeeded, "only for locks that are free");
        (key.to_owned(), revision(&made))
    }

    async fn unlock(&self, (key, revision): (String, i64)) {
        let delete = Op::DeleteRange(DeleteRangeRequest { key: key.as_str().into() });
        assert!(self.0.txn(created(&key, revision), vec![delete.into()]).await.succeeded, "the lock was held");
    }
}

/// Each waiter puts a key; the one with the lowest revision holds the lock. One watch over the prefix, opened before the
/// first waiter, tells which keys there are: two requests per cycle.
pub(crate) struct EtcdQueue {
    client: Client,
    last: AtomicU64,
    state: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    by_revision: BTreeMap<i64, Vec<u8>>,
    revisions: HashMap<Vec<u8>, i64>,
    waiting: HashMap<Vec<u8>, oneshot::Sender<()>>,
}

impl Queue {
    fn put(&mut self, key: Vec<u8>, revision: i64) {
        self.by_revision.insert(revision, key.clone());
        self.revisions.insert(key, revision);
    }

    fn delete(&mut self, key: &[u8]) {
        if let Some(revision) = self.revisions.remove(key) {
            self.by_revision.remove(&revision);
        }
    }

    fn tell_first(&mut self) {
        if let Some(first) = self.by_revision.values().next()
            && let Some(sender) = self.waiting.remove(first)
        {
            let _ = sender.send(());
        }
    }
}

impl EtcdQueue {
    /// Connects and watches all locks whose names begin with `prefix`.
    pub(crate) async fn connect(server: &str, prefix: &str, ttl: Duration) -> EtcdQueue {
        // No keepalive: the lease must outlive the measurement.
        let client = Client::connect(server, ttl * 6).await;
        let (order, orders) = mpsc::unbounded_channel();
        let (key, range_end) = (format!("{prefix}/").into(), format!("{prefix}0").into());
        let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
        order.send(WatchRequest { order: Some(WatchOrder::Create(create)) }).expect("the receiver is below");
        let state = Arc::<Mutex<Queue>>::default();
        let (synced, is_synced) = oneshot::channel();
        tokio::spawn(follow(client.channel.clone(), order, orders, state.clone(), synced));
        is_synced.await.expect("the watch is open");
        let queue = EtcdQueue { client, last: AtomicU64::new(0), state };
        queue.read(prefix).await;
        queue
    }

    /// Reads the keys that were put before the watch was opened.
    async fn read(&self, prefix: &str) {
        let range = RangeRequest {
            key: format!("{prefix}/").into(),
            range_end: format!("{prefix}0").into(),
            ..RangeRequest::default()
        };
        let reply: messages::RangeResponse = self.client.call("/etcdserverpb.KV/Range", range).await;
        let mut state = self.state.lock().expect("no panic");
        reply.kvs.into_iter().for_each(|pair| state.put(pair.key, pair.create_revision));
    }
}

impl Peer for EtcdQueue {
    type Guard = String;

    async fn lock(&self, lock: &str) -> String {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let key = format!("{lock}/{}.{number}", std::process::id());
        let (sender, told) = oneshot::channel();
        self.state.lock().expect("no panic").waiting.insert(key.as_bytes().into(), sender);
        let first = RangeRequest {
            key: format!("{lock}/").into(),
            range_end: format!("{lock}0").into(),
            limit: 1,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..RangeRequest::default()
        };
        let made = self.client.txn(created(&key, 0), vec![self.client.put(&key), Op::Range(first).into()]).await;
        if first_in(&made) == Some(revision(&made)) {
            self.state.lock().expect("no panic").waiting.remove(key.as_bytes());
        } else {
            told.await.expect("told");
        }
        key
    }

    async fn unlock(&self, key: String) {
        let request = DeleteRangeRequest { key: key.into() };
        let reply: DeleteRangeResponse = self.client.call("/etcdserverpb.KV/DeleteRange", request).await;
        assert_eq!(reply.deleted, 1, "the lock was held");
    }
}

/// Returns the create revision of the first key in the reply.
fn first_in(made: &TxnResponse) -> Option<i64> {
    made.responses.iter().find_map(|op| match &op.response {
        Some(Response::Range(range)) => range.kvs.first().map(|first| first.create_revision),
        _ => None,
    })
}

async fn follow(
    channel: Channel,
    _keeps_the_stream_open: mpsc::UnboundedSender<WatchRequest>,
    orders: mpsc::UnboundedReceiver<WatchRequest>,
    state: Arc<Mutex<Queue>>,
    synced: oneshot::Sender<()>,
) {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.expect("ready");
    let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
    let request = Request::new(UnboundedReceiverStream::new(orders));
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let mut stream = grpc.streaming(request, path, codec).await.expect("a stream").into_inner();
    let mut synced = Some(synced);
    while let Ok(Some(reply)) = stream.message().await {
        if let Some(synced) = synced.take_if(|_| reply.created) {
            let _ = synced.send(());
        }
        let mut state = state.lock().expect("no panic");
        for event in reply.events {
            let Some(pair) = event.kv else { continue };
            match event.kind {
                DELETE_EVENT => state.delete(&pair.key),
                _ => state.put(pair.key, pair.mod_revision),
            }
        }
        state.tell_first();
    }
}
