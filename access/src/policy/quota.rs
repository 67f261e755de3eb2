//! How much of a server one client may use.

use std::num::{NonZeroU32, NonZeroU64};

use super::subject::Subject;
use crate::identity::Identity;

/// The smallest quota of received bytes, in bytes a second: a link that is read at this rate counts
/// as hung at neither side, as no part of a frame waits for more than about two seconds.
pub const QUOTA_BYTES_MIN: u64 = 16_384;

/// The quota of one client at one server. A client is an identity with all its links, or an address
/// with all links from it that have no identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Most links at a time; none for no limit of its own.
    pub links: Option<NonZeroU32>,
    /// Most bytes a second that the server reads from it; none for no limit of its own.
    pub bytes: Option<NonZeroU64>,
}

/// An entry of `[[quota]]`: each of these clients has the quota for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QuotaRule {
    pub(super) who: Vec<Subject>,
    pub(super) quota: Quota,
}

impl Quota {
    /// The smaller of both, in each part.
    fn min(self, other: Quota) -> Quota {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Quota { links: least(self.links, other.links), bytes: least(self.bytes, other.bytes) }
    }
}

/// The quota of a client: of several entries that are about it, the smallest counts.
pub(super) fn quota_of(rules: &[QuotaRule], who: Option<&Identity>) -> Quota {
    let about = rules.iter().filter(|rule| rule.who.iter().any(|subject| subject.matches(who)));
    about.fold(Quota::default(), |quota, rule| quota.min(rule.quota))
}
