//! The token or JWT by which servers know a client.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_access::{Bearer, NotABearer, Secret};
use longshore_protocol::Credential;
use tokio::sync::Mutex;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// The longest file of a client's token, in bytes. A JWT has 3,072 at most, and line breaks may
/// follow.
const TOKEN_FILE_BYTES_MAX: usize = 4_096;

/// Where a client's token, or its JWT, is. Cheap to clone; `Debug` does not show the secret.
#[derive(Clone, Debug)]
pub struct TokenSource(Source);

#[derive(Clone, Debug)]
enum Source {
    Text(Bearer),
    /// One dial reads it at a time: on a file system that hangs, each would leave another thread
    /// behind.
    File(PathBuf, Arc<Mutex<()>>),
}

impl From<Secret> for TokenSource {
    fn from(secret: Secret) -> TokenSource {
        TokenSource(Source::Text(secret.into()))
    }
}

/// Why a client has no token to show. The text does not repeat what a file contains.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not have a secret or a JWT and nothing else.
    #[error("{} is {NotABearer}", path.display())]
    NotABearer {
        /// The file.
        path: PathBuf,
    },
    /// The file is longer than any secret or JWT.
    #[error("{} has more than {TOKEN_FILE_BYTES_MAX} bytes: it is {NotABearer}", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

impl TokenSource {
    /// A secret as `longshore token create` prints it, or a JWT.
    pub fn from_secret(text: &str) -> Result<TokenSource, NotABearer> {
        Bearer::parse(text.as_bytes()).map(|bearer| TokenSource(Source::Text(bearer)))
    }

    /// A file with a secret or a JWT. It is read whenever a server is dialled: a token that
    /// replaces another needs no restart. Open links stay.
    pub fn from_file(path: impl Into<PathBuf>) -> TokenSource {
        TokenSource(Source::File(path.into(), Arc::default()))
    }

    /// The file, if the secret is in one.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Source::Text(_) => None,
            Source::File(path, _) => Some(path),
        }
    }

    /// Reads the secret or JWT, from its file if it is in one. Blocks.
    pub fn read(&self) -> Result<Bearer, TokenError> {
        match &self.0 {
            Source::Text(bearer) => Ok(bearer.clone()),
            Source::File(path, _) => read(path),
        }
    }

    /// What a handshake has of it, read within `limit`.
    pub(crate) async fn credential(&self, limit: Duration) -> Result<Credential, TokenError> {
        let bearer = match &self.0 {
            Source::Text(bearer) => bearer.clone(),
            Source::File(path, turn) => {
                let failed = |source| TokenError::Read { path: path.clone(), source };
                let reading = async {
                    let (source, turn) = (self.clone(), turn.clone().lock_owned().await);
                    let read = tokio::task::spawn_blocking(move || {
                        let _turn = turn;
                        source.read()
                    });
                    read.await.map_err(|error| failed(error.into()))?
                };
                let late = |_| failed(io::ErrorKind::TimedOut.into());
                timeout(limit, reading).await.map_err(late)??
            }
        };
        Ok(Credential(Bytes::from_owner(bearer)))
    }
}

fn read(path: &Path) -> Result<Bearer, TokenError> {
    let failed = |source| TokenError::Read { path: path.to_owned(), source };
    // With room for all: growing would leave copies in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(TOKEN_FILE_BYTES_MAX + 1));
    let file = File::open(path).map_err(failed)?;
    file.take(TOKEN_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > TOKEN_FILE_BYTES_MAX {
        return Err(TokenError::TooLong { path: path.to_owned() });
    }
    let refused = |NotABearer| TokenError::NotABearer { path: path.to_owned() };
    Bearer::parse(bytes.trim_ascii()).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "lst_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

    #[test]
    fn a_file_has_one_secret_and_an_error_names_the_file_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("shop.token");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            TokenSource::from_file(&file).read()
        };
        for credential in [SECRET, "eyJh.eyJz.c2ln"] {
            for text in [credential.to_owned(), format!(" {credential}\r\n\n")] {
                assert_eq!(read(&text).unwrap().text(), credential.as_bytes());
            }
        }
        for (text, expected) in [
            (String::new(), "shop.token is neither the secret of a token, which is lst_ and 43"),
            (SECRET[..40].to_owned(), "shop.token is neither the secret of a token"),
            (format!("{SECRET}\n{SECRET}"), "shop.token is neither the secret of a token"),
            (SECRET.repeat(100), "shop.token has more than 4096 bytes: it is neither the"),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains(&SECRET[4..12]), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        let error = TokenSource::from_file(&file).read().unwrap_err().to_string();
        assert!(error.starts_with("cannot read the token file /"), "{error}");
        assert!(TokenSource::from_secret("lst_").is_err());
        let source = TokenSource::from_secret(SECRET).unwrap();
        assert!(!format!("{source:?}").contains(&SECRET[4..12]), "{source:?}");
    }
}
