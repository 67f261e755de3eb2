//! Bearer tokens: a client that presents the secret of a token is `token:` and its name.

mod secret;
mod timestamp;
mod token_file;

use std::collections::{BTreeMap, HashMap};

pub use secret::{
    NotAHash, NotASecret, SECRET_RANDOM_BYTES, SECRET_TEXT_BYTES, Secret, SecretHash,
};
pub use timestamp::TIME_UNIX_MS_MAX;
pub(crate) use timestamp::Timestamp;
pub use token_file::{
    TOKEN_FILE_BYTES_MAX, TOKEN_NAME_BYTES_MAX, TOKENS_MAX, Token, TokenFault, TokenFileError,
};

/// The tokens that a server accepts; at most [`TOKENS_MAX`]. A revoked token is one that is no
/// longer here. The default has none.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Tokens {
    /// By the first eight bytes of their hashes. Collisions are rare.
    by_prefix: HashMap<u64, Vec<Token>>,
    /// The first eight bytes of each token's hash, by its name.
    names: BTreeMap<String, u64>,
}

/// A token whose secret a client has presented.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerifiedToken {
    /// Its name.
    pub name: String,
    /// Its expiry in milliseconds since 1970; none if it never expires.
    pub expires_unix_ms: Option<u64>,
}

/// Why a client's credential is refused. The text is for the client, and names no token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenRefusal {
    /// It is not the text of a secret.
    #[error("the credential is {NotASecret}")]
    Malformed,
    /// No token has this secret, or not any more.
    #[error("the token is unknown or was revoked")]
    Unknown,
    /// The token has expired. Sent only to a client that presented its secret.
    #[error("the token has expired")]
    Expired {
        /// Its name.
        name: String,
    },
}

impl Tokens {
    /// Reads a token file.
    pub fn parse(text: &str) -> Result<Tokens, TokenFileError> {
        token_file::parse(text)
    }

    /// The text of a token file, which [`parse`](Tokens::parse) reads; sorted by name.
    pub fn to_text(&self) -> String {
        token_file::text_of(self)
    }

    /// Returns the token whose secret was presented.
    ///
    /// Only one comparison takes a time that depends on stored hashes: the lookup by the first
    /// eight bytes of the presented secret's hash. It reveals at most whether some token's hash
    /// begins with these; a hash is no secret, and does not help to find one of 256 random bits.
    /// The comparison of the whole hash takes constant time.
    pub fn verify(
        &self,
        credential: &[u8],
        now_unix_ms: u64,
    ) -> Result<VerifiedToken, TokenRefusal> {
        let secret = Secret::parse(credential).map_err(|NotASecret| TokenRefusal::Malformed)?;
        let token = self.find(&secret.hash()).ok_or(TokenRefusal::Unknown)?;
        let Token { name, expires_unix_ms, .. } = token.clone();
        match expires_unix_ms {
            Some(expires) if now_unix_ms >= expires => Err(TokenRefusal::Expired { name }),
            _ => Ok(VerifiedToken { name, expires_unix_ms }),
        }
    }

    fn find(&self, hash: &SecretHash) -> Option<&Token> {
        self.by_prefix.get(&hash.prefix())?.iter().find(|token| token.hash.is(hash))
    }

    /// The token of a name.
    pub fn get(&self, name: &str) -> Option<&Token> {
        let prefix = self.names.get(name)?;
        self.by_prefix.get(prefix)?.iter().find(|token| token.name == name)
    }

    /// All tokens, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Token> {
        self.names.keys().filter_map(|name| self.get(name))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Adds a token; refused if its name or its secret is in use.
    pub fn add(&mut self, token: Token) -> Result<(), TokenFault> {
        let Token { name, hash, created_unix_ms, expires_unix_ms } = &token;
        token_file::check_name(name)?;
        if self.names.contains_key(name) {
            return Err(TokenFault::NameTaken(name.clone()));
        }
        if let Some(other) = self.find(hash) {
            let (name, other) = (name.clone(), other.name.clone());
            return Err(TokenFault::HashTaken { name, other });
        }
        for (key, time) in [("created", Some(*created_unix_ms)), ("expires", *expires_unix_ms)] {
            if time.is_some_and(|time| time > TIME_UNIX_MS_MAX) {
                return Err(TokenFault::Time { name: name.clone(), key });
            }
        }
        if self.len() == TOKENS_MAX {
            return Err(TokenFault::TooMany);
        }
        let prefix = hash.prefix();
        self.names.insert(name.clone(), prefix);
        self.by_prefix.entry(prefix).or_default().push(token);
        Ok(())
    }

    /// Removes a token; false if there is none of this name.
    pub fn remove(&mut self, name: &str) -> bool {
        let Some(prefix) = self.names.remove(name) else { return false };
        if let Some(tokens) = self.by_prefix.get_mut(&prefix) {
            tokens.retain(|token| token.name != name);
            if tokens.is_empty() {
                self.by_prefix.remove(&prefix);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EXPIRES: u64 = 1_000;

    /// Two tokens, of which the second expires; and their secrets.
    fn two() -> (Tokens, [Secret; 2]) {
        let secrets = [1, 2].map(|byte| Secret::from_random(&mut [byte; SECRET_RANDOM_BYTES]));
        let mut tokens = Tokens::default();
        for (secret, expires_unix_ms) in secrets.iter().zip([None, Some(EXPIRES)]) {
            let name = if expires_unix_ms.is_none() { "lasting" } else { "expiring" };
            let (name, hash) = (name.to_owned(), secret.hash());
            tokens.add(Token { name, hash, created_unix_ms: 0, expires_unix_ms }).unwrap();
        }
        (tokens, secrets)
    }

    #[test]
    fn a_token_is_verified_until_it_expires_or_is_revoked() {
        let (mut tokens, [lasting, expiring]) = two();
        let name_at = |tokens: &Tokens, secret: &Secret, now| {
            tokens.verify(secret.text(), now).map(|token| (token.name, token.expires_unix_ms))
        };
        let expected = Ok(("lasting".to_owned(), None));
        assert_eq!(name_at(&tokens, &lasting, u64::MAX), expected);
        let expected = Ok(("expiring".to_owned(), Some(EXPIRES)));
        assert_eq!(name_at(&tokens, &expiring, EXPIRES - 1), expected);
        let expired = Err(TokenRefusal::Expired { name: "expiring".to_owned() });
        assert_eq!(name_at(&tokens, &expiring, EXPIRES), expired);
        assert!(tokens.remove("lasting") && !tokens.remove("lasting"));
        assert_eq!(name_at(&tokens, &lasting, 0), Err(TokenRefusal::Unknown));
        assert_eq!(
            tokens.iter().map(|token| token.name.as_str()).collect::<Vec<_>>(),
            ["expiring"]
        );
        let (one, other) = (two().1[0].hash(), two().1[1].hash());
        assert!(one.is(&one) && !one.is(&other));
    }

    #[test]
    fn tokens_whose_hashes_begin_alike_are_told_apart() {
        let (mut tokens, [secret, _]) = two();
        let alike: SecretHash =
            (secret.hash().to_string()[..7 + 16].to_owned() + &"0".repeat(48)).parse().unwrap();
        let name = "alike".to_owned();
        tokens.add(Token { name, hash: alike, created_unix_ms: 0, expires_unix_ms: None }).unwrap();
        assert_eq!(tokens.verify(secret.text(), 0).unwrap().name, "lasting");
        assert!(tokens.remove("lasting"));
        assert_eq!(tokens.verify(secret.text(), 0), Err(TokenRefusal::Unknown));
        assert_eq!(tokens.get("alike").map(|token| token.hash), Some(alike));
    }

    #[test]
    fn a_refused_client_gets_no_names() {
        let (tokens, [_, expiring]) = two();
        let malformed = tokens.verify(b"expiring", 0).unwrap_err();
        let unknown = Secret::from_random(&mut [3; SECRET_RANDOM_BYTES]);
        let unknown = tokens.verify(unknown.text(), 0).unwrap_err();
        let expired = tokens.verify(expiring.text(), EXPIRES).unwrap_err();
        for (refusal, text) in [
            (malformed, "the credential is not the secret of a token"),
            (unknown, "the token is unknown or was revoked"),
            (expired, "the token has expired"),
        ] {
            assert!(refusal.to_string().starts_with(text), "{refusal}");
            assert!(!refusal.to_string().contains("expiring"), "{refusal}");
        }
    }

    proptest! {
        #[test]
        fn no_other_secret_is_verified(mut bytes in any::<[u8; SECRET_RANDOM_BYTES]>()) {
            let (tokens, secrets) = two();
            let secret = Secret::from_random(&mut bytes);
            if secrets.iter().all(|known| known.text() != secret.text()) {
                prop_assert_eq!(tokens.verify(secret.text(), 0), Err(TokenRefusal::Unknown));
            }
        }

        #[test]
        fn tokens_survive_their_file(
            entries in prop::collection::btree_map(
                "[a-zA-Z0-9._-]{1,64}",
                (any::<[u8; SECRET_RANDOM_BYTES]>(), 0..=TIME_UNIX_MS_MAX,
                    prop::option::of(0..=TIME_UNIX_MS_MAX)),
                0..20,
            )
        ) {
            let mut tokens = Tokens::default();
            for (name, (mut bytes, created_unix_ms, expires_unix_ms)) in entries {
                let hash = Secret::from_random(&mut bytes).hash();
                tokens.add(Token { name, hash, created_unix_ms, expires_unix_ms }).unwrap();
            }
            prop_assert_eq!(Tokens::parse(&tokens.to_text()), Ok(tokens));
        }
    }

    #[test]
    fn no_flipped_bit_is_verified() {
        let (tokens, [secret, _]) = two();
        for bit in 0..SECRET_TEXT_BYTES * 8 {
            let mut text = secret.text().to_vec();
            text[bit / 8] ^= 1 << (bit % 8);
            let refused = tokens.verify(&text, 0).unwrap_err();
            assert!(matches!(refused, TokenRefusal::Malformed | TokenRefusal::Unknown), "{bit}");
        }
    }
}
