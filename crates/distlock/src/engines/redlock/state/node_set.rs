//! A set of nodes.

/// A set of node numbers, of which there are few.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeSet(u16);

impl NodeSet {
    /// Returns the set of the first `count` nodes.
    pub(crate) fn first(count: usize) -> NodeSet {
        (0..count).collect()
    }

    pub(crate) fn has(self, node: usize) -> bool {
        self.0 & (1 << node) != 0
    }

    /// Returns the nodes of both sets.
    pub(crate) fn with(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    pub(crate) fn add(&mut self, node: usize) {
        self.0 |= 1 << node;
    }

    pub(crate) fn remove(&mut self, node: usize) {
        self.0 &= !(1 << node);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u16::BITS as usize).filter(move |node| self.has(*node))
    }
}

impl FromIterator<usize> for NodeSet {
    fn from_iter<T: IntoIterator<Item = usize>>(nodes: T) -> NodeSet {
        NodeSet(nodes.into_iter().fold(0, |set, node| set | 1 << node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_added_and_removed() {
        let mut set: NodeSet = [0, 8, 3].into_iter().collect();
        set.add(1);
        set.remove(1);
        set.remove(3);
        set.remove(4);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 8]);
        assert_eq!((set.len(), set.has(8), set.has(3), set.is_empty()), (2, true, false, false));
        assert_eq!(NodeSet::first(3), [0, 1, 2].into_iter().collect());
        assert!(NodeSet::default().is_empty());
    }
}
