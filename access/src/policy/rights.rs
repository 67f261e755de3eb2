//! Everything that one client may do.

use std::collections::HashSet;
use std::sync::Arc;

use longshore_protocol::{Glob, Path, PathSet, PublisherId};

use super::publishers::{Binding, Publishers};
use crate::action::Action;
use crate::identity::Identity;

/// The path of actions that concern a server as a whole.
pub const SERVER_PATH: &str = "/sys";

/// Everything that a client may do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights {
    /// By the action's number.
    paths: [PathSet; Action::ALL.len()],
    /// `None` without a policy: every client may register as any publisher.
    publishers: Option<Arc<Publishers>>,
    who: Option<Identity>,
}

impl Rights {
    pub(super) fn new(
        paths: [PathSet; Action::ALL.len()],
        publishers: Arc<Publishers>,
        who: Option<Identity>,
    ) -> Rights {
        Rights { paths, publishers: Some(publishers), who }
    }

    /// Of every client of a server without a policy.
    pub fn everything() -> Rights {
        Rights {
            paths: std::array::from_fn(|_| PathSet::everything()),
            publishers: None,
            who: None,
        }
    }

    /// True if the action is allowed on the path.
    pub fn may(&self, action: Action, path: &Path) -> bool {
        self.paths(action).contains(path)
    }

    /// True if the action is allowed on a server as a whole.
    pub fn may_at_server(&self, action: Action) -> bool {
        self.paths(action).contains_str(SERVER_PATH)
    }

    /// The paths on which an action is allowed.
    pub fn paths(&self, action: Action) -> &PathSet {
        &self.paths[action as usize]
    }

    /// Whether the client may register as the publisher with this id.
    pub fn binding(&self, publisher: PublisherId) -> Binding {
        match &self.publishers {
            None => Binding::Own,
            Some(publishers) => publishers.binding(self.who.as_ref(), publisher),
        }
    }

    /// True if no action is allowed anywhere.
    pub fn is_nothing(&self) -> bool {
        self.paths.iter().all(PathSet::is_empty)
    }

    /// True if every right of `before` is still there. Globs are compared by their text: where
    /// `/a/*` has become `/a/**` it is false, although nothing was taken.
    pub fn keep(&self, before: &Rights) -> bool {
        let has_all = |has: &[Glob], all: &[Glob]| {
            let has: HashSet<&str> = has.iter().map(Glob::as_str).collect();
            all.iter().all(|glob| has.contains(glob.as_str()))
        };
        let keeps = |(now, before): (&PathSet, &PathSet)| {
            now == before
                || now.is_everything()
                || has_all(&now.allow, &before.allow) && has_all(&before.deny, &now.deny)
        };
        self.paths.iter().zip(&before.paths).all(keeps) && self.keep_publishers(before)
    }

    fn keep_publishers(&self, before: &Rights) -> bool {
        let Some(now) = &self.publishers else { return true };
        let Some(before_all) = &before.publishers else { return false };
        // Only what was its own counts: an entry for a new publisher concerns no other client. A
        // publisher that no entry named before belongs to others now; the replica ends its links.
        let was_own = |id: &&PublisherId| before.binding(**id) == Binding::Own;
        Arc::ptr_eq(now, before_all)
            || before_all.0.keys().filter(was_own).all(|&id| self.binding(id) == Binding::Own)
    }
}
