//! The lower bound of a fair handoff: a queue of keys, one watch that is in sync, two requests per handoff.
//!
//! A waiter makes its key with one transaction, and deletes it with another when no key is before it. It never reads the
//! queue: each process has one watch on the lock, opened before the first key was made, which tells it of every key
//! that comes and goes. It has no lease of its own, no loss signal and no limit of time, and it cannot join a queue
//! that was there before its watch. A lock cannot do less and be fair.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, mpsc, oneshot};
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;
use tonic_prost::ProstCodec;

use super::messages::{
    DeleteRangeRequest, EventType, PutRequest, Request as Op, WatchCreateRequest, WatchOrder, WatchRequest,
    WatchResponse,
};
use super::raw::{Raw, created};

/// One lock, for the waiters of one process.
pub(super) struct QueueFloor {
    raw: Raw,
    name: String,
    lease: i64,
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    /// The keys by the revision that made them.
    keys: BTreeMap<i64, Vec<u8>>,
    waiters: HashMap<Vec<u8>, Arc<Notify>>,
}

impl Queue {
    fn take(&mut self, answer: WatchResponse) {
        for event in answer.events {
            let Some(kv) = event.kv else { continue };
            if event.kind == i32::from(EventType::Put) {
                self.keys.insert(kv.mod_revision, kv.key);
            } else {
                self.keys.retain(|_, key| *key != kv.key);
            }
        }
        if let Some(turn) = self.keys.values().next().and_then(|first| self.waiters.get(first)) {
            turn.notify_one();
        }
    }
}

impl QueueFloor {
    /// Opens the watch on the lock `name`, whose queue must be empty, and waits until it is in sync.
    pub(super) async fn connect(raw: Raw, name: &str) -> QueueFloor {
        let lease = raw.grant(600).await;
        let queue: Arc<Mutex<Queue>> = Arc::default();
        let (tell, told) = oneshot::channel();
        tokio::spawn(follow(raw.clone(), name.to_owned(), queue.clone(), tell));
        told.await.expect("the watch is open");
        QueueFloor { raw, name: name.into(), lease, queue }
    }

    pub(super) async fn lock_and_unlock(&self, waiter: &str) {
        let key = format!("{}/{waiter}", self.name);
        let turn = Arc::new(Notify::new());
        self.queue.lock().expect("not poisoned").waiters.insert(key.clone().into(), turn.clone());
        let put = PutRequest {
            key: key.as_bytes().into(),
            value: vec![b'x'; 200],
            lease: self.lease,
            ..PutRequest::default()
        };
        let made = self.raw.txn(vec![created(&key, 0)], vec![Op::Put(put).into()]).await;
        assert!(made.succeeded, "the own key was not there");
        turn.notified().await;
        let delete = Op::DeleteRange(DeleteRangeRequest { key: key.clone().into() });
        let revision = made.header.expect("a header").revision;
        assert!(self.raw.txn(vec![created(&key, revision)], vec![delete.into()]).await.succeeded);
    }
}

async fn follow(raw: Raw, name: String, queue: Arc<Mutex<Queue>>, tell: oneshot::Sender<()>) {
    let mut grpc = Grpc::new(raw.channel);
    grpc.ready().await.expect("ready");
    let (orders, stream) = mpsc::unbounded_channel();
    let (key, range_end) = (format!("{name}/").into(), format!("{name}0").into());
    let create = WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() };
    orders.send(WatchRequest { order: Some(WatchOrder::Create(create)) }).expect("the stream is open");
    let codec: ProstCodec<WatchRequest, WatchResponse> = ProstCodec::default();
    let request = Request::new(UnboundedReceiverStream::new(stream));
    let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
    let mut stream = grpc.streaming(request, path, codec).await.expect("a stream").into_inner();
    let mut tell = Some(tell);
    while let Ok(Some(answer)) = stream.message().await {
        if answer.created
            && let Some(tell) = tell.take()
        {
            let _ = tell.send(());
        }
        queue.lock().expect("not poisoned").take(answer);
    }
}
