//! Globs over paths: `*` and `?` within a segment, `**` over any number of segments, `{a,b}` for
//! alternatives. `/a/**` includes `/a`. A glob without any of these matches exactly the path with
//! its text.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::limits::{
    GLOB_ALTERNATIVES_MAX, GLOB_BRACES_MAX, GLOB_BYTES_MAX, GLOB_EXPANDED_BYTES_MAX, PATH_DEPTH_MAX,
};
use crate::path::{Path, PathError, escaped, segments};

/// A validated pattern over paths: `*` (any text) and `?` (one character) within a segment, `**`
/// over any number of segments, including zero, `{a,b}` for alternatives. `/jobs/**` matches
/// `/jobs` and everything below it; a glob without any of these matches exactly the path with its
/// text. At most 1,024 bytes, 32 pairs of braces, 256 alternatives.
///
/// Its braces are expanded on construction, so matching never backtracks over them. Clones share
/// their memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    text: Arc<str>,
    /// What the text says.
    alternatives: Arc<[Vec<GlobPart>]>,
}

impl Hash for Glob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// A part of one alternative of a glob.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum GlobPart {
    /// `**`: any number of segments.
    Deep,
    /// One segment, with or without `*` and `?`.
    Segment(String),
}

impl GlobPart {
    /// True if the segment of a path matches.
    pub fn matches(&self, segment: &str) -> bool {
        match self {
            GlobPart::Deep => true,
            GlobPart::Segment(pattern) => matches_segment(pattern, segment),
        }
    }
}

/// Why a text is not a glob.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GlobError {
    /// It has more than 1,024 bytes.
    #[error("glob of {0} bytes is over the limit of {GLOB_BYTES_MAX} bytes")]
    TooLong(usize),
    /// A brace without its partner.
    #[error("glob '{0}' has a brace without its partner")]
    Brace(String),
    /// It has more than 32 pairs of braces.
    #[error("glob with {0} pairs of braces is over the limit of {GLOB_BRACES_MAX}")]
    TooManyBraces(usize),
    /// Its braces expand to more than 256 alternatives, or to more than 16 KiB.
    #[error(
        "the braces of glob '{0}' stand for over {GLOB_ALTERNATIVES_MAX} alternatives \
         or {GLOB_EXPANDED_BYTES_MAX} bytes"
    )]
    TooManyAlternatives(String),
    /// A segment combines `**` with other characters.
    #[error("glob '{0}' has '**' beside other characters; it stands for whole segments only")]
    DeepBeside(String),
    /// Brackets are not supported.
    #[error("glob '{0}' has '[' or ']'; use {{a,b}} for alternatives")]
    Bracket(String),
    /// The glob is not a path when its wildcards are replaced.
    #[error("glob '{glob}': {error}")]
    Path {
        /// The glob.
        glob: String,
        /// Why it is not a valid path.
        error: PathError,
    },
}

impl Glob {
    /// Checks `text` and prepares it for matching.
    pub fn new(text: &str) -> Result<Glob, GlobError> {
        if text.len() > GLOB_BYTES_MAX {
            return Err(GlobError::TooLong(text.len()));
        }
        if text.contains(['[', ']']) {
            return Err(GlobError::Bracket(escaped(text)));
        }
        let braces = text.bytes().filter(|&b| b == b'{').count();
        if braces > GLOB_BRACES_MAX {
            return Err(GlobError::TooManyBraces(braces));
        }
        let mut alternatives = Vec::new();
        let mut bytes_left = GLOB_EXPANDED_BYTES_MAX;
        expand(text, text, &mut bytes_left, &mut alternatives)?;
        let alternatives = alternatives.iter().map(|a| parts(text, a)).collect::<Result<_, _>>()?;
        Ok(Glob { text: text.into(), alternatives })
    }

    /// `/**`: matches every path.
    pub fn everything() -> Glob {
        Glob { text: "/**".into(), alternatives: [vec![GlobPart::Deep]].into() }
    }

    /// True of `/**`.
    pub fn is_everything(&self) -> bool {
        &*self.text == "/**"
    }

    /// The text of the glob.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the only path that matches, if the glob has no wildcard.
    pub fn literal(&self) -> Option<Path> {
        let is_special = |byte| matches!(byte, b'*' | b'?' | b'{');
        if self.text.bytes().any(is_special) { None } else { Path::new(&self.text).ok() }
    }

    /// The expanded alternatives: a path matches if it matches one of them, part by part.
    pub fn alternatives(&self) -> impl Iterator<Item = &[GlobPart]> {
        self.alternatives.iter().map(Vec::as_slice)
    }

    /// True if the path matches.
    pub fn matches(&self, path: &Path) -> bool {
        self.matches_str(path.as_str())
    }

    /// True if the text of a path matches.
    pub fn matches_str(&self, path: &str) -> bool {
        let mut buffer = [""; PATH_DEPTH_MAX];
        split(path, &mut buffer).is_some_and(|segments| self.matches_segments(segments))
    }

    /// True if the path with these segments matches.
    pub(crate) fn matches_segments(&self, path: &[&str]) -> bool {
        self.alternatives.iter().any(|parts| matches_parts(parts, path))
    }

    /// True if some path at or below `base` could match. A default at `base` can then produce
    /// matches for this glob.
    pub fn could_match_at_or_below(&self, base: &Path) -> bool {
        let base: Vec<&str> = base.segments().collect();
        self.alternatives.iter().any(|parts| could_match(parts, &base))
    }
}

/// Expands the first outermost pair of braces, and then the rest, into plain alternatives. The
/// limits on braces and on expanded bytes bound the work: 1 KiB of pattern must not cost seconds or
/// megabytes.
fn expand(
    whole: &str,
    text: &str,
    bytes_left: &mut usize,
    out: &mut Vec<String>,
) -> Result<(), GlobError> {
    let Some(open) = text.find(['{', '}']) else {
        let left = bytes_left.checked_sub(text.len());
        let (Some(left), true) = (left, out.len() < GLOB_ALTERNATIVES_MAX) else {
            return Err(GlobError::TooManyAlternatives(escaped(whole)));
        };
        *bytes_left = left;
        out.push(text.to_owned());
        return Ok(());
    };
    let unpaired = || GlobError::Brace(escaped(whole));
    if text.as_bytes()[open] == b'}' {
        return Err(unpaired());
    }
    let (mut depth, mut close, mut commas) = (0usize, None, Vec::new());
    for (at, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    close = Some(at);
                    break;
                }
            }
            b',' if depth == 1 => commas.push(at),
            _ => {}
        }
    }
    let close = close.ok_or_else(unpaired)?;
    let mut start = open + 1;
    for end in commas.into_iter().chain([close]) {
        let alternative = [&text[..open], &text[start..end], &text[close + 1..]].concat();
        expand(whole, &alternative, bytes_left, out)?;
        start = end + 1;
    }
    Ok(())
}

fn parts(whole: &str, alternative: &str) -> Result<Vec<GlobPart>, GlobError> {
    // With every wildcard replaced by a letter it must be a path, so only `Path::new` defines
    // paths.
    let plain = alternative.replace(['*', '?'], "x");
    Path::new(&plain).map_err(|error| GlobError::Path { glob: escaped(whole), error })?;
    let mut parts = Vec::new();
    for segment in segments(alternative) {
        match segment {
            "**" if parts.last() == Some(&GlobPart::Deep) => {}
            "**" => parts.push(GlobPart::Deep),
            _ if segment.contains("**") => return Err(GlobError::DeepBeside(escaped(whole))),
            _ => parts.push(GlobPart::Segment(segment.to_owned())),
        }
    }
    Ok(parts)
}

/// The segments of a path; `None` for a text with more than a path has.
pub(crate) fn split<'a, 'b>(
    path: &'a str,
    buffer: &'b mut [&'a str; PATH_DEPTH_MAX],
) -> Option<&'b [&'a str]> {
    let mut n = 0;
    for segment in segments(path) {
        *buffer.get_mut(n)? = segment;
        n += 1;
    }
    Some(&buffer[..n])
}

/// Most globs have no `**` before their last part: each part takes one segment, or none fits.
fn matches_parts(parts: &[GlobPart], path: &[&str]) -> bool {
    let mut rest = path;
    for (n, part) in parts.iter().enumerate() {
        match (part, rest) {
            (GlobPart::Deep, _) => {
                return n + 1 == parts.len() || matches_from_deep(&parts[n..], rest);
            }
            (GlobPart::Segment(pattern), [segment, below @ ..])
                if matches_segment(pattern, segment) =>
            {
                rest = below;
            }
            (GlobPart::Segment(_), _) => return false,
        }
    }
    rest.is_empty()
}

/// Dynamic programming over (part, segment): at most 32 × 33 steps for any glob.
fn matches_from_deep(parts: &[GlobPart], path: &[&str]) -> bool {
    let mut reach = [false; PATH_DEPTH_MAX + 1];
    reach[0] = true;
    for part in parts {
        match part {
            GlobPart::Deep => {
                for i in 1..=path.len() {
                    reach[i] |= reach[i - 1];
                }
            }
            GlobPart::Segment(pattern) => {
                for i in (0..=path.len()).rev() {
                    reach[i] = i > 0 && reach[i - 1] && matches_segment(pattern, path[i - 1]);
                }
            }
        }
    }
    reach[path.len()]
}

fn could_match(parts: &[GlobPart], base: &[&str]) -> bool {
    match (parts, base) {
        (_, []) => true,
        ([], _) => false,
        ([GlobPart::Deep, ..], _) => true,
        ([GlobPart::Segment(pattern), rest @ ..], [segment, below @ ..]) => {
            matches_segment(pattern, segment) && could_match(rest, below)
        }
    }
}

/// Matches `*` and `?` within one segment: greedy with one backtracking position, so linear in
/// practice and quadratic at worst.
pub(crate) fn matches_segment(pattern: &str, text: &str) -> bool {
    let (mut p, mut t) = (pattern.chars(), text.chars());
    let mut fall_back: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let t_before = t.clone();
        match (p.next(), t.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                fall_back = Some((p.clone(), t_before.clone()));
                t = t_before;
            }
            (Some('?'), Some(_)) => {}
            (Some(a), Some(b)) if a == b => {}
            _ => match fall_back.take() {
                Some((after_star, mut from)) => {
                    if from.next().is_none() {
                        return false;
                    }
                    p = after_star.clone();
                    t = from.clone();
                    fall_back = Some((after_star, from));
                }
                None => return false,
            },
        }
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Glob {
    type Err = GlobError;
    fn from_str(text: &str) -> Result<Glob, GlobError> {
        Glob::new(text)
    }
}

impl Encode for Glob {
    fn encode(&self, out: &mut FrameWriter) {
        out.string(&self.text);
    }
}

impl Decode for Glob {
    fn decode(r: &mut Reader) -> Result<Glob, WireError> {
        let invalid = r.invalid("glob");
        let text = r.string("glob length", GLOB_BYTES_MAX)?;
        Glob::new(&text).map_err(|_| invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_equals_the_parsed_glob() {
        assert_eq!(Ok(Glob::everything()), Glob::new("/**"));
    }
}
