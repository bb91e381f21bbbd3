//! How many nodes decide.

/// Returns how many of `nodes` nodes are a majority.
pub(crate) fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}
