//! Jobs that wait for the ends of others.

use crate::codec::{Reader, WireError};
use crate::fields::{codes, fields};
use crate::id::JobId;
use crate::job::NewJob;
use crate::limits::PARENTS_MAX;

fields! {
    /// A job whose end another one waits for.
    #[derive(Copy)]
    pub struct Parent {
        /// The job. It exists at the publisher that gets the waiting one, or comes before it in the
        /// same batch.
        pub job: JobId,
        /// Which end.
        pub when: ParentEnd,
    }
}

codes! {
    /// The end of a parent that a job waits for.
    #[derive(Default)]
    ParentEnd, "end of a parent" {
        /// It completes. A job whose parent is dead keeps waiting, since the parent may be revived;
        /// one whose parent is cancelled, expires or is dropped is cancelled. The default.
        #[default]
        Success = 0, "success";
        /// It dies. A job whose parent ends in another way is cancelled.
        Death = 1, "death";
        /// It completes, dies, is cancelled or expires.
        Any = 2, "any";
    }
}

impl NewJob {
    /// Lets the job wait until another one has completed; see [`ParentEnd::Success`]. It may have
    /// up to 100 parents, and waits for all of them. Enqueue them first: before it in one atomic
    /// batch, or acknowledged earlier. Otherwise it is refused
    /// ([`Refusal::ParentGone`](crate::Refusal::ParentGone)).
    #[must_use]
    pub fn after(self, job: JobId) -> NewJob {
        self.after_end(job, ParentEnd::Success)
    }

    /// Lets the job wait for an end of another one.
    #[must_use]
    pub fn after_end(mut self, job: JobId, when: ParentEnd) -> NewJob {
        self.keys_mut().after.push(Parent { job, when });
        self
    }
}

/// Reads the parents of a job: 1 to 100.
pub(crate) fn parents(r: &mut Reader) -> Result<Vec<Parent>, WireError> {
    let empty = r.invalid("empty list of parents");
    let parents = r.list("parents of a job", PARENTS_MAX)?;
    if parents.is_empty() { Err(empty) } else { Ok(parents) }
}
