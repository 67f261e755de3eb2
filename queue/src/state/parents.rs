//! What a job may read of the jobs that it waited for.

use longshore_protocol::messages::work::RequestError;
use longshore_protocol::{JobId, LinkId, Token};

use super::State;
use super::limits::PAGE_ROWS_MAX;
use super::row::Substate;
use crate::outcome::{JobView, RecordRef};
use crate::time::Now;

/// A page of a job's parents.
#[derive(Clone, Debug)]
pub struct ParentJobs {
    /// The entry of the job, which names its parents.
    pub child: RecordRef,
    /// A parent; of a batch also its members, and theirs.
    pub views: Vec<JobView>,
    /// Where the next page begins.
    pub next: Option<u64>,
}

impl State {
    /// A page of up to so many jobs of a parent of the job that the link's session holds under that
    /// lease. A page ends after 100,000 rows, so it may be short without being the last. The state
    /// does not know the parents of a job that runs: whether it is one is for the caller to check.
    ///
    /// # Errors
    /// [`RequestError::StaleToken`] when it does not hold that lease.
    pub fn parent_jobs(
        &self,
        (token, link): (Token, LinkId),
        parent: &JobId,
        (cursor, limit): (u64, usize),
        now: Now,
    ) -> Result<ParentJobs, RequestError> {
        let slot = self.rows.find_token(token).filter(|_| self.holds(token, link));
        let child = self.location_of(slot.ok_or(RequestError::StaleToken)?);
        let mut page = ParentJobs { child, views: Vec::new(), next: None };
        let Some(parent) = self.rows.find(parent) else { return Ok(page) };
        if cursor == 0 {
            page.views.extend(self.view(parent, now));
        }
        let Some(batch) = self.batch_of(parent) else { return Ok(page) };
        let all = self.rows.allocated();
        let start = u32::try_from(cursor).unwrap_or(u32::MAX).min(all);
        let end = all.min(start.saturating_add(PAGE_ROWS_MAX));
        for slot in start..end {
            if page.views.len() >= limit && slot > start {
                page.next = Some(u64::from(slot));
                return Ok(page);
            }
            if self.rows[slot].substate != Substate::Free && self.is_within_batch(slot, batch) {
                page.views.extend(self.view(slot, now));
            }
        }
        page.next = (end < all).then_some(u64::from(end));
        Ok(page)
    }
}
