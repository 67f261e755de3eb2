//! A question, and its division into requests.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::limits::{RESOLVER_BATCH_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX};
use longshore_protocol::{Glob, Path, ResolverTiming};

use crate::read_client::answer::{Answer, Listing, PathTable, Resolution};

/// A question to the resolver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::read_client) enum Question {
    Resolve {
        paths: Arc<[Path]>,
        /// A warming replica may not know all publishers of a path: another is asked, also about
        /// the paths that it knows.
        all_publishers: bool,
    },
    List(Path),
    ListMatching(Arc<[Glob]>),
    Table(Path),
}

impl Question {
    /// `max(15 s, 50 µs × simple reads)`; a listing has another 15 s, as it may visit every path.
    pub(super) fn timeout(&self, timing: &ResolverTiming) -> Duration {
        match self {
            Question::Resolve { paths, .. } => timing.read_timeout(paths.len() as u64),
            Question::List(_) | Question::ListMatching(_) | Question::Table(_) => {
                timing.read_timeout(1) + timing.request_timeout_min
            }
        }
    }

    /// The requests of the question.
    pub(super) fn parts(&self) -> Vec<Range<usize>> {
        match self {
            Question::Resolve { paths, .. } => cut(paths),
            Question::List(_) | Question::ListMatching(_) | Question::Table(_) => {
                std::iter::once(0..0).collect()
            }
        }
    }

    /// The number of answers to the paths in `range`; `None` for a listing, where it is unknown.
    pub(super) fn answers(&self, range: &Range<usize>) -> Option<usize> {
        matches!(self, Question::Resolve { .. }).then_some(range.len())
    }

    /// Whether it asks for all publishers of its paths.
    pub(super) fn wants_all_publishers(&self) -> bool {
        matches!(self, Question::Resolve { all_publishers: true, .. })
    }

    /// Whether `answer` fits the question.
    pub(super) fn is_answered(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Question::Resolve { paths, .. }, Answer::Resolved(all)) => {
                all.answers.len() == paths.len()
            }
            (Question::List(_) | Question::ListMatching(_), Answer::Listed(_))
            | (Question::Table(_), Answer::Table(_)) => true,
            _ => false,
        }
    }

    /// The answer to an empty question.
    pub(super) fn empty_answer(&self) -> Answer {
        match self {
            Question::Resolve { .. } => {
                Answer::Resolved(Resolution { complete: true, ..Resolution::default() })
            }
            Question::Table(_) => {
                Answer::Table(PathTable { complete: true, ..PathTable::default() })
            }
            Question::List(_) | Question::ListMatching(_) => {
                Answer::Listed(Listing { complete: true, ..Listing::default() })
            }
        }
    }
}

/// Divides paths into requests of at most 100,000 and 1 MiB.
fn cut(paths: &[Path]) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, path) in paths.iter().enumerate() {
        let length = path.as_str().len();
        if at - start >= RESOLVER_BATCH_PATHS_MAX || bytes + length > RESOLVER_BATCH_BYTES_MAX {
            parts.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += length;
    }
    if start < paths.len() {
        parts.push(start..paths.len());
    }
    parts
}
