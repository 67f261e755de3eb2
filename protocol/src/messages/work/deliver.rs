//! Deliveries of jobs to a worker.

use bytes::Bytes;

use super::credit::{put_token, read_token};
use crate::codec::{Decode, Encode, Reader, WireError};
use crate::frame::FrameWriter;
use crate::id::Token;
use crate::limits::{BATCH_BYTES_MAX, BATCH_JOBS_MAX};
use crate::path::Path;

/// Jobs of one subscription, each with its lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deliver {
    /// The subscription whose credits they use up.
    pub subscription: u32,
    /// The queues of the jobs; jobs refer to them by index.
    pub paths: Vec<Path>,
    /// The jobs.
    pub jobs: Vec<Delivery>,
}

/// When a job was enqueued and became due, by its publisher's wall clock, and how long it waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobTimes {
    /// When it was enqueued, in milliseconds since 1970.
    pub enqueued_at: u64,
    /// When this delivery's attempt was due, in milliseconds since 1970: the scheduled time, the
    /// time of the retry or of the return to the queue, or `enqueued_at` of a job that was ready at
    /// once.
    pub scheduled_at: u64,
    /// How long it was ready before this delivery, in milliseconds. Not affected by changes of the
    /// wall clock.
    pub waited_ms: u64,
}

/// One job and its lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The token that proves the lease.
    pub token: Token,
    /// The queue: its index in [`Deliver::paths`].
    pub path: u32,
    /// The number of this attempt, from 1.
    pub attempt: u16,
    /// The number of deliveries of the job, including this one.
    pub deliveries: u16,
    /// How long the lease lasts without renewal, in milliseconds.
    pub lease_ms: u32,
    /// The number of checkpoints of earlier attempts: fetch them with `Request::Checkpoints`.
    pub checkpoints: u16,
    /// When it was enqueued and due.
    pub times: JobTimes,
    /// The job's entry, as its producer wrote it: see [`crate::job::Entry::read`].
    pub entry: Bytes,
}

impl Encode for Deliver {
    fn encode(&self, out: &mut FrameWriter) {
        out.u64(u64::from(self.subscription));
        self.paths.encode(out);
        out.u64(self.jobs.len() as u64);
        let (mut before, mut enqueued_before) = (0, 0);
        for job in &self.jobs {
            put_token(out, &mut before, job.token);
            out.u64(u64::from(job.path));
            out.u64(u64::from(job.attempt));
            out.u64(u64::from(job.deliveries));
            out.u64(u64::from(job.lease_ms));
            out.u64(u64::from(job.checkpoints));
            job.times.put(out, &mut enqueued_before);
            out.bytes_shared(job.entry.clone());
        }
    }
}

impl Decode for Deliver {
    fn decode(r: &mut Reader) -> Result<Deliver, WireError> {
        let subscription = r.u32()?;
        let paths: Vec<Path> = r.list("paths of a delivery", BATCH_JOBS_MAX)?;
        let count = r.count("jobs of a delivery", BATCH_JOBS_MAX, 10)?;
        let mut jobs = Vec::with_capacity(count);
        let (mut before, mut enqueued_before) = (0, 0);
        for _ in 0..count {
            let token = read_token(r, &mut before)?;
            let no_such_path = r.invalid("path of a delivery");
            let path = r.u32()?;
            if path as usize >= paths.len() {
                return Err(no_such_path);
            }
            jobs.push(Delivery {
                token,
                path,
                attempt: r.u16()?,
                deliveries: r.u16()?,
                lease_ms: r.u32()?,
                checkpoints: r.u16()?,
                times: JobTimes::read(r, &mut enqueued_before)?,
                entry: r.bytes("entry", BATCH_BYTES_MAX)?,
            });
        }
        Ok(Deliver { subscription, paths, jobs })
    }
}

impl JobTimes {
    /// Writes the times as differences from the job before and from each other: neighbours that
    /// were enqueued together cost three bytes.
    fn put(&self, out: &mut FrameWriter, enqueued_before: &mut u64) {
        out.i64(self.enqueued_at.wrapping_sub(*enqueued_before) as i64);
        out.i64(self.scheduled_at.wrapping_sub(self.enqueued_at) as i64);
        out.u64(self.waited_ms);
        *enqueued_before = self.enqueued_at;
    }

    fn read(r: &mut Reader, enqueued_before: &mut u64) -> Result<JobTimes, WireError> {
        let enqueued_at = enqueued_before.wrapping_add(r.i64()? as u64);
        *enqueued_before = enqueued_at;
        let scheduled_at = enqueued_at.wrapping_add(r.i64()? as u64);
        Ok(JobTimes { enqueued_at, scheduled_at, waited_ms: r.u64()? })
    }
}
