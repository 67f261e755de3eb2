//! Things that are not in memory: read back on blocking threads, so that the owner never waits for
//! a disk.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::limits::PAGE_BYTES_MAX;
use longshore_protocol::messages::work::{
    Answer, CheckpointInfo, DeadGroups, JobInfo, JobsPage, RequestError,
};
use longshore_protocol::{Decode, Entry, EntryHead, JobError, LinkId, Reader as FieldReader};
use longshore_queue::{
    Asked, CheckpointView, DeadGroupView, Handed, JobView, Neighbours, ReadError, Reader, RecordRef,
};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tracing::error;

use crate::input::Input;

/// Jobs in one load.
const LOAD_JOBS_MAX: usize = 512;
/// Bytes of entries in one load; a single larger entry is loaded alone.
const LOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Loads at once, and answers at once: what bounds the memory that they hold.
const LOADS_MAX: usize = 4;
/// What an answer takes beside its cold parts, in bytes.
const ANSWER_BYTES: usize = 512;
/// What a group of dead letters takes beside its path and its error, in bytes.
const GROUP_BYTES: usize = 80;

/// How long a load waits before it tries again to read what nothing is wrong with.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// For how long after the end of a job's lease it still does: by then the owner has taken the lease
/// back.
const READ_AGAIN_SLACK: Duration = Duration::from_secs(5);

/// Jobs that wait for their entries, and answers that wait for their cold parts.
pub(crate) struct ColdLoads {
    reader: Reader,
    inputs: mpsc::Sender<Input>,
    pub(crate) jobs: VecDeque<ColdJob>,
    pub(crate) answers: VecDeque<ColdAnswer>,
    job_loads: InOrder<Vec<ColdJob>>,
    answer_loads: usize,
}

/// A job and its entry, if that is known.
pub(crate) type ColdJob = (Handed, Option<Bytes>);

/// Loads that were begun, and given out in that order however they come back.
struct InOrder<T> {
    /// The number of the next to begin.
    next: u64,
    /// The number of the next to give out.
    due: u64,
    /// Those that came back before it.
    early: BTreeMap<u64, T>,
}

impl<T> InOrder<T> {
    fn new() -> InOrder<T> {
        InOrder { next: 0, due: 0, early: BTreeMap::new() }
    }

    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Begun and not given out: what bounds `early` too.
    fn open(&self) -> u64 {
        self.next - self.due
    }

    fn back(&mut self, number: u64, load: T) -> impl Iterator<Item = T> {
        self.early.insert(number, load);
        std::iter::from_fn(|| {
            let load = self.early.remove(&self.due)?;
            self.due += 1;
            Some(load)
        })
    }
}

/// An answer with parts still to be read.
pub(crate) struct ColdAnswer {
    pub(crate) link: LinkId,
    pub(crate) id: u64,
    pub(crate) asked: Asked,
    /// It tells the end of a job that was waited for.
    pub(crate) awaited: bool,
}

/// An answer that is whole.
pub(crate) struct LoadedAnswer {
    pub(crate) link: LinkId,
    pub(crate) id: u64,
    pub(crate) answer: Result<Answer, RequestError>,
    /// It tells the end of a job that was waited for.
    pub(crate) awaited: bool,
    /// What [`ColdAnswer::bytes`] was.
    pub(crate) bytes: usize,
}

impl ColdAnswer {
    /// About how many bytes it will have: what counts against its link until it is written there.
    pub(crate) fn bytes(&self) -> usize {
        let cold: usize = match &self.asked {
            Asked::Jobs { views, full, .. } => {
                views.iter().map(|view| cold_bytes(view, *full, false)).sum()
            }
            Asked::Job(view) => view.iter().map(|view| cold_bytes(view, true, true)).sum(),
            Asked::DeadGroups { groups, .. } => groups
                .iter()
                .map(|view| GROUP_BYTES + view.error.map_or(0, |error| error.length as usize))
                .sum(),
            Asked::Checkpoints(views) => views.iter().map(|view| view.bytes.length as usize).sum(),
            Asked::Ready(_) | Asked::Feed { .. } | Asked::Refused(_) => 0,
        };
        ANSWER_BYTES + cold
    }
}

fn cold_bytes(view: &JobView, full: bool, history: bool) -> usize {
    let length = |part: &RecordRef| part.length as usize;
    let error: usize = view.error.iter().map(length).sum();
    let whole: usize =
        if full { length(&view.entry) + view.result.iter().map(length).sum::<usize>() } else { 0 };
    let errors: usize = view.attempt_errors.iter().flatten().map(length).sum();
    let checkpoints: usize = if history { view.checkpoints.iter().map(length).sum() } else { 0 };
    error + whole + errors + checkpoints
}

impl ColdLoads {
    pub(crate) fn new(reader: Reader, inputs: mpsc::Sender<Input>) -> ColdLoads {
        ColdLoads {
            reader,
            inputs,
            jobs: VecDeque::new(),
            answers: VecDeque::new(),
            job_loads: InOrder::new(),
            answer_loads: 0,
        }
    }

    /// A load of jobs has come back. Gives the loads that no earlier one holds up: no job overtakes
    /// another.
    pub(crate) fn jobs_loaded(&mut self, load: u64, jobs: Vec<ColdJob>) -> Vec<Vec<ColdJob>> {
        self.job_loads.back(load, jobs).collect()
    }

    /// An answer has come back.
    pub(crate) fn answer_loaded(&mut self) {
        self.answer_loads -= 1;
    }

    /// Starts as many loads as may run.
    pub(crate) fn start(&mut self) {
        while self.job_loads.open() < LOADS_MAX as u64 && !self.jobs.is_empty() {
            let mut bytes = 0;
            let fits = |(handed, _): &&ColdJob| {
                bytes += handed.entry.length as usize;
                bytes <= LOAD_BYTES_MAX
            };
            let count = self.jobs.iter().take(LOAD_JOBS_MAX).take_while(fits).count().max(1);
            let mut jobs: Vec<ColdJob> = self.jobs.drain(..count).collect();
            let number = self.job_loads.begin();
            let (reader, inputs) = (self.reader.clone(), self.inputs.clone());
            tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                let may_wait = |handed: &Handed| {
                    let lease = Duration::from_millis(u64::from(handed.lease_ms));
                    !inputs.is_closed() && began.elapsed() < lease + READ_AGAIN_SLACK
                };
                let mut reader = reader.neighbours();
                let mut load =
                    |handed: &Handed| load_entry(&mut reader, handed, || may_wait(handed));
                for (handed, entry) in jobs.iter_mut().filter(|(_, entry)| entry.is_none()) {
                    *entry = load(handed);
                }
                let _stopping = inputs.blocking_send(Input::Loaded { load: number, jobs });
            });
        }
        while self.answer_loads < LOADS_MAX
            && let Some(cold) = self.answers.pop_front()
        {
            self.answer_loads += 1;
            let (reader, inputs) = (self.reader.clone(), self.inputs.clone());
            tokio::task::spawn_blocking(move || {
                let bytes = cold.bytes();
                let ColdAnswer { link, id, asked, awaited } = cold;
                let answer = complete(&reader, asked, awaited);
                let loaded = LoadedAnswer { link, id, answer, awaited, bytes };
                let _stopping = inputs.blocking_send(Input::Answered(loaded));
            });
        }
    }
}

/// Reads a job's entry; none if it is damaged. What only the process lacks, a file or memory, is
/// waited for: a sound job is not buried for it.
fn load_entry(
    reader: &mut Neighbours<'_>,
    handed: &Handed,
    may_wait: impl Fn() -> bool,
) -> Option<Bytes> {
    let entry = loop {
        match reader.read(handed.entry) {
            Ok(entry) => break entry,
            Err(ReadError::Io { error, .. }) if may_pass(&error) && may_wait() => {
                std::thread::sleep(READ_AGAIN_AFTER);
            }
            Err(why) => {
                error!(token = handed.token.0, %why, "a job's entry cannot be read back");
                return None;
            }
        }
    };
    let length = entry.len();
    let mut fields = FieldReader::new(entry);
    let head = EntryHead::read(&mut fields, length);
    let entry = fields.into_body();
    match head {
        Ok(head) if head.is_intact(&entry) => Some(entry),
        Ok(head) => {
            error!(job = %head.id, at = ?handed.entry, "a job's payload is not what its producer wrote");
            None
        }
        Err(why) => {
            error!(token = handed.token.0, at = ?handed.entry, %why, "a job's entry is damaged");
            None
        }
    }
}

/// True of what says nothing about the disk.
fn may_pass(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|e| matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
}

/// Reads the cold parts of an answer. One to a wait tells how the job ended also when what it was
/// given is damaged: that may be what it died of.
fn complete(reader: &Reader, asked: Asked, awaited: bool) -> Result<Answer, RequestError> {
    match asked {
        Asked::Ready(answer) => Ok(answer),
        Asked::Job(None) => Ok(Answer::Job(None)),
        Asked::Job(Some(view)) => {
            let mut view = *view;
            let checkpoints = std::mem::take(&mut view.checkpoints);
            let mut info = fill(reader, view, true, awaited)?;
            for (checkpoint, at) in info.checkpoints.iter_mut().zip(checkpoints) {
                checkpoint.bytes = unless_left_out(read(reader, at), awaited)?;
            }
            Ok(Answer::Job(Some(Box::new(info))))
        }
        Asked::Refused(refusal) => Err(refusal),
        // The owner opens it: there is nothing to read.
        Asked::Feed { .. } => Err(RequestError::Unknown),
        Asked::Jobs { views, next, full, index } => {
            let jobs = views
                .into_iter()
                .map(|view| fill(reader, view, full, false))
                .collect::<Result<_, _>>()?;
            Ok(Answer::Jobs(JobsPage { jobs, next, index }))
        }
        Asked::DeadGroups { groups, more } => dead_groups(reader, groups, more),
        Asked::Checkpoints(views) => {
            let checkpoint = |view: CheckpointView| {
                Ok(CheckpointInfo { bytes: Some(read(reader, view.bytes)?), ..view.info })
            };
            views.into_iter().map(checkpoint).collect::<Result<_, _>>().map(Answer::Checkpoints)
        }
    }
}

/// Groups with the errors of their examples, as many as a page's bytes hold.
fn dead_groups(
    reader: &Reader,
    views: Vec<DeadGroupView>,
    mut more: bool,
) -> Result<Answer, RequestError> {
    let (mut groups, mut bytes) = (Vec::with_capacity(views.len()), 0);
    for DeadGroupView { mut group, error } in views {
        let length = error.map_or(0, |at| at.length as usize);
        bytes += GROUP_BYTES + group.path.as_str().len() + length;
        if bytes > PAGE_BYTES_MAX {
            more = true;
            break;
        }
        group.error = error.map(|at| read_error(reader, at)).transpose()?;
        groups.push(group);
    }
    Ok(Answer::DeadGroups(DeadGroups { groups, more }))
}

fn fill(
    reader: &Reader,
    view: JobView,
    full: bool,
    awaited: bool,
) -> Result<JobInfo, RequestError> {
    let mut info = view.info;
    if full {
        let entry = unless_left_out(read_entry(reader, view.entry), awaited)?;
        if let Some(entry) = entry {
            info.payload = Some(entry.payload);
            info.headers = Some(entry.headers);
            info.options = Some(entry.options);
        }
        info.result = view.result.map(|at| read(reader, at)).transpose()?;
    }
    for (attempt, at) in info.attempts.iter_mut().zip(view.attempt_errors) {
        attempt.error = at.map(|at| read_error(reader, at)).transpose()?;
    }
    info.error = view.error.map(|at| read_error(reader, at)).transpose()?;
    Ok(info)
}

fn read_entry(reader: &Reader, at: RecordRef) -> Result<Entry, RequestError> {
    Entry::read(read(reader, at)?).map_err(|_| RequestError::Unreadable)
}

/// None of what could not be read and may be left out.
fn unless_left_out<T>(
    read: Result<T, RequestError>,
    may_be_left_out: bool,
) -> Result<Option<T>, RequestError> {
    match read {
        Err(_) if may_be_left_out => Ok(None),
        read => read.map(Some),
    }
}

fn read_error(reader: &Reader, at: RecordRef) -> Result<JobError, RequestError> {
    let mut bytes = FieldReader::new(read(reader, at)?);
    JobError::decode(&mut bytes).map_err(|why| {
        error!(?at, %why, "an error in the journal does not decode");
        RequestError::Unreadable
    })
}

fn read(reader: &Reader, at: RecordRef) -> Result<Bytes, RequestError> {
    reader.read(at).map_err(|why| {
        error!(?at, %why, "the journal cannot be read back");
        RequestError::Unreadable
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longshore_protocol::NewJob;
    use longshore_protocol::messages::work::{BatchBuilder, DeadGroup};
    use longshore_queue::{Piece, Records};
    use parking_lot::Mutex;

    use super::*;

    /// Fails with these errors, one read after the other, and then reads.
    struct Failing(Mutex<Vec<Errno>>, Bytes);

    impl Records for Failing {
        fn piece(&self, _: RecordRef) -> Result<Piece, ReadError> {
            let Some(errno) = self.0.lock().pop() else {
                return Ok(Piece { from: 0, bytes: self.1.clone() });
            };
            Err(ReadError::Io { file: "segment".into(), error: Arc::new(errno.into()) })
        }
    }

    fn load(errors: Vec<Errno>, may_wait: bool) -> bool {
        let mut batch = BatchBuilder::new();
        let id = longshore_protocol::JobId::default();
        let path = longshore_protocol::Path::new("/jobs/a").unwrap();
        batch.push(&NewJob::new(path, id, Bytes::from_static(b"payload")));
        let batch = batch.seal(false).to_batch(1).unwrap();
        let entry = batch.entries().next().unwrap();
        let part = RecordRef { index: 1, at: entry.at, length: entry.length };
        let records = Failing(Mutex::new(errors), batch.body().clone());
        let handed = Handed {
            link: LinkId(1),
            subscription: 1,
            token: longshore_protocol::Token(1),
            queue: longshore_queue::QueueId(0),
            attempt: 1,
            deliveries: 1,
            lease_ms: 1_000,
            run_timeout_ms: 0,
            checkpoints: 0,
            entry: part,
        };
        load_entry(&mut Reader::new(Arc::new(records)).neighbours(), &handed, || may_wait).is_some()
    }

    #[test]
    fn a_job_is_not_damaged_because_the_process_has_too_many_open_files() {
        assert!(load(vec![Errno::NOMEM, Errno::MFILE], true));
        assert!(!load(vec![Errno::MFILE], false), "not for ever");
        assert!(!load(vec![Errno::IO], true), "a disk that cannot read is damage");
    }

    #[test]
    fn groups_of_dead_letters_are_as_many_as_a_page_holds_and_the_rest_is_more() {
        let mut out = longshore_protocol::FrameWriter::new();
        let said = JobError { kind: "Trouble".to_owned(), message: "x".repeat(8_000) };
        longshore_protocol::Encode::encode(&said, &mut out);
        let body = out.into_body();
        let at = RecordRef { index: 1, at: 0, length: body.len() as u32 };
        let reader = Reader::new(Arc::new(Failing(Mutex::new(Vec::new()), body)));
        let group = DeadGroup {
            path: longshore_protocol::Path::new("/jobs/a").unwrap(),
            death: longshore_protocol::DeathReason::Buried,
            fingerprint: longshore_protocol::Fingerprint::of(&said),
            jobs: 3,
            first_at: 1,
            last_at: 2,
            example: longshore_protocol::JobId::default(),
            error: None,
        };
        let view = |error| DeadGroupView { group: group.clone(), error };
        let told = |groups: Vec<DeadGroupView>| match complete(
            &reader,
            Asked::DeadGroups { groups, more: false },
            false,
        ) {
            Ok(Answer::DeadGroups(told)) => told,
            other => panic!("{other:?}"),
        };
        let few = told(vec![view(Some(at)), view(None)]);
        assert_eq!((few.groups.len(), few.more), (2, false));
        assert_eq!((&few.groups[0].error, &few.groups[1].error), (&Some(said), &None));
        let many = told(vec![view(Some(at)); 1_000]);
        assert!(many.more);
        let mut out = longshore_protocol::FrameWriter::new();
        longshore_protocol::Encode::encode(&many.groups[..], &mut out);
        assert!(out.body_len() <= PAGE_BYTES_MAX && out.body_len() > PAGE_BYTES_MAX / 2);
    }

    #[test]
    fn loads_are_given_out_in_the_order_in_which_they_were_begun() {
        let mut loads = InOrder::new();
        let [first, second, third] = [loads.begin(), loads.begin(), loads.begin()];
        assert_eq!(loads.back(second, "second").next(), None);
        assert_eq!(loads.back(third, "third").next(), None);
        assert_eq!(loads.open(), 3, "those that wait count");
        assert_eq!(loads.back(first, "first").collect::<Vec<_>>(), ["first", "second", "third"]);
        assert_eq!(loads.open(), 0);
        let fourth = loads.begin();
        assert_eq!(loads.back(fourth, "fourth").next(), Some("fourth"));
    }
}
