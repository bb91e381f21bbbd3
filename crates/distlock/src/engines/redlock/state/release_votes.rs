//! The replies of the nodes to one release, and what follows from them.

use crate::contract::Release;
use crate::engines::redlock::error::{by_node, no_reply};
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::state::quorum::quorum_of;
use crate::types::error::{Error, ErrorKind, Result};

/// The replies to one release, by node.
#[derive(Debug)]
pub(crate) struct ReleaseVotes(Vec<Option<Result<Release>>>);

impl ReleaseVotes {
    /// A release that no node has answered yet.
    pub(crate) fn new(nodes: usize) -> ReleaseVotes {
        ReleaseVotes((0..nodes).map(|_| None).collect())
    }

    pub(crate) fn set(&mut self, node: usize, reply: Result<Release>) {
        self.0[node] = Some(reply);
    }

    /// Whether a majority has confirmed the release, or that there was none to do.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.0.iter().filter(|reply| matches!(reply, Some(Ok(_)))).count() >= quorum_of(self.0.len())
    }

    /// Returns the nodes that have not confirmed the release.
    pub(crate) fn unconfirmed(&self) -> NodeSet {
        let unconfirmed = self.0.iter().enumerate().filter(|(_, reply)| !matches!(reply, Some(Ok(_))));
        unconfirmed.map(|(node, _)| node).collect()
    }

    /// Returns what the release has done. Fails without a majority; the caller then repeats the release.
    pub(crate) fn outcome<'a>(&self, places: impl Fn() -> Vec<&'a str>) -> Result<Release> {
        if !self.is_confirmed() {
            return Err(self.error(&places()));
        }
        let count = |wanted| self.0.iter().filter(|reply| matches!(reply, Some(Ok(reply)) if *reply == wanted)).count();
        let is_not_ours = count(Release::NotOurs) >= quorum_of(self.0.len()) || count(Release::Released) == 0;
        Ok(if is_not_ours { Release::NotOurs } else { Release::Released })
    }

    fn error(&self, places: &[&str]) -> Error {
        let is_definite = |error: &Error| !error.may_be_applied();
        let is_unsent = |reply: &Option<Result<Release>>| matches!(reply, Some(Err(error)) if is_definite(error));
        let may_be_applied = !self.0.iter().all(is_unsent);
        let replies = self.0.iter().map(|reply| match reply {
            Some(Ok(Release::Released)) => "released".to_owned(),
            Some(Ok(Release::NotOurs)) => "not ours".to_owned(),
            Some(Err(error)) => error.to_string(),
            None => no_reply().to_string(),
        });
        let kind = if may_be_applied { ErrorKind::Unknown } else { ErrorKind::Unavailable };
        let replies = by_node(places, replies);
        Error::new(kind, format!("redlock: no majority has confirmed the release: {replies}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [&str; 3] = ["a:1", "b:2", "c:3"];

    fn votes(replies: [Result<Release>; 3]) -> ReleaseVotes {
        ReleaseVotes(replies.into_iter().map(Some).collect())
    }

    #[test]
    fn a_majority_confirms_and_the_others_are_told_later() {
        use Release::{NotOurs, Released};
        let cases = [
            ([Ok(Released), Ok(Released), Err(no_reply())], Released),
            ([Ok(Released), Ok(NotOurs), Err(no_reply())], Released),
            ([Ok(Released), Ok(NotOurs), Ok(NotOurs)], NotOurs),
            ([Ok(NotOurs), Ok(NotOurs), Err(no_reply())], NotOurs),
        ];
        for (replies, expected) in cases {
            let votes = votes(replies);
            assert_eq!(votes.outcome(|| PLACES.to_vec()).unwrap(), expected, "{votes:?}");
        }
        assert_eq!(votes([Err(no_reply()), Ok(Released), Ok(Released)]).unconfirmed(), NodeSet::first(1));
    }

    #[test]
    fn without_a_majority_the_release_is_unknown_unless_it_was_certainly_not_sent() {
        let unsent = || Err(Error::unavailable("no connection"));
        let kind = |replies| votes(replies).outcome(|| PLACES.to_vec()).unwrap_err().kind();
        assert_eq!(kind([unsent(), unsent(), unsent()]), ErrorKind::Unavailable);
        assert_eq!(kind([unsent(), Err(no_reply()), unsent()]), ErrorKind::Unknown);
        assert_eq!(kind([unsent(), Ok(Release::Released), unsent()]), ErrorKind::Unknown);
    }
}
