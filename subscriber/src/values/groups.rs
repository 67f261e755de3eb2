//! Which subscriptions are made together: those whose paths have the same publishers, on the same terms, go to the same one.

use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::{Epoch, PublicationKind, PublisherId};
use longshore_resolver::Publication;

use super::sub::Sub;

/// Publishers, and the subscriptions that are to be held at one of them.
pub(crate) type Group = (Arc<[Publication]>, Vec<Arc<Sub>>);

/// What decides which publisher is chosen: who publishes the value, with which priority and weight.
type Same = Vec<(PublisherId, Epoch, u16, u16)>;

/// The groups of one try. An answer of the resolver comes in slices, and each slice has sets of its own: so sets are compared by what they
/// say, each once. It holds no more than the answer did.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    by_what_they_say: HashMap<Same, usize>,
    /// By where they are; they stay there while this holds them.
    by_place: HashMap<usize, (Arc<[Publication]>, usize)>,
}

impl Groups {
    /// `sub` is to be held at one of `set`.
    pub(crate) fn add(&mut self, set: Arc<[Publication]>, sub: Arc<Sub>) {
        let place = set.as_ptr().addr();
        let at = match self.by_place.get(&place) {
            Some((_, at)) => *at,
            None => {
                let groups = &mut self.groups;
                let at = *self.by_what_they_say.entry(same(&set)).or_insert_with(|| {
                    groups.push((set.clone(), Vec::new()));
                    groups.len() - 1
                });
                self.by_place.insert(place, (set, at));
                at
            }
        };
        // Of the groups above.
        if let Some((_, subs)) = self.groups.get_mut(at) {
            subs.push(sub);
        }
    }
}

impl IntoIterator for Groups {
    type Item = Group;
    type IntoIter = std::vec::IntoIter<Group>;

    fn into_iter(self) -> Self::IntoIter {
        self.groups.into_iter()
    }
}

fn same(set: &[Publication]) -> Same {
    let values = set.iter().filter(|one| one.terms.kind == PublicationKind::Value);
    let mut same: Same = values
        .map(|Publication { publisher, terms }| {
            (publisher.id, publisher.epoch, terms.priority, terms.weight)
        })
        .collect();
    same.sort_unstable();
    same
}
