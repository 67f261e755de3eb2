//! The public keys of an issuer: a JSON Web Key Set (RFC 7517), as providers publish it.

use std::collections::BTreeMap;
use std::sync::Arc;

use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::decoded;

/// The longest key file, in bytes.
pub const JWK_FILE_BYTES_MAX: usize = 64 * 1024;
/// Most keys of a file.
pub const JWT_KEYS_MAX: usize = 64;
/// The modulus of an RSA key, in bytes. A longer one would let strangers cost more time.
const RSA_BYTES_MIN: usize = 256;
const RSA_BYTES_MAX: usize = 512;

/// The keys by which JWTs may be signed, by their ids. At least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JwtKeys(BTreeMap<String, Arc<Key>>);

/// A public key, which has one algorithm.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Key {
    /// RS256: modulus and exponent.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// ES256: the uncompressed point.
    P256(Vec<u8>),
    /// EdDSA.
    Ed25519(Vec<u8>),
}

/// Why a key file is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{fault}", .key.map(|key| format!("key {key}: ")).unwrap_or_default())]
pub struct JwkFileError {
    /// The key's place in the list, from 1; none for the file as a whole.
    pub key: Option<usize>,
    /// What is wrong there.
    pub fault: JwkFault,
}

/// What is wrong with a key file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JwkFault {
    /// It is too long: this many bytes.
    #[error("a key file has at most {JWK_FILE_BYTES_MAX} bytes, this one {0}")]
    TooLong(usize),
    /// It is not a JSON Web Key Set.
    #[error("not a JSON Web Key Set, as the provider's `jwks_uri` has it: {0}")]
    Json(String),
    /// It has too many keys: this many.
    #[error("a file has at most {JWT_KEYS_MAX} keys, this one {0}")]
    TooMany(usize),
    /// It has no key that is used.
    #[error("no key of the file is for signatures by RS256, ES256 (P-256) or EdDSA (Ed25519)")]
    NoKey,
    /// The key has no id.
    #[error("it has no `kid`, by which JWTs name it")]
    NoId,
    /// Another key has the id.
    #[error("another key has the `kid` {0:?}")]
    IdTaken(String),
    /// It has a private part.
    #[error("it has a private part (`d`); a server needs the public keys only")]
    Private,
    /// A member is missing, or has another length.
    #[error("`{0}` is not {1}")]
    Member(&'static str, &'static str),
}

#[derive(Deserialize)]
struct File {
    keys: Vec<Jwk>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    d: Option<IgnoredAny>,
}

impl JwtKeys {
    /// Reads a key file. Keys for other uses or algorithms are left out, as providers have them,
    /// too.
    pub fn parse(text: &str) -> Result<JwtKeys, JwkFileError> {
        let whole = |fault| JwkFileError { key: None, fault };
        if text.len() > JWK_FILE_BYTES_MAX {
            return Err(whole(JwkFault::TooLong(text.len())));
        }
        let file: File =
            serde_json::from_str(text).map_err(|error| whole(JwkFault::Json(error.to_string())))?;
        if file.keys.len() > JWT_KEYS_MAX {
            return Err(whole(JwkFault::TooMany(file.keys.len())));
        }
        let mut keys = BTreeMap::new();
        for (at, jwk) in file.keys.into_iter().enumerate() {
            let failed = |fault| JwkFileError { key: Some(at + 1), fault };
            let Some(key) = jwk.key().map_err(failed)? else { continue };
            let id = jwk.kid.ok_or_else(|| failed(JwkFault::NoId))?;
            if keys.contains_key(&id) {
                return Err(failed(JwkFault::IdTaken(id)));
            }
            keys.insert(id, Arc::new(key));
        }
        if keys.is_empty() { Err(whole(JwkFault::NoKey)) } else { Ok(JwtKeys(keys)) }
    }

    pub(super) fn get(&self, id: &str) -> Option<&Arc<Key>> {
        self.0.get(id)
    }

    /// The ids of keys that `other` does not have, or has with another key.
    pub(crate) fn missing_in(&self, other: Option<&JwtKeys>) -> Vec<String> {
        let has = |id: &str, key| other.and_then(|other| other.get(id)) == Some(key);
        self.0.iter().filter(|(id, key)| !has(id, key)).map(|(id, _)| id.clone()).collect()
    }
}

impl Jwk {
    /// The key; none if it is for something else.
    fn key(&self) -> Result<Option<Key>, JwkFault> {
        if self.usage.as_deref().is_some_and(|usage| usage != "sig") {
            return Ok(None);
        }
        let key = match (self.kty.as_str(), self.crv.as_deref(), self.alg.as_deref()) {
            ("RSA", _, None | Some("RS256")) => {
                let n = member("n", &self.n, RSA_BYTES_MIN..=RSA_BYTES_MAX, "2,048 to 4,096 bits")?;
                Key::Rsa { n, e: member("e", &self.e, 1..=4, "1 to 4 bytes")? }
            }
            ("EC", Some("P-256"), None | Some("ES256")) => {
                let x = member("x", &self.x, 32..=32, "32 bytes")?;
                Key::P256([vec![4], x, member("y", &self.y, 32..=32, "32 bytes")?].concat())
            }
            ("OKP", Some("Ed25519"), None | Some("EdDSA" | "Ed25519")) => {
                Key::Ed25519(member("x", &self.x, 32..=32, "32 bytes")?)
            }
            _ => return Ok(None),
        };
        if self.d.is_some() { Err(JwkFault::Private) } else { Ok(Some(key)) }
    }
}

fn member(
    name: &'static str,
    text: &Option<String>,
    bytes: std::ops::RangeInclusive<usize>,
    is: &'static str,
) -> Result<Vec<u8>, JwkFault> {
    let read = text.as_ref().and_then(|text| decoded(text.as_bytes()));
    let fits = read.filter(|read| bytes.contains(&read.len()));
    fits.ok_or(JwkFault::Member(name, is))
}

impl Key {
    /// Whether a header may name the algorithm.
    pub(super) fn has_algorithm(&self, name: &str) -> bool {
        match self {
            Key::Rsa { .. } => name == "RS256",
            Key::P256(_) => name == "ES256",
            // RFC 9864 names it anew.
            Key::Ed25519(_) => name == "EdDSA" || name == "Ed25519",
        }
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        let verified = match self {
            Key::Rsa { n, e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            Key::P256(point) => {
                UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point).verify(message, signature)
            }
            Key::Ed25519(x) => UnparsedPublicKey::new(&ED25519, x).verify(message, signature),
        };
        verified.is_ok()
    }
}
