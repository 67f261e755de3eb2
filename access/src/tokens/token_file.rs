//! The file of a server's tokens.
//!
//! ```toml
//! [[token]]
//! name = "shop"
//! hash = "sha256:…"
//! created = 2026-11-25T01:40:00Z
//! expires = 2027-02-23T01:40:00Z
//! ```

use std::fmt::Write as _;

use serde::Deserialize;
use toml::{Spanned, Value};

use super::Tokens;
use super::secret::{NotAHash, PREFIX, SecretHash};
use super::timestamp::Timestamp;

/// The longest token file, in bytes. As many tokens as it may have fit, with names of any length.
pub const TOKEN_FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most tokens of a file.
pub const TOKENS_MAX: usize = 10_000;
/// The longest name of a token, in bytes.
pub const TOKEN_NAME_BYTES_MAX: usize = 64;

/// How the program begins a file.
const HEADER: &str = "\
# The tokens of clients. longshore token create, ls and revoke maintain this file, and write it
# without comments. It has no secrets, only their hashes.
";

/// A token as the file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// Its name: the identity of the clients that have its secret.
    pub name: String,
    /// The hash of its secret.
    pub hash: SecretHash,
    /// When it was created, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// From when on it is refused, in milliseconds since 1970; none: never.
    pub expires_unix_ms: Option<u64>,
}

/// Why a token file is refused. It never repeats a value in which a secret may stand.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct TokenFileError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub fault: TokenFault,
}

/// What is wrong with a token or its file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenFault {
    /// It is longer than [`TOKEN_FILE_BYTES_MAX`].
    #[error(
        "a token file has at most {TOKEN_FILE_BYTES_MAX} bytes, this one {0}: revoke tokens that \
         nothing uses"
    )]
    FileTooLong(usize),
    /// It is not TOML, or has other keys.
    #[error("{0}")]
    Toml(String),
    /// It has more than [`TOKENS_MAX`] tokens.
    #[error("a file has at most {TOKENS_MAX} tokens: revoke tokens that nothing uses")]
    TooMany,
    /// The name is not one of a token.
    #[error(
        "{0:?} is not a token's name: use 1 to {TOKEN_NAME_BYTES_MAX} letters, digits, '-', '_' \
         and '.'"
    )]
    Name(String),
    /// Another token has the name.
    #[error(
        "another token has the name {0}: choose another, or give that one a new secret with \
         --replace"
    )]
    NameTaken(String),
    /// Another token has the hash.
    #[error("token {name} has the secret of token {other}: create a token of its own")]
    HashTaken {
        /// The second token.
        name: String,
        /// The first one.
        other: String,
    },
    /// The hash cannot be read.
    #[error("hash of token {name}: {why}")]
    Hash {
        /// The token.
        name: String,
        /// The error.
        why: NotAHash,
    },
    /// A time cannot be read.
    #[error(
        "{key} of token {name}: write a time in UTC without quotes, from 1970 to 9999, like \
         2027-01-31T12:00:00Z"
    )]
    Time {
        /// The token.
        name: String,
        /// The key.
        key: &'static str,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    token: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    hash: Spanned<String>,
    created: Spanned<Value>,
    expires: Option<Spanned<Value>>,
}

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<Tokens, TokenFileError> {
    let at = |offset: usize, fault| TokenFileError { line: line_of(text, offset), fault };
    if text.len() > TOKEN_FILE_BYTES_MAX {
        return Err(at(0, TokenFault::FileTooLong(text.len())));
    }
    let TokenFile { token: entries } = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        // It may repeat a value, and a secret may stand where none belongs.
        let message = match error.message() {
            message if message.contains(PREFIX) => "a value is not what belongs there",
            message => message,
        };
        at(offset, TokenFault::Toml(message.to_owned()))
    })?;
    let mut tokens = Tokens::default();
    for Entry { name, hash, created, expires } in entries {
        let (name_at, hash_at) = (name.span().start, hash.span().start);
        let name = name.into_inner();
        check_name(&name).map_err(|fault| at(name_at, fault))?;
        let time = |key, value: Spanned<Value>| {
            let read = value.get_ref().as_datetime().and_then(Timestamp::of);
            let fault = TokenFault::Time { name: name.clone(), key };
            read.map(|time| time.0).ok_or_else(|| at(value.span().start, fault))
        };
        let created_unix_ms = time("created", created)?;
        let expires_unix_ms = expires.map(|value| time("expires", value)).transpose()?;
        let hash = (hash.get_ref().parse())
            .map_err(|why| at(hash_at, TokenFault::Hash { name: name.clone(), why }))?;
        tokens.add(Token { name, hash, created_unix_ms, expires_unix_ms }).map_err(|fault| {
            let offset = match &fault {
                TokenFault::HashTaken { .. } => hash_at,
                _ => name_at,
            };
            at(offset, fault)
        })?;
    }
    Ok(tokens)
}

/// The text of a file.
pub(super) fn text_of(tokens: &Tokens) -> String {
    let mut text = HEADER.to_owned();
    for Token { name, hash, created_unix_ms, expires_unix_ms } in tokens.iter() {
        // Names have no character that TOML escapes.
        let created = Timestamp(*created_unix_ms);
        let _ = write!(
            text,
            "\n[[token]]\nname = \"{name}\"\nhash = \"{hash}\"\ncreated = {created}\n"
        );
        if let Some(expires) = expires_unix_ms {
            let _ = writeln!(text, "expires = {}", Timestamp(*expires));
        }
    }
    text
}

pub(super) fn check_name(name: &str) -> Result<(), TokenFault> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match (1..=TOKEN_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(fits) {
        true => Ok(()),
        false => Err(TokenFault::Name(name.chars().take(TOKEN_NAME_BYTES_MAX).collect())),
    }
}

/// The line, from 1, of the byte at `offset`.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or(text.as_bytes());
    1 + before.iter().filter(|&&byte| byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::Secret;

    const HASH: &str = "sha256:7a9eba47ad2b8f26a4ebdf4e4b4a4bd1b3b4c2f4ff0f4f7e7a3a1e1f9b0c4d5e";

    /// Changing this file's text breaks the files of running servers.
    const GOLDEN: &str = "\
# The tokens of clients. longshore token create, ls and revoke maintain this file, and write it
# without comments. It has no secrets, only their hashes.

[[token]]
name = \"mail.worker-1\"
hash = \"sha256:16600bcacd25a2c668f6376070364c4f751a36e6f38168935eb2a2ccd273277e\"
created = 2026-11-25T01:40:00.250Z

[[token]]
name = \"shop\"
hash = \"sha256:ade9fa0d5ea4e9ba8101d721dba28703cc5862317b949107b886310cbff915f0\"
created = 2026-11-25T01:40:00Z
expires = 2027-02-23T01:40:00Z
";

    fn token(name: &str, hash: SecretHash) -> Token {
        Token { name: name.to_owned(), hash, created_unix_ms: 0, expires_unix_ms: None }
    }

    #[test]
    fn golden_secrets_have_this_file() {
        let first = Secret::from_random(&mut std::array::from_fn(|at| at as u8));
        let second = Secret::parse(b"lst_8PHy8_T19vf4-fr7_P3-___-_fz7-vn49_b19PPy8fA").unwrap();
        let mut tokens = Tokens::default();
        let created_unix_ms = 1_795_570_800_000;
        let expires_unix_ms = Some(1_803_346_800_000);
        let shop = Token { created_unix_ms, expires_unix_ms, ..token("shop", first.hash()) };
        tokens.add(shop).unwrap();
        let created_unix_ms = created_unix_ms + 250;
        tokens.add(Token { created_unix_ms, ..token("mail.worker-1", second.hash()) }).unwrap();
        assert_eq!(text_of(&tokens), GOLDEN);
        assert_eq!(parse(GOLDEN), Ok(tokens));
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_line_and_remedy() {
        let created = "created = 2026-11-25T01:40:00Z";
        let whole = format!("[[token]]\nname = \"a\"\nhash = \"{HASH}\"\n{created}\n");
        assert_eq!(parse(&whole).unwrap().len(), 1);
        let with = |from: &str, to: &str| whole.replacen(from, to, 1);
        for (text, expected) in [
            ("[[token]]\nname = ".to_owned(), "line 2: "),
            ("# ours\n[[tokens]]\n".to_owned(), "line 2: unknown field `tokens`"),
            (with("created", "creatd"), "line 4: unknown field `creatd`, expected one of `name`"),
            (with("name = \"a\"\n", ""), "line 1: missing field `name`"),
            (with(created, ""), "line 1: missing field `created`"),
            (with("\"a\"", "7"), "line 2: invalid type: integer `7`"),
            (with("\"a\"", "\"\""), "line 2: \"\" is not a token's name: use 1 to 64 letters"),
            (with("\"a\"", "\"a b\""), "line 2: \"a b\" is not a token's name"),
            (with("\"a\"", "\"ä\""), "line 2: \"ä\" is not a token's name"),
            ("token = \"lst_abc\"\n".to_owned(), "line 1: a value is not what belongs there"),
            (with(HASH, "lst_abc"), "line 3: hash of token a: not a hash, which is sha256: and 64"),
            (with("2026-11-25T01:40:00Z", "\"lst_abc\""), "line 4: created of token a: write a"),
            (
                with("01:40:00Z", "01:40:00+01:00"),
                "line 4: created of token a: write a time in UTC",
            ),
            (format!("{whole}expires = 2027-01-31\n"), "line 5: expires of token a: write a time"),
            (format!("{whole}{whole}"), "line 6: another token has the name a: choose another"),
            (
                format!("{whole}{}", with("\"a\"", "\"b\"")),
                "line 7: token b has the secret of token a: create a token of its own",
            ),
            (
                " ".repeat(TOKEN_FILE_BYTES_MAX + 1),
                "line 1: a token file has at most 4194304 bytes",
            ),
        ] {
            let error = parse(&text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}\n{text:.200}");
            assert!(!error.contains("lst_"), "a secret in the wrong place is repeated: {error}");
        }
        let long = "n".repeat(TOKEN_NAME_BYTES_MAX);
        assert!(parse(&with("\"a\"", &format!("{long:?}"))).is_ok());
        let error = parse(&with("\"a\"", &format!("\"{long}n\""))).unwrap_err();
        assert!(matches!(error.fault, TokenFault::Name(_)), "{error}");
    }

    #[test]
    fn the_most_tokens_with_the_longest_names_fit_and_one_more_is_refused() {
        let mut tokens = Tokens::default();
        let hash = |n: usize| format!("sha256:{n:016x}{n:048x}").parse().unwrap();
        for n in 0..TOKENS_MAX {
            let created_unix_ms = 1_795_570_800_250;
            let expires_unix_ms = Some(created_unix_ms + 1);
            let token = token(&format!("{n:064}"), hash(n));
            tokens.add(Token { created_unix_ms, expires_unix_ms, ..token }).unwrap();
        }
        assert_eq!(tokens.add(token("more", hash(TOKENS_MAX))), Err(TokenFault::TooMany));
        let mut text = text_of(&tokens);
        assert_eq!(parse(&text), Ok(tokens));
        let hash = format!("sha256:{}", "f".repeat(64));
        let _ = write!(
            text,
            "[[token]]\nname = \"m\"\nhash = \"{hash}\"\ncreated = 1970-01-01T00:00:00Z"
        );
        assert_eq!(parse(&text).unwrap_err().fault, TokenFault::TooMany);
    }

    #[test]
    fn a_time_after_9999_is_not_stored() {
        let mut tokens = Tokens::default();
        let hash = HASH.parse().unwrap();
        let expires_unix_ms = Some(crate::tokens::TIME_UNIX_MS_MAX + 1);
        let refused = tokens.add(Token { expires_unix_ms, ..token("a", hash) });
        assert_eq!(refused, Err(TokenFault::Time { name: "a".to_owned(), key: "expires" }));
    }
}
