//! One rule of a policy.

use longshore_protocol::{Glob, Path};

use super::rights::SERVER_PATH;
use super::subject::Subject;
use crate::action::Action;
use crate::identity::Identity;

/// What stands for the name of the client's identity in a path.
pub(super) const USER: &str = "${user}";

/// A name that is no part of a server's path.
const OTHER_USER: &str = "-";

/// Whether a rule allows or denies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// `[[allow]]`
    Allow,
    /// `[[deny]]`
    Deny,
}

/// A rule: an effect on some clients, actions and paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// Whether it allows or denies.
    pub effect: Effect,
    /// The line of the policy at which it begins, from 1.
    pub line: usize,
    pub(super) who: Vec<Subject>,
    pub(super) actions: Vec<Action>,
    pub(super) paths: Vec<PathPattern>,
}

/// The paths of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PathPattern {
    /// The same for every client.
    Fixed(Glob),
    /// A text with `${user}`, valid for at least one name.
    PerUser(String),
}

impl Rule {
    /// True if the rule is about this client and action.
    pub(super) fn is_about(&self, who: Option<&Identity>, action: Action) -> bool {
        self.actions.contains(&action) && self.who.iter().any(|subject| subject.matches(who))
    }

    /// Its paths for this client.
    pub(super) fn globs(&self, who: Option<&Identity>) -> impl Iterator<Item = Glob> {
        globs(&self.paths, who, self.effect)
    }

    /// True if one of its paths for this client matches.
    pub(super) fn matches(&self, who: Option<&Identity>, path: &Path) -> bool {
        self.globs(who).any(|glob| glob.matches(path))
    }
}

/// The paths of these patterns for a client.
pub(super) fn globs(
    paths: &[PathPattern],
    who: Option<&Identity>,
    effect: Effect,
) -> impl Iterator<Item = Glob> {
    paths.iter().filter_map(move |pattern| match pattern {
        PathPattern::Fixed(glob) => Some(glob.clone()),
        PathPattern::PerUser(text) => per_user(text, who, effect),
    })
}

/// A path with the client's name for `${user}`. A name that is no segment of a path, such as one
/// with a slash or a wildcard, is allowed nothing by it, and denied what any name would be.
fn per_user(text: &str, who: Option<&Identity>, effect: Effect) -> Option<Glob> {
    let is_plain = |name: &&str| !name.contains(['/', '*', '?', '{', '}', '[', ']', ',']);
    let name = who.map(|who| who.name.as_str()).filter(is_plain);
    let own = name.and_then(|name| Glob::new(&text.replace(USER, name)).ok());
    match effect {
        Effect::Allow => own.filter(|own| !is_for_its_name_at_servers(own, text)),
        Effect::Deny => own.or_else(|| Glob::new(&text.replace(USER, "*")).ok()),
    }
}

/// True if a client has a right at the servers by this glob only because of its name, as one that
/// is named `sys` by a rule for all users. What the glob matches below them for other names, too,
/// may hide more that it matches for this one: that is for reading only.
fn is_for_its_name_at_servers(own: &Glob, text: &str) -> bool {
    let Ok(server) = Path::new(SERVER_PATH) else { return true };
    let Ok(others) = Glob::new(&text.replace(USER, OTHER_USER)) else { return true };
    let only_own = |at_servers: &dyn Fn(&Glob) -> bool| at_servers(own) && !at_servers(&others);
    only_own(&|glob| glob.matches(&server))
        || only_own(&|glob| glob.could_match_at_or_below(&server))
}
