//! From a path to the kind whose pattern matches it, at a cost that does not rise with the number
//! of kinds.

use std::str::Split;

use hashbrown::HashMap;
use longshore_protocol::Path;

/// The patterns of kinds, segment by segment. No two of them match the same path.
#[derive(Default)]
pub(super) struct PathTree {
    /// The kind whose pattern ends here.
    kind: Option<usize>,
    literals: HashMap<String, PathTree>,
    /// A parameter: any one segment.
    any: Option<Box<PathTree>>,
}

impl PathTree {
    /// Adds a pattern, in which `*` is a parameter.
    pub(super) fn insert(&mut self, pattern: &str, kind: usize) {
        let mut node = self;
        for segment in pattern.split('/').skip(1) {
            node = match segment {
                "*" => node.any.get_or_insert_default(),
                _ => node.literals.entry(segment.to_owned()).or_default(),
            };
        }
        node.kind = Some(kind);
    }

    /// The kind of the path. Each node is visited at most once.
    pub(super) fn find(&self, path: &Path) -> Option<usize> {
        let mut segments = path.as_str().split('/');
        segments.next();
        self.below(segments)
    }

    fn below(&self, mut segments: Split<'_, char>) -> Option<usize> {
        let Some(segment) = segments.next() else { return self.kind };
        let literal = self.literals.get(segment).and_then(|node| node.below(segments.clone()));
        literal.or_else(|| self.any.as_ref()?.below(segments))
    }
}
