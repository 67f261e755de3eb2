//! The items of a feed.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{FeedEvents, FeedPosition, JobInfo};
use longshore_protocol::{PublisherId, PublisherInfo};

/// Where a feed begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedFrom {
    /// With what happens from now on.
    Now,
    /// With all jobs that there are, and then with what happens.
    Snapshot,
    /// After what was seen before ([`Feed::positions`](crate::Feed::positions)); with all jobs of publishers that are not
    /// among them.
    After(FeedPositions),
}

/// What was seen of each publisher. Kept together with what was made of it, another feed goes on
/// from there ([`FeedFrom::After`]) without a gap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeedPositions(pub BTreeMap<PublisherId, FeedPosition>);

/// What a feed tells, of one publisher. What it tells of one publisher is in order; publishers are
/// not ordered among each other.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedItem {
    /// Whose.
    pub publisher: PublisherInfo,
    /// What.
    pub news: FeedNews,
}

/// What a feed tells. Applied as it comes, it gives the publisher's jobs as they are:
/// [`FeedNews::Jobs`] and the events of [`FeedNews::Changes`] each say how a job stands from then
/// on (an event without a state: it is gone).
#[derive(Clone, PartialEq, Debug)]
pub enum FeedNews {
    /// The publisher is followed, from there or again.
    Follows {
        /// Events after this follow.
        at: FeedPosition,
    },
    /// All of its jobs follow: what was known of them before is to be forgotten.
    SnapshotBegins,
    /// Jobs of a snapshot as they stand, without payloads, headers and results; never none. Changes
    /// may come in between.
    Jobs(Vec<JobInfo>),
    /// Every job was shown; only changes follow.
    SnapshotEnds {
        /// The changes up to here were shown.
        at: FeedPosition,
    },
    /// What happened, in order; sometimes nothing, just to say how far the publisher is.
    Changes(FeedEvents),
    /// What happened since is not to be had. The next is [`FeedNews::SnapshotBegins`], or for a
    /// feed from now on [`FeedNews::Follows`] with a gap before it.
    Lost(FeedLoss),
    /// The publisher cannot be reached: said once, however often it is tried. It is tried again for
    /// as long as the feed is read, and goes on where it was, which [`FeedNews::Follows`] tells.
    Away {
        /// Why, for people.
        why: String,
    },
}

/// Why a feed could not go on where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FeedLoss {
    /// More has happened since than the publisher keeps: 65,536 transitions.
    #[error("TooOld: more has happened since than the publisher keeps")]
    TooOld,
    /// The publisher has lost what was seen: its acknowledgements are not synced.
    #[error("Rewound: the publisher started again before what was seen")]
    Rewound,
}
