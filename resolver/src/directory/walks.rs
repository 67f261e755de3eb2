//! Walks through the tree that are suspended and resumed while the tree changes.
//!
//! A suspended walk is at a node. When that node is removed, the walk is moved to where it would
//! have gone next. Children are inserted at the front of their row and walks go towards its end: so
//! a walk visits once whatever is there all the time, and never visits what was added behind it.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::directory::tree::NodeId;

/// Where a walk resumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The node, then everything below it.
    Enter(NodeId),
    /// Everything below the node is done.
    Leave(NodeId),
}

impl Step {
    pub(super) fn node(self) -> NodeId {
        match self {
            Step::Enter(node) | Step::Leave(node) => node,
        }
    }
}

/// A suspended walk. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Walk {
    number: u64,
    ended: Arc<Mutex<Vec<u64>>>,
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.ended.lock().push(self.number);
    }
}

/// The positions of all suspended walks.
#[derive(Default, Debug)]
pub(super) struct Walks {
    next: u64,
    steps: HashMap<u64, Step>,
    /// Walks by the node they are at.
    by_node: HashMap<NodeId, Vec<u64>>,
    /// Dropped walks that are still recorded here.
    ended: Arc<Mutex<Vec<u64>>>,
}

impl Walks {
    /// Begins a walk, suspended before `step`.
    pub(super) fn begin(&mut self, step: Step) -> Walk {
        self.forget_ended();
        let walk = Walk { number: self.next, ended: self.ended.clone() };
        self.next += 1;
        self.suspend_at(walk.number, step);
        walk
    }

    /// The position of a walk.
    pub(super) fn step(&self, walk: &Walk) -> Option<Step> {
        self.steps.get(&walk.number).copied()
    }

    /// Suspends a walk at a new position.
    pub(super) fn suspend(&mut self, walk: &Walk, step: Step) {
        self.forget(walk.number);
        self.suspend_at(walk.number, step);
    }

    /// Moves all walks at a node that is about to be removed to `next`.
    pub(super) fn leave(&mut self, node: NodeId, next: Step) {
        if self.steps.is_empty() {
            return;
        }
        self.forget_ended();
        let Some(walks) = self.by_node.remove(&node) else { return };
        for &walk in &walks {
            self.steps.insert(walk, next);
        }
        self.by_node.entry(next.node()).or_default().extend(walks);
    }

    fn suspend_at(&mut self, number: u64, step: Step) {
        self.steps.insert(number, step);
        self.by_node.entry(step.node()).or_default().push(number);
    }

    fn forget(&mut self, number: u64) {
        let Some(step) = self.steps.remove(&number) else { return };
        if let Some(walks) = self.by_node.get_mut(&step.node()) {
            walks.retain(|&other| other != number);
            if walks.is_empty() {
                self.by_node.remove(&step.node());
            }
        }
    }

    fn forget_ended(&mut self) {
        let ended = std::mem::take(&mut *self.ended.lock());
        ended.into_iter().for_each(|number| self.forget(number));
    }

    /// The number of suspended walks.
    #[cfg(test)]
    pub(super) fn len(&mut self) -> usize {
        self.forget_ended();
        assert_eq!(self.steps.len(), self.by_node.values().map(Vec::len).sum::<usize>());
        self.steps.len()
    }
}
