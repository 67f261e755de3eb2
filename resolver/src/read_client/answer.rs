//! The answers of the read client.

use std::sync::Arc;

use longshore_protocol::messages::resolver::{
    self as wire, Column, Listed, PathListed, Resolved, TableAnswer,
};
use longshore_protocol::{NameError, PublisherInfo, Terms};

use crate::cluster::ReplicaFailure;

/// The answer to a batch of paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolution {
    /// False when every replica that answered is warming: a path that was not found may be
    /// published all the same, and one that was found may have more publishers.
    pub complete: bool,
    /// One answer for each path, in order.
    pub answers: Vec<PathAnswer>,
}

/// The answer for one path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathAnswer {
    /// The path has publishers.
    Publishers {
        /// The publishers, shared with the other paths that have the same ones.
        set: Arc<[Publication]>,
        /// The path itself has no publisher; these have declared the nearest default above it.
        by_default: bool,
        /// For a published path: the publishers of the nearest default at or above it, if there is
        /// one. A producer tries them while none of `set` can be reached.
        fallback: Option<Arc<[Publication]>>,
    },
    /// The path has no publisher.
    NotFound,
    /// This path was refused, with the reason.
    Refused(String),
}

/// A publisher of a path, or of the default that serves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Publication {
    /// The publisher's record.
    pub publisher: PublisherInfo,
    /// The terms of the publication.
    pub terms: Terms,
}

/// Paths that a replica knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// False when every replica that answered is warming: there may be more paths.
    pub complete: bool,
    /// The paths, sorted, without duplicates.
    pub paths: Vec<PathListed>,
}

/// The two levels below a path: the first as rows, the second as columns.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PathTable {
    /// False when every replica that answered is warming: there may be more.
    pub complete: bool,
    /// The names of the rows, sorted, without duplicates.
    pub rows: Vec<String>,
    /// The columns by name, each with the number of its rows; a lower bound if several replicas
    /// were asked.
    pub columns: Vec<Column>,
}

/// Why a batch has no answer. The client stays usable: the next batch starts afresh. After
/// [`NoAnswer`](ReadError::NoAnswer) try again; the other errors would recur.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReadError {
    /// Every replica failed in each of three rounds, with its last error. The list is empty if the
    /// runtime has ended.
    #[error("no resolver replica answered: {}", list(.0))]
    NoAnswer(Vec<ReplicaFailure>),
    /// A replica refused the whole request; another of its version would refuse it too.
    #[error("resolver replica {replica} refused the request: {reason}")]
    Refused {
        /// The replica.
        replica: String,
        /// The reason, for people.
        reason: String,
    },
    /// The answer exceeds the client's limit. Ask for less at a time.
    #[error(
        "resolver replica {replica} answers with more than {limit} bytes; ask for less at a time"
    )]
    TooLong {
        /// The replica.
        replica: String,
        /// The limit, in bytes.
        limit: usize,
    },
    /// More globs than one request may have. No replica was asked; list them in parts.
    #[error("a list of {globs} globs is over the limit of {limit}; list them in parts")]
    TooManyGlobs {
        /// The number given.
        globs: usize,
        /// The limit.
        limit: usize,
    },
    /// The cluster names no replica: the configuration is wrong.
    #[error("no resolver replica is configured; name at least one as host:port")]
    NoReplicas,
    /// The client's own name is empty, or has more than 128 bytes. No replica was asked.
    #[error("the resolver's client: {0}")]
    Name(#[from] NameError),
}

fn list(failures: &[ReplicaFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl PathAnswer {
    /// True for a negative answer, which a replica with more information may contradict.
    fn is_negative(&self) -> bool {
        matches!(self, PathAnswer::NotFound | PathAnswer::Publishers { by_default: true, .. })
    }

    /// The better of two answers: a publisher of the path before a default, a default before none.
    /// The first of two that are as good.
    pub(super) fn better(self, other: PathAnswer) -> PathAnswer {
        let worth = |answer: &PathAnswer| match answer {
            PathAnswer::Publishers { by_default: false, .. } => 3,
            PathAnswer::Publishers { by_default: true, .. } => 2,
            PathAnswer::NotFound => 1,
            PathAnswer::Refused(_) => 0,
        };
        if worth(&other) > worth(&self) { other } else { self }
    }
}

/// The approximate size of each path, row or column beside its text, in bytes.
const ENTRY_BYTES: usize = 32;

/// The size of the sets of publishers. Paths that share one are mostly adjacent.
fn resolved_bytes(answers: &[PathAnswer]) -> usize {
    let (mut bytes, mut last) = (0, None);
    for answer in answers {
        match answer {
            PathAnswer::Publishers { set, .. } if last != Some(Arc::as_ptr(set)) => {
                last = Some(Arc::as_ptr(set));
                bytes += set.iter().map(Publication::bytes).sum::<usize>();
            }
            PathAnswer::Refused(reason) => bytes += reason.len(),
            PathAnswer::Publishers { .. } | PathAnswer::NotFound => {}
        }
    }
    bytes
}

impl Publication {
    fn bytes(&self) -> usize {
        let tls_name = self.publisher.tls_name.as_ref().map_or(0, |name| name.as_str().len());
        let names = self.publisher.name.len() + tls_name;
        let addresses = size_of_val(&self.publisher.addresses[..]);
        let homes = &self.terms.homes;
        let homes = size_of::<String>() * 2 * homes.texts() + homes.text_bytes();
        let later = self.publisher.later.as_bytes().len() + self.terms.later.as_bytes().len();
        size_of::<Publication>() + names + addresses + homes + later
    }
}

/// The answer of replicas to one question, or to a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Resolved(Resolution),
    Listed(Listing),
    Table(PathTable),
}

impl Answer {
    /// The number of answers, paths, or rows and columns.
    pub(super) fn len(&self) -> usize {
        match self {
            Answer::Resolved(all) => all.answers.len(),
            Answer::Listed(all) => all.paths.len(),
            Answer::Table(all) => all.rows.len() + all.columns.len(),
        }
    }

    /// The approximate size in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let texts = match self {
            Answer::Resolved(all) => resolved_bytes(&all.answers),
            Answer::Listed(all) => all.paths.iter().map(|one| one.path.as_str().len()).sum(),
            Answer::Table(all) => {
                let rows: usize = all.rows.iter().map(String::len).sum();
                rows + all.columns.iter().map(|one| one.name.len()).sum::<usize>()
            }
        };
        texts + self.len() * ENTRY_BYTES
    }

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
            (Answer::Table(all), Answer::Table(slice)) => {
                all.complete &= slice.complete;
                all.rows.extend(slice.rows);
                all.columns.extend(slice.columns);
            }
            (all, slice) => *all = slice,
        }
    }

    /// Whether another replica, which is not warming, could have a better answer: to a question for
    /// all publishers, also for the paths that were found.
    pub(super) fn is_provisional(&self, all_publishers: bool) -> bool {
        match self {
            Answer::Resolved(all) => {
                let is_doubtful = all_publishers || all.answers.iter().any(PathAnswer::is_negative);
                !all.complete && is_doubtful
            }
            Answer::Listed(all) => !all.complete,
            Answer::Table(all) => !all.complete,
        }
    }

    /// Merges two replicas' answers to the same question.
    pub(super) fn join(self, other: Answer) -> Answer {
        match (self, other) {
            (Answer::Resolved(one), Answer::Resolved(other)) => {
                // A warming replica may know only some of a path's publishers: of two answers of
                // the same worth, the complete one counts.
                let (first, second) = if other.complete { (other, one) } else { (one, other) };
                let answers = first.answers.into_iter().zip(second.answers);
                Answer::Resolved(Resolution {
                    complete: first.complete || second.complete,
                    answers: answers.map(|(first, second)| first.better(second)).collect(),
                })
            }
            (Answer::Listed(mut one), Answer::Listed(other)) => {
                one.complete |= other.complete;
                one.paths.extend(other.paths);
                Answer::Listed(one.sorted())
            }
            (Answer::Table(mut one), Answer::Table(other)) => {
                one.complete |= other.complete;
                one.rows.extend(other.rows);
                one.columns.extend(other.columns);
                // Which rows both counted is unknown.
                Answer::Table(one.sorted(u64::max))
            }
            (one, _) => one,
        }
    }

    /// Sorts the answer as documented.
    pub(super) fn sorted(self) -> Answer {
        match self {
            Answer::Listed(listing) => Answer::Listed(listing.sorted()),
            Answer::Table(table) => Answer::Table(table.sorted(u64::saturating_add)),
            in_order => in_order,
        }
    }
}

impl Listing {
    fn sorted(mut self) -> Listing {
        self.paths.sort_unstable();
        // A path may occur twice: from two replicas, or because it came between two slices.
        self.paths.dedup_by(|later, earlier| {
            let same = later.path == earlier.path;
            if same {
                earlier.queue |= later.queue;
                earlier.value |= later.value;
                earlier.default |= later.default;
            }
            same
        });
        self
    }
}

impl PathTable {
    /// Merges columns that occur several times; `joined` combines their numbers of rows.
    fn sorted(mut self, joined: impl Fn(u64, u64) -> u64) -> PathTable {
        self.rows.sort_unstable();
        self.rows.dedup();
        self.columns.sort_unstable();
        self.columns.dedup_by(|later, earlier| {
            let same = later.name == earlier.name;
            if same {
                earlier.rows = joined(earlier.rows, later.rows);
            }
            same
        });
        self
    }
}

impl From<Listed> for Listing {
    fn from(slice: Listed) -> Listing {
        Listing { complete: slice.complete, paths: slice.paths }
    }
}

impl From<TableAnswer> for PathTable {
    fn from(slice: TableAnswer) -> PathTable {
        PathTable { complete: slice.complete, rows: slice.rows, columns: slice.columns }
    }
}

impl From<Resolved> for Resolution {
    fn from(slice: Resolved) -> Resolution {
        let member = |member: &wire::SetMember| {
            let publisher = slice.publishers.get(member.publisher as usize)?.clone();
            let terms = slice.terms.get(member.terms as usize)?.clone();
            Some(Publication { publisher, terms })
        };
        let sets: Vec<Arc<[Publication]>> =
            slice.sets.iter().map(|set| set.iter().filter_map(member).collect()).collect();
        let set_at = |set: u32| sets.get(set as usize).map(Arc::clone);
        let publishers = |set: u32, by_default, default: Option<u32>| match set_at(set) {
            Some(set) => {
                PathAnswer::Publishers { set, by_default, fallback: default.and_then(set_at) }
            }
            None => PathAnswer::NotFound,
        };
        let answer = |answer| match answer {
            wire::PathAnswer::NotFound => PathAnswer::NotFound,
            wire::PathAnswer::Published { set, default } => publishers(set, false, default),
            wire::PathAnswer::ByDefault { set } => publishers(set, true, None),
            wire::PathAnswer::Refused { reason } => PathAnswer::Refused(reason),
            wire::PathAnswer::Unknown { kind } => PathAnswer::Refused(format!(
                "the replica gave an answer of kind {kind}, which this version does not know; \
                 upgrade the client"
            )),
        };
        Resolution {
            complete: slice.complete,
            answers: slice.answers.into_iter().map(answer).collect(),
        }
    }
}
