//! Which queues a worker takes jobs from, and in which order.

use longshore_protocol::limits::SOURCES_MAX;
use longshore_protocol::messages::work::{Order, Source, Sources};
use longshore_protocol::{Glob, GlobError};

/// Which queues a worker takes jobs from, and in which order. Within a queue jobs come by priority,
/// then age.
///
/// A pattern is a path or a glob over paths; whatever shows as one will do: a text, a `Path`, a
/// `Glob`. A queue that several patterns match belongs to the first of them.
///
/// ```
/// # mod longshore { pub use longshore_subscriber::*; }
/// use longshore::Take;
///
/// // As if all queues were one.
/// let one: Take = "/jobs/**".into();
/// let some = Take::any(["/jobs/mail", "/jobs/sms"]);
/// // Nothing of the second while the first has a job.
/// let urgent_first = Take::strict(["/jobs/urgent", "/jobs/bulk"]);
/// // Three of the first to one of the second while both have jobs; all of one while the other has none.
/// let shares = Take::weighted([("/jobs/paid/**", 3), ("/jobs/free/**", 1)]);
/// # let _ = (one, some, urgent_first, shares);
/// ```
///
/// The order is kept by each publisher for the jobs that it holds, when it hands them out: a worker
/// with several publishers gets each one's jobs in that one's order, and runs jobs in the order in
/// which they came. So a job handed out for [`prefetch`](crate::Subscription::prefetch) is not
/// overtaken by a more urgent one that comes later: where the order matters more than throughput,
/// prefetch nothing.
#[derive(Clone, PartialEq, Debug)]
pub struct Take {
    sources: Result<Sources, TakeError>,
}

/// Why there is nothing to take jobs from: the patterns are wrong, and to try again is no use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TakeError {
    /// A pattern is not a glob over paths.
    #[error(transparent)]
    Pattern(#[from] GlobError),
    /// There is no pattern.
    #[error("no queue to take jobs from; name at least one path or pattern")]
    None,
    /// There are more than 64 patterns.
    #[error("{0} patterns are over the limit of {SOURCES_MAX}; say several in one: /jobs/{{a,b}}")]
    TooMany(usize),
    /// A pattern has no share.
    #[error("pattern '{0}' has weight 0; the least is 1, and what is to be taken last is `strict`")]
    Weight(Glob),
}

impl Take {
    /// By priority, then age, as if all these queues were one. At most 64 patterns.
    pub fn any(patterns: impl IntoIterator<Item = impl ToString>) -> Take {
        Take::new(Order::Age, patterns.into_iter().map(|pattern| (pattern, 1)))
    }

    /// Nothing of a pattern while an earlier one has a job. At most 64 patterns.
    pub fn strict(patterns: impl IntoIterator<Item = impl ToString>) -> Take {
        Take::new(Order::Strict, patterns.into_iter().map(|pattern| (pattern, 1)))
    }

    /// Of each pattern as many jobs as its weight says, compared with the others that have jobs
    /// just now. Weights are at least 1. At most 64 patterns.
    pub fn weighted(shares: impl IntoIterator<Item = (impl ToString, u16)>) -> Take {
        Take::new(Order::Weighted, shares.into_iter())
    }

    fn new(order: Order, shares: impl Iterator<Item = (impl ToString, u16)>) -> Take {
        let source = |(pattern, weight): (_, u16)| {
            let pattern = Glob::new(&ToString::to_string(&pattern))?;
            if weight == 0 {
                Err(TakeError::Weight(pattern))
            } else {
                Ok(Source { pattern, weight })
            }
        };
        let patterns: Result<Vec<Source>, TakeError> = shares.map(source).collect();
        let sources = patterns.and_then(|patterns| match patterns.len() {
            0 => Err(TakeError::None),
            1..=SOURCES_MAX => Ok(Sources { order, patterns }),
            over => Err(TakeError::TooMany(over)),
        });
        Take { sources }
    }

    /// The patterns, in their order.
    pub fn patterns(&self) -> Result<impl Iterator<Item = &Glob>, TakeError> {
        let sources = self.sources.as_ref().map_err(TakeError::clone)?;
        Ok(sources.patterns.iter().map(|source| &source.pattern))
    }

    pub(crate) fn into_sources(self) -> Result<Sources, TakeError> {
        self.sources
    }
}

/// One path or pattern.
impl<T: ToString> From<T> for Take {
    fn from(pattern: T) -> Take {
        Take::any([pattern])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_protocol::Path;

    fn said(take: impl Into<Take>) -> (Order, Vec<(String, u16)>) {
        let sources = take.into().into_sources().unwrap();
        let patterns = sources.patterns.iter();
        (sources.order, patterns.map(|s| (s.pattern.to_string(), s.weight)).collect())
    }

    #[test]
    fn one_pattern_may_be_a_text_a_path_or_a_glob() {
        let expected = (Order::Age, vec![("/jobs/a".to_owned(), 1)]);
        let path = Path::new("/jobs/a").unwrap();
        let glob = Glob::new("/jobs/a").unwrap();
        assert_eq!(said("/jobs/a"), expected);
        let text = "/jobs/a".to_owned();
        assert_eq!(said(&text), expected);
        assert_eq!(said(text), expected);
        assert_eq!(said(&path), expected);
        assert_eq!(said(path), expected);
        assert_eq!(said(&glob), expected);
        assert_eq!(said(glob), expected);
    }

    #[test]
    fn several_patterns_keep_their_order_and_their_weights() {
        let both = vec![("/jobs/b".to_owned(), 1), ("/jobs/a/**".to_owned(), 1)];
        assert_eq!(said(Take::strict(["/jobs/b", "/jobs/a/**"])), (Order::Strict, both.clone()));
        assert_eq!(said(Take::any(["/jobs/b", "/jobs/a/**"])), (Order::Age, both));
        let take = Take::strict(["/jobs/b", "/jobs/a"]);
        let patterns: Vec<&str> = take.patterns().unwrap().map(Glob::as_str).collect();
        assert_eq!(patterns, ["/jobs/b", "/jobs/a"]);
        let shares = vec![("/jobs/b".to_owned(), 3), ("/jobs/a".to_owned(), 65_535)];
        let taken = said(Take::weighted([("/jobs/b", 3), ("/jobs/a", u16::MAX)]));
        assert_eq!(taken, (Order::Weighted, shares));
    }

    #[test]
    fn what_cannot_be_taken_from_says_why() {
        let why = |take: Take| take.into_sources().unwrap_err();
        assert_eq!(why(Take::any([""; 0])), TakeError::None);
        assert!(matches!(why("jobs".into()), TakeError::Pattern(_)));
        assert!(matches!(why(Take::strict(["/jobs/a", "/jobs/[b]"])), TakeError::Pattern(_)));
        let weight = why(Take::weighted([("/jobs/a", 1), ("/jobs/b", 0)]));
        assert_eq!(weight, TakeError::Weight(Glob::new("/jobs/b").unwrap()));
        assert_eq!(why(Take::any(["/jobs/a"; SOURCES_MAX + 1])), TakeError::TooMany(65));
        assert!(Take::any(["/jobs/a"; SOURCES_MAX]).into_sources().is_ok());
        assert!(why(Take::any(["/jobs/a"; 65])).to_string().contains("/jobs/{a,b}"));
    }
}
