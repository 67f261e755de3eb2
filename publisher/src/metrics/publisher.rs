//! A publisher as a source of metrics: it asks the owner.

use longshore_protocol::Path;
use tokio::sync::{mpsc, oneshot};

use super::{Ask, Metric, MetricSource, Taken};
use crate::input::Input;

/// Asks the owner of a publisher.
pub(crate) struct OfPublisher {
    /// Where it has its metrics.
    base: Path,
    owner: mpsc::Sender<Input>,
}

impl OfPublisher {
    pub(crate) fn new(base: Path, owner: mpsc::Sender<Input>) -> OfPublisher {
        OfPublisher { base, owner }
    }
}

impl MetricSource for OfPublisher {
    async fn take(&mut self, wanted: Vec<Path>) -> Option<Vec<Taken>> {
        let (answer, answered) = oneshot::channel();
        let wanted = wanted.iter().map(|path| Metric::of(&self.base, path)).collect();
        self.owner.send(Input::Metrics(Ask { wanted, answer })).await.ok()?;
        answered.await.ok()
    }
}
