//! Walks through the tree that stop and go on later, while the tree changes.
//!
//! A walk that rests stands at a node. When that node is taken out, the walk is moved to where it
//! would have gone next. Children go in at the front of their row and walks go towards its end: so
//! a walk meets once whatever is there all the time, and never meets what came after it had passed.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::directory::tree::NodeId;

/// Where a walk goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The node, then what lies below it.
    Enter(NodeId),
    /// What lies below the node is done.
    Leave(NodeId),
}

impl Step {
    pub(super) fn node(self) -> NodeId {
        match self {
            Step::Enter(node) | Step::Leave(node) => node,
        }
    }
}

/// A walk that rests. Dropped, it is over.
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

/// Where all walks stand that rest.
#[derive(Default, Debug)]
pub(super) struct Walks {
    next: u64,
    steps: HashMap<u64, Step>,
    /// Walks by the node they stand at.
    standing: HashMap<NodeId, Vec<u64>>,
    /// Walks that were dropped and are still known here.
    over: Arc<Mutex<Vec<u64>>>,
}

impl Walks {
    /// A new walk rests before `step`.
    pub(super) fn begin(&mut self, step: Step) -> Walk {
        self.forget_those_over();
        let walk = Walk { number: self.next, over: self.over.clone() };
        self.next += 1;
        self.stand(walk.number, step);
        walk
    }

    /// Where a walk stands now.
    pub(super) fn step(&self, walk: &Walk) -> Option<Step> {
        self.steps.get(&walk.number).copied()
    }

    /// A walk rests again, elsewhere.
    pub(super) fn rest(&mut self, walk: &Walk, step: Step) {
        self.forget(walk.number);
        self.stand(walk.number, step);
    }

    /// A node is about to be taken out: who stands at it goes on with `next`.
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

    /// How many walks rest.
    #[cfg(test)]
    pub(super) fn len(&mut self) -> usize {
        self.forget_those_over();
        assert_eq!(self.steps.len(), self.standing.values().map(Vec::len).sum::<usize>());
        self.steps.len()
    }
}
