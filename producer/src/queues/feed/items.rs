//! The items of a feed.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{FeedEvents, FeedPosition, JobInfo};
use longshore_protocol::{PublisherId, PublisherInfo};

/// Where a feed starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeedFrom {
    /// With changes from now on.
    Now,
    /// With a snapshot of all jobs, followed by changes.
    Snapshot,
    /// After these positions ([`Feed::positions`](crate::Feed::positions)); with a snapshot of
    /// publishers that are not listed.
    After(FeedPositions),
}

/// The position in each publisher's feed. Stored atomically with the consumer's state, it lets
/// another feed resume without a gap ([`FeedFrom::After`]).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeedPositions(pub BTreeMap<PublisherId, FeedPosition>);

/// An item of a feed. Items of one publisher are in order; publishers are not ordered among each
/// other.
#[derive(Clone, PartialEq, Debug)]
pub struct FeedItem {
    /// The publisher.
    pub publisher: PublisherInfo,
    /// The update.
    pub update: FeedUpdate,
}

/// An update of a feed. Applied in order, the updates give the publisher's jobs:
/// [`FeedUpdate::Jobs`] and the events of [`FeedUpdate::Changes`] each give a job's state from then
/// on (an event without a state: the job is gone).
#[derive(Clone, PartialEq, Debug)]
pub enum FeedUpdate {
    /// The feed is open at this publisher, for the first time or again.
    Follows {
        /// Events after this position follow.
        at: FeedPosition,
    },
    /// A snapshot follows: discard what was known of the publisher's jobs.
    SnapshotBegins,
    /// Jobs of a snapshot, without payloads, headers and results; never empty. Changes may arrive
    /// in between.
    Jobs(Vec<JobInfo>),
    /// The snapshot is complete; only changes follow.
    SnapshotEnds {
        /// Changes up to this position are included.
        at: FeedPosition,
    },
    /// Changes, in order; may be empty, to report the publisher's position.
    Changes(FeedEvents),
    /// Changes were lost. The next update is [`FeedUpdate::SnapshotBegins`] or, for a feed without
    /// snapshots, [`FeedUpdate::Follows`] after a gap.
    Lost(FeedLoss),
    /// The publisher cannot be reached; reported once per outage. The feed retries as long as it is
    /// read, and resumes at its position, which [`FeedUpdate::Follows`] reports.
    Away {
        /// The reason, for people.
        why: String,
    },
}

/// Why a feed could not resume at its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FeedLoss {
    /// The publisher retains only 65,536 transitions, and more have happened since.
    #[error("TooOld: more has happened since than the publisher retains")]
    TooOld,
    /// The publisher has lost the position: its acknowledgements are not synced.
    #[error("Rewound: the publisher started again before what was seen")]
    Rewound,
}
