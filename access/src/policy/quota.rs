//! How much of a server one client may use.

use std::num::{NonZeroU32, NonZeroU64};

use longshore_protocol::Glob;

use super::rule::{Effect, PathPattern, globs};
use super::subject::Subject;
use crate::identity::Identity;

/// The smallest quota of received bytes, in bytes a second, and what a quota has to have for each
/// link: a link that is read at this rate counts as hung at neither side, as no part of a frame
/// waits for more than about two seconds.
pub const QUOTA_BYTES_MIN: u64 = 16_384;

/// The same of received messages, in messages a second. Until short messages of 64 KiB are read,
/// which can be over two thousand, the kernel may take no more from the client.
pub const QUOTA_MESSAGES_MIN: u64 = 256;

/// The quota of one client at one server. A client is an identity with all its links, or an address
/// with all links from it that have no identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Most links at a time; none for no limit of its own.
    pub links: Option<NonZeroU32>,
    /// Most handshakes a second.
    pub handshakes: Option<NonZeroU32>,
    /// Most bytes a second that the server reads from it.
    pub bytes: Option<NonZeroU64>,
    /// Most messages a second that the server reads from it.
    pub messages: Option<NonZeroU64>,
    /// Most paths that its publishers have registered at a replica.
    pub registered_paths: Option<NonZeroU32>,
}

/// A limit of a quota, by its key in the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinksLimit {
    /// `links`
    Links,
    /// `bytes`: a rate serves only so many links.
    Bytes,
    /// `messages`, likewise.
    Messages,
}

/// How much may wait at one publisher in the queues of certain paths, together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueLimits {
    /// Most queues; none for no limit of its own.
    pub queues: Option<NonZeroU32>,
    /// Jobs that have not ended: with so many, clients with the quota enqueue no more.
    pub waiting_jobs: Option<NonZeroU64>,
    /// Bytes of their headers, options and payloads.
    pub waiting_bytes: Option<NonZeroU64>,
}

/// A quota of queues, as one client has it. Whoever enqueued what waits there: it counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueQuota {
    /// The place of its entry among those of the policy, from 0.
    pub entry: usize,
    /// The line of the policy at which it begins, from 1.
    pub line: usize,
    /// Its paths, at least one.
    pub paths: Vec<Glob>,
    /// What may wait there.
    pub limits: QueueLimits,
}

/// An entry of `[[quota]]`: each of these clients has the quota for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct QuotaRule {
    pub(super) line: usize,
    pub(super) who: Vec<Subject>,
    pub(super) quota: Quota,
    pub(super) paths: Vec<PathPattern>,
    pub(super) queues: QueueLimits,
}

impl Quota {
    /// Most links at a time, and the limit that says so. A rate serves one link for each
    /// [`QUOTA_BYTES_MIN`] or [`QUOTA_MESSAGES_MIN`] of it: with more, each would wait for so long
    /// that its client takes it for hung.
    pub fn links_max(&self) -> Option<(u64, LinksLimit)> {
        let links = self.links.map(|links| (u64::from(links.get()), LinksLimit::Links));
        let bytes = self.bytes.map(|bytes| (bytes.get() / QUOTA_BYTES_MIN, LinksLimit::Bytes));
        let messages = self
            .messages
            .map(|messages| (messages.get() / QUOTA_MESSAGES_MIN, LinksLimit::Messages));
        [links, bytes, messages].into_iter().flatten().min_by_key(|(most, _)| *most)
    }

    /// True if nothing is limited.
    pub fn is_unlimited(&self) -> bool {
        *self == Quota::default()
    }

    /// The smaller of both, in each part.
    fn min(self, other: Quota) -> Quota {
        fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.into_iter().chain(other).min()
        }
        Quota {
            links: least(self.links, other.links),
            handshakes: least(self.handshakes, other.handshakes),
            bytes: least(self.bytes, other.bytes),
            messages: least(self.messages, other.messages),
            registered_paths: least(self.registered_paths, other.registered_paths),
        }
    }
}

/// The quotas of queues of a client, each of which counts.
pub(super) fn queue_quotas_of(rules: &[QuotaRule], who: Option<&Identity>) -> Vec<QueueQuota> {
    let about = |rule: &QuotaRule| rule.who.iter().any(|subject| subject.matches(who));
    let about = rules.iter().enumerate().filter(|(_, rule)| about(rule));
    let of_client = about.map(|(entry, rule)| QueueQuota {
        entry,
        line: rule.line,
        paths: globs(&rule.paths, who, Effect::Allow).collect(),
        limits: rule.queues,
    });
    of_client.filter(|quota| !quota.paths.is_empty()).collect()
}

/// The quota of a client: of several entries that are about it, the smallest counts.
pub(super) fn quota_of(rules: &[QuotaRule], who: Option<&Identity>) -> Quota {
    let about = rules.iter().filter(|rule| rule.who.iter().any(|subject| subject.matches(who)));
    about.fold(Quota::default(), |quota, rule| quota.min(rule.quota))
}
