//! The part of the directory that a client may see. What is outside of it does not exist for the
//! client: every answer is that of a directory with only the paths of the scope.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use longshore_access::{Action, Rights};
use longshore_protocol::{Path, PathSet};

use crate::directory::Directory;
use crate::directory::listing::Visible;
use crate::directory::registrations::Registration;
use crate::directory::tree::NodeId;
use crate::directory::walks::Step;

/// Alternatives of globs that are compared with a path in one step.
const ALTERNATIVES_PER_STEP: usize = 16;
/// How often a walk returns to a node below which something has changed. Without a limit, changes
/// outside of the scope could make it return for ever.
const REVISITS_MAX: u32 = 8;

/// The paths that a client may resolve. The default is all of them, which costs one branch.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scope(Option<Limited>);

#[derive(Clone, Debug)]
struct Limited {
    rights: Arc<Rights>,
    /// The steps for one path.
    cost: usize,
}

impl Scope {
    /// That of a client with these rights.
    pub(crate) fn of(rights: &Arc<Rights>) -> Scope {
        let paths = rights.paths(Action::Resolve);
        if paths.is_everything() {
            return Scope(None);
        }
        Scope(Some(Limited { rights: rights.clone(), cost: steps_of(paths) }))
    }

    /// True if all paths are in it.
    pub(crate) fn is_everything(&self) -> bool {
        self.0.is_none()
    }

    fn paths(&self) -> Option<&PathSet> {
        self.0.as_ref().map(|limited| limited.rights.paths(Action::Resolve))
    }

    /// True if the path with that text is in it.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.paths().is_none_or(|paths| paths.contains_str(path))
    }

    /// False only if no path at or below `base` is in it.
    pub(crate) fn reaches(&self, base: &Path) -> bool {
        self.paths().is_none_or(|paths| paths.may_reach_below(base))
    }

    /// The cost of comparing a path with it, in steps beside the one for the path itself.
    pub(super) fn cost(&self) -> usize {
        self.0.as_ref().map_or(0, |limited| limited.cost)
    }

    /// How many paths fit into `budget` steps: at least one.
    pub(crate) fn paths_in(&self, budget: usize) -> usize {
        match &self.0 {
            None => budget,
            Some(limited) => (budget / (1 + limited.cost)).max(1),
        }
    }
}

/// The steps for comparing a path with a set.
pub(crate) fn steps_of(paths: &PathSet) -> usize {
    let globs = paths.allow.iter().chain(&paths.deny);
    globs.map(|glob| glob.alternatives().count()).sum::<usize>() / ALTERNATIVES_PER_STEP
}

impl PartialEq for Scope {
    fn eq(&self, other: &Scope) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) if Arc::ptr_eq(&one.rights, &other.rights) => true,
            _ => self.paths() == other.paths(),
        }
    }
}

impl Eq for Scope {}

impl Hash for Scope {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Sets have up to thousands of globs: a few distinguish most of them.
        let few = |paths: &PathSet| (paths.allow.len(), paths.allow.first().cloned());
        self.paths().map(few).hash(state);
    }
}

/// A visit of a walk to a node.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Visit {
    /// The revision when the node was entered.
    pub(super) since: u64,
    /// How often the walk has returned to it.
    revisits: u32,
}

impl Visit {
    /// The walk has found something at or below the node, or leaves it.
    pub(super) fn end(&mut self) {
        self.revisits = 0;
    }
}

impl Directory {
    /// The visible state of a node for a client.
    pub(super) fn visible_in(&self, scope: &Scope, node: NodeId) -> Visible {
        let visible = self.visible_at(node);
        if visible.any() && !self.is_in(scope, node) { Visible::default() } else { visible }
    }

    fn is_in(&self, scope: &Scope, node: NodeId) -> bool {
        if scope.is_everything() {
            return true;
        }
        let mut text = String::new();
        self.paths.tree.spell(node, &mut text);
        scope.contains(&text)
    }

    /// True if what is registered there concerns a path of the scope: a default concerns all paths
    /// below it.
    pub(super) fn concerns(&self, scope: &Scope, registration: Registration) -> bool {
        match registration.default && !scope.is_everything() {
            true => self.paths.path(registration.node).is_some_and(|path| scope.reaches(&path)),
            false => self.is_in(scope, registration.node),
        }
    }

    /// The next step of a walk that has found nothing at a node: below it, if there may be
    /// something of the scope.
    pub(super) fn down_in(&self, scope: &Scope, node: NodeId) -> Step {
        let tree = &self.paths.tree;
        let reached = scope.is_everything()
            || !tree.is_inner(node)
            || self.paths.path(node).is_some_and(|path| scope.reaches(&path));
        if reached { tree.down(node) } else { tree.after(node) }
    }

    /// Whether a node that was walked without finding anything has to be walked again: something
    /// visible may have appeared behind the walk, while what was visible before has gone.
    pub(super) fn must_revisit(&self, scope: &Scope, node: NodeId, visit: &mut Visit) -> bool {
        let again = if self.paths.tree.is_inner(node) {
            self.trackers.moved_since(node, visit.since)
        } else {
            self.visible_in(scope, node).any()
        };
        visit.revisits += u32::from(again);
        let again = again && (scope.is_everything() || visit.revisits <= REVISITS_MAX);
        if !again {
            visit.end();
        }
        again
    }

    /// Whether it is certain from the node alone that something is visible at or below it: to a
    /// client that sees everything, every inner node is visible if no publisher is hidden.
    pub(super) fn is_certainly_visible(&self, scope: &Scope, node: NodeId) -> bool {
        let nothing_hidden = scope.is_everything() && self.publishers.next_hidden().is_none();
        nothing_hidden && self.paths.tree.is_inner(node) || self.visible_in(scope, node).any()
    }
}

#[cfg(test)]
impl Scope {
    /// The paths that match a glob of `allow` and none of `deny`.
    pub(crate) fn of_globs(allow: &[&str], deny: &[&str]) -> Scope {
        let rule = |effect, paths: &[&str]| match paths.is_empty() {
            true => String::new(),
            false => format!(
                "[[{effect}]]\nwho = [\"anonymous\"]\ndo = [\"resolve\"]\npaths = {paths:?}\n"
            ),
        };
        let policy = rule("allow", allow) + &rule("deny", deny);
        Scope::of(&Arc::new(longshore_access::Policy::parse(&policy).unwrap().rights(None)))
    }
}
