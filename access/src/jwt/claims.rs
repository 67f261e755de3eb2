//! The claims of a JWT.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{JWT_LEEWAY_MS, JwtRefusal, JwtTerms};
use crate::identity::IDENTITY_BYTES_MAX;

/// Claims; their signature is verified before they are parsed.
pub(super) struct Claims(Map<String, Value>);

impl Claims {
    pub(super) fn parse(json: &[u8]) -> Option<Claims> {
        serde_json::from_slice(json).ok().map(Claims)
    }

    /// Checks issuer, audience and times; returns its expiry, in milliseconds since 1970.
    pub(super) fn check(&self, terms: &JwtTerms, now_unix_ms: u64) -> Result<u64, JwtRefusal> {
        let JwtTerms { issuer, audience, .. } = terms;
        if self.0.get("iss").and_then(Value::as_str) != Some(issuer) {
            return Err(JwtRefusal::Issuer(issuer.clone()));
        }
        let is_audience = |value: &Value| value.as_str() == Some(audience);
        let is_for_us = match self.0.get("aud") {
            Some(Value::Array(several)) => several.iter().any(is_audience),
            one => one.is_some_and(is_audience),
        };
        if !is_for_us {
            return Err(JwtRefusal::Audience(audience.clone()));
        }
        for claim in ["nbf", "iat"] {
            let begins = self.time(claim)?.unwrap_or(0);
            if begins > now_unix_ms.saturating_add(JWT_LEEWAY_MS) {
                return Err(JwtRefusal::NotYet(claim));
            }
        }
        let end = self.time("exp")?;
        let end = end.ok_or_else(|| JwtRefusal::Claim("exp".to_owned(), TIME))?;
        if now_unix_ms >= end { Err(JwtRefusal::Expired) } else { Ok(end) }
    }

    /// The name of the client.
    pub(super) fn name(&self, claim: &str) -> Result<&str, JwtRefusal> {
        let name = self.0.get(claim).and_then(Value::as_str);
        let name = name.ok_or_else(|| JwtRefusal::Claim(claim.to_owned(), "a string"))?;
        let fits = (1..=IDENTITY_BYTES_MAX).contains(&name.len());
        if !fits || name.chars().any(char::is_control) {
            return Err(JwtRefusal::Name(claim.to_owned()));
        }
        Ok(name)
    }

    /// The groups of the client, sorted; none without the claim. Anything but an array of strings
    /// is refused: without its groups, a client would pass a rule that denies them.
    pub(super) fn groups(&self, claim: &str) -> Result<Arc<[String]>, JwtRefusal> {
        let Some(list) = self.0.get(claim) else { return Ok(Arc::default()) };
        let texts = list.as_array().and_then(|list| {
            list.iter().map(|group| group.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        let refused = || JwtRefusal::Claim(claim.to_owned(), "an array of strings");
        let mut texts = texts.ok_or_else(refused)?;
        texts.sort_unstable();
        texts.dedup();
        Ok(texts.into())
    }

    /// A time in milliseconds since 1970.
    fn time(&self, claim: &str) -> Result<Option<u64>, JwtRefusal> {
        let Some(value) = self.0.get(claim) else { return Ok(None) };
        let seconds = value.as_f64().filter(|seconds| seconds.is_finite());
        let seconds = seconds.ok_or_else(|| JwtRefusal::Claim(claim.to_owned(), TIME))?;
        // The conversion saturates: what is before 1970 is 0.
        Ok(Some((seconds * 1_000.0) as u64))
    }
}

const TIME: &str = "a time in seconds since 1970";
