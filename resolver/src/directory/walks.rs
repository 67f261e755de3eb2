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
    over: Arc<Mutex<Vec<u64>>>,
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.over.lock().push(self.number);
    }
}

/// The positions of all suspended walks.
#[derive(Default, Debug)]
pub(super) struct Walks {
    next: u64,
    steps: HashMap<u64, Step>,
    /// Walks by the node they are at.
    standing: HashMap<NodeId, Vec<u64>>,
    /// Dropped walks that are still recorded here.
    over: Arc<Mutex<Vec<u64>>>,
}

impl Walks {
    /// Begins a walk, suspended before `step`.
    pub(super) fn begin(&mut self, step: Step) -> Walk {
        self.forget_those_over();
        let walk = Walk { number: self.next, over: self.over.clone() };
        self.next += 1;
        self.stand(walk.number, step);
        walk
    }

    /// The position of a walk.
    pub(super) fn step(&self, walk: &Walk) -> Option<Step> {
        self.steps.get(&walk.number).copied()
    }

    /// Suspends a walk at a new position.
    pub(super) fn suspend(&mut self, walk: &Walk, step: Step) {
        self.forget(walk.number);
        self.stand(walk.number, step);
    }

    /// Moves all walks at a node that is about to be removed to `next`.
    pub(super) fn leave(&mut self, node: NodeId, next: Step) {
        if self.steps.is_empty() {
            return;
        }
        self.forget_those_over();
        let Some(walks) = self.standing.remove(&node) else { return };
        for &walk in &walks {
            self.steps.insert(walk, next);
        }
        self.standing.entry(next.node()).or_default().extend(walks);
    }

    fn stand(&mut self, number: u64, step: Step) {
        self.steps.insert(number, step);
        self.standing.entry(step.node()).or_default().push(number);
    }

    fn forget(&mut self, number: u64) {
        let Some(step) = self.steps.remove(&number) else { return };
        if let Some(walks) = self.standing.get_mut(&step.node()) {
            walks.retain(|&other| other != number);
            if walks.is_empty() {
                self.standing.remove(&step.node());
            }
        }
    }

    fn forget_those_over(&mut self) {
        let over = std::mem::take(&mut *self.over.lock());
        over.into_iter().for_each(|number| self.forget(number));
    }

    /// The number of suspended walks.
    #[cfg(test)]
    pub(super) fn len(&mut self) -> usize {
        self.forget_those_over();
        assert_eq!(self.steps.len(), self.standing.values().map(Vec::len).sum::<usize>());
        self.steps.len()
    }
}
