//! Patterns by their literal prefix: a change of a path concerns only the patterns found at it and
//! above.

use hashbrown::HashMap;
use longshore_protocol::Glob;

/// The number of a pattern: globs that are watched together. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct PatternId(u64);

impl PatternId {
    pub(super) const MIN: PatternId = PatternId(0);
    pub(super) const MAX: PatternId = PatternId(u64::MAX);

    pub(super) fn next(self) -> PatternId {
        PatternId(self.0.saturating_add(1))
    }
}

#[derive(Default, Debug)]
pub(super) struct Prefixes {
    last: PatternId,
    patterns: HashMap<Box<str>, Vec<PatternId>>,
    /// Parts of all patterns.
    parts: usize,
}

impl Default for PatternId {
    fn default() -> PatternId {
        PatternId::MIN
    }
}

impl Prefixes {
    pub(super) fn add(&mut self, globs: &[Glob]) -> PatternId {
        self.last = self.last.next();
        self.parts += parts(globs);
        for prefix in prefixes(globs) {
            self.patterns.entry(prefix.into()).or_default().push(self.last);
        }
        self.last
    }

    /// The parts of all patterns, with these globs added.
    pub(super) fn parts_with(&self, globs: &[Glob]) -> usize {
        self.parts + parts(globs)
    }

    pub(super) fn remove(&mut self, id: PatternId, globs: &[Glob]) {
        self.parts -= parts(globs);
        for prefix in prefixes(globs) {
            let Some(ids) = self.patterns.get_mut(prefix) else { continue };
            ids.retain(|&other| other != id);
            if ids.is_empty() {
                self.patterns.remove(prefix);
            }
        }
    }

    /// The patterns that could match the path, each once, in no particular order.
    pub(super) fn above(&self, path: &str) -> Vec<PatternId> {
        let mut found = Vec::new();
        if self.patterns.is_empty() {
            return found;
        }
        let mut rows = 0;
        let mut at = path;
        loop {
            if let Some(ids) = self.patterns.get(at) {
                found.extend_from_slice(ids);
                rows += 1;
            }
            // Cut at slashes: `/a` is above `/a/b` and not above `/ab`.
            at = match at.rfind('/') {
                Some(0) if at.len() > 1 => "/",
                Some(end) if end > 0 => &at[..end],
                _ => break,
            };
        }
        // A pattern with several prefixes, one above the other, was found more than once.
        if rows > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }
}

/// The size of globs for memory and comparisons: parts of all their alternatives.
fn parts(globs: &[Glob]) -> usize {
    globs.iter().flat_map(Glob::alternatives).map(|parts| parts.len() + 1).sum()
}

/// The prefixes of some globs, each once.
fn prefixes(globs: &[Glob]) -> Vec<&str> {
    let mut all: Vec<&str> = globs.iter().map(prefix).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The segments before the first with a wildcard: `/a/**` matches `/a` too.
pub(super) fn prefix(glob: &Glob) -> &str {
    let text = glob.as_str();
    match text.find(['*', '?', '{']) {
        None => text,
        Some(wild) => match text[..wild].rfind('/') {
            None | Some(0) => "/",
            Some(end) => &text[..end],
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn globs(texts: &[&str]) -> Vec<Glob> {
        texts.iter().map(|text| Glob::new(text).unwrap()).collect()
    }

    #[test]
    fn a_prefix_ends_before_the_first_segment_with_a_wildcard() {
        let cases = [
            ("/a/b", "/a/b"),
            ("/a/**", "/a"),
            ("/a/b*", "/a"),
            ("/a/b/{c,d}/e", "/a/b"),
            ("/**", "/"),
            ("/?", "/"),
            ("/", "/"),
        ];
        for (glob, expected) in cases {
            assert_eq!(prefix(&Glob::new(glob).unwrap()), expected, "{glob}");
        }
    }

    #[test]
    fn a_path_finds_every_pattern_that_could_match_it_once() {
        let mut all = Prefixes::default();
        let sets = [&["/**"][..], &["/a/**", "/a/b/*", "/a/c"], &["/ab/**"], &["/a/b/c"]];
        let ids: Vec<PatternId> = sets.iter().map(|texts| all.add(&globs(texts))).collect();
        assert_eq!(all.above("/a/b/c"), [ids[0], ids[1], ids[3]]);
        assert_eq!(all.above("/ab"), [ids[0], ids[2]]);
        assert_eq!(all.above("/"), [ids[0]]);
        for (texts, id) in sets.iter().zip(&ids) {
            all.remove(*id, &globs(texts));
        }
        assert!(all.patterns.is_empty());
        assert_eq!(all.parts_with(&[]), 0);
    }
}
