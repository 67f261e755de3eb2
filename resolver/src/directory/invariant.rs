//! What always holds of a directory: its indexes say the same.

use longshore_protocol::PublisherId;
use longshore_protocol::messages::resolver::Digest;

use crate::directory::Directory;

impl Directory {
    /// The digest of what a publisher holds; of nothing if nobody can see it.
    pub(crate) fn held_by(&self, publisher: PublisherId) -> Digest {
        let slot = self.living.find(publisher);
        slot.map(|slot| self.living[slot].holdings.digest()).unwrap_or_default()
    }

    /// Panics where two indexes disagree. Looks at everything: for tests, after every step.
    pub(crate) fn invariant(&self) {
        self.living.invariant();
        self.paths.invariant(&self.living);
        let untold = self.untold.iter().map(|&(slot, _)| slot).collect();
        self.count_invariant(&untold);
        assert!(untold.iter().all(|&slot| self.living[slot].hidden), "who can be seen is not gone");
        self.watches.invariant();
    }
}
