//! `[access]`: the rules of servers, in files of their own. From the configuration file alone.

use std::path::{Path, PathBuf};

use longshore_access::JwtTerms;
use serde::Deserialize;

use super::layers::Layers;
use super::raw_value::Key;
use super::{Origin, Setting, values};

/// Settings of `longshore resolver run`, `publisher run` and `up`.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AccessSection {
    pub(crate) policy: Key<String>,
    pub(crate) tokens: Key<String>,
    pub(crate) audit: Key<String>,
    pub(crate) jwt: JwtSection,
}

/// `[access.jwt]`: JWTs of an OpenID Connect provider.
#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JwtSection {
    pub(crate) issuer: Key<String>,
    pub(crate) audience: Key<String>,
    pub(crate) keys: Key<String>,
    pub(crate) identity_claim: Key<String>,
    pub(crate) groups_claim: Key<String>,
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
    /// The JWTs that are accepted.
    pub(crate) jwt: JwtConfig,
}

/// `[access.jwt]`. Issuer, audience and keys go together.
#[derive(Clone, Debug)]
pub(crate) struct JwtConfig {
    pub(crate) issuer: Setting<Option<String>>,
    pub(crate) audience: Setting<Option<String>>,
    pub(crate) keys: Setting<Option<PathBuf>>,
    pub(crate) identity_claim: Setting<String>,
    pub(crate) groups_claim: Setting<Option<String>>,
}

impl Default for JwtConfig {
    fn default() -> JwtConfig {
        JwtConfig {
            issuer: Setting::default_of(None),
            audience: Setting::default_of(None),
            keys: Setting::default_of(None),
            identity_claim: Setting::default_of("sub".to_owned()),
            groups_claim: Setting::default_of(None),
        }
    }
}

impl JwtConfig {
    /// The terms and the key file; none without them.
    pub(crate) fn terms(&self) -> Option<(JwtTerms, &Path)> {
        let terms = JwtTerms {
            issuer: self.issuer.value.clone()?,
            audience: self.audience.value.clone()?,
            identity_claim: self.identity_claim.value.clone(),
            groups_claim: self.groups_claim.value.clone(),
        };
        Some((terms, self.keys.value.as_deref()?))
    }

    /// A key that is set although another that it needs is not: its name, its origin and the other.
    pub(super) fn half(&self) -> Option<(&'static str, &Origin, &'static str)> {
        let parts = [
            ("access.jwt.issuer", &self.issuer.origin),
            ("access.jwt.audience", &self.audience.origin),
            ("access.jwt.keys", &self.keys.origin),
            ("access.jwt.identity_claim", &self.identity_claim.origin),
            ("access.jwt.groups_claim", &self.groups_claim.origin),
        ];
        let (key, origin) = parts.into_iter().find(|(_, origin)| **origin != Origin::Default)?;
        let (missing, _) = parts[..3].iter().find(|(_, origin)| **origin == Origin::Default)?;
        Some((key, origin, missing))
    }
}

impl AccessConfig {
    pub(super) fn resolve(
        layers: &Layers<'_>,
        written: AccessSection,
        home: Option<&Path>,
    ) -> AccessConfig {
        let file = |text: String| values::expand_home(&text, home).map(Some);
        let text = |text: String| match text.trim() {
            "" => Err("expected a text that is not empty".to_owned()),
            _ => Ok(text),
        };
        let some = |written: String| text(written).map(Some);
        // systemd gives each service a folder for its logs.
        let log = |written: String| {
            let folder = layers.variable("LOGS_DIRECTORY").map(Path::new).unwrap_or(Path::new(""));
            values::expand_home(&written, home).map(|file| Some(folder.join(file)))
        };
        let defaults = JwtConfig::default();
        let JwtSection { issuer, audience, keys, identity_claim, groups_claim } = written.jwt;
        AccessConfig {
            policy: layers.of_file("access.policy", written.policy, file, None),
            tokens: layers.of_file("access.tokens", written.tokens, file, None),
            audit: layers.of_file("access.audit", written.audit, log, None),
            jwt: JwtConfig {
                issuer: layers.of_file("access.jwt.issuer", issuer, some, None),
                audience: layers.of_file("access.jwt.audience", audience, some, None),
                keys: layers.of_file("access.jwt.keys", keys, file, None),
                identity_claim: layers.of_file(
                    "access.jwt.identity_claim",
                    identity_claim,
                    text,
                    defaults.identity_claim.value,
                ),
                groups_claim: layers.of_file("access.jwt.groups_claim", groups_claim, some, None),
            },
        }
    }
}
