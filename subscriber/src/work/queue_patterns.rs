//! Which queues a worker takes jobs from, and in which order.

use longshore_protocol::limits::SOURCES_MAX;
use longshore_protocol::messages::work::{Order, Source, Sources};
use longshore_protocol::{Glob, GlobError};

use crate::RunError;

/// Which queues a worker takes jobs from, and in which order. Within a queue, jobs are ordered by
/// priority, then age.
///
/// A pattern is a path or a glob over paths, given as anything that displays as one: a text, a
/// `Path`, a `Glob`. A queue that several patterns match belongs to the first of them.
///
/// ```
/// # mod longshore { pub use longshore_subscriber::*; }
/// use longshore::QueuePatterns;
///
/// // All queues as one.
/// let one: QueuePatterns = "/jobs/**".into();
/// let some = QueuePatterns::any(["/jobs/mail", "/jobs/sms"]);
/// // No bulk job while there is an urgent one.
/// let urgent_first = QueuePatterns::strict(["/jobs/urgent", "/jobs/bulk"]);
/// // Three paid jobs to one free one while there are both.
/// let shares = QueuePatterns::weighted([("/jobs/paid/**", 3), ("/jobs/free/**", 1)]);
/// # let _ = (one, some, urgent_first, shares);
/// ```
///
/// Each publisher applies the order to its own jobs when it delivers them: a worker with several
/// publishers gets each one's jobs in that publisher's order, and runs jobs in the order of their
/// arrival. So a more urgent job does not overtake one that was delivered earlier for
/// [`prefetch`](crate::Subscription::prefetch): where the order matters more than throughput, set
/// it to 0.
#[derive(Clone, PartialEq, Debug)]
pub struct QueuePatterns {
    sources: Result<Sources, QueuePatternsError>,
}

/// Why the patterns are invalid. A retry fails again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum QueuePatternsError {
    /// A pattern is not a glob over paths.
    #[error(transparent)]
    Pattern(#[from] GlobError),
    /// There is no pattern.
    #[error("no queue; name at least one path or pattern")]
    None,
    /// There are more than 64 patterns.
    #[error(
        "{0} patterns are over the limit of {SOURCES_MAX}; combine several in one: /jobs/{{a,b}}"
    )]
    TooMany(usize),
    /// A pattern has weight 0.
    #[error("pattern '{0}' has weight 0; the least is 1; for a pattern to come last use `strict`")]
    Weight(Glob),
}

impl QueuePatterns {
    /// All queues as if they were one: by priority, then age. At most 64 patterns.
    pub fn any(patterns: impl IntoIterator<Item = impl ToString>) -> QueuePatterns {
        QueuePatterns::new(Order::Age, patterns.into_iter().map(|pattern| (pattern, 1)))
    }

    /// No job of a pattern while an earlier pattern has one. At most 64 patterns.
    pub fn strict(patterns: impl IntoIterator<Item = impl ToString>) -> QueuePatterns {
        QueuePatterns::new(Order::Strict, patterns.into_iter().map(|pattern| (pattern, 1)))
    }

    /// Jobs of each pattern in proportion to its weight, among the patterns that have jobs now.
    /// Weights are at least 1. At most 64 patterns.
    pub fn weighted(shares: impl IntoIterator<Item = (impl ToString, u16)>) -> QueuePatterns {
        QueuePatterns::new(Order::Weighted, shares.into_iter())
    }

    fn new(order: Order, shares: impl Iterator<Item = (impl ToString, u16)>) -> QueuePatterns {
        let source = |(pattern, weight): (_, u16)| {
            let pattern = Glob::new(&ToString::to_string(&pattern))?;
            if weight == 0 {
                Err(QueuePatternsError::Weight(pattern))
            } else {
                Ok(Source { pattern, weight })
            }
        };
        let patterns: Result<Vec<Source>, QueuePatternsError> = shares.map(source).collect();
        let sources = patterns.and_then(|patterns| match patterns.len() {
            0 => Err(QueuePatternsError::None),
            1..=SOURCES_MAX => Ok(Sources { order, patterns }),
            over => Err(QueuePatternsError::TooMany(over)),
        });
        QueuePatterns { sources }
    }

    pub(crate) fn into_sources(self) -> Result<Sources, QueuePatternsError> {
        self.sources
    }
}

/// What a [`Subscription`](crate::Subscription) takes jobs from: patterns ([`QueuePatterns`]), or
/// the queues of its handlers' kinds ([`Kinds`](crate::Kinds)).
pub trait JobSource {
    /// The patterns of its queues, in their order.
    fn patterns(&self) -> Result<Vec<Glob>, RunError>;
}

impl JobSource for QueuePatterns {
    fn patterns(&self) -> Result<Vec<Glob>, RunError> {
        let sources = self.sources.as_ref().map_err(QueuePatternsError::clone)?;
        Ok(sources.patterns.iter().map(|source| source.pattern.clone()).collect())
    }
}

/// A single path or pattern.
impl<T: ToString> From<T> for QueuePatterns {
    fn from(pattern: T) -> QueuePatterns {
        QueuePatterns::any([pattern])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_protocol::Path;

    fn order_and_patterns(take: impl Into<QueuePatterns>) -> (Order, Vec<(String, u16)>) {
        let sources = take.into().into_sources().unwrap();
        let patterns = sources.patterns.iter();
        (sources.order, patterns.map(|s| (s.pattern.to_string(), s.weight)).collect())
    }

    #[test]
    fn a_pattern_may_be_text_path_or_glob() {
        let expected = (Order::Age, vec![("/jobs/a".to_owned(), 1)]);
        let path = Path::new("/jobs/a").unwrap();
        let glob = Glob::new("/jobs/a").unwrap();
        assert_eq!(order_and_patterns("/jobs/a"), expected);
        let text = "/jobs/a".to_owned();
        assert_eq!(order_and_patterns(&text), expected);
        assert_eq!(order_and_patterns(text), expected);
        assert_eq!(order_and_patterns(&path), expected);
        assert_eq!(order_and_patterns(path), expected);
        assert_eq!(order_and_patterns(&glob), expected);
        assert_eq!(order_and_patterns(glob), expected);
    }

    #[test]
    fn several_patterns_keep_their_order_and_their_weights() {
        let both = vec![("/jobs/b".to_owned(), 1), ("/jobs/a/**".to_owned(), 1)];
        assert_eq!(
            order_and_patterns(QueuePatterns::strict(["/jobs/b", "/jobs/a/**"])),
            (Order::Strict, both.clone())
        );
        assert_eq!(
            order_and_patterns(QueuePatterns::any(["/jobs/b", "/jobs/a/**"])),
            (Order::Age, both)
        );
        let take = QueuePatterns::strict(["/jobs/b", "/jobs/a"]);
        let patterns: Vec<String> = take.patterns().unwrap().iter().map(Glob::to_string).collect();
        assert_eq!(patterns, ["/jobs/b", "/jobs/a"]);
        let shares = vec![("/jobs/b".to_owned(), 3), ("/jobs/a".to_owned(), 65_535)];
        let taken =
            order_and_patterns(QueuePatterns::weighted([("/jobs/b", 3), ("/jobs/a", u16::MAX)]));
        assert_eq!(taken, (Order::Weighted, shares));
    }

    #[test]
    fn invalid_patterns_report_why() {
        let why = |take: QueuePatterns| take.into_sources().unwrap_err();
        assert_eq!(why(QueuePatterns::any([""; 0])), QueuePatternsError::None);
        assert!(matches!(why("jobs".into()), QueuePatternsError::Pattern(_)));
        assert!(matches!(
            why(QueuePatterns::strict(["/jobs/a", "/jobs/[b]"])),
            QueuePatternsError::Pattern(_)
        ));
        let weight = why(QueuePatterns::weighted([("/jobs/a", 1), ("/jobs/b", 0)]));
        assert_eq!(weight, QueuePatternsError::Weight(Glob::new("/jobs/b").unwrap()));
        assert_eq!(
            why(QueuePatterns::any(["/jobs/a"; SOURCES_MAX + 1])),
            QueuePatternsError::TooMany(65)
        );
        assert!(QueuePatterns::any(["/jobs/a"; SOURCES_MAX]).into_sources().is_ok());
        assert!(why(QueuePatterns::any(["/jobs/a"; 65])).to_string().contains("/jobs/{a,b}"));
    }
}
