//! A publisher as a source of figures: it asks the owner.

use longshore_protocol::Path;
use tokio::sync::{mpsc, oneshot};

use super::{Ask, Figure, FigureSource, Taken};
use crate::input::Input;

/// Asks the owner of a publisher.
pub(crate) struct OfPublisher {
    /// Where it has its figures.
    base: Path,
    owner: mpsc::Sender<Input>,
}

impl OfPublisher {
    pub(crate) fn new(base: Path, owner: mpsc::Sender<Input>) -> OfPublisher {
        OfPublisher { base, owner }
    }
}

impl FigureSource for OfPublisher {
    async fn take(&mut self, wanted: Vec<Path>) -> Option<Vec<Taken>> {
        let (answer, answered) = oneshot::channel();
        let wanted = wanted.iter().map(|path| Figure::of(&self.base, path)).collect();
        self.owner.send(Input::Figures(Ask { wanted, answer })).await.ok()?;
        answered.await.ok()
    }
}
