//! A stream: the jobs of one pipeline, of one call, or of all single calls, with its open batches
//! and its limits.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_protocol::{NewJob, Path};

use super::batch::{OpenBatch, weight};
use super::ids::RouteId;

/// How a stream fills its batches, and its in-flight limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamLimits {
    pub(crate) in_flight_jobs_max: usize,
    pub(crate) in_flight_bytes_max: usize,
    pub(crate) linger: Duration,
    pub(crate) batch_jobs_max: usize,
    pub(crate) batch_bytes_max: usize,
    pub(crate) eager_batches: usize,
}

impl Default for StreamLimits {
    /// 100,000 jobs and 64 MiB in flight; batches of 1,000 jobs or 256 KiB; 1 ms; 1 batch.
    fn default() -> StreamLimits {
        StreamLimits {
            in_flight_jobs_max: 100_000,
            in_flight_bytes_max: 64 * 1024 * 1024,
            linger: Duration::from_millis(1),
            batch_jobs_max: 1_000,
            batch_bytes_max: 256 * 1024,
            eager_batches: 1,
        }
    }
}

pub(super) struct StreamState<T> {
    pub(super) limits: StreamLimits,
    pub(super) open: BTreeMap<RouteId, OpenBatch<T>>,
    /// Jobs and bytes in open batches or unanswered.
    pub(super) jobs: usize,
    pub(super) bytes: usize,
    /// Open batches are sent as soon as a publisher accepts them.
    pub(super) flush: bool,
    /// No more jobs are added; the stream ends once everything is answered.
    pub(super) closed: bool,
    /// The last job's path, whether its keys need the home, and its route, so that a run of such
    /// jobs costs one lookup.
    pub(super) last: Option<(Path, bool, RouteId)>,
    /// The routing generation of `last`.
    pub(super) generation: u64,
}

impl<T> StreamState<T> {
    pub(super) fn new(limits: StreamLimits) -> StreamState<T> {
        StreamState {
            limits,
            open: BTreeMap::new(),
            jobs: 0,
            bytes: 0,
            flush: false,
            closed: false,
            last: None,
            generation: 0,
        }
    }

    /// True if a job may be added; an empty stream accepts any.
    pub(super) fn has_room(&self, job: &NewJob) -> bool {
        self.jobs == 0
            || (self.jobs < self.limits.in_flight_jobs_max
                && self.bytes + weight(job) <= self.limits.in_flight_bytes_max)
    }

    /// The same for the jobs of a batch.
    pub(super) fn has_room_for(&self, batch: &OpenBatch<T>) -> bool {
        self.jobs == 0
            || (self.jobs + batch.ids.len() <= self.limits.in_flight_jobs_max
                && self.bytes + batch.bytes <= self.limits.in_flight_bytes_max)
    }

    /// True if `open` must be sealed before `job` is added.
    pub(super) fn overflows(&self, open: &OpenBatch<T>, job: &NewJob) -> bool {
        open.bytes + weight(job) > self.limits.batch_bytes_max || !open.builder.fits(job)
    }
}
