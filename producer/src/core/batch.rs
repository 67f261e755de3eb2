//! Batches: open while jobs are added, and sealed afterwards.

use longshore_protocol::messages::work::{BatchBuilder, SealedBatch};
use longshore_protocol::{JobId, NewJob, Path, PublisherId};

use super::ids::{RouteId, StreamId, Time};

/// The approximate size of a job in memory and on the wire without its payload, headers and keys,
/// in bytes.
const JOB_OVERHEAD_BYTES: usize = 32;

/// A job's size for the limits in bytes.
pub(crate) fn weight(job: &NewJob) -> usize {
    let keys = job.keys.as_ref().map_or(0, |keys| keys.bytes_max());
    JOB_OVERHEAD_BYTES + job.payload.len() + job.headers.bytes() + keys
}

/// A number of jobs and bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Load {
    pub(super) jobs: usize,
    pub(super) bytes: usize,
}

/// Collects jobs for one route.
pub(super) struct OpenBatch<T> {
    pub(super) builder: BatchBuilder,
    pub(super) ids: Vec<JobId>,
    pub(super) indices: Vec<(u64, u32)>,
    pub(super) bytes: usize,
    pub(super) tag: T,
    pub(super) opened_at: Time,
}

impl<T> OpenBatch<T> {
    pub(super) fn new(tag: T, opened_at: Time) -> OpenBatch<T> {
        OpenBatch {
            builder: BatchBuilder::new(),
            ids: Vec::new(),
            indices: Vec::new(),
            bytes: 0,
            tag,
            opened_at,
        }
    }

    pub(super) fn load(&self) -> Load {
        Load { jobs: self.ids.len(), bytes: self.bytes }
    }

    pub(super) fn push(&mut self, job: &NewJob, index: u64) {
        self.builder.push(job);
        self.ids.push(job.id);
        self.bytes += weight(job);
        match self.indices.last_mut() {
            Some((first, count)) if *first + u64::from(*count) == index => *count += 1,
            _ => self.indices.push((index, 1)),
        }
    }
}

/// A sealed batch that has no outcome yet.
pub(super) struct Batch<T> {
    /// Increases with every batch, and orders them.
    pub(super) serial: u64,
    pub(super) stream: StreamId,
    pub(super) route: RouteId,
    /// Only the home of its paths may get it.
    pub(super) is_home: bool,
    /// Paths of which it has no job with keys, beside others. Sorted.
    pub(super) plain_paths: Vec<Path>,
    pub(super) jobs: SealedBatch,
    pub(super) ids: Vec<JobId>,
    pub(super) indices: Vec<(u64, u32)>,
    pub(super) bytes: usize,
    pub(super) tag: T,
    pub(super) opened_at: Time,
    pub(super) deadline: Time,
    /// An earlier publisher that may have the batch, if duplicates are allowed.
    pub(super) may_be_at: Option<PublisherId>,
    /// How often a publisher reported that an earlier batch is missing.
    pub(super) gaps: u32,
    /// How often a publisher reported that it is not the home of its paths.
    pub(super) not_home: u32,
}

impl<T> Batch<T> {
    /// Its paths, and true of those whose home is to get it.
    pub(super) fn destinations(&self) -> impl Iterator<Item = (&Path, bool)> {
        let paths = self.jobs.paths().iter();
        paths.map(|path| (path, self.is_home && self.plain_paths.binary_search(path).is_err()))
    }

    pub(super) fn load(&self) -> Load {
        Load { jobs: self.ids.len(), bytes: self.bytes }
    }
}
