//! Who may do what: the rules of one file, the same at replicas and publishers.
//!
//! Without a matching rule an action is denied, and a deny beats every allow. There is no order of
//! rules, no negation, no inheritance and no condition: [`Policy::decide`] is all of it.

mod file;
mod publishers;
mod quota;
mod rights;
mod rule;
mod subject;

use std::collections::HashSet;
use std::sync::Arc;

use longshore_protocol::{Path, PathSet, PublisherId};

pub use self::file::{POLICY_BYTES_MAX, PolicyError, PolicyFault};
pub use self::publishers::Binding;
pub(crate) use self::publishers::Publishers;
pub use self::quota::{
    LinksLimit, QUOTA_BYTES_MIN, QUOTA_MESSAGES_MIN, QueueLimits, QueueQuota, Quota,
};
use self::quota::{QuotaRule, queue_quotas_of, quota_of};
pub use self::rights::{Rights, SERVER_PATH};
pub use self::rule::{Effect, Rule};
use crate::action::Action;
use crate::identity::Identity;

/// A policy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Policy {
    rules: Vec<Rule>,
    publishers: Arc<Publishers>,
    quotas: Vec<QuotaRule>,
}

/// Whether an action is allowed, and by which rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision<'a> {
    /// This rule allows it, and none denies it.
    Allowed(&'a Rule),
    /// This rule denies it.
    Denied(&'a Rule),
    /// No rule allows it.
    NoRule,
}

impl Decision<'_> {
    /// True if it is allowed.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allowed(_))
    }
}

impl Policy {
    /// Whether a client may do an action on a path, and which rule decides. `None` is a client
    /// without an identity.
    pub fn decide(&self, who: Option<&Identity>, action: Action, path: &Path) -> Decision<'_> {
        let rule = |effect| {
            self.rules.iter().find(|rule| {
                rule.effect == effect && rule.is_about(who, action) && rule.matches(who, path)
            })
        };
        match (rule(Effect::Deny), rule(Effect::Allow)) {
            (Some(rule), _) => Decision::Denied(rule),
            (None, Some(rule)) => Decision::Allowed(rule),
            (None, None) => Decision::NoRule,
        }
    }

    /// Everything that a client may do: the same answers as [`decide`](Policy::decide), prepared
    /// for many questions.
    pub fn rights(&self, who: Option<&Identity>) -> Rights {
        let paths = Action::ALL.map(|action| {
            let (mut set, mut seen) = (PathSet::default(), HashSet::new());
            for rule in self.rules.iter().filter(|rule| rule.is_about(who, action)) {
                let list = match rule.effect {
                    Effect::Allow => &mut set.allow,
                    Effect::Deny => &mut set.deny,
                };
                for glob in rule.globs(who) {
                    if seen.insert((rule.effect, glob.as_str().to_owned())) {
                        list.push(glob);
                    }
                }
            }
            set
        });
        Rights::new(paths, self.publishers.clone(), who.cloned())
    }

    /// Whether a client may register as the publisher with this id.
    pub fn binding(&self, who: Option<&Identity>, publisher: PublisherId) -> Binding {
        self.publishers.binding(who, publisher)
    }

    /// How much a client may use of each server.
    pub fn quota(&self, who: Option<&Identity>) -> Quota {
        quota_of(&self.quotas, who)
    }

    /// How much may wait on certain paths at each publisher while the client enqueues there.
    pub fn queue_quotas(&self, who: Option<&Identity>) -> Vec<QueueQuota> {
        queue_quotas_of(&self.quotas, who)
    }

    /// True if a client may have a quota of queues.
    pub(crate) fn has_queue_quotas(&self) -> bool {
        self.quotas.iter().any(|rule| !rule.paths.is_empty())
    }

    /// Whether two policies, or none, have equal quotas.
    pub(crate) fn have_same_quotas(one: Option<&Policy>, other: Option<&Policy>) -> bool {
        // A quota that has only moved is the same.
        let of = |policy: Option<&'_ Policy>| -> Vec<QuotaRule> {
            let quotas = policy.iter().flat_map(|policy| &policy.quotas).cloned();
            quotas.map(|rule| QuotaRule { line: 0, ..rule }).collect()
        };
        of(one) == of(other)
    }

    /// The identities of publishers.
    pub(crate) fn publishers(&self) -> Arc<Publishers> {
        self.publishers.clone()
    }

    /// The rules, in their order in the file.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

#[cfg(test)]
mod model_test;
