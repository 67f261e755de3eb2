//! The homes that a publisher declares, as it applies them to itself.

use std::time::{Duration, UNIX_EPOCH};

use longshore_protocol::messages::work::EnqueueBatch;
use longshore_protocol::value::Rfc3339;
use longshore_protocol::{Homes, Path};
use longshore_queue::{QueueKeys, State};

use crate::error::OpenError;

/// The declared homes, at the publisher with this name.
#[derive(Clone, Debug)]
pub(crate) struct OwnHomes {
    name: String,
    homes: Homes,
}

impl OwnHomes {
    pub(crate) fn new(name: String, homes: Homes) -> OwnHomes {
        OwnHomes { name, homes }
    }

    /// The home of the path, if it is declared to be another publisher.
    pub(crate) fn other_home(&self, path: &Path) -> Option<&str> {
        self.homes.home_of(path).map(|home| home.name).filter(|name| *name != self.name)
    }

    /// For each path of a batch, whether another publisher is its home; none if none is.
    pub(crate) fn away(&self, batch: &EnqueueBatch) -> Option<Vec<bool>> {
        if self.homes.is_empty() {
            return None;
        }
        // A placeholder has a refusal of its own.
        let is_away = |path: &Path| !path.is_reserved() && self.other_home(path).is_some();
        let away: Vec<bool> = batch.paths.iter().map(is_away).collect();
        away.contains(&true).then_some(away)
    }

    /// Refuses declarations by which another publisher is the home of keys that are here.
    pub(crate) fn check_keys(&self, state: &State) -> Result<(), OpenError> {
        if self.homes.is_empty() {
            return Ok(());
        }
        let mut moved: Vec<(&str, QueueKeys<'_>)> = Vec::new();
        for queue in state.queue_keys() {
            moved.extend(self.other_home(queue.path).map(|home| (home, queue)));
        }
        let Some((home, first)) = moved.first() else { return Ok(()) };
        let last_end = moved.iter().map(|(_, queue)| queue.last_end).max().unwrap_or_default();
        let until = UNIX_EPOCH.checked_add(Duration::from_millis(last_end));
        let keys: u64 = moved.iter().map(|(_, queue)| queue.keys).sum();
        let until = until.filter(|_| keys > 0);
        let until = until.map(|until| format!("; the keys end by {:.0}", Rfc3339(until)));
        Err(OpenError::KeysOfAnotherHome {
            home: (*home).into(),
            path: first.path.clone(),
            name: self.name.as_str().into(),
            keys,
            jobs: moved.iter().map(|(_, queue)| queue.jobs).sum(),
            schedules: moved.iter().map(|(_, queue)| queue.schedules).sum(),
            elsewhere: match moved.len() - 1 {
                0 => " of it".into(),
                others => format!(" of it and of {others} more paths with other homes").into(),
            },
            until: until.unwrap_or_default().into(),
        })
    }
}
