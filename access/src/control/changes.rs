//! What changes of rules were, for logs.

use std::fmt;

use tokio::sync::broadcast;

use super::Rules;
use crate::jwt::JwtKeys;
use crate::policy::{Policy, Rule};
use crate::tokens::Tokens;

/// Receives what each change of rules was.
#[derive(Debug)]
pub struct RuleChangeFeed(pub(super) broadcast::Receiver<RuleChanges>);

impl RuleChangeFeed {
    /// The next change; an error with the number of changes that are no longer known, as the reader
    /// was too slow. Pending for ever once no server has the rules. Cancel safe.
    pub async fn next(&mut self) -> Result<RuleChanges, u64> {
        match self.0.recv().await {
            Ok(changes) => Ok(changes),
            Err(broadcast::error::RecvError::Lagged(missed)) => Err(missed),
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// What a reload changed, for the log.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleChanges {
    /// Rules that were not there before.
    pub rules_added: usize,
    /// Rules that are gone.
    pub rules_removed: usize,
    /// The identities of publishers have changed.
    pub publishers_changed: bool,
    /// Quotas have changed.
    pub quotas_changed: bool,
    /// The names of new tokens.
    pub tokens_added: Vec<String>,
    /// The names of tokens with a new secret or another end.
    pub tokens_changed: Vec<String>,
    /// The names of revoked tokens.
    pub tokens_removed: Vec<String>,
    /// The ids of new keys of JWTs.
    pub keys_added: Vec<String>,
    /// The ids of keys of JWTs that are gone.
    pub keys_removed: Vec<String>,
}

impl RuleChanges {
    pub(super) fn between(before: &Rules, after: &Rules) -> RuleChanges {
        let rules = |of: &Rules| -> Vec<Rule> {
            let rules = of.policy.iter().flat_map(|policy| policy.rules().iter());
            // A rule that has only moved is the same.
            rules
                .cloned()
                .map(|mut rule| {
                    rule.line = 0;
                    rule
                })
                .collect()
        };
        let missing =
            |of: &[Rule], from: &[Rule]| of.iter().filter(|rule| !from.contains(rule)).count();
        let (rules_before, rules_after) = (rules(before), rules(after));
        let tokens = |of: &Rules| of.tokens.clone().unwrap_or_default();
        let (tokens_before, tokens_after) = (tokens(before), tokens(after));
        let names = |of: &Tokens, differs: &dyn Fn(&str) -> bool| -> Vec<String> {
            of.iter().filter(|token| differs(&token.name)).map(|token| token.name.clone()).collect()
        };
        let keys = |of: &'_ Rules| of.jwt.as_ref().map(|jwt| jwt.keys().clone());
        let (keys_before, keys_after) = (keys(before), keys(after));
        let missing_keys = |of: &Option<JwtKeys>, from: &Option<JwtKeys>| {
            of.as_ref().map(|keys| keys.missing_in(from.as_ref())).unwrap_or_default()
        };
        let bound = |of: &Rules| of.policy.as_ref().map(Policy::publishers).unwrap_or_default();
        RuleChanges {
            rules_added: missing(&rules_after, &rules_before),
            rules_removed: missing(&rules_before, &rules_after),
            publishers_changed: bound(before) != bound(after),
            quotas_changed: !Policy::have_same_quotas(
                before.policy.as_ref(),
                after.policy.as_ref(),
            ),
            tokens_added: names(&tokens_after, &|name| tokens_before.get(name).is_none()),
            tokens_changed: names(&tokens_after, &|name| {
                tokens_before.get(name).is_some_and(|before| Some(before) != tokens_after.get(name))
            }),
            tokens_removed: names(&tokens_before, &|name| tokens_after.get(name).is_none()),
            keys_added: missing_keys(&keys_after, &keys_before),
            keys_removed: missing_keys(&keys_before, &keys_after),
        }
    }

    /// True if nothing has changed.
    pub fn is_empty(&self) -> bool {
        *self == RuleChanges::default()
    }
}

impl fmt::Display for RuleChanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules added, {} removed", self.rules_added, self.rules_removed)?;
        if self.publishers_changed {
            write!(f, "; publishers changed")?;
        }
        if self.quotas_changed {
            write!(f, "; quotas changed")?;
        }
        for (what, names) in [
            ("tokens added", &self.tokens_added),
            ("tokens changed", &self.tokens_changed),
            ("tokens revoked", &self.tokens_removed),
            ("JWT keys added", &self.keys_added),
            ("JWT keys removed", &self.keys_removed),
        ] {
            if !names.is_empty() {
                write!(f, "; {what}: {}", names.join(", "))?;
            }
        }
        Ok(())
    }
}
