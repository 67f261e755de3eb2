//! A token's secret: its text, and the hash that servers store.

use std::fmt;
use std::str::FromStr;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize as _, Zeroizing};

/// The random bytes of a secret: 256 bits, so that no secret can be guessed, and a plain hash
/// protects it. Passwords need salt and a slow hash; these do not.
pub const SECRET_RANDOM_BYTES: usize = 32;
/// The length of a secret's text.
pub const SECRET_TEXT_BYTES: usize = PREFIX.len() + 43;

/// How each secret begins: people and scanners of repositories recognise it.
pub(super) const PREFIX: &str = "lst_";

/// The secret of a token: `lst_` and 43 characters, its random bytes in base64url without padding.
/// The memory is overwritten when it is dropped; `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; SECRET_TEXT_BYTES]>);

/// The text is not a secret. The error does not repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the secret of a token, which is lst_ and 43 letters, digits, '-' and '_'")]
pub struct NotASecret;

impl Secret {
    /// The secret of these bytes, which have to come from a cryptographic random number generator.
    /// They are overwritten.
    pub fn from_random(bytes: &mut [u8; SECRET_RANDOM_BYTES]) -> Secret {
        let mut text = Zeroizing::new([0; SECRET_TEXT_BYTES]);
        let (prefix, encoded) = text.split_at_mut(PREFIX.len());
        prefix.copy_from_slice(PREFIX.as_bytes());
        BASE64URL_NOPAD.encode_mut(bytes, encoded);
        bytes.zeroize();
        Secret(text)
    }

    /// Reads the text of a secret. There is one text for each secret: neither spaces nor padding,
    /// nor bits that do not count.
    pub fn parse(text: &[u8]) -> Result<Secret, NotASecret> {
        let text =
            Zeroizing::new(<[u8; SECRET_TEXT_BYTES]>::try_from(text).map_err(|_| NotASecret)?);
        let encoded = text.strip_prefix(PREFIX.as_bytes()).ok_or(NotASecret)?;
        let mut bytes = Zeroizing::new([0; SECRET_RANDOM_BYTES]);
        BASE64URL_NOPAD.decode_mut(encoded, bytes.as_mut()).map_err(|_| NotASecret)?;
        Ok(Secret(text))
    }

    /// The text: show it once to the operator who creates the token, and put it into handshakes.
    pub fn text(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// What servers store of it.
    pub fn hash(&self) -> SecretHash {
        SecretHash(Sha256::digest(self.0.as_slice()).into())
    }
}

impl AsRef<[u8]> for Secret {
    fn as_ref(&self) -> &[u8] {
        self.text()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(lst_…)")
    }
}

/// The SHA-256 of a secret's text. Not a secret: no secret of 256 bits is found by its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SecretHash([u8; 32]);

/// The text is not the hash of a secret. The error does not repeat it: it may be a secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a hash, which is sha256: and 64 digits from 0 to f; a secret itself is never stored")]
pub struct NotAHash;

impl SecretHash {
    /// The first eight bytes, by which a table finds it.
    pub(super) fn prefix(&self) -> u64 {
        self.0.first_chunk().copied().map_or(0, u64::from_be_bytes)
    }

    /// Whether both are the same, in a time that does not depend on their bytes.
    pub(crate) fn is(&self, other: &SecretHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", HEXLOWER.encode(&self.0))
    }
}

impl FromStr for SecretHash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<SecretHash, NotAHash> {
        let digits = text.strip_prefix("sha256:").ok_or(NotAHash)?;
        let bytes = HEXLOWER.decode(digits.as_bytes()).map_err(|_| NotAHash)?;
        bytes.try_into().map(SecretHash).map_err(|_| NotAHash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_one_text_and_is_never_shown() {
        let mut bytes = std::array::from_fn(|at| at as u8);
        let secret = Secret::from_random(&mut bytes);
        assert_eq!(bytes, [0; 32], "the random bytes stay in memory");
        let text = b"lst_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        assert_eq!(secret.text(), text);
        assert_eq!(format!("{secret:?}"), "Secret(lst_…)");
        assert_eq!(Secret::parse(text).unwrap().hash(), secret.hash());
        let last = |byte: u8| [&text[..text.len() - 1], &[byte]].concat();
        for damaged in [
            b"".to_vec(),
            text[..text.len() - 1].to_vec(),
            [text, b"\n".as_slice()].concat(),
            [b"LST_".as_slice(), &text[4..]].concat(),
            last(b'='),
            last(b'+'),
            // The same bytes, with bits in the last character that belong to no byte.
            last(b'9'),
        ] {
            assert_eq!(Secret::parse(&damaged).unwrap_err(), NotASecret, "{damaged:?}");
        }
    }

    #[test]
    fn a_hash_has_one_text() {
        let hash = Secret::from_random(&mut [7; 32]).hash();
        let text = hash.to_string();
        assert_eq!(text.parse(), Ok(hash));
        for damaged in [
            text.to_uppercase(),
            text.replace("sha256:", "sha1:"),
            text[..text.len() - 2].to_owned(),
            format!("{text}00"),
            format!("sha256:{}", "g".repeat(64)),
            "lst_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8".to_owned(),
        ] {
            let error = damaged.parse::<SecretHash>().unwrap_err().to_string();
            assert!(!error.contains("lst_"), "{error}");
        }
    }
}
