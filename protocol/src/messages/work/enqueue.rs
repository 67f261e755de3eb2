//! Batches of jobs: one message, one durable record.
//!
//! ```text
//! body:  sequence │ flags (bit 0: atomic) │ paths │ count
//!        │ count × (length │ index in paths │ entry)
//! ```
//! `length` is the entry's. The publisher writes the body to its journal unchanged.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::codec::{Encode, Reader, WireError, check_limit};
use crate::codes::{BatchRefusal, EnqueueOutcome, Refusal};
use crate::fields::fields;
use crate::frame::{Frame, FrameWriter};
use crate::id::JobId;
use crate::job::{EntryHead, NewJob};
use crate::limits::{BATCH_BYTES_MAX, BATCH_JOBS_MAX, BATCH_PAYLOAD_BYTES_MAX};
use crate::messages::work::tag;
use crate::path::Path;
use crate::runs::Runs;

/// The paths that stand in a publisher's log for those of refused jobs: the reason is not in the
/// log, as live values, the policy and homes are not, or the jobs' contents are not to be there.
/// Jobs at such a path are refused so, also those that do not decode.
const PLACEHOLDERS: [(Refusal, &str); 10] = [
    (Refusal::IsValue, "/sys/value"),
    (Refusal::Forbidden, "/sys/forbidden"),
    (Refusal::OverQuota, "/sys/quota"),
    (Refusal::NotHome, "/sys/home"),
    (Refusal::QueueClosed, "/sys/closed"),
    (Refusal::NotHere, "/sys/elsewhere"),
    (Refusal::BadPath, "/sys/path"),
    (Refusal::BadOptions, "/sys/options"),
    (Refusal::TooLarge, "/sys/size"),
    (Refusal::Reserved, "/sys/reserved"),
];

/// Why jobs at a reserved path are refused.
pub fn refusal_at(reserved: &Path) -> Refusal {
    let found = PLACEHOLDERS.iter().find(|(_, path)| *path == reserved.as_str());
    found.map_or(Refusal::Reserved, |(refusal, _)| *refusal)
}

fn placeholder_of(refusal: Refusal) -> Option<Path> {
    let (_, path) = PLACEHOLDERS.iter().find(|(of, _)| *of == refusal)?;
    Path::new(path).ok()
}

const ATOMIC: u8 = 1;
/// Largest size in bytes of a path's length.
const PATH_LENGTH_BYTES: usize = 2;

/// Collects jobs into a batch.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    paths: Vec<Path>,
    path_indices: HashMap<Path, usize>,
    path_bytes: usize,
    /// The entries, each after its length and path index.
    entries: FrameWriter,
    /// The head of the current entry, a reused buffer so that no job allocates.
    head: FrameWriter,
    count: usize,
    payload_bytes: usize,
}

impl BatchBuilder {
    /// An empty batch.
    pub fn new() -> BatchBuilder {
        BatchBuilder::default()
    }

    /// The number of jobs so far.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True while there is no job.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The paths of its jobs.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The size of the entries so far, in bytes.
    pub fn bytes(&self) -> usize {
        self.entries.body_len()
    }

    /// True if `job` still fits within the limits of a batch. An empty batch fits any job within
    /// the limits of a job.
    pub fn fits(&self, job: &NewJob) -> bool {
        // The overhead of an entry besides its payload: id, checksum, lengths and options (512
        // bytes suffice for the longest), keys, headers with two bytes of length for each name and
        // value, and the path, counted as new, with two bytes of length.
        let overhead = 512
            + job.keys.as_ref().map_or(0, |keys| keys.bytes_max())
            + job.headers.bytes()
            + 4 * job.headers.0.len()
            + job.path.as_str().len()
            + PATH_LENGTH_BYTES;
        self.count < BATCH_JOBS_MAX
            && self.payload_bytes + job.payload.len() <= BATCH_PAYLOAD_BYTES_MAX
            && self.bytes() + self.path_bytes + job.payload.len() + overhead <= BATCH_BYTES_MAX
    }

    /// Adds a job; the caller has checked [`BatchBuilder::fits`].
    pub fn push(&mut self, job: &NewJob) {
        let index = match self.path_indices.get(&job.path) {
            Some(&index) => index,
            None => {
                self.path_indices.insert(job.path.clone(), self.paths.len());
                self.paths.push(job.path.clone());
                self.path_bytes += job.path.as_str().len() + PATH_LENGTH_BYTES;
                self.paths.len() - 1
            }
        };
        self.head.clear();
        job.encode_entry_head(&mut self.head);
        self.entries.u64((self.head.body_len() + job.payload.len()) as u64);
        self.entries.u64(index as u64);
        self.entries.put(self.head.small_body());
        self.entries.put_shared(job.payload.clone());
        self.count += 1;
        self.payload_bytes += job.payload.len();
    }

    /// Finishes the batch.
    pub fn seal(self, atomic: bool) -> SealedBatch {
        SealedBatch { atomic, paths: self.paths, count: self.count, entries: self.entries.finish() }
    }
}

/// A finished batch, cheap to clone: a producer stores it until it is answered, and resends it if
/// necessary.
#[derive(Clone, Debug)]
pub struct SealedBatch {
    atomic: bool,
    paths: Vec<Path>,
    count: usize,
    entries: Frame,
}

impl SealedBatch {
    /// The number of jobs.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Its approximate size on the wire, in bytes.
    pub fn bytes(&self) -> usize {
        self.entries.len()
    }

    /// The paths of its jobs.
    pub fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// Writes the batch as a message with that sequence number.
    pub fn encode(&self, sequence: u64, out: &mut FrameWriter) {
        out.message(tag::ENQUEUE, |out| self.encode_body(sequence, out));
    }

    /// Decodes the batch without a link, for a publisher in the same process.
    pub fn to_batch(&self, sequence: u64) -> Result<EnqueueBatch, WireError> {
        let mut out = FrameWriter::with_capacity(64);
        self.encode_body(sequence, &mut out);
        EnqueueBatch::decode(out.into_body())
    }

    fn encode_body(&self, sequence: u64, out: &mut FrameWriter) {
        out.u64(sequence);
        out.u8(if self.atomic { ATOMIC } else { 0 });
        self.paths.encode(out);
        out.u64(self.count as u64);
        out.append_frame(&self.entries);
    }
}

/// A batch as the publisher reads it: the lengths of its entries are checked, their contents not
/// yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnqueueBatch {
    /// The producer's number for it at this publisher: 1, 2, 3 … without a gap.
    pub sequence: u64,
    /// The refusal of one job refuses the whole batch.
    pub atomic: bool,
    /// The queues; entries refer to them by index.
    pub paths: Vec<Path>,
    count: usize,
    entries_at: usize,
    body: Bytes,
}

/// One entry of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchEntry {
    /// Its queue's index in [`EnqueueBatch::paths`].
    pub path: usize,
    /// The entry's offset in the body.
    pub at: u32,
    /// The entry's length.
    pub length: u32,
    /// The decoded head, or a decoding error, for which only this job is refused.
    pub head: Result<EntryHead, WireError>,
}

impl EnqueueBatch {
    /// Reads the head of a batch and checks the lengths of its entries.
    pub fn decode(body: Bytes) -> Result<EnqueueBatch, WireError> {
        check_limit(0, "bytes of a batch", body.len(), BATCH_BYTES_MAX)?;
        let mut r = Reader::new(body.clone());
        let sequence = r.u64()?;
        let wrong_flags = r.invalid("batch flags");
        let flags = r.u8()?;
        if flags & !ATOMIC != 0 {
            return Err(wrong_flags);
        }
        let paths: Vec<Path> = r.list("paths of a batch", BATCH_JOBS_MAX)?;
        let count = r.count("jobs of a batch", BATCH_JOBS_MAX, 2)?;
        let entries_at = r.offset();
        for _ in 0..count {
            let length = r.count("entry length", BATCH_BYTES_MAX, 1)?;
            let no_such_path = r.invalid("path of an entry");
            if r.u64()? >= paths.len() as u64 {
                return Err(no_such_path);
            }
            r.skip(length)?;
        }
        Ok(EnqueueBatch { sequence, atomic: flags & ATOMIC != 0, paths, count, entries_at, body })
    }

    /// Returns the batch with the refusal's placeholder instead of every path for which
    /// `is_refused` returns true, which is asked for each once, in order. `None` if the batch would
    /// become too long, or the refusal has no placeholder.
    pub fn with_paths_refused(
        &self,
        refusal: Refusal,
        mut is_refused: impl FnMut(&Path) -> bool,
    ) -> Option<EnqueueBatch> {
        let placeholder = placeholder_of(refusal)?;
        let replace =
            |path: &Path| if is_refused(path) { placeholder.clone() } else { path.clone() };
        let paths: Vec<Path> = self.paths.iter().map(replace).collect();
        let entries = self.body.slice(self.entries_at..);
        let mut out = FrameWriter::with_capacity(64);
        out.u64(self.sequence);
        out.u8(if self.atomic { ATOMIC } else { 0 });
        paths.encode(&mut out);
        out.u64(self.count as u64);
        out.put_shared(entries);
        EnqueueBatch::decode(out.into_body()).ok()
    }

    /// Returns the batch with the refusal's placeholder instead of the path of every job for which
    /// `refusal_of` returns one; it is asked for each once, in order. Of such a job only the id
    /// remains, and its path only if another job has it: nobody reads the rest. But one whose id is
    /// that of a job before it, which is not refused, remains whole, to be compared with that one.
    /// `None` if the batch would become too long, or a refusal has no placeholder.
    pub fn with_jobs_refused(
        &self,
        mut refusal_of: impl FnMut(&BatchEntry) -> Option<Refusal>,
    ) -> Option<EnqueueBatch> {
        let refusals: Vec<Option<Refusal>> =
            self.entries().map(|entry| refusal_of(&entry)).collect();
        // Each job has one path, so these are no more than jobs.
        let mut paths: Vec<Path> = Vec::new();
        let mut placeholders: Vec<(Refusal, usize)> = Vec::new();
        for refusal in refusals.iter().flatten() {
            if placeholders.iter().all(|(of, _)| of != refusal) {
                placeholders.push((*refusal, paths.len()));
                paths.push(placeholder_of(*refusal)?);
            }
        }
        let mut places: Vec<Option<usize>> = vec![None; self.paths.len()];
        let mut others: HashSet<JobId> = HashSet::new();
        let mut bare = FrameWriter::new();
        let mut entries = FrameWriter::new();
        for (entry, refusal) in self.entries().zip(refusals) {
            let id = entry.head.as_ref().ok().map(|head| head.id);
            let refused = placeholders.iter().find(|(of, _)| Some(*of) == refusal);
            let place = match refused {
                Some((_, place)) => *place,
                None => *places[entry.path].get_or_insert_with(|| {
                    paths.push(self.paths[entry.path].clone());
                    paths.len() - 1
                }),
            };
            let is_repeated = id.is_some_and(|id| others.contains(&id));
            if refused.is_some() && !is_repeated {
                bare.clear();
                // One that does not decode remains so.
                if let Some(id) = id {
                    let job = NewJob::new(paths[place].clone(), id, Bytes::new());
                    job.encode_entry_head(&mut bare);
                }
                entries.u64(bare.body_len() as u64);
                entries.u64(place as u64);
                entries.put(bare.small_body());
                continue;
            }
            others.extend(id);
            entries.u64(u64::from(entry.length));
            entries.u64(place as u64);
            let at = entry.at as usize;
            entries.put_shared(self.body.slice(at..at + entry.length as usize));
        }
        let mut out = FrameWriter::with_capacity(64);
        out.u64(self.sequence);
        out.u8(if self.atomic { ATOMIC } else { 0 });
        paths.encode(&mut out);
        out.u64(self.count as u64);
        out.put_shared(entries.into_body());
        EnqueueBatch::decode(out.into_body()).ok()
    }

    /// The number of jobs.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The undecoded bytes, as written to the journal.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = BatchEntry> {
        let mut r = Reader::new(self.body.clone());
        let mut left = self.count;
        let walked = r.skip(self.entries_at).is_ok();
        std::iter::from_fn(move || {
            if left == 0 || !walked {
                return None;
            }
            left -= 1;
            // `decode` has checked these lengths: the entries lie within the body.
            let length = r.u64().ok()? as usize;
            let path = r.u64().ok()? as usize;
            let at = r.offset();
            let head = EntryHead::read(&mut r, length);
            let read = r.offset() - at;
            match length.checked_sub(read) {
                Some(rest) => r.skip(rest).ok()?,
                None => r.seek(at + length),
            }
            Some(BatchEntry { path, at: at as u32, length: length as u32, head })
        })
    }
}

fields! {
    /// The answer to a batch of jobs.
    pub struct Enqueued {
        /// The batch.
        pub sequence: u64,
        /// One outcome per job in order, or why the whole batch was refused.
        pub outcome: Result<Runs<EnqueueOutcome>, BatchRefusal> =
            at_most("outcomes of a batch", BATCH_JOBS_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_paths_changes_only_these() {
        let path = |text: &str| Path::new(text).unwrap();
        for large in [1, 100_000] {
            let mut batch = BatchBuilder::new();
            for (n, text) in ["/a", "/v", "/b", "/v"].into_iter().enumerate() {
                let payload = Bytes::from(vec![n as u8; large]);
                batch.push(&NewJob::new(path(text), JobId([n as u8; 16]), payload));
            }
            let batch = batch.seal(true).to_batch(7).unwrap();
            let replaced =
                batch.with_paths_refused(Refusal::Forbidden, |at| at.as_str() == "/v").unwrap();
            assert_eq!(replaced.paths, [path("/a"), path("/sys/forbidden"), path("/b")]);
            assert_eq!((replaced.sequence, replaced.atomic, replaced.len()), (7, true, 4));
            for (before, after) in batch.entries().zip(replaced.entries()) {
                assert_eq!((before.path, before.head.as_ref()), (after.path, after.head.as_ref()));
                let bytes = |of: &EnqueueBatch, entry: &BatchEntry| {
                    of.body().slice(entry.at as usize..(entry.at + entry.length) as usize)
                };
                assert_eq!(bytes(&batch, &before), bytes(&replaced, &after));
            }
        }
    }

    #[test]
    fn of_a_refused_job_only_the_id_remains() {
        let path = |text: &str| Path::new(text).unwrap();
        let mut batch = BatchBuilder::new();
        for (id, text) in [(0, "/a"), (1, "/b"), (2, "/a"), (0, "/b"), (3, "/c"), (1, "/b")] {
            batch.push(&NewJob::new(path(text), JobId([id; 16]), vec![id; 100_000]));
        }
        let batch = batch.seal(false).to_batch(7).unwrap();
        // The third has flags that no version has.
        let mut body = batch.body().to_vec();
        body[batch.entries().nth(2).unwrap().at as usize + 16] = 0xff;
        let batch = EnqueueBatch::decode(body.into()).unwrap();
        let (over, bad) = (Some(Refusal::OverQuota), Some(Refusal::BadOptions));
        let mut refusals = [None, over, bad, over, None, over].into_iter();
        let replaced = batch.with_jobs_refused(|_| refusals.next().unwrap()).unwrap();
        let entries: Vec<BatchEntry> = replaced.entries().collect();
        let at: Vec<&str> = entries.iter().map(|one| replaced.paths[one.path].as_str()).collect();
        let (quota, options) = ("/sys/quota", "/sys/options");
        assert_eq!(at, ["/a", quota, options, quota, "/c", quota]);
        let before: Vec<BatchEntry> = batch.entries().collect();
        // The fourth has the first one's id: it may be the same job. A bare one has the id, no
        // flags, and the checksum of nothing.
        let (bare, broken) = (16 + 1 + 4, 0);
        let lengths: Vec<u32> = entries.iter().map(|entry| entry.length).collect();
        let whole = |n: usize| before[n].length;
        assert_eq!(lengths, [whole(0), bare, broken, whole(3), whole(4), bare]);
        for (before, after) in before.iter().zip(&entries) {
            let id = |entry: &BatchEntry| entry.head.as_ref().ok().map(|head| head.id);
            assert_eq!(id(before), id(after));
        }
        assert!(entries[2].head.is_err());
    }

    #[test]
    fn each_placeholder_is_refused_as_what_it_stands_for() {
        for (refusal, text) in PLACEHOLDERS {
            let path = placeholder_of(refusal).unwrap();
            assert!(path.is_reserved() && path.as_str() == text, "{text}");
            assert_eq!(refusal_at(&path), refusal);
        }
        assert_eq!(refusal_at(&Path::new("/sys/publishers").unwrap()), Refusal::Reserved);
    }

    #[test]
    fn a_batch_of_as_many_paths_as_jobs_has_room_for_a_refused_one() {
        let mut batch = BatchBuilder::new();
        for n in 0..BATCH_JOBS_MAX as u128 {
            let path = if n == 1 { "/secret".to_owned() } else { format!("/tenants/{n}") };
            let path = Path::new(&path).unwrap();
            batch.push(&NewJob::new(path, JobId(n.to_be_bytes()), Bytes::new()));
        }
        let batch = batch.seal(false).to_batch(7).unwrap();
        let secret = batch.paths[1].clone();
        let refusal_of =
            |entry: &BatchEntry| (batch.paths[entry.path] == secret).then_some(Refusal::Forbidden);
        let replaced = batch.with_jobs_refused(refusal_of).unwrap();
        for (before, after) in batch.entries().zip(replaced.entries()) {
            let path = &batch.paths[before.path];
            let expected = if *path == secret { "/sys/forbidden" } else { path.as_str() };
            assert_eq!(replaced.paths[after.path].as_str(), expected);
        }
        // Nothing of the refused job's path is left.
        assert!(!replaced.body().windows(7).any(|part| part == b"/secret"));
    }
}
