//! The path of a Unix socket.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::limits::SOCKET_PATH_BYTES_MAX;

/// The absolute path of a Unix socket, as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SocketPath(Box<str>);

/// The text is no such path.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "`{0}` is not the path of a Unix socket: write an absolute one of at most \
     {SOCKET_PATH_BYTES_MAX} bytes without control characters, like \
     /run/longshore/resolver.sock"
)]
pub struct NotASocketPath(String);

impl SocketPath {
    /// The path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        Path::new(&*self.0).parent().unwrap_or(Path::new("/"))
    }
}

impl FromStr for SocketPath {
    type Err = NotASocketPath;

    fn from_str(text: &str) -> Result<SocketPath, NotASocketPath> {
        let is_path = text.starts_with('/') && !text.ends_with('/');
        if is_path && text.len() <= SOCKET_PATH_BYTES_MAX && !text.chars().any(char::is_control) {
            Ok(SocketPath(text.into()))
        } else {
            Err(NotASocketPath(text.to_owned()))
        }
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_absolute_and_fits_the_systems_address() {
        let longest = format!("/{}", "a".repeat(SOCKET_PATH_BYTES_MAX - 1));
        for text in ["/a", "/run/longshore/resolver.sock", "/é", &longest] {
            assert_eq!(text.parse::<SocketPath>().unwrap().as_str(), text);
            let folder = if text.starts_with("/run") { "/run/longshore" } else { "/" };
            assert_eq!(text.parse::<SocketPath>().unwrap().folder(), Path::new(folder));
        }
        for text in ["", "/", "a", "run/a", "/a/", "/a\0", "/a\nb", &format!("{longest}a")] {
            assert!(text.parse::<SocketPath>().is_err(), "{text}");
        }
    }
}
