//! The state of following one publisher. Pure: no socket, no clock.
//!
//! Events and pages arrive over two links, so a page may be ahead of the events. To merge them, **a
//! page is requested only while no events are read**, so nothing that was shown before is newer
//! than the page. Later events up to the page's index are skipped for the jobs on it, because the
//! page includes them. Events of jobs on no page count from the start of the feed: such a job was
//! created after the listing had passed its position, or is gone.

use hashbrown::HashMap;
use longshore_protocol::JobId;
use longshore_protocol::messages::work::{FeedEvent, FeedEvents, FeedPosition, JobsPage};

use super::items::FeedLoss;

/// Where a publisher's feed starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// With changes from now on.
    Now,
    /// With a snapshot of all jobs.
    Snapshot,
    /// After this position.
    After(FeedPosition),
}

/// The page is older than what was shown: the publisher has lost state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StalePage;

/// What follows after a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageResult {
    More,
    /// It was the last page.
    Last,
}

#[derive(Debug)]
pub(super) struct FeedCursor {
    snapshots: bool,
    /// The cursor of the next page, while listing.
    cursor: Option<u64>,
    /// All events up to here were shown.
    upto: Option<FeedPosition>,
    /// Jobs of pages that are ahead of the events, with the index of their last page.
    ahead: HashMap<JobId, u64>,
    /// The largest index in `ahead`.
    ahead_upto: u64,
}

impl FeedCursor {
    pub(super) fn new(start: Start) -> FeedCursor {
        let upto = match start {
            Start::After(position) => Some(position),
            Start::Now | Start::Snapshot => None,
        };
        FeedCursor {
            snapshots: start != Start::Now,
            cursor: None,
            upto,
            ahead: HashMap::new(),
            ahead_upto: 0,
        }
    }

    /// The position to open the feed at.
    pub(super) fn after(&self) -> Option<FeedPosition> {
        self.upto
    }

    /// The feed is open: events after `position` follow. Returns true if a snapshot begins.
    pub(super) fn opened(&mut self, position: FeedPosition) -> bool {
        if self.upto.is_some() {
            // The feed and the listing resume where they ended.
            return false;
        }
        self.upto = Some(position);
        self.cursor = self.snapshots.then_some(0);
        self.snapshots
    }

    /// The cursor of the next page to request.
    pub(super) fn next_page(&self) -> Option<u64> {
        self.cursor
    }

    /// Handles a page.
    pub(super) fn page(&mut self, page: &JobsPage) -> Result<PageResult, StalePage> {
        let seen = self.upto.map_or(0, |upto| upto.index);
        if page.index < seen {
            return Err(StalePage);
        }
        if page.index > seen {
            self.ahead.extend(page.jobs.iter().map(|job| (job.id, page.index)));
            self.ahead_upto = self.ahead_upto.max(page.index);
        }
        // A cursor that does not advance would loop for ever.
        self.cursor = page.next.filter(|&next| Some(next) != self.cursor);
        Ok(if self.cursor.is_some() { PageResult::More } else { PageResult::Last })
    }

    /// Handles events; removes those that a page has already shown.
    pub(super) fn events(&mut self, events: &mut FeedEvents) {
        if !self.ahead.is_empty() {
            events.events.retain(|event| !self.is_shown(event));
        }
        self.upto = Some(events.upto);
        if events.upto.index >= self.ahead_upto {
            self.ahead = HashMap::new();
        }
    }

    /// True if no page is ahead of the events.
    #[cfg(test)]
    pub(super) fn is_caught_up(&self) -> bool {
        self.ahead.is_empty()
    }

    fn is_shown(&self, event: &FeedEvent) -> bool {
        self.ahead.get(&event.job).is_some_and(|&index| event.index <= index)
    }

    /// Changes were lost: starts again, with a snapshot if the feed began with one.
    pub(super) fn lost(&mut self, why: FeedLoss) {
        tracing::debug!(%why, "feed starts again");
        *self = FeedCursor { snapshots: self.snapshots, ..FeedCursor::new(Start::Now) };
    }
}
