//! `[access]`: the rules of servers, in files of their own. From the configuration file alone.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::layers::Layers;
use super::raw_value::Key;
use super::{Setting, values};

/// Settings of `longshore resolver run`, `publisher run` and `up`.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AccessSection {
    pub(crate) policy: Key<String>,
    pub(crate) tokens: Key<String>,
    pub(crate) audit: Key<String>,
}

/// `[access]`. Without a policy, every client that is admitted may do everything.
#[derive(Clone, Debug)]
pub(crate) struct AccessConfig {
    /// The policy.
    pub(crate) policy: Setting<Option<PathBuf>>,
    /// The tokens that are accepted.
    pub(crate) tokens: Setting<Option<PathBuf>>,
    /// The audit log.
    pub(crate) audit: Setting<Option<PathBuf>>,
}

impl AccessConfig {
    pub(super) fn resolve(
        layers: &Layers<'_>,
        written: AccessSection,
        home: Option<&Path>,
    ) -> AccessConfig {
        let file = |text: String| values::expand_home(&text, home).map(Some);
        AccessConfig {
            policy: layers.of_file("access.policy", written.policy, file, None),
            tokens: layers.of_file("access.tokens", written.tokens, file, None),
            audit: layers.of_file("access.audit", written.audit, file, None),
        }
    }
}
