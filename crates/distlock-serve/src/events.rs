//! The event stream of a hold: server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use distlock::{LossReason, Moment};
use serde_json::{Value, json};

use crate::hold::{End, Hold, Sight, millis};
use crate::service::Service;

/// What a stream has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Nothing,
    Held(Option<Moment>),
    AtRisk,
    /// The last event.
    End,
}

/// The next step of a stream.
#[derive(Debug, PartialEq)]
enum Step {
    Send(&'static str, Value),
    Wait,
    End,
}

/// Decides what to send, by what was sent and what is so now.
fn step(sent: &mut Sent, sight: Sight, is_stopping: bool, question: impl FnOnce() -> Option<String>) -> Step {
    let lost =
        |reason: &LossReason| Step::Send("lost", json!({"reason": reason.as_str(), "message": reason.describe()}));
    if *sent == Sent::End {
        return Step::End;
    }
    match sight {
        Sight::Lost(reason) => {
            *sent = Sent::End;
            lost(&reason)
        }
        Sight::Ended(End::Released) => Step::End,
        Sight::Ended(end) => {
            *sent = Sent::End;
            lost(if end == End::Stopped { &LossReason::Closed } else { &LossReason::Silent })
        }
        Sight::Held { .. } if is_stopping => {
            *sent = Sent::End;
            lost(&LossReason::Closed)
        }
        Sight::Held { is_at_risk: true, left, .. } if *sent != Sent::AtRisk => {
            *sent = Sent::AtRisk;
            Step::Send("at-risk", json!({"left_ms": millis(left)}))
        }
        Sight::Held { is_at_risk: false, lease_end, left } if *sent != Sent::Held(lease_end) => {
            *sent = Sent::Held(lease_end);
            Step::Send("held", json!({"left_ms": millis(left)}))
        }
        Sight::Held { .. } => question().map_or(Step::Wait, |reason| Step::Send("asked", json!({"reason": reason}))),
    }
}

/// An open stream. Dropping it tells the service.
struct EventStream {
    service: Arc<Service>,
    hold: Arc<Hold>,
    number: u64,
    sent: Sent,
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut news = std::pin::pin!(self.hold.news.notified());
            news.as_mut().enable();
            if !self.hold.is_newest_stream(self.number) {
                return None;
            }
            let sight = self.hold.sight(&self.service.clock);
            match step(&mut self.sent, sight, self.service.holds.is_stopping(), || self.hold.take_question()) {
                Step::Send(name, data) => return Some(Bytes::from(format!("event: {name}\ndata: {data}\n\n"))),
                Step::Wait => news.await,
                Step::End => return None,
            }
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        self.service.news.forget(&self.hold);
        if self.hold.is_newest_stream(self.number) {
            self.service.stream_closed(&self.hold);
        }
    }
}

/// Opens the stream of a hold. A client that opens a second one ends the first.
pub(crate) fn open(service: Arc<Service>, hold: Arc<Hold>) -> Body {
    service.news.watch(&hold);
    let number = hold.open_stream(service.clock.now());
    let stream = EventStream { service, hold, number, sent: Sent::Nothing };
    Body::from_stream(futures_util::stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const END: Moment = Moment::from_nanos(9);

    fn held(is_at_risk: bool, lease_end: Moment) -> Sight {
        Sight::Held { is_at_risk, lease_end: Some(lease_end), left: Duration::from_millis(1) }
    }

    fn name(step: &Step) -> &'static str {
        match step {
            Step::Send(name, _) => name,
            Step::Wait => "wait",
            Step::End => "end",
        }
    }

    #[test]
    fn every_renewal_and_every_change_is_one_event() {
        let later = END.after(Duration::from_secs(1));
        let mut sent = Sent::Nothing;
        let steps = [
            (held(false, END), "held"),
            (held(false, END), "wait"),
            (held(false, later), "held"),
            (held(true, later), "at-risk"),
            (held(true, later), "wait"),
            (held(false, later), "held"),
            (Sight::Lost(LossReason::Broken), "lost"),
            (Sight::Lost(LossReason::Broken), "end"),
        ];
        for (number, (sight, expected)) in steps.into_iter().enumerate() {
            assert_eq!(name(&step(&mut sent, sight, false, || None)), expected, "{number}");
        }
    }

    #[test]
    fn a_question_comes_after_the_state_and_a_stop_is_a_loss() {
        let mut sent = Sent::Nothing;
        assert_eq!(name(&step(&mut sent, held(false, END), false, || Some("please".into()))), "held");
        let asked = step(&mut sent, held(false, END), false, || Some("please".into()));
        assert_eq!(asked, Step::Send("asked", json!({"reason": "please"})));
        let Step::Send("lost", told) = step(&mut sent, held(false, END), true, || None) else { panic!() };
        assert_eq!(told["reason"], "closed");
    }

    #[test]
    fn a_client_that_released_its_hold_is_told_nothing_more() {
        let mut sent = Sent::Nothing;
        assert_eq!(step(&mut sent, Sight::Ended(End::Released), false, || None), Step::End);
        let silent = step(&mut sent, Sight::Ended(End::Silent), false, || None);
        assert_eq!(silent, Step::Send("lost", json!({"reason": "silent", "message": LossReason::Silent.describe()})));
    }
}
