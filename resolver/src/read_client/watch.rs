//! Watches over publishers, as their callers hold them.

use longshore_protocol::{Glob, Incarnation, PublisherInfo};
use tokio::sync::{mpsc, watch};

use crate::read_client::task::Command;

/// All publishers of a watch, as one replica knows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublisherSet {
    /// The replica that told, as `host:port`.
    pub replica: String,
    /// Its run.
    pub incarnation: Incarnation,
    /// Its revision; within one incarnation it rises.
    pub revision: u64,
    /// False while it is warming: who is missing may be there all the same.
    pub complete: bool,
    /// The publishers, by id.
    pub publishers: Vec<PublisherInfo>,
}

/// A watch over publishers. Dropping it ends it.
#[derive(Debug)]
pub struct PublisherWatch {
    number: u32,
    newest: watch::Receiver<Option<PublisherSet>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl PublisherWatch {
    pub(super) fn start(
        number: u32,
        glob: Glob,
        commands: mpsc::UnboundedSender<Command>,
    ) -> PublisherWatch {
        let (news, newest) = watch::channel(None);
        let _ = commands.send(Command::Watch { watch: number, glob, news });
        PublisherWatch { number, newest, commands }
    }

    /// The publishers once they have changed, or were told of by another replica; at first, as soon as any replica tells.
    /// What changed while nobody waited is told once, as it is now. Cancel safe.
    pub async fn changed(&mut self) -> PublisherSet {
        loop {
            if self.newest.changed().await.is_err() {
                // The client's task has ended, and its runtime with it.
                std::future::pending::<()>().await;
            }
            if let Some(set) = self.newest.borrow_and_update().clone() {
                return set;
            }
        }
    }
}

impl Drop for PublisherWatch {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Unwatch { watch: self.number });
    }
}
