//! Sends requests of one kind to one node: by a lean script where that may do, and by the full one otherwise.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use crate::engines::redis::node::{Connection, Lane, Trust};
use crate::engines::redlock::error::no_reply;
use crate::engines::redlock::protocol::batch::{self, BatchReply, NodeRequest, RequestKind};
use crate::engines::redlock::protocol::lean::{self, Odd};
use crate::engines::redlock::protocol::reply::NodeReply;
use crate::engines::redlock::wire::nodes::Nodes;
use crate::types::error::Result;

/// A request whose caller may be gone.
pub(crate) trait SentRequest {
    fn request(&self) -> &NodeRequest;

    /// Whether a caller still waits for the reply.
    fn is_wanted(&self) -> bool;
}

impl SentRequest for Arc<NodeRequest> {
    fn request(&self) -> &NodeRequest {
        self
    }

    /// The future that sends it is dropped with its caller.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// The replies to requests by their places; `None` where a request was not carried out.
type NodeReplies = Vec<Option<Result<NodeReply>>>;

/// Sends requests of one kind to one node. Returns the reply to each, in their order.
pub(crate) async fn send<R: SentRequest>(nodes: &Nodes, at: usize, requests: &[R]) -> Vec<Result<NodeReply>> {
    let mut replies: NodeReplies = requests.iter().map(|_| None).collect();
    if let Ok(connection) = nodes[at].connection(Lane::Main) {
        match requests.first().map(|asked| asked.request().kind()) {
            Some(RequestKind::Claim { .. }) => claim_lean(nodes, at, &connection, requests, &mut replies).await,
            Some(RequestKind::Release) => release_lean(nodes, at, &connection, requests, &mut replies).await,
            Some(RequestKind::Full) | None => {}
        }
    }
    if replies.iter().any(Option::is_none) {
        // Boxed: it is seldom needed, and would make every future large.
        Box::pin(send_full(nodes, at, requests, &mut replies)).await;
    }
    replies.into_iter().map(|reply| reply.unwrap_or_else(|| Err(no_reply()))).collect()
}

/// Asks the node by the lean script for the claims that may be asked so.
async fn claim_lean<R: SentRequest>(
    nodes: &Nodes,
    at: usize,
    connection: &Connection,
    requests: &[R],
    replies: &mut NodeReplies,
) {
    let Some(note) = nodes[at].known_note(connection) else { return };
    let (mut claims, mut places) = (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
    let mut is_first = false;
    let (sent, odd) = loop {
        let (sent, mut latest_us) = (nodes.now(), u64::MAX);
        let not_after_us = connection.not_after(sent);
        claims.clear();
        places.clear();
        for (place, asked) in requests.iter().enumerate().filter(|(_, asked)| asked.is_wanted()) {
            if let NodeRequest::Claim(claim) = asked.request()
                && let Some(latest) = lean::latest(claim, &note, not_after_us)
            {
                latest_us = latest_us.min(latest);
                claims.push(&**claim);
                places.push(place);
            }
        }
        if claims.is_empty() {
            return;
        }
        is_first |= nodes[at].claims_over.swap(connection.id, Ordering::Relaxed) != connection.id;
        let mut claiming = pin!(lean::claim(connection, &nodes.note_key, &note, latest_us, is_first, &claims));
        if let Some(odd) = hand_over(nodes, requests, &places, claiming.as_mut()).await {
            break (sent, odd);
        }
    };
    if odd.is_err() {
        // The node may have forgotten the script.
        nodes[at].claims_over.store(0, Ordering::Relaxed);
    }
    let mut trust = Trust::Full;
    let odd = odd.map(|(now_us, odd)| {
        let seen = connection.saw_clock(sent, now_us);
        // Without the guard nothing makes up for a leap.
        trust = if nodes.options.restart_guard { seen } else { Trust::Full };
        odd
    });
    settle(nodes, requests, &places, odd, replies, || NodeReply::Voted(trust));
}

/// Asks the node by the lean script for the releases that may be asked so.
async fn release_lean<R: SentRequest>(
    nodes: &Nodes,
    at: usize,
    connection: &Connection,
    requests: &[R],
    replies: &mut NodeReplies,
) {
    let (mut releases, mut places) = (Vec::with_capacity(requests.len()), Vec::with_capacity(requests.len()));
    for (place, asked) in requests.iter().enumerate() {
        if let NodeRequest::Release { release, .. } = asked.request()
            && release.lean_on.has(at)
        {
            releases.push(&**release);
            places.push(place);
        }
    }
    if releases.is_empty() {
        return;
    }
    let is_first = nodes[at].releases_over.swap(connection.id, Ordering::Relaxed) != connection.id;
    let odd = lean::release(connection, is_first, &releases).await;
    if odd.is_err() {
        nodes[at].releases_over.store(0, Ordering::Relaxed);
    }
    settle(nodes, requests, &places, odd, replies, || NodeReply::Released);
}

/// Takes the reply to a lean call for the requests at `places`. Those that it has not carried out stay without a reply.
fn settle<R: SentRequest>(
    nodes: &Nodes,
    requests: &[R],
    places: &[usize],
    odd: Result<Odd>,
    replies: &mut NodeReplies,
    done: impl Fn() -> NodeReply,
) {
    let odd = match odd {
        Ok(Odd::Some(odd)) => odd,
        Ok(Odd::All) => return,
        Err(error) if error.may_be_applied() => {
            return places.iter().for_each(|place| replies[*place] = Some(Err(error.duplicate())));
        }
        // The node refuses the script as such. The full one says why.
        Err(_) => return,
    };
    places.iter().for_each(|place| replies[*place] = Some(Ok(done())));
    for place in odd.into_iter().map(|number| places[number]) {
        replies[place] = None;
        nodes.contended.note(&requests[place].request().keys().lock, nodes.now());
    }
}

/// Asks the node by the full script for the requests that have no reply yet.
async fn send_full<R: SentRequest>(nodes: &Nodes, at: usize, requests: &[R], replies: &mut NodeReplies) {
    let state = &nodes[at];
    let main = state.connection(Lane::Main);
    let mut going: Vec<(usize, &NodeRequest)> = Vec::new();
    for (place, asked) in requests.iter().enumerate() {
        if replies[place].is_some() {
            continue;
        }
        match (asked.request(), &main) {
            // It was not carried out, and never is.
            _ if !asked.is_wanted() => {}
            (NodeRequest::Claim(_), Err(error)) => replies[place] = Some(Err(error.duplicate())),
            (request @ NodeRequest::Claim(claim), Ok(_)) => {
                if claim.waits() {
                    // Before it is sent: a notification may overtake the reply.
                    state.node.listen(claim.id());
                }
                going.push((place, request));
            }
            (request, _) => going.push((place, request)),
        }
    }
    if going.is_empty() {
        return;
    }
    // A release that cannot follow its claim on the same connection takes the other one.
    let outcome = match main.or_else(|_| state.connection(Lane::Reserved)) {
        Ok(connection) => run_batch(nodes, &connection, requests, &mut going).await.map(|batch| {
            let BatchReply { replies, note } = batch;
            note.into_iter().for_each(|note| state.learn(&connection, note));
            replies
        }),
        Err(error) => Err(error),
    };
    match outcome {
        Ok(full) => going.iter().zip(full).for_each(|((place, _), reply)| replies[*place] = Some(reply)),
        Err(error) => going.iter().for_each(|(place, _)| replies[*place] = Some(Err(error.duplicate()))),
    }
}

/// Polls `call` to its end, if the callers of the requests at `places` still wait. Its first poll hands the requests to the
/// connection.
///
/// A caller that drops a claim releases it next, and that release must arrive after the claim. So the first poll is under the
/// lock that a caller takes when it gives its request up.
async fn hand_over<R: SentRequest, T>(
    nodes: &Nodes,
    requests: &[R],
    places: &[usize],
    mut call: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let handed_over = poll_fn(|context| {
        let _order = nodes.hand_over.lock();
        let is_wanted = places.iter().all(|place| requests[*place].is_wanted());
        Poll::Ready(is_wanted.then(|| call.as_mut().poll(context)))
    });
    match handed_over.await? {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => Some(call.await),
    }
}

/// Runs the full script for the requests whose callers still wait; the others are taken out of `going`.
async fn run_batch<R: SentRequest>(
    nodes: &Nodes,
    connection: &Connection,
    requests: &[R],
    going: &mut Vec<(usize, &NodeRequest)>,
) -> Result<BatchReply> {
    // Before the callers are looked at: the server may have to be asked.
    let run_id = if nodes.options.restart_guard { Some(connection.life().await?) } else { None };
    let mut by_text = false;
    loop {
        going.retain(|(place, _)| requests[*place].is_wanted());
        if going.is_empty() {
            return Ok(BatchReply { replies: Vec::new(), note: None });
        }
        let asked: Vec<_> = going.iter().map(|(_, request)| *request).collect();
        let places: Vec<usize> = going.iter().map(|(place, _)| *place).collect();
        let mut run = pin!(batch::run(connection, &nodes.note_key, run_id, &asked, by_text, nodes.now()));
        match hand_over(nodes, requests, &places, run.as_mut()).await.transpose()? {
            Some(Some(reply)) => return Ok(reply),
            // The node does not know the script, and has carried out nothing.
            Some(None) => by_text = true,
            // A caller has given its claim up meanwhile.
            None => {}
        }
    }
}
