//! Listings, a slice at a time. What comes or goes between two slices may be in the listing or not; what is there all the time
//! is in it, once.

use std::ops::Bound;

use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::{Glob, Path};

use crate::directory::{Directory, Node};

/// Goes over what lies just below one path.
///
/// Paths are sorted by their bytes: `/a`, `/a-b`, `/a/x`, `/a/y`, `/a0`. So a child comes before what lies below it, but not always
/// just before; and what lies below it, `/a/` to `/a0`, can be leapt over.
#[derive(Debug)]
pub(crate) struct Children {
    prefix: String,
    next: Bound<String>,
    /// Children already told that what comes may lie below: each begins as the one before it.
    told: Vec<String>,
}

impl Children {
    pub(crate) fn new(below: &Path) -> Children {
        let prefix =
            if below.is_root() { String::from("/") } else { format!("{}/", below.as_str()) };
        Children { next: Bound::Included(prefix.clone()), prefix, told: Vec::new() }
    }

    /// Adds children to `out`, and looks at no more than `budget` paths. True when there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &Directory,
        mut budget: usize,
        out: &mut Vec<PathListed>,
    ) -> bool {
        while budget > 0 {
            let from = self.next.as_ref().map(String::as_str);
            let mut leap = None;
            let mut last = None;
            for (path, node) in directory.nodes.range::<str, _>((from, Bound::Unbounded)) {
                let Some(rest) = path.as_str().strip_prefix(self.prefix.as_str()) else {
                    return true;
                };
                last = Some(path);
                budget = budget.saturating_sub(1);
                let listed = directory.listed(path, node);
                if rest.is_empty() || !(listed.published() || listed.default) {
                    // The root itself, or nothing that can be seen.
                } else if let Some(end) = rest.find('/') {
                    let child = &path.as_str()[..self.prefix.len() + end];
                    while self.told.last().is_some_and(|told| !child.starts_with(told.as_str())) {
                        self.told.pop();
                    }
                    if !self.told.iter().any(|told| told == child)
                        && let Ok(path) = Path::new(child)
                    {
                        out.push(PathListed { path, queue: false, value: false, default: false });
                    }
                    // '0' is the character after '/'.
                    leap = Some(format!("{child}0"));
                    break;
                } else {
                    while self
                        .told
                        .last()
                        .is_some_and(|told| !path.as_str().starts_with(told.as_str()))
                    {
                        self.told.pop();
                    }
                    self.told.push(path.as_str().to_owned());
                    out.push(listed);
                }
                if budget == 0 {
                    break;
                }
            }
            self.next = match (leap, last) {
                (Some(leap), _) => Bound::Included(leap),
                (None, Some(last)) => Bound::Excluded(last.as_str().to_owned()),
                (None, None) => return true,
            };
        }
        false
    }
}

/// Goes over the paths that match at least one of some globs.
#[derive(Debug)]
pub(crate) struct Matching {
    globs: Vec<Glob>,
    prefix: String,
    next: Bound<String>,
}

impl Matching {
    pub(crate) fn new(globs: Vec<Glob>) -> Matching {
        let prefix = globs
            .iter()
            .map(literal_prefix)
            .reduce(common_prefix)
            .map_or_else(String::new, str::to_owned);
        Matching { next: Bound::Included(prefix.clone()), prefix, globs }
    }

    /// Adds matching paths to `out`, and looks at no more than `budget` paths. True when there are no more.
    pub(crate) fn take(
        &mut self,
        directory: &Directory,
        budget: usize,
        out: &mut Vec<PathListed>,
    ) -> bool {
        let from = self.next.as_ref().map(String::as_str);
        let mut last = None;
        for (path, node) in directory.nodes.range::<str, _>((from, Bound::Unbounded)).take(budget) {
            if !path.as_str().starts_with(&self.prefix) {
                return true;
            }
            last = Some(path);
            if self.globs.iter().any(|glob| glob.matches(path)) {
                let listed = directory.listed(path, node);
                if listed.published() || listed.default {
                    out.push(listed);
                }
            }
        }
        match last {
            Some(last) => self.next = Bound::Excluded(last.as_str().to_owned()),
            None => return true,
        }
        false
    }
}

/// What every path that a glob matches begins with. `/a/**` matches `/a` too.
fn literal_prefix(glob: &Glob) -> &str {
    let text = glob.as_str();
    let plain = &text[..text.find(['*', '?', '{']).unwrap_or(text.len())];
    plain.strip_suffix('/').unwrap_or(plain)
}

fn common_prefix<'a>(one: &'a str, other: &'a str) -> &'a str {
    let length = one
        .char_indices()
        .zip(other.chars())
        .find(|((_, a), b)| a != b)
        .map_or(one.len().min(other.len()), |((at, _), _)| at);
    &one[..length]
}

impl Directory {
    fn listed(&self, path: &Path, node: &Node) -> PathListed {
        PathListed {
            path: path.clone(),
            queue: self.any_seen(&node.publishers),
            value: false,
            default: self.any_seen(&node.defaults),
        }
    }
}
