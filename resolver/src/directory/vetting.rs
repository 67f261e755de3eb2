//! Whose publishers are, and whether what they hold is allowed. What a publisher writes is checked
//! when it is written; what an earlier link with more rights has written, when it announces again.

use std::sync::Arc;

use longshore_access::{Identity, Rights};
use longshore_protocol::{PublicationKind, PublisherId};

use crate::directory::publishers::{PathsQuota, Publisher};
use crate::directory::{Client, ConfirmProgress, Directory, MOVED_PER_STEP, Slot};

impl Directory {
    /// Whether these rights allow all that a publisher holds, as far as is known.
    pub(crate) fn is_vetted(&self, publisher: PublisherId, rights: &Arc<Rights>) -> bool {
        let Some(slot) = self.publishers.find(publisher) else { return true };
        let Publisher { vetted, registrations, .. } = &self.publishers[slot];
        let same = |by: &Arc<Rights>| Arc::ptr_eq(by, rights) || by == rights;
        registrations.len() == 0 || vetted.as_ref().is_some_and(same)
    }

    /// The client has announced its publisher: this identity registered last. Set `vetted` if these
    /// rights allow all that the publisher holds and will write.
    pub(crate) fn registered_by(
        &mut self,
        client: Client,
        owner: Option<Arc<Identity>>,
        vetted: Option<Arc<Rights>>,
    ) {
        if let Ok(slot) = self.writer(client) {
            let publisher = &mut self.publishers[slot];
            (publisher.owner, publisher.vetted) = (owner, vetted);
        }
    }

    /// The client may write more from now on, or less.
    pub(crate) fn rights_changed(&mut self, client: Client) {
        if let Ok(slot) = self.writer(client) {
            self.publishers[slot].vetted = None;
        }
    }

    /// The identity that registered as a visible publisher last. `None` if there is none; an inner
    /// `None` is a client without an identity.
    pub(crate) fn owner(&self, publisher: PublisherId) -> Option<&Option<Arc<Identity>>> {
        let slot = self.publishers.find(publisher)?;
        Some(&self.publishers[slot].owner)
    }

    /// Limits the paths that the identity of a publisher may have registered, with all its visible
    /// publishers, for the writes that follow. What is registered stays.
    pub(crate) fn limit_paths(&mut self, slot: Slot, limit: Option<u32>) {
        let quota = limit.map(|limit| {
            let limit = limit as usize;
            let owner = &self.publishers[slot].owner;
            let others = self.publishers.from(0).filter(|(other, publisher)| {
                *other != slot && !publisher.is_hidden() && publisher.owner == *owner
            });
            let theirs: usize = others.map(|(_, publisher)| publisher.registrations.len()).sum();
            PathsQuota { limit, most: limit.saturating_sub(theirs) }
        });
        self.publishers[slot].paths_quota = quota;
    }

    /// The id of a publisher.
    pub(crate) fn publisher_at(&self, slot: Slot) -> PublisherId {
        self.publishers[slot].info.id
    }

    /// Removes what a publisher holds and `allows` does not accept, within `budget` steps. True
    /// when all is done. The publisher was announced without digests before, and has written
    /// nothing since; all calls share one `progress`.
    pub(crate) fn revoke(
        &mut self,
        slot: Slot,
        progress: &mut ConfirmProgress,
        budget: usize,
        allows: &mut impl FnMut(PublicationKind, &str, bool) -> bool,
    ) -> bool {
        let mut steps = 0;
        while steps < budget {
            if let Some(registration) = progress.stale.pop() {
                let terms = self.paths.sets.terms(self.paths.set(registration), slot);
                if let Some(terms) = terms
                    && let Some(path) = self.paths.path(registration.node)
                {
                    let kind = self.paths.sets.terms_table.get(terms).kind;
                    if !allows(kind, path.as_str(), registration.default) {
                        self.unpublish(slot, registration, path.as_str());
                    }
                }
                steps += 1 + self.spent();
                continue;
            }
            let ConfirmProgress { next, stale } = progress;
            let Some(compared) = self.publishers[slot].registrations.stale(next, stale) else {
                return true;
            };
            steps += 1 + compared / MOVED_PER_STEP;
        }
        false
    }
}
