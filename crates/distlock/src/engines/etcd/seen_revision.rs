//! How far the cluster was seen to be: its revisions never go back, and it stays the same cluster.

use crate::types::sync::Mutex;

use crate::engines::etcd::protocol::messages::Header;
use crate::types::error::{Error, ErrorKind, Result};

/// The highest revision that a reply has shown.
#[derive(Debug, Default)]
pub(super) struct SeenRevision(Mutex<Header>);

impl SeenRevision {
    /// What is known before a request is sent.
    pub(super) fn now(&self) -> Header {
        *self.0.lock()
    }

    /// Checks the reply to a linearizable request that was sent when `before` was the last one seen. A cluster that was
    /// restored from an old copy would give tokens that it has given already.
    pub(super) fn check(&self, before: Header, answer: Header) -> Result<()> {
        let help = "it was restored from a copy, or the endpoints are not one cluster: see docs/backends/etcd.md";
        let refuse = |what: String| Err(Error::new(ErrorKind::Backend, what).with_help(help));
        if before.cluster_id != 0 && before.cluster_id != answer.cluster_id {
            return refuse(format!("cluster {:x} answers for cluster {:x}", answer.cluster_id, before.cluster_id));
        }
        if answer.revision < before.revision {
            return refuse(format!("etcd is at revision {} and was at {} before", answer.revision, before.revision));
        }
        let mut seen = self.0.lock();
        *seen = Header { cluster_id: answer.cluster_id, revision: seen.revision.max(answer.revision) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revisions_that_go_back_are_refused() {
        let seen_revision = SeenRevision::default();
        let at = |cluster_id, revision| Header { cluster_id, revision };
        seen_revision.check(seen_revision.now(), at(7, 10)).unwrap();
        let early = at(7, 9);
        seen_revision.check(early, at(7, 9)).expect("it was sent before revision 10 was seen");
        assert_eq!(seen_revision.now(), at(7, 10));
        assert_eq!(seen_revision.check(seen_revision.now(), at(7, 9)).unwrap_err().kind(), ErrorKind::Backend);
        assert!(seen_revision.check(seen_revision.now(), at(8, 11)).unwrap_err().to_string().contains("cluster 8"));
    }
}
