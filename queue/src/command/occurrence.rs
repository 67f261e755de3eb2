//! An occurrence of a schedule.

use longshore_protocol::messages::work::NextOccurrence;
use longshore_protocol::{Decode, Encode, FrameWriter, JobId, Reader, WireError};

/// The next occurrence of a schedule has come due: what becomes of it, and the one after it. Times
/// are in milliseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Occurrence {
    /// The schedule's number.
    pub schedule: u32,
    /// The time of its next occurrence. If the schedule has another one, nothing happens.
    pub due_at: u64,
    /// The job to enqueue, if any: of this occurrence, or of the last that was missed.
    pub run: Option<RunOfOccurrence>,
    /// Occurrences that are missed: they get no job.
    pub missed: u64,
    /// The next occurrence now.
    pub next: Option<NextOccurrence>,
}

/// The job of an occurrence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOfOccurrence {
    /// The time of the occurrence.
    pub due_at: u64,
    /// The job's id.
    pub job: JobId,
}

impl Encode for Occurrence {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.schedule));
        out.u64(self.due_at);
        self.run.encode(out);
        out.u64(self.missed);
        self.next.encode(out);
    }
}

impl Decode for Occurrence {
    fn decode(r: &mut Reader) -> Result<Occurrence, WireError> {
        Ok(Occurrence {
            schedule: r.u32()?,
            due_at: r.u64()?,
            run: r.option()?,
            missed: r.u64()?,
            next: r.option()?,
        })
    }
}

impl Encode for RunOfOccurrence {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.due_at);
        self.job.encode(out);
    }
}

impl Decode for RunOfOccurrence {
    fn decode(r: &mut Reader) -> Result<RunOfOccurrence, WireError> {
        Ok(RunOfOccurrence { due_at: r.u64()?, job: JobId::decode(r)? })
    }
}
