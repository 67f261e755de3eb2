//! What following one publisher decides. Pure: no socket, no clock.
//!
//! Events and pages come over two links, so a page may be ahead of the events. The rule that makes
//! one whole of them: **a page is asked for only while no events are read**, so nothing that was
//! shown before is newer than it; and of the events that come after it, those up to its index are
//! left out for the jobs that it showed, because they are in it already. Events of jobs that no
//! page showed count from the feed's beginning on: such a job came after the listing had passed its
//! place, or has gone.

use hashbrown::HashMap;
use longshore_protocol::JobId;
use longshore_protocol::messages::work::{FeedEvent, FeedEvents, FeedPosition, JobsPage};

use super::items::FeedLoss;

/// Where a publisher's feed begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// With what happens from now on.
    Now,
    /// With all jobs that there are.
    Snapshot,
    /// After what was seen before.
    After(FeedPosition),
}

/// A page that shows less than was shown already: the publisher is not where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StalePage;

/// What is to be told of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PageResult {
    More,
    /// It was the last one.
    Last,
}

#[derive(Debug)]
pub(super) struct FeedCursor {
    snapshots: bool,
    /// Where the listing goes on, while there is one.
    cursor: Option<u64>,
    /// All events up to here were shown.
    upto: Option<FeedPosition>,
    /// Jobs of pages that are ahead of the events, with the index of the page that showed each
    /// last.
    ahead: HashMap<JobId, u64>,
    /// The largest of these indexes.
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

    /// What to open the feed with: what was seen.
    pub(super) fn after(&self) -> Option<FeedPosition> {
        self.upto
    }

    /// The feed is open: events after `position` follow. True when a snapshot begins.
    pub(super) fn opened(&mut self, position: FeedPosition) -> bool {
        if self.upto.is_some() {
            // It goes on where it ended, and so does the listing.
            return false;
        }
        self.upto = Some(position);
        self.cursor = self.snapshots.then_some(0);
        self.snapshots
    }

    /// Where the page to ask for next begins.
    pub(super) fn next_page(&self) -> Option<u64> {
        self.cursor
    }

    /// A page has come.
    pub(super) fn page(&mut self, page: &JobsPage) -> Result<PageResult, StalePage> {
        let seen = self.upto.map_or(0, |upto| upto.index);
        if page.index < seen {
            return Err(StalePage);
        }
        if page.index > seen {
            self.ahead.extend(page.jobs.iter().map(|job| (job.id, page.index)));
            self.ahead_upto = self.ahead_upto.max(page.index);
        }
        // A cursor that stands still would go on for ever.
        self.cursor = page.next.filter(|&next| Some(next) != self.cursor);
        Ok(if self.cursor.is_some() { PageResult::More } else { PageResult::Last })
    }

    /// Events have come; those that a page has shown already are taken out.
    pub(super) fn events(&mut self, events: &mut FeedEvents) {
        if !self.ahead.is_empty() {
            events.events.retain(|event| !self.is_shown(event));
        }
        self.upto = Some(events.upto);
        if events.upto.index >= self.ahead_upto {
            self.ahead = HashMap::new();
        }
    }

    /// True when nothing is remembered of pages.
    #[cfg(test)]
    pub(super) fn is_caught_up(&self) -> bool {
        self.ahead.is_empty()
    }

    fn is_shown(&self, event: &FeedEvent) -> bool {
        self.ahead.get(&event.job).is_some_and(|&index| event.index <= index)
    }

    /// What happened since is not to be had: the feed begins anew, with a snapshot if it began with
    /// one.
    pub(super) fn lost(&mut self, why: FeedLoss) {
        tracing::debug!(%why, "a feed begins anew");
        *self = FeedCursor { snapshots: self.snapshots, ..FeedCursor::new(Start::Now) };
    }
}
