//! The requests of Go's `concurrency.Mutex`, with the same stub, in the same process and with as many waiters as the
//! engine.
//!
//! Each waiter has a session, which is a separate lease, and its key is the lock's name with that lease: this is how
//! Go distinguishes its waiters, and why its keys are the same each time. To lock, one transaction creates the key and
//! reads the first key. If that is not the waiter's own key, the waiter reads the last key before its own and watches
//! it from the revision of that reply on; all watches share one stream. When that key is gone the waiter reads again,
//! until no key is before its own, and finally checks that its own key exists. To unlock, it sends one delete. Each
//! request is the one that Go's client sends, except for metadata; nothing is added, and nothing waits that would not
//! wait there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use distlock_testkit::servers::EtcdServer;
use tokio::sync::{Notify, mpsc};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic_prost::ProstCodec;

use super::messages::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, RangeRequest, RangeResponse, Request as Op, Response,
    SortOrder, SortTarget, TxnResponse, WatchCancelRequest, WatchCreateRequest, WatchOrder, WatchRequest,
    WatchResponse,
};
use super::raw::{Raw, created};

/// One lock by the recipe, with a single watch stream as in Go's client.
pub(super) struct Recipe {
    raw: Raw,
    name: String,
    /// The session of each waiter.
    leases: Vec<i64>,
    orders: mpsc::UnboundedSender<WatchRequest>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    last_id: i64,
    by_id: HashMap<i64, Arc<Notify>>,
}

impl Recipe {
    pub(super) async fn connect(server: &EtcdServer, name: &str, waiters: usize) -> Recipe {
        let raw = Raw::connect(&server.endpoint()).await;
        let mut leases = Vec::new();
        for _ in 0..waiters {
            leases.push(raw.grant(60).await);
        }
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let (orders, stream) = mpsc::unbounded_channel();
        tokio::spawn(follow(raw.clone(), stream, waiting.clone()));
        Recipe { raw, name: name.into(), leases, orders, waiting }
    }

    pub(super) async fn lock_and_unlock(&self, waiter: usize) {
        let lease = self.leases[waiter];
        let key = format!("{}/{lease:x}", self.name);
        let put = PutRequest { key: key.as_bytes().into(), lease, ..PutRequest::default() };
        let first = RangeRequest { limit: 1, ..self.range(SortOrder::Ascend) };
        let made = self.raw.txn(vec![created(&key, 0)], vec![Op::Put(put).into(), Op::Range(first).into()]).await;
        let mine = made.header.expect("a header").revision;
        assert!(made.succeeded, "the own key was not there");
        if first_in(&made) != Some(mine) {
            while let Some((before, revision)) = self.before(mine).await {
                self.deletion(before, revision).await;
            }
            let own = RangeRequest { key: key.as_bytes().into(), ..RangeRequest::default() };
            let own: RangeResponse = self.raw.call("/etcdserverpb.KV/Range", own).await;
            assert_eq!(own.kvs.len(), 1, "the own key is there");
        }
        let delete = DeleteRangeRequest { key: key.into() };
        let deleted: DeleteRangeResponse = self.raw.call("/etcdserverpb.KV/DeleteRange", delete).await;
        assert_eq!(deleted.deleted, 1);
    }

    /// Returns the key right before ours, and the revision of the reply.
    async fn before(&self, mine: i64) -> Option<(Vec<u8>, i64)> {
        let range = RangeRequest { limit: 1, max_create_revision: mine - 1, ..self.range(SortOrder::Descend) };
        let answer: RangeResponse = self.raw.call("/etcdserverpb.KV/Range", range).await;
        let revision = answer.header.expect("a header").revision;
        answer.kvs.into_iter().next().map(|before| (before.key, revision))
    }

    async fn deletion(&self, key: Vec<u8>, revision: i64) {
        let gone = Arc::new(Notify::new());
        let watch_id = {
            let mut waiting = self.waiting.lock().unwrap();
            waiting.last_id += 1;
            let id = waiting.last_id;
            waiting.by_id.insert(id, gone.clone());
            id
        };
        let create = WatchCreateRequest { key, start_revision: revision, watch_id, ..WatchCreateRequest::default() };
        self.order(WatchOrder::Create(create));
        gone.notified().await;
        self.waiting.lock().unwrap().by_id.remove(&watch_id);
        self.order(WatchOrder::Cancel(WatchCancelRequest { watch_id }));
    }

    fn order(&self, order: WatchOrder) {
        self.orders.send(WatchRequest { order: Some(order) }).expect("the stream is open");
    }

    fn range(&self, order: SortOrder) -> RangeRequest {
        RangeRequest {
            key: format!("{}/", self.name).into(),
            range_end: format!("{}0", self.name).into(),
            sort_order: order.into(),
            sort_target: SortTarget::Create.into(),
            ..RangeRequest::default()
        }
    }
}

/// Returns the create revision of the first key in the reply.
fn first_in(made: &TxnResponse) -> Option<i64> {
    made.responses.iter().find_map(|op| match &op.response {
        Some(Response::Range(range)) => range.kvs.first().map(|first| first.create_revision),
        _ => None,
    })
}

async fn follow(raw: Raw, orders: mpsc::UnboundedReceiver<WatchRequest>, waiting: Arc<Mutex<Waiting>>) {
    let mut grpc = Grpc::new(raw.channel);
    grpc.ready().await.expect("ready");
    let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
    let request = Request::new(UnboundedReceiverStream::new(orders));
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let mut stream = grpc.streaming(request, path, codec).await.expect("a stream").into_inner();
    while let Ok(Some(answer)) = stream.message().await {
        if answer.events.iter().any(|event| event.kind == 1)
            && let Some(gone) = waiting.lock().unwrap().by_id.get(&answer.watch_id)
        {
            gone.notify_one();
        }
    }
}
