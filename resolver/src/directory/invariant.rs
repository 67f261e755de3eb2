//! The invariants of a directory: its indexes agree.

use longshore_protocol::PublisherId;
use longshore_protocol::messages::resolver::Digest;

use crate::directory::Directory;

impl Directory {
    /// The digest of a publisher's registrations; the empty one if it is not visible.
    pub(crate) fn digest_of(&self, publisher: PublisherId) -> Digest {
        let slot = self.publishers.find(publisher);
        slot.map(|slot| self.publishers[slot].registrations.digest()).unwrap_or_default()
    }

    /// Panics where two indexes disagree. It checks everything: for tests, after every step.
    pub(crate) fn invariant(&self) {
        self.publishers.invariant();
        self.paths.invariant(&self.publishers);
        let unreported = self.unreported.iter().map(|&(slot, _)| slot).collect();
        self.count_invariant(&unreported);
        assert!(
            unreported.iter().all(|&slot| self.publishers[slot].is_hidden()),
            "a visible publisher is not unreported"
        );
        self.watches.invariant();
    }
}
