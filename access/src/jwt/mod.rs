//! JWTs of an OpenID Connect provider: a client that shows one is `jwt:` and its subject.
//!
//! The algorithm is the key's; the header only has to agree. What a refusal says of claims, only
//! who has a JWT signed by the provider gets to read.

mod claims;
mod keys;
mod text;

use std::sync::Arc;

use longshore_protocol::limits::CREDENTIAL_BYTES_MAX;
use serde::Deserialize;
use serde::de::IgnoredAny;

use self::claims::Claims;
use self::keys::Key;
pub use self::keys::{JWK_FILE_BYTES_MAX, JWT_KEYS_MAX, JwkFault, JwkFileError, JwtKeys};
pub(crate) use self::text::decoded;
pub use self::text::{Bearer, NotABearer};
use crate::identity::{IDENTITY_BYTES_MAX, Identity, NameKind};

/// How far the provider's clock may be ahead, in milliseconds: for `nbf` and `iat`. `exp` has none.
pub const JWT_LEEWAY_MS: u64 = 60_000;

/// What a JWT has to claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JwtTerms {
    /// `iss`, exactly.
    pub issuer: String,
    /// `aud`, exactly, or one of several.
    pub audience: String,
    /// The claim that names the client: `sub`, unless the provider has a better one.
    pub identity_claim: String,
    /// The claim with the client's groups, an array of strings.
    pub groups_claim: Option<String>,
}

/// The JWTs that a server accepts: those of one issuer, for one audience.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JwtIssuer {
    terms: Arc<JwtTerms>,
    keys: JwtKeys,
}

/// A JWT whose signature and claims are verified.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedJwt {
    pub(crate) identity: Identity,
    pub(crate) proof: JwtProof,
}

/// What a link's JWT depends on.
#[derive(Clone, Debug)]
pub(crate) struct JwtProof {
    terms: Arc<JwtTerms>,
    key_id: String,
    key: Arc<Key>,
    pub(crate) end_unix_ms: u64,
}

/// Why a JWT is refused. The text is for the client.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JwtRefusal {
    /// It is not a JWT that can be read.
    #[error("the credential is {NotABearer}")]
    Malformed,
    /// Its header demands what the server does not know (`crit`).
    #[error("the JWT has critical header parameters (`crit`), and this server knows none")]
    Critical,
    /// Its header names no key.
    #[error("the JWT's header names no key; its issuer has to set `kid`")]
    NoKeyId,
    /// No key has that id, or not any more.
    #[error(
        "this server does not have the key by which the JWT is signed (`kid`); its key file may be \
         old, or the JWT of another issuer"
    )]
    UnknownKey,
    /// Its header has another algorithm than its key.
    #[error(
        "the JWT's `alg` is not that of its key; RS256, ES256 and EdDSA are accepted, each with \
         keys of its own"
    )]
    Algorithm,
    /// It was not signed with that key.
    #[error("the JWT's signature is not that of its key")]
    Signature,
    /// A claim is missing, or has another type.
    #[error("the JWT's claim `{0}` is missing, or is not {1}")]
    Claim(String, &'static str),
    /// It has expired.
    #[error("the JWT has expired")]
    Expired,
    /// Its `nbf` or `iat` is more than [`JWT_LEEWAY_MS`] ahead of the server's clock.
    #[error("the JWT's `{0}` is still to come; compare the clocks of its issuer and this server")]
    NotYet(&'static str),
    /// It has another issuer.
    #[error("the JWT's `iss` is not {0:?}, the issuer that this server trusts")]
    Issuer(String),
    /// It is for others.
    #[error("the JWT's `aud` is not {0:?}; ask its issuer for one with this audience")]
    Audience(String),
    /// Its name cannot serve as an identity.
    #[error(
        "the name in the JWT's claim `{0}` cannot serve; it has 1 to {IDENTITY_BYTES_MAX} bytes \
         and no control character"
    )]
    Name(String),
}

/// The header's parameters that count.
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

impl JwtIssuer {
    /// An issuer with these keys.
    pub fn new(terms: JwtTerms, keys: JwtKeys) -> JwtIssuer {
        JwtIssuer { terms: Arc::new(terms), keys }
    }

    /// The keys.
    pub fn keys(&self) -> &JwtKeys {
        &self.keys
    }

    /// The client that the credential names.
    pub(crate) fn verify(
        &self,
        credential: &[u8],
        now_unix_ms: u64,
    ) -> Result<VerifiedJwt, JwtRefusal> {
        if credential.len() > CREDENTIAL_BYTES_MAX {
            return Err(JwtRefusal::Malformed);
        }
        let (signed, signature) = split_last(credential)?;
        let (header, claims) = split_last(signed)?;
        let header = decoded(header).ok_or(JwtRefusal::Malformed)?;
        let header: Header = serde_json::from_slice(&header).map_err(|_| JwtRefusal::Malformed)?;
        if header.crit.is_some() {
            return Err(JwtRefusal::Critical);
        }
        let key_id = header.kid.ok_or(JwtRefusal::NoKeyId)?;
        let key = self.keys.get(&key_id).ok_or(JwtRefusal::UnknownKey)?.clone();
        if !key.has_algorithm(&header.alg) {
            return Err(JwtRefusal::Algorithm);
        }
        let signature = decoded(signature).ok_or(JwtRefusal::Malformed)?;
        if !key.has_signed(signed, &signature) {
            return Err(JwtRefusal::Signature);
        }
        let claims = decoded(claims).ok_or(JwtRefusal::Malformed)?;
        let claims = Claims::parse(&claims).ok_or(JwtRefusal::Malformed)?;
        let end_unix_ms = claims.check(&self.terms, now_unix_ms)?;
        let name = claims.name(&self.terms.identity_claim)?;
        let groups = match &self.terms.groups_claim {
            Some(claim) => claims.groups(claim)?,
            None => Arc::default(),
        };
        let identity = Identity { groups, ..Identity::new(NameKind::Jwt, name) };
        let proof = JwtProof { terms: self.terms.clone(), key_id, key, end_unix_ms };
        Ok(VerifiedJwt { identity, proof })
    }

    /// Whether a JWT that was verified before would still be.
    pub(crate) fn recheck(&self, proof: &JwtProof, now_unix_ms: u64) -> Result<(), JwtRefusal> {
        let JwtProof { terms, key_id, key, end_unix_ms } = proof;
        if now_unix_ms >= *end_unix_ms {
            return Err(JwtRefusal::Expired);
        }
        match self.keys.get(key_id) {
            Some(now) if now == key && self.terms == *terms => Ok(()),
            _ => Err(JwtRefusal::UnknownKey),
        }
    }
}

/// What stands before the last dot, and what after it.
fn split_last(text: &[u8]) -> Result<(&[u8], &[u8]), JwtRefusal> {
    let dot = text.iter().rposition(|&byte| byte == b'.').ok_or(JwtRefusal::Malformed)?;
    Ok((&text[..dot], &text[dot + 1..]))
}

#[cfg(test)]
mod tests;
