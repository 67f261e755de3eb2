//! What the read client answers with.

use std::sync::Arc;

use longshore_protocol::PublisherInfo;
use longshore_protocol::messages::resolver::{self as wire, PathListed, Resolved};

use crate::cluster::ReplicaFailure;

/// What became of a batch of paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    /// False when every replica that answered is warming: a path that was not found may be published all the same.
    pub complete: bool,
    /// One answer for each path, in order.
    pub answers: Vec<PathAnswer>,
}

/// What became of one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathAnswer {
    /// These serve it.
    Publishers {
        /// Who, shared with the other paths that have the same publishers.
        set: Arc<[PublisherInfo]>,
        /// Nobody publishes the path itself; these have declared the nearest default above it.
        by_default: bool,
    },
    /// Nobody does.
    NotFound,
    /// This path was refused, and why.
    Refused(String),
}

/// Paths that a replica knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// False when every replica that answered is warming: there may be more paths.
    pub complete: bool,
    /// The paths, sorted, none twice.
    pub paths: Vec<PathListed>,
}

/// Why a batch has no answer. The client stays good: the next batch starts afresh.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// Every replica failed it, in each of three rounds.
    #[error("no resolver replica answered: {}", list(.0))]
    NoAnswer(Vec<ReplicaFailure>),
    /// A replica refused the whole request; another of its version would too.
    #[error("resolver replica {replica} refused the request: {reason}")]
    Refused {
        /// Which.
        replica: String,
        /// Why, for people.
        reason: String,
    },
    /// The cluster names no replica.
    #[error("no resolver replica is configured; name at least one as host:port")]
    NoReplicas,
}

fn list(failures: &[ReplicaFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl PathAnswer {
    /// A "no" may be a yes at a replica that has been told more.
    fn is_no(&self) -> bool {
        matches!(self, PathAnswer::NotFound | PathAnswer::Publishers { by_default: true, .. })
    }

    /// Which of two answers to believe: somebody that publishes the path before a default, that before nobody.
    fn better(self, other: PathAnswer) -> PathAnswer {
        let worth = |answer: &PathAnswer| match answer {
            PathAnswer::Publishers { by_default: false, .. } => 3,
            PathAnswer::Publishers { by_default: true, .. } => 2,
            PathAnswer::NotFound => 1,
            PathAnswer::Refused(_) => 0,
        };
        if worth(&other) > worth(&self) { other } else { self }
    }
}

/// What replicas have answered to one question, or to a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Resolved(Resolution),
    Listed(Listing),
}

impl Answer {
    /// Adds the next slice of the same replica's answer.
    pub(super) fn extend(&mut self, slice: Answer) {
        match (self, slice) {
            (Answer::Resolved(all), Answer::Resolved(slice)) => {
                all.complete &= slice.complete;
                all.answers.extend(slice.answers);
            }
            (Answer::Listed(all), Answer::Listed(slice)) => {
                all.complete &= slice.complete;
                all.paths.extend(slice.paths);
            }
            (all, slice) => *all = slice,
        }
    }

    /// Whether another replica, which is not warming, could know better.
    pub(super) fn is_doubtful(&self) -> bool {
        match self {
            Answer::Resolved(all) => !all.complete && all.answers.iter().any(PathAnswer::is_no),
            Answer::Listed(all) => !all.complete,
        }
    }

    /// Joins what two replicas answered to the same question.
    pub(super) fn join(self, other: Answer) -> Answer {
        match (self, other) {
            (Answer::Resolved(one), Answer::Resolved(other)) => {
                let answers = one.answers.into_iter().zip(other.answers);
                Answer::Resolved(Resolution {
                    complete: one.complete || other.complete,
                    answers: answers.map(|(one, other)| one.better(other)).collect(),
                })
            }
            (Answer::Listed(mut one), Answer::Listed(other)) => {
                one.complete |= other.complete;
                one.paths.extend(other.paths);
                Answer::Listed(one.sorted())
            }
            (one, _) => one,
        }
    }

    /// In the order that is promised.
    pub(super) fn sorted(self) -> Answer {
        match self {
            Answer::Listed(listing) => Answer::Listed(listing.sorted()),
            resolved => resolved,
        }
    }
}

impl Listing {
    fn sorted(mut self) -> Listing {
        self.paths.sort_unstable();
        // The same path told twice: by two replicas, or because it came between two slices.
        self.paths.dedup_by(|later, kept| {
            let same = later.path == kept.path;
            if same {
                kept.queue |= later.queue;
                kept.value |= later.value;
                kept.default |= later.default;
            }
            same
        });
        self
    }
}

impl From<Resolved> for Resolution {
    fn from(slice: Resolved) -> Resolution {
        let sets: Vec<Arc<[PublisherInfo]>> = slice
            .sets
            .iter()
            .map(|set| {
                let member = |m: &wire::SetMember| slice.publishers.get(m.publisher as usize);
                set.iter().filter_map(member).cloned().collect()
            })
            .collect();
        let publishers = |set: u32, by_default| match sets.get(set as usize) {
            Some(set) => PathAnswer::Publishers { set: Arc::clone(set), by_default },
            None => PathAnswer::NotFound,
        };
        let answer = |answer| match answer {
            wire::PathAnswer::NotFound => PathAnswer::NotFound,
            wire::PathAnswer::Published { set } => publishers(set, false),
            wire::PathAnswer::ByDefault { set } => publishers(set, true),
            wire::PathAnswer::Refused { reason } => PathAnswer::Refused(reason),
            wire::PathAnswer::Unknown { kind } => PathAnswer::Refused(format!(
                "the replica gave an answer of kind {kind}, which this version does not know; upgrade the client"
            )),
        };
        Resolution {
            complete: slice.complete,
            answers: slice.answers.into_iter().map(answer).collect(),
        }
    }
}
