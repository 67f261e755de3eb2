//! The publisher's metrics, for subscribers.

use longshore_protocol::messages::work::Answer;
use longshore_queue::Now;

use super::Owner;
use crate::metrics::{
    METRICS_LINK, MetricSample, MetricsRequest, OwnerStats, PendingSamples, collect,
};
use crate::values::Values;

/// The owner's state for metrics.
pub(super) struct MetricsState {
    waiting: PendingSamples,
    values: Values,
}

impl MetricsState {
    pub(super) fn new(values: Values) -> MetricsState {
        MetricsState { waiting: PendingSamples::default(), values }
    }
}

impl Owner {
    /// Samples metrics, all in one pass. They are sent once the state they show is durable.
    pub(super) fn answer_metrics(&mut self, now: Now, request: MetricsRequest) {
        let (id, epoch) = self.store.identity();
        let stats = OwnerStats {
            id,
            epoch: epoch.0,
            value_links: self.metrics.values.links(),
            status: self.status(now),
            since: &|link| self.router.since(link),
            is_quiet: &|link| self.quiet_requests.is_quiet(link),
        };
        let sample = |metric: &Option<_>| match metric {
            Some(metric) => collect(metric, &self.store, now, &stats),
            None => MetricSample::Nothing("a publisher has no such metrics".to_owned()),
        };
        let samples = request.metrics.iter().map(sample).collect();
        let number = self.metrics.waiting.push(samples, request.answer);
        self.store.answer_when_durable(now, METRICS_LINK, number, Answer::Done);
    }

    /// The state that these samples show is durable.
    pub(super) fn metrics_durable(&mut self, number: u64) {
        self.metrics.waiting.durable(number);
    }
}
