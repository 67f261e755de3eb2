//! The state of one publisher: its link, its sequence numbers, and its unanswered batches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::{Durability, PublisherId, PublisherInfo};
use longshore_transport::{RETRY_WAIT_BUSY_MAX, RETRY_WAIT_MAX, STABLE_AFTER, retry_wait};

use super::batch::{Batch, Load};
use super::ids::{LinkNumber, StreamId, Time};
use super::limits::{FAILED_RECENTLY, UNANSWERED_BATCHES_MAX, UNANSWERED_BYTES_MAX};

/// A publisher with unanswered batches and no answer for this long gets new ones last.
const SILENT_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum LinkState {
    Down {
        retry_at: Time,
    },
    Dialing {
        link: LinkNumber,
    },
    Up {
        link: LinkNumber,
        since: Time,
        durability: Durability,
        /// A batch was answered on this link.
        answered: bool,
        stopping: bool,
    },
}

pub(super) struct InFlight<T> {
    pub(super) sequence: u64,
    pub(super) batch: Batch<T>,
    /// The publisher had received it before this link was attached: it is there, whatever the
    /// answer.
    pub(super) arrived: bool,
}

pub(super) struct Peer<T> {
    pub(super) info: PublisherInfo,
    pub(super) link: LinkState,
    /// Attempts since the last good link.
    pub(super) attempt: u32,
    /// Why there is no link.
    pub(super) reason: Option<Arc<str>>,
    pub(super) failed_at: Option<Time>,
    /// When it reported that it stops.
    pub(super) stopping_since: Option<Time>,
    /// When a batch was last sent.
    pub(super) used_at: Time,
    /// The number of the next batch.
    pub(super) next: u64,
    /// The highest number that it accepted for certain.
    pub(super) accepted: u64,
    /// Ordered by number.
    pub(super) unanswered: VecDeque<InFlight<T>>,
    pub(super) unanswered_bytes: usize,
    /// When it was sent a batch, or attached, after its last answer.
    pub(super) silent_since: Option<Time>,
}

/// True if the publisher has a link and takes jobs.
pub(super) fn is_up<T>(peers: &BTreeMap<PublisherId, Peer<T>>, publisher: &PublisherId) -> bool {
    peers.get(publisher).is_some_and(Peer::is_up)
}

impl<T> Peer<T> {
    pub(super) fn new(info: PublisherInfo, now: Time) -> Peer<T> {
        Peer {
            info,
            link: LinkState::Down { retry_at: now },
            attempt: 0,
            reason: None,
            failed_at: None,
            stopping_since: None,
            used_at: now,
            next: 1,
            accepted: 0,
            unanswered: VecDeque::new(),
            unanswered_bytes: 0,
            silent_since: None,
        }
    }

    /// True if it accepts a new batch.
    pub(super) fn accepts_batches(&self) -> bool {
        matches!(self.link, LinkState::Up { stopping: false, .. })
            && self.unanswered.len() < UNANSWERED_BATCHES_MAX
            && (self.unanswered.is_empty() || self.unanswered_bytes < UNANSWERED_BYTES_MAX)
    }

    /// True if it answers nothing, as a publisher with a hung disk or process. After its batches
    /// have timed out it gets one more, as a probe.
    pub(super) fn is_silent(&self, now: Time) -> bool {
        !self.unanswered.is_empty()
            && self.silent_since.is_some_and(|since| since + SILENT_AFTER <= now)
    }

    /// It answered a batch, or its link was attached.
    pub(super) fn answer_received(&mut self, now: Time) {
        self.silent_since = (!self.unanswered.is_empty()).then_some(now);
    }

    /// Its unanswered batches of a stream.
    pub(super) fn load_of(&self, stream: StreamId) -> Load {
        let of_stream = self.unanswered.iter().filter(|in_flight| in_flight.batch.stream == stream);
        of_stream.map(|in_flight| in_flight.batch.load()).fold(Load::default(), |sum, one| Load {
            jobs: sum.jobs + one.jobs,
            bytes: sum.bytes + one.bytes,
        })
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, LinkState::Up { stopping: false, .. })
    }

    /// True if it gets a share of the in-flight limits: it is up, or being dialled for the first
    /// time.
    pub(super) fn has_share(&self) -> bool {
        self.is_up() || (self.attempt == 0 && matches!(self.link, LinkState::Dialing { .. }))
    }

    /// True if it was lost, could not be reached or is stopping, and has no link since.
    pub(super) fn is_failing(&self) -> bool {
        !self.is_up() && (self.failed_at.is_some() || self.stopping_since.is_some())
    }

    /// It has restarted or moved: retry at once.
    pub(super) fn moved(&mut self, now: Time, info: &PublisherInfo) {
        self.failed_at = self.failed_at.filter(|_| info.epoch == self.info.epoch);
        self.info = info.clone();
        if let LinkState::Down { retry_at } = &mut self.link {
            *retry_at = now;
        }
    }

    /// Forgets a failure older than a minute.
    pub(super) fn sweep(&mut self, now: Time) {
        self.failed_at = self.failed_at.filter(|&at| at + FAILED_RECENTLY > now);
    }

    /// The current link, attached or being made.
    pub(super) fn link_number(&self) -> Option<LinkNumber> {
        match self.link {
            LinkState::Down { .. } => None,
            LinkState::Dialing { link } | LinkState::Up { link, .. } => Some(link),
        }
    }

    /// The link was lost or could not be made. `random` is uniform over u64.
    pub(super) fn lost(&mut self, now: Time, reason: Arc<str>, needed: bool, random: u64) {
        self.attempt = match self.link {
            LinkState::Up { since, answered, .. } if answered || now >= since + STABLE_AFTER => 0,
            _ => self.attempt + 1,
        };
        let longest = if needed { RETRY_WAIT_BUSY_MAX } else { RETRY_WAIT_MAX };
        let wait = retry_wait(self.attempt, longest, random);
        self.link = LinkState::Down { retry_at: now + wait };
        self.reason = Some(reason);
        self.failed_at = Some(now);
    }

    /// Takes the batches after `sequence` that were first sent on this link.
    pub(super) fn take_after(&mut self, sequence: u64) -> Vec<Batch<T>> {
        let mut later = Vec::new();
        for in_flight in std::mem::take(&mut self.unanswered) {
            if in_flight.sequence > sequence && !in_flight.arrived {
                self.unanswered_bytes -= in_flight.batch.bytes;
                later.push(in_flight.batch);
            } else {
                self.unanswered.push_back(in_flight);
            }
        }
        later
    }

    pub(super) fn take(&mut self, at: usize) -> Option<InFlight<T>> {
        let taken = self.unanswered.remove(at)?;
        self.unanswered_bytes -= taken.batch.bytes;
        Some(taken)
    }
}
