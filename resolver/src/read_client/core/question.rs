//! A question, and the requests that it takes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::limits::{RESOLVER_BATCH_BYTES_MAX, RESOLVER_BATCH_PATHS_MAX};
use longshore_protocol::{Glob, Path, ResolverTiming};

use crate::read_client::answer::{Answer, Listing, Resolution};

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::read_client) enum Question {
    Resolve(Arc<[Path]>),
    List(Path),
    ListMatching(Arc<[Glob]>),
}

impl Question {
    /// `max(15 s, 50 µs × simple reads)`; a listing has another 15 s, as it may look at every path.
    pub(super) fn timeout(&self, timing: &ResolverTiming) -> Duration {
        match self {
            Question::Resolve(paths) => timing.read_timeout(paths.len() as u64),
            Question::List(_) | Question::ListMatching(_) => {
                timing.read_timeout(1) + timing.request_timeout_min
            }
        }
    }

    /// The requests that it takes.
    pub(super) fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0);
        let Question::Resolve(paths) = self else {
            parts.push(0..0);
            return parts;
        };
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

    /// Whether that can be an answer to it.
    pub(super) fn is_answered(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Question::Resolve(paths), Answer::Resolved(all)) => all.answers.len() == paths.len(),
            (Question::List(_) | Question::ListMatching(_), Answer::Listed(_)) => true,
            _ => false,
        }
    }

    pub(super) fn empty_answer(&self) -> Answer {
        match self {
            Question::Resolve(_) => {
                Answer::Resolved(Resolution { complete: true, answers: Vec::new() })
            }
            Question::List(_) | Question::ListMatching(_) => {
                Answer::Listed(Listing { complete: true, paths: Vec::new() })
            }
        }
    }
}
