//! For tests: replies as etcd 3.7 gives them, which leaves the lease of a key out where only keys are asked for.

use prost::Message;

use crate::engines::etcd::protocol::messages::{
    RangeRequest, RangeResponse, Request, RequestOp, Response, ResponseOp, TxnRequest, TxnResponse,
};
use crate::engines::etcd::protocol::methods::{RANGE, TXN};

/// Returns `answer`, to the request `asked`, without the leases that such a server does not tell.
pub(crate) fn without_leases<A: Message + Default>(path: &str, asked: &[u8], answer: A) -> A {
    let bytes = answer.encode_to_vec();
    let changed = match path {
        RANGE => {
            let (asked, mut answer) = (decoded::<RangeRequest>(asked), decoded::<RangeResponse>(&bytes));
            in_range(&asked, &mut answer);
            answer.encode_to_vec()
        }
        TXN => {
            let (asked, mut answer) = (decoded::<TxnRequest>(asked), decoded::<TxnResponse>(&bytes));
            in_txn(&asked, &mut answer);
            answer.encode_to_vec()
        }
        _ => return answer,
    };
    decoded(&changed)
}

fn decoded<M: Message + Default>(bytes: &[u8]) -> M {
    M::decode(bytes).expect("a message that was encoded just now")
}

fn in_range(asked: &RangeRequest, answer: &mut RangeResponse) {
    if asked.keys_only {
        answer.kvs.iter_mut().for_each(|kv| kv.lease = 0);
    }
}

fn in_txn(asked: &TxnRequest, answer: &mut TxnResponse) {
    let done = if answer.succeeded { &asked.success } else { &asked.failure };
    for (asked, answer) in done.iter().zip(&mut answer.responses) {
        match (asked, answer) {
            (
                RequestOp { request: Some(Request::Range(asked)) },
                ResponseOp { response: Some(Response::Range(answer)) },
            ) => {
                in_range(asked, answer);
            }
            (
                RequestOp { request: Some(Request::Txn(asked)) },
                ResponseOp { response: Some(Response::Txn(answer)) },
            ) => {
                in_txn(asked, answer);
            }
            _ => {}
        }
    }
}
