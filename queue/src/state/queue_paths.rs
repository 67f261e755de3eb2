//! The paths of queues: by their text, and in its order for patterns.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use longshore_protocol::{Glob, GlobPart, Path};

/// The number of each queue.
#[derive(Clone, Debug, Default)]
pub(super) struct QueuePaths {
    /// Only for lookups, never iterated.
    numbers: HashMap<Path, u32>,
    sorted: BTreeMap<Path, u32>,
}

impl QueuePaths {
    pub(super) fn insert(&mut self, path: Path, queue: u32) {
        self.sorted.insert(path.clone(), queue);
        self.numbers.insert(path, queue);
    }

    #[inline]
    pub(super) fn get(&self, path: &Path) -> Option<u32> {
        self.numbers.get(path).copied()
    }

    /// The queues below the parts of a pattern before its first wildcard: those that it matches,
    /// and others. One may come several times, for alternatives of the pattern.
    pub(super) fn candidates(&self, pattern: &Glob) -> impl Iterator<Item = (&Path, u32)> {
        pattern.alternatives().flat_map(|parts| {
            let (whole, beginning) = beginning_of(parts);
            let exact = whole.and_then(|whole| self.sorted.get_key_value(whole.as_str()));
            let below = beginning.into_iter().flat_map(|beginning| {
                let from = (Bound::Included(beginning.as_str()), Bound::Unbounded);
                let from = self.sorted.range::<str, _>(from);
                from.take_while(move |(path, _)| path.as_str().starts_with(&beginning))
            });
            exact.into_iter().chain(below).map(|(path, &queue)| (path, queue))
        })
    }

    /// The matching queues, in the order of their creation.
    pub(super) fn matching(&self, pattern: &Glob) -> Vec<u32> {
        let matching = self.candidates(pattern).filter(|(path, _)| pattern.matches(path));
        let mut queues: Vec<u32> = matching.map(|(_, queue)| queue).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }
}

/// The only path that an alternative can match as a whole, and with what all others begin.
fn beginning_of(parts: &[GlobPart]) -> (Option<String>, Option<String>) {
    let mut text = String::new();
    for part in parts {
        let segment = match part {
            GlobPart::Deep => {
                let beginning = format!("{text}/");
                return (Some(text), Some(beginning));
            }
            GlobPart::Segment(segment) => segment,
        };
        text.push('/');
        if let Some(wildcard) = segment.find(['*', '?']) {
            text.push_str(&segment[..wildcard]);
            return (None, Some(text));
        }
        text.push_str(segment);
    }
    (Some(text), None)
}
