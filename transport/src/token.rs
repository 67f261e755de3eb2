//! The token by which servers know a client.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use longshore_access::{NotASecret, Secret};
use longshore_protocol::Credential;
use zeroize::Zeroizing;

/// The longest file of a client's token, in bytes. A secret has 47, and a line break may follow.
const SECRET_FILE_BYTES_MAX: usize = 1_024;

/// Where a client's token is. Cheap to clone; `Debug` does not show the secret.
#[derive(Clone, Debug)]
pub struct TokenSource(Source);

#[derive(Clone, Debug)]
enum Source {
    Secret(Secret),
    File(PathBuf),
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
    /// The file does not have a secret and nothing else.
    #[error("{} is {NotASecret}", path.display())]
    NotASecret {
        /// The file.
        path: PathBuf,
    },
    /// The file is longer than any secret.
    #[error(
        "{} has more than {SECRET_FILE_BYTES_MAX} bytes: it is {NotASecret}", path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
}

impl TokenSource {
    /// A secret as `longshore token create` prints it.
    pub fn from_secret(text: &str) -> Result<TokenSource, NotASecret> {
        Secret::parse(text.as_bytes()).map(|secret| TokenSource(Source::Secret(secret)))
    }

    /// A file with a secret. It is read whenever a server is dialled: a token that replaces another
    /// needs no restart. Open links stay.
    pub fn from_file(path: impl Into<PathBuf>) -> TokenSource {
        TokenSource(Source::File(path.into()))
    }

    /// The file, if the secret is in one.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Source::Secret(_) => None,
            Source::File(path) => Some(path),
        }
    }

    /// Reads the secret, from its file if it is in one. Blocks.
    pub fn read(&self) -> Result<Secret, TokenError> {
        match &self.0 {
            Source::Secret(secret) => Ok(secret.clone()),
            Source::File(path) => read(path),
        }
    }

    /// What a handshake has of it.
    pub(crate) async fn credential(&self) -> Result<Credential, TokenError> {
        let secret = match &self.0 {
            Source::Secret(secret) => secret.clone(),
            Source::File(path) => {
                let (source, path) = (self.clone(), path.clone());
                let read = tokio::task::spawn_blocking(move || source.read()).await;
                read.map_err(|error| TokenError::Read { path, source: error.into() })??
            }
        };
        Ok(Credential(Bytes::from_owner(secret)))
    }
}

fn read(path: &Path) -> Result<Secret, TokenError> {
    let failed = |source| TokenError::Read { path: path.to_owned(), source };
    // With room for all: growing would leave copies in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_FILE_BYTES_MAX + 1));
    let file = File::open(path).map_err(failed)?;
    file.take(SECRET_FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > SECRET_FILE_BYTES_MAX {
        return Err(TokenError::TooLong { path: path.to_owned() });
    }
    let not_a_secret = |NotASecret| TokenError::NotASecret { path: path.to_owned() };
    Secret::parse(bytes.trim_ascii()).map_err(not_a_secret)
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
        for text in [SECRET.to_owned(), format!("{SECRET}\n"), format!(" {SECRET}\r\n\n")] {
            assert_eq!(read(&text).unwrap().text(), SECRET.as_bytes());
        }
        for (text, expected) in [
            (String::new(), "shop.token is not the secret of a token, which is lst_ and 43"),
            (SECRET[..40].to_owned(), "shop.token is not the secret of a token"),
            (format!("{SECRET}\n{SECRET}"), "shop.token is not the secret of a token"),
            (SECRET.repeat(100), "shop.token has more than 1024 bytes: it is not the secret"),
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
