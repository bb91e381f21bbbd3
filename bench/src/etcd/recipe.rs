//! What Go's `concurrency.Mutex` does, request by request: make a key, find the one before it, watch that one from the
//! revision of the answer on, and look at the own key before going on.

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
    DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, Request as Op, SortOrder, SortTarget,
    WatchCancelRequest, WatchCreateRequest, WatchOrder, WatchRequest, WatchResponse,
};
use super::raw::{Raw, created};

/// One lock by the recipe, with the one watch stream that Go's client has too.
pub(super) struct Recipe {
    raw: Raw,
    name: String,
    lease: i64,
    orders: mpsc::UnboundedSender<WatchRequest>,
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Default)]
struct Waiting {
    last_id: i64,
    by_id: HashMap<i64, Arc<Notify>>,
}

impl Recipe {
    pub(super) async fn connect(server: &EtcdServer, name: &str) -> Recipe {
        let raw = Raw::connect(server).await;
        let lease = raw.grant(60).await;
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let (orders, stream) = mpsc::unbounded_channel();
        tokio::spawn(follow(raw.clone(), stream, waiting.clone()));
        Recipe { raw, name: name.into(), lease, orders, waiting }
    }

    pub(super) async fn lock_and_unlock(&self, task: usize, turn: u64) {
        let key = format!("{}/{task:x}.{turn:x}", self.name);
        let put = PutRequest { key: key.as_bytes().into(), value: Vec::new(), lease: self.lease, ignore_value: false };
        let first = RangeRequest { limit: 1, ..self.range(SortOrder::Ascend) };
        let made = self.raw.txn(vec![created(&key, 0)], vec![Op::Put(put).into(), Op::Range(first).into()]).await;
        let mine = made.header.expect("a header").revision;
        while let Some((before, revision)) = self.before(mine).await {
            self.deletion(before, revision).await;
        }
        let own = RangeRequest { key: key.as_bytes().into(), ..RangeRequest::default() };
        let own: RangeResponse = self.raw.call("/etcdserverpb.KV/Range", own).await;
        assert_eq!(own.kvs.len(), 1, "the own key is there");
        let delete = Op::DeleteRange(DeleteRangeRequest { key: key.into() });
        self.raw.txn(Vec::new(), vec![delete.into()]).await;
    }

    /// The key right before ours, and the revision at which it was.
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
