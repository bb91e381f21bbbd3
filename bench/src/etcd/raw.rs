//! Plain requests to etcd, as a lower bound.

use std::pin::Pin;
use std::time::Duration;

use distlock_testkit::servers::EtcdServer;
use prost::Message;
use tokio::runtime::Handle;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::messages::{
    Compare, CompareResult, CompareTarget, DeleteRangeRequest, LeaseGrantRequest, LeaseGrantResponse, PutRequest,
    Request as Op, RequestOp, TxnRequest, TxnResponse,
};

/// One connection.
#[derive(Clone)]
pub(super) struct Raw {
    pub(super) channel: Channel,
}

impl Raw {
    /// Connects on the caller's runtime.
    pub(super) async fn connect(url: &str) -> Raw {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("an address").tcp_nodelay(true);
        Raw { channel: endpoint.connect().await.expect("connected") }
    }

    /// Connects on a separate thread, as a lock must do to outlive the runtime in which it was taken.
    pub(super) fn connect_apart(server: &EtcdServer) -> Raw {
        Raw::connect_apart_with(server).0
    }

    /// The same, with the runtime of that thread.
    pub(super) fn connect_apart_with(server: &EtcdServer) -> (Raw, Handle) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        let endpoint = Endpoint::from_shared(server.endpoint()).expect("an address").tcp_nodelay(true);
        let _inside = handle.enter();
        (Raw { channel: endpoint.executor(Apart(handle.clone())).connect_lazy() }, handle.clone())
    }

    pub(super) async fn call<Q, A>(&self, path: &'static str, request: Q) -> A
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.expect("ready");
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec);
        tokio::time::timeout(Duration::from_secs(30), answer).await.expect("in time").expect("no error").into_inner()
    }

    pub(super) async fn grant(&self, ttl: i64) -> i64 {
        let granted: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl, id: 0 }).await;
        granted.id
    }

    /// The requests of the fastest possible lock: create a key if it does not exist, delete it if it does.
    pub(super) async fn pair(&self, key: &str, lease: i64) {
        let value = vec![b'x'; 200];
        let put = PutRequest { key: key.into(), value, lease, ..PutRequest::default() };
        let made = self.txn(vec![created(key, 0)], vec![Op::Put(put).into()]).await;
        let revision = made.header.expect("a header").revision;
        let delete = Op::DeleteRange(DeleteRangeRequest { key: key.into() });
        let deleted = self.txn(vec![created(key, revision)], vec![delete.into()]).await;
        assert!(made.succeeded && deleted.succeeded);
    }

    pub(super) async fn txn(&self, compare: Vec<Compare>, success: Vec<RequestOp>) -> TxnResponse {
        self.call("/etcdserverpb.KV/Txn", TxnRequest { compare, success, failure: Vec::new() }).await
    }
}

pub(super) fn created(key: &str, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.into(),
        create_revision: Some(revision),
        ..Compare::default()
    }
}

#[derive(Clone)]
struct Apart(Handle);

impl hyper::rt::Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for Apart {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }
}
