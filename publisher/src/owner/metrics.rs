//! Metrics of the publisher, for those who follow them.

use longshore_queue::Now;

use super::Owner;
use crate::metrics::{Ask, METRICS_LINK, Serving, Taken, Waiting, take};
use crate::values::Values;

/// What metrics need that nothing else here does.
pub(super) struct Kept {
    waiting: Waiting,
    values: Values,
}

impl Kept {
    pub(super) fn new(values: Values) -> Kept {
        Kept { waiting: Waiting::default(), values }
    }
}

impl Owner {
    /// Takes metrics, all in one pass. They are told once what they say is durable.
    pub(super) fn take_metrics(&mut self, now: Now, ask: Ask) {
        let (id, epoch) = self.store.identity();
        let serving = Serving {
            id,
            epoch: epoch.0,
            value_links: self.metrics.values.links(),
            status: self.status(now),
            since: &|link| self.router.since(link),
            is_quiet: &|link| self.quiets.is_quiet(link),
        };
        let one = |metric: &Option<_>| match metric {
            Some(metric) => take(metric, &self.store, now, &serving),
            None => Taken::Nothing("a publisher has no such metrics".to_owned()),
        };
        let taken = ask.wanted.iter().map(one).collect();
        let number = self.metrics.waiting.put(taken, ask.answer);
        self.store.say_when_durable(now, METRICS_LINK, number);
    }

    /// What was taken then is durable.
    pub(super) fn metrics_durable(&mut self, number: u64) {
        self.metrics.waiting.durable(number);
    }
}
