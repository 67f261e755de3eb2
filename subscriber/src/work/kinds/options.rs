//! The options of one kind's handler.

use tower_layer::{Identity, Stack};

use crate::work::state::ready_jobs::SourceLimits;

/// Options of a handler within its worker, for [`Subscription::handle_with`].
///
/// [`Subscription::handle_with`]: crate::Subscription::handle_with
#[derive(Clone, Debug)]
#[must_use = "options take effect with `handle_with`"]
pub struct KindOptions<L = Identity> {
    pub(super) limits: KindLimits,
    pub(super) layer: L,
}

/// The limits of a kind's handler.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KindLimits {
    pub(super) cap: Option<usize>,
    pub(super) weight: Option<u16>,
}

impl KindLimits {
    pub(super) fn is_default(self) -> bool {
        self.cap.is_none() && self.weight.is_none()
    }

    /// For the choice among jobs that wait in the worker.
    pub(super) fn source(self) -> SourceLimits {
        SourceLimits { cap: self.cap, weight: u32::from(self.weight.unwrap_or(1)) }
    }
}

impl KindOptions {
    /// No option.
    pub fn new() -> KindOptions {
        KindOptions { limits: KindLimits::default(), layer: Identity::new() }
    }
}

impl Default for KindOptions {
    fn default() -> KindOptions {
        KindOptions::new()
    }
}

impl<L> KindOptions<L> {
    /// Sets how many jobs of the kind run at once, from 1; otherwise as many as the worker's
    /// [`concurrency`](crate::Subscription::concurrency) has. The worker holds no more than that:
    /// further jobs wait in their queues, and a backlog of the kind delays no other. They are
    /// delivered beside the others' jobs, so they may overtake older jobs of other kinds. None is
    /// prefetched: the next job arrives a network round trip after one ends. A cap of
    /// `concurrency` or more has no effect.
    pub fn cap(mut self, jobs: usize) -> KindOptions<L> {
        self.limits.cap = Some(jobs.max(1));
        self
    }

    /// Sets the kind's share: while several kinds of a worker have jobs, they are delivered and
    /// begin in proportion to the weights, each kind's by priority, then age. From 1; kinds without
    /// a weight have 1. If no kind of a worker has a weight, their jobs are delivered as from one
    /// queue, except those of kinds with a [`cap`](KindOptions::cap).
    pub fn weight(mut self, weight: u16) -> KindOptions<L> {
        self.limits.weight = Some(weight);
        self
    }

    /// Adds a tower layer around this kind's handler, within the layers of the worker. The first
    /// layer is the outermost. See [`Subscription::layer`](crate::Subscription::layer).
    pub fn layer<N>(self, layer: N) -> KindOptions<Stack<N, L>> {
        KindOptions { limits: self.limits, layer: Stack::new(layer, self.layer) }
    }
}
