//! A publisher as a source of metrics, which queries the owner.

use longshore_protocol::Path;
use tokio::sync::{mpsc, oneshot};

use super::{Metric, MetricSample, MetricSource, MetricsRequest};
use crate::event::OwnerEvent;

/// Requests metrics from a publisher's owner.
pub(crate) struct PublisherMetrics {
    /// The base path of its metrics.
    base: Path,
    owner: mpsc::Sender<OwnerEvent>,
}

impl PublisherMetrics {
    pub(crate) fn new(base: Path, owner: mpsc::Sender<OwnerEvent>) -> PublisherMetrics {
        PublisherMetrics { base, owner }
    }
}

impl MetricSource for PublisherMetrics {
    async fn take(&mut self, paths: Vec<Path>) -> Option<Vec<MetricSample>> {
        let (answer, answered) = oneshot::channel();
        let metrics = paths.iter().map(|path| Metric::of(&self.base, path)).collect();
        self.owner.send(OwnerEvent::Metrics(MetricsRequest { metrics, answer })).await.ok()?;
        answered.await.ok()
    }
}
