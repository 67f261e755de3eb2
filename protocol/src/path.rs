//! Paths: `/jobs/mail/welcome`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{PATH_BYTES_MAX, PATH_DEPTH_MAX, PATH_SEGMENT_BYTES_MAX};

/// A path, such as `/jobs/mail/welcome`: the name of a queue or of a live value. UTF-8, absolute,
/// no empty segment, no segment `.` or `..`, no trailing slash, no control or glob characters (`* ?
/// { } [ ]`). At most 1,024 bytes, 32 segments, 255 bytes each. `/` alone is the root: it can be
/// listed, and nothing can be published at it. Paths at and below `/sys` are reserved for
/// Longshore. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(Arc<str>);

/// Why a text is not a path. Each message explains what to change.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PathError {
    /// It does not begin with a slash.
    #[error("path '{0}' does not begin with '/'")]
    NotAbsolute(String),
    /// It ends with a slash or has two in a row.
    #[error("path '{0}' has an empty segment; write it without a trailing or doubled '/'")]
    EmptySegment(String),
    /// It has a segment `.` or `..`.
    #[error("path '{0}' has a segment '.' or '..'; write the path in full")]
    DotSegment(String),
    /// It has more than 1,024 bytes.
    #[error("path of {0} bytes is over the limit of {PATH_BYTES_MAX} bytes")]
    TooLong(usize),
    /// One segment has more than 255 bytes.
    #[error("path segment of {0} bytes is over the limit of {PATH_SEGMENT_BYTES_MAX} bytes")]
    SegmentTooLong(usize),
    /// It has more than 32 segments.
    #[error("path of {0} segments is over the limit of {PATH_DEPTH_MAX}")]
    TooDeep(usize),
    /// A control or glob character.
    #[error(
        "path '{path}' contains the character {character:?}; control characters and \
         * ? {{ }} [ ] are not allowed"
    )]
    Character {
        /// The path.
        path: String,
        /// The character.
        character: char,
    },
}

impl Path {
    /// The root, `/`.
    pub fn root() -> Path {
        Path(Arc::from("/"))
    }

    /// Validates `text`. Nothing is normalized: a trailing slash is an error.
    pub fn new(text: &str) -> Result<Path, PathError> {
        check(text)?;
        Ok(Path(Arc::from(text)))
    }

    /// Validates `text` without allocating a path, for paths that are only looked up.
    pub fn check(text: &str) -> Result<(), PathError> {
        check(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True for `/`.
    pub fn is_root(&self) -> bool {
        self.as_str() == "/"
    }

    /// The segments, from the root; none for `/`.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        segments(&self.0)
    }

    /// The number of segments.
    pub fn depth(&self) -> usize {
        self.segments().count()
    }

    /// The parent path; `None` for `/`.
    pub fn parent(&self) -> Option<Path> {
        if self.is_root() {
            return None;
        }
        match self.0.rfind('/') {
            Some(0) | None => Some(Path::root()),
            Some(at) => Some(Path(Arc::from(&self.0[..at]))),
        }
    }

    /// True if `self` is `other` or lies below it. `/ab` does not lie below `/a`.
    pub fn is_at_or_below(&self, other: &Path) -> bool {
        other.is_root()
            || self
                .0
                .strip_prefix(&*other.0)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// True for `/sys` and paths below it: live values that Longshore itself publishes.
    pub fn is_reserved(&self) -> bool {
        self.segments().next() == Some("sys")
    }
}

pub(crate) fn segments(text: &str) -> impl DoubleEndedIterator<Item = &str> {
    text.split('/').filter(|s| !s.is_empty())
}

/// ASCII characters that a path may contain, which need no further check.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b' ';
    while byte < 0x7f {
        plain[byte as usize] = !matches!(byte, b'*' | b'?' | b'{' | b'}' | b'[' | b']');
        byte += 1;
    }
    plain
};

fn check(text: &str) -> Result<(), PathError> {
    if text.len() > PATH_BYTES_MAX {
        return Err(PathError::TooLong(text.len()));
    }
    let Some(rest) = text.strip_prefix('/') else {
        return Err(PathError::NotAbsolute(escaped(text)));
    };
    if rest.is_empty() {
        return Ok(());
    }
    let bytes = text.as_bytes();
    let (mut depth, mut start, mut plain) = (0, 1, true);
    // One pass, without iterators over segments: a replica checks every path of every write.
    for end in 1..=bytes.len() {
        let byte = bytes.get(end).copied().unwrap_or(b'/');
        if byte != b'/' {
            plain &= PLAIN[usize::from(byte)];
            continue;
        }
        depth += 1;
        match end - start {
            0 => return Err(PathError::EmptySegment(escaped(text))),
            1 | 2 if bytes[start] == b'.' && bytes[end - 1] == b'.' => {
                return Err(PathError::DotSegment(escaped(text)));
            }
            len if len > PATH_SEGMENT_BYTES_MAX => return Err(PathError::SegmentTooLong(len)),
            _ => start = end + 1,
        }
    }
    if depth > PATH_DEPTH_MAX {
        return Err(PathError::TooDeep(depth));
    }
    if plain {
        return Ok(());
    }
    match text.chars().find(|c| c.is_control() || "*?{}[]".contains(*c)) {
        Some(character) => Err(PathError::Character { path: escaped(text), character }),
        None => Ok(()),
    }
}

/// The text with its control characters escaped, for errors that reach terminals and logs.
pub(crate) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { escaped.extend(c.escape_default()) } else { escaped.push(c) }
    }
    escaped
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Path {
    type Err = PathError;
    fn from_str(text: &str) -> Result<Path, PathError> {
        Path::new(text)
    }
}

impl AsRef<str> for Path {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl std::borrow::Borrow<str> for Path {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl Encode for Path {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.0);
    }
}

impl Decode for Path {
    fn decode(r: &mut Reader) -> Result<Path, WireError> {
        let invalid = r.invalid("path");
        let bytes = r.bytes("path length", PATH_BYTES_MAX)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| invalid.clone())?;
        Path::new(text).map_err(|_| invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_checked_at_every_position() {
        let not_allowed = |c: char| c.is_control() || "*?{}[]".contains(c);
        let all = (0..0x300).filter_map(char::from_u32).filter(|&c| c != '/');
        for c in all {
            for text in [format!("/{c}"), format!("/jobs/{c}x"), format!("/é{c}")] {
                let checked = Path::check(&text);
                let refused = matches!(checked, Err(PathError::Character { character, .. })
                    if character == c);
                assert_eq!(refused, not_allowed(c), "{c:?}");
                assert_eq!(Path::new(&text).is_ok(), !refused && text != "/.");
            }
        }
    }
}
