//! One request and one reply, as a lock sends them: the whole message is there from the beginning, and it is short.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Bytes, Frame};
use prost::Message;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec};
use tonic::codegen::{Service, http};
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

/// Where a message is written to and read from: most are shorter, and longer ones get more. tonic's default is 8 KiB for
/// each, which costs the allocator more than the message costs to write.
const BUFFER_BYTES: usize = 512;
/// tonic's default: it matters to streams only.
const YIELD_BYTES: usize = 32 * 1024;

/// Protobuf, with short buffers.
pub(crate) struct ShortCodec<Q, A>(PhantomData<fn() -> (Q, A)>);

impl<Q, A> Default for ShortCodec<Q, A> {
    fn default() -> Self {
        ShortCodec(PhantomData)
    }
}

impl<Q, A> Codec for ShortCodec<Q, A>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    type Encode = Q;
    type Decode = A;
    type Encoder = <ProstCodec<Q, A> as Codec>::Encoder;
    type Decoder = <ProstCodec<Q, A> as Codec>::Decoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<Q, A>::raw_encoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<Q, A>::raw_decoder(BufferSettings::new(BUFFER_BYTES, YIELD_BYTES))
    }
}

/// A connection that marks the only frame of a request as the last one. tonic's own body knows that only when it is asked
/// for another frame, so that an empty one follows: one more write to the socket, which wakes the server once more.
#[derive(Debug)]
pub(crate) struct UnaryChannel(pub(crate) Channel);

impl Service<http::Request<Body>> for UnaryChannel {
    type Response = <Channel as Service<http::Request<Body>>>::Response;
    type Error = <Channel as Service<http::Request<Body>>>::Error;
    type Future = <Channel as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        self.0.call(request.map(|body| Body::new(LookAhead { body, next: None })))
    }
}

/// A body that looks for the next frame before it gives one away.
struct LookAhead {
    body: Body,
    /// What the body gave when it was looked at: the next frame, or its end.
    next: Option<Option<BodyFrame>>,
}

type BodyFrame = Result<Frame<Bytes>, Status>;

impl hyper::body::Body for LookAhead {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BodyFrame>> {
        let frame = match self.next.take() {
            Some(next) => next,
            None => ready!(Pin::new(&mut self.body).poll_frame(context)),
        };
        self.next = match &frame {
            None => Some(None),
            Some(_) => match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(next) => Some(next),
                Poll::Pending => None,
            },
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.next, Some(None))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::task::Waker;

    use hyper::body::Body as _;

    use super::*;

    /// Gives its frames one after the other, and then its end.
    struct Script(VecDeque<Poll<&'static str>>);

    impl hyper::body::Body for Script {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<BodyFrame>> {
            match self.0.pop_front() {
                Some(Poll::Ready(text)) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(text.as_bytes()))))),
                Some(Poll::Pending) => Poll::Pending,
                None => Poll::Ready(None),
            }
        }
    }

    #[test]
    fn the_last_frame_is_known_to_be_the_last_and_none_is_left_out() {
        let (ready, pending) = (Poll::Ready, Poll::<&str>::Pending);
        let scripts = [vec![ready("a")], vec![ready("a"), ready("b")], vec![ready("a"), pending, ready("b"), pending]];
        for script in scripts {
            let mut body = LookAhead { body: Body::new(Script(script.iter().copied().collect())), next: None };
            let (mut context, mut frames) = (Context::from_waker(Waker::noop()), Vec::new());
            for _ in 0..10 {
                if let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
                    frames.push((frame.unwrap().into_data().unwrap(), body.is_end_stream()));
                }
            }
            let given: Vec<_> = script.iter().filter(|polled| polled.is_ready()).collect();
            let ends_at_once = script.last() != Some(&pending);
            let expected: Vec<_> = (1..=given.len()).map(|place| place == given.len() && ends_at_once).collect();
            assert_eq!(frames.iter().map(|(_, is_last)| *is_last).collect::<Vec<_>>(), expected, "{script:?}");
            assert!(body.is_end_stream());
        }
    }
}
