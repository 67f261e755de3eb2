//! What a client shows: the text of a token's secret, or of a JWT.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use longshore_protocol::limits::CREDENTIAL_BYTES_MAX;
use zeroize::Zeroizing;

use crate::tokens::Secret;

/// A credential: whoever has its text is the client. Its memory is overwritten when it is dropped;
/// `Debug` does not show it.
#[derive(Clone, Debug)]
pub struct Bearer(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Token(Secret),
    Jwt(Jwt),
}

/// The text of a JWT, of which only the form is known.
#[derive(Clone)]
struct Jwt(Zeroizing<Vec<u8>>);

/// The text is no credential. The error does not repeat it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "neither the secret of a token, which is lst_ and 43 letters, digits, '-' and '_', nor a JWT, \
     which is three such texts with dots between, at most {CREDENTIAL_BYTES_MAX} bytes"
)]
pub struct NotABearer;

impl Bearer {
    /// Reads the text of a secret or of a JWT, without spaces.
    pub fn parse(text: &[u8]) -> Result<Bearer, NotABearer> {
        if let Ok(secret) = Secret::parse(text) {
            return Ok(Bearer(Kind::Token(secret)));
        }
        let parts: Vec<&[u8]> = text.splitn(4, |&byte| byte == b'.').collect();
        let is_part = |part: &&[u8]| !part.is_empty() && decoded(part).is_some();
        let is_jwt = parts.len() == 3 && parts.iter().all(is_part);
        if !is_jwt || text.len() > CREDENTIAL_BYTES_MAX {
            return Err(NotABearer);
        }
        Ok(Bearer(Kind::Jwt(Jwt(Zeroizing::new(text.to_vec())))))
    }

    /// The text, which handshakes have.
    pub fn text(&self) -> &[u8] {
        match &self.0 {
            Kind::Token(secret) => secret.text(),
            Kind::Jwt(jwt) => &jwt.0,
        }
    }

    /// Whether a credential is a JWT, and not a token's secret, which has no dot.
    pub(crate) fn is_jwt(credential: &[u8]) -> bool {
        credential.contains(&b'.')
    }
}

impl From<Secret> for Bearer {
    fn from(secret: Secret) -> Bearer {
        Bearer(Kind::Token(secret))
    }
}

impl AsRef<[u8]> for Bearer {
    fn as_ref(&self) -> &[u8] {
        self.text()
    }
}

impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Jwt(…)")
    }
}

/// The bytes of a part. There is one text for them.
pub(crate) fn decoded(part: &[u8]) -> Option<Vec<u8>> {
    BASE64URL_NOPAD.decode(part).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_is_a_secret_or_a_jwt_and_is_never_shown() {
        let secret = "lst_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
        let jwt = "eyJh.eyJz.c2ln";
        for text in [secret, jwt] {
            let bearer = Bearer::parse(text.as_bytes()).unwrap();
            assert_eq!(bearer.text(), text.as_bytes());
            assert_eq!(Bearer::is_jwt(bearer.text()), text == jwt);
            assert!(!format!("{bearer:?}").contains(&text[4..8]), "{bearer:?}");
        }
        let longest = CREDENTIAL_BYTES_MAX / 4 * 4;
        let of_length = |bytes: usize| format!("eyJh.eyJz.{}", "A".repeat(bytes - 10));
        assert!(Bearer::parse(of_length(longest - 2).as_bytes()).is_ok());
        for text in [
            "",
            "eyJh.eyJz",
            "eyJh.eyJz.",
            ".eyJz.c2ln",
            "eyJh..c2ln",
            "eyJh.eyJz.c2ln.c2ln",
            "eyJh.eyJz.c2l=",
            "eyJh.eyJz.c2ln\n",
            "eyJh.eyJz.c",
            " eyJh.eyJz.c2ln",
            &of_length(longest + 2),
        ] {
            assert_eq!(Bearer::parse(text.as_bytes()).unwrap_err(), NotABearer, "{text}");
        }
    }
}
