//! Data that is not in memory, read on blocking threads so that the owner never waits for a disk.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::limits::PAGE_BYTES_MAX;
use longshore_protocol::messages::work::{
    Answer, CheckpointInfo, DeadGroups, JobInfo, JobsPage, RequestError,
};
use longshore_protocol::{
    Decode, Entry, EntryHead, JobError, LinkId, Parent, Path, PathSet, Reader, WireError,
};
use longshore_queue::{
    Assignment, CheckpointView, DeadGroupView, JobView, LogReadError, LogReader, Neighbours,
    PendingAnswer, RecordRef,
};
use rustix::io::Errno;
use tokio::sync::mpsc;
use tracing::error;

use crate::event::OwnerEvent;

/// Jobs per load.
const LOAD_JOBS_MAX: usize = 512;
/// Bytes of entries per load; a single larger entry is loaded alone.
const LOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Loads at once, and answers at once. This bounds their memory.
const LOADS_MAX: usize = 4;
/// Bytes of an answer beside its cold parts.
const ANSWER_BYTES: usize = 512;
/// Bytes of a group of dead letters beside its path and its error.
const GROUP_BYTES: usize = 80;

/// The pause before a load retries a read that failed for lack of a process resource.
const READ_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A load retries for this long after the job's lease ended: by then the owner has taken the lease
/// back.
const READ_AGAIN_SLACK: Duration = Duration::from_secs(5);

/// Jobs that wait for their entries, and answers that wait for their cold parts.
pub(crate) struct ColdLoads {
    reader: LogReader,
    events: mpsc::Sender<OwnerEvent>,
    pub(crate) jobs: VecDeque<ColdJob>,
    pub(crate) answers: VecDeque<ColdAnswer>,
    job_loads: OrderedLoads<Vec<ColdJob>>,
    answer_loads: usize,
}

/// A job, and its entry if it was read.
pub(crate) type ColdJob = (Assignment, Option<Bytes>);

/// Loads that are released in the order in which they started, whatever order they finish in.
struct OrderedLoads<T> {
    /// The number of the next load to start.
    next: u64,
    /// The number of the next load to release.
    next_released: u64,
    /// Finished loads that an earlier one holds back.
    finished: BTreeMap<u64, T>,
}

impl<T> OrderedLoads<T> {
    fn new() -> OrderedLoads<T> {
        OrderedLoads { next: 0, next_released: 0, finished: BTreeMap::new() }
    }

    fn begin(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Started and not released. Bounds `finished` too.
    fn open(&self) -> u64 {
        self.next - self.next_released
    }

    fn finish(&mut self, number: u64, load: T) -> impl Iterator<Item = T> {
        self.finished.insert(number, load);
        std::iter::from_fn(|| {
            let load = self.finished.remove(&self.next_released)?;
            self.next_released += 1;
            Some(load)
        })
    }
}

/// An answer with parts that are still to be read.
pub(crate) struct ColdAnswer {
    pub(crate) link: LinkId,
    pub(crate) id: u64,
    pub(crate) pending: PendingAnswer,
    /// It answers a request that waited for the job's end.
    pub(crate) for_waiter: bool,
    /// The queues of whose jobs the client may see contents; none for all. Of others the payload,
    /// headers, result, errors, checkpoints and progress are left out.
    pub(crate) contents: Option<Arc<PathSet>>,
}

/// A complete answer.
pub(crate) struct LoadedAnswer {
    pub(crate) link: LinkId,
    pub(crate) id: u64,
    pub(crate) answer: Result<Answer, RequestError>,
    /// It answers a request that waited for the job's end.
    pub(crate) for_waiter: bool,
    /// The value of [`ColdAnswer::bytes`].
    pub(crate) bytes: usize,
}

impl ColdAnswer {
    /// About how many bytes it will have; they count against its link until it is written.
    pub(crate) fn bytes(&self) -> usize {
        let cold: usize = match &self.pending {
            PendingAnswer::Jobs { views, full, parents, .. } => {
                let whole = |view: &JobView| match (full, parents) {
                    (true, _) => whole_bytes(view),
                    (false, true) => view.head().length as usize,
                    (false, false) => 0,
                };
                views.iter().map(|view| whole(view) + view_bytes(view, false)).sum()
            }
            PendingAnswer::Job(view) => {
                view.iter().map(|view| whole_bytes(view) + view_bytes(view, true)).sum()
            }
            PendingAnswer::ParentJobs { child, views, .. } => {
                let results = views.iter().filter_map(|view| view.result);
                results.chain([*child]).map(|at| at.length as usize).sum()
            }
            PendingAnswer::DeadGroups { groups, .. } => groups
                .iter()
                .map(|view| GROUP_BYTES + view.error.map_or(0, |error| error.length as usize))
                .sum(),
            PendingAnswer::Checkpoints(views) => {
                views.iter().map(|view| view.bytes.length as usize).sum()
            }
            PendingAnswer::Ready(_) | PendingAnswer::Feed { .. } | PendingAnswer::Refused(_) => 0,
        };
        ANSWER_BYTES + cold
    }
}

/// Bytes of a job's entry and result.
fn whole_bytes(view: &JobView) -> usize {
    [Some(view.entry), view.result].iter().flatten().map(|part| part.length as usize).sum()
}

/// Bytes of its errors, and of all its checkpoints with the whole history.
fn view_bytes(view: &JobView, history: bool) -> usize {
    let checkpoints = view.checkpoints.iter().filter(|_| history);
    let errors = view.attempt_errors.iter().chain([&view.error]).flatten();
    errors.chain(checkpoints).map(|part| part.length as usize).sum()
}

impl ColdLoads {
    pub(crate) fn new(reader: LogReader, events: mpsc::Sender<OwnerEvent>) -> ColdLoads {
        ColdLoads {
            reader,
            events,
            jobs: VecDeque::new(),
            answers: VecDeque::new(),
            job_loads: OrderedLoads::new(),
            answer_loads: 0,
        }
    }

    /// A load of jobs finished. Returns the loads that no earlier one holds back: no job overtakes
    /// another.
    pub(crate) fn jobs_loaded(&mut self, load: u64, jobs: Vec<ColdJob>) -> Vec<Vec<ColdJob>> {
        self.job_loads.finish(load, jobs).collect()
    }

    /// An answer is loaded.
    pub(crate) fn answer_loaded(&mut self) {
        self.answer_loads -= 1;
    }

    /// Starts as many loads as may run. Jobs that are not leased any more are not read: the disk
    /// has to catch up with the others.
    pub(crate) fn start(&mut self, is_leased: impl Fn(&Assignment) -> bool) {
        while self.job_loads.open() < LOADS_MAX as u64 && !self.jobs.is_empty() {
            let mut bytes = 0;
            let fits = |(assigned, _): &&ColdJob| {
                bytes += assigned.entry.length as usize;
                bytes <= LOAD_BYTES_MAX
            };
            let count = self.jobs.iter().take(LOAD_JOBS_MAX).take_while(fits).count().max(1);
            let mut jobs: Vec<ColdJob> = self.jobs.drain(..count).collect();
            let reads = |(assigned, entry): &ColdJob| entry.is_none() && is_leased(assigned);
            let reads: Vec<bool> = jobs.iter().map(reads).collect();
            let number = self.job_loads.begin();
            let (reader, events) = (self.reader.clone(), self.events.clone());
            tokio::task::spawn_blocking(move || {
                let began = Instant::now();
                let may_wait = |assigned: &Assignment| {
                    let lease = Duration::from_millis(u64::from(assigned.lease_ms));
                    !events.is_closed() && began.elapsed() < lease + READ_AGAIN_SLACK
                };
                let mut reader = reader.neighbours();
                let mut load = |assigned: &Assignment| {
                    load_entry(&mut reader, assigned, || may_wait(assigned))
                };
                let to_read = jobs.iter_mut().zip(reads).filter(|(_, reads)| *reads);
                for ((assigned, entry), _) in to_read {
                    *entry = load(assigned);
                }
                let _stopping = events.blocking_send(OwnerEvent::JobsLoaded { load: number, jobs });
            });
        }
        while self.answer_loads < LOADS_MAX
            && let Some(cold) = self.answers.pop_front()
        {
            self.answer_loads += 1;
            let (reader, events) = (self.reader.clone(), self.events.clone());
            tokio::task::spawn_blocking(move || {
                let bytes = cold.bytes();
                let ColdAnswer { link, id, mut pending, for_waiter, contents } = cold;
                let sees = |path: &Path| contents.as_ref().is_none_or(|set| set.contains(path));
                leave_out_contents(&mut pending, sees);
                let answer = complete(&reader, pending, for_waiter, sees);
                let loaded = LoadedAnswer { link, id, answer, for_waiter, bytes };
                let _stopping = events.blocking_send(OwnerEvent::AnswerLoaded(loaded));
            });
        }
    }
}

/// Reads a job's entry; `None` if it is damaged. If only the process lacks a resource (a file
/// descriptor, memory), it retries: a sound job is not buried for that.
fn load_entry(
    reader: &mut Neighbours<'_>,
    assigned: &Assignment,
    may_wait: impl Fn() -> bool,
) -> Option<Bytes> {
    let entry = loop {
        match reader.read(assigned.entry) {
            Ok(entry) => break entry,
            Err(LogReadError::Io { error, .. }) if is_lack_of_resources(&error) && may_wait() => {
                std::thread::sleep(READ_AGAIN_AFTER);
            }
            Err(why) => {
                error!(token = assigned.token.0, %why, "a job's entry cannot be read back");
                return None;
            }
        }
    };
    let length = entry.len();
    let mut fields = Reader::new(entry);
    let head = EntryHead::read(&mut fields, length);
    let entry = fields.into_body();
    match head {
        Ok(head) if head.is_intact(&entry) => Some(entry),
        Ok(head) => {
            let at = assigned.entry;
            error!(job = %head.id, ?at, "a job's payload is not what its producer wrote");
            None
        }
        Err(error) => {
            let (token, at) = (assigned.token.0, &assigned.entry);
            error!(token, ?at, why = %error, "a job's entry is damaged");
            None
        }
    }
}

/// True for errors of the process, which do not mean that the disk failed.
fn is_lack_of_resources(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|e| matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
}

/// Leaves out, beside entries, contents of jobs in queues of which the client does not see any.
fn leave_out_contents(pending: &mut PendingAnswer, sees: impl Fn(&Path) -> bool) {
    let leave_out = |view: &mut JobView| {
        if sees(&view.info.path) {
            return;
        }
        (view.error, view.result) = (None, None);
        view.attempt_errors.fill(None);
        view.checkpoints.clear();
        (view.info.checkpoints, view.info.progress) = (Vec::new(), None);
    };
    match pending {
        PendingAnswer::Job(view) => view.iter_mut().for_each(|view| leave_out(view)),
        PendingAnswer::Jobs { views, .. } => views.iter_mut().for_each(leave_out),
        PendingAnswer::DeadGroups { groups, .. } => {
            for view in groups.iter_mut().filter(|view| !sees(&view.group.path)) {
                view.error = None;
            }
        }
        // A worker reads the checkpoints of a job that it runs, and the results of its parents.
        PendingAnswer::Checkpoints(_)
        | PendingAnswer::ParentJobs { .. }
        | PendingAnswer::Ready(_)
        | PendingAnswer::Feed { .. }
        | PendingAnswer::Refused(_) => {}
    }
}

/// Reads the cold parts of an answer. For a request that waited for the end, a damaged entry or
/// checkpoint is left out: it may be what the job died of.
fn complete(
    reader: &LogReader,
    pending: PendingAnswer,
    for_waiter: bool,
    sees: impl Fn(&Path) -> bool,
) -> Result<Answer, RequestError> {
    match pending {
        PendingAnswer::Ready(answer) => Ok(answer),
        PendingAnswer::Job(None) => Ok(Answer::Job(None)),
        PendingAnswer::Job(Some(view)) => {
            let mut view = *view;
            let checkpoints = std::mem::take(&mut view.checkpoints);
            let full = sees(&view.info.path);
            let mut info = fill(reader, view, full, true, for_waiter)?;
            for (checkpoint, at) in info.checkpoints.iter_mut().zip(checkpoints) {
                checkpoint.bytes = unless_left_out(read(reader, at), for_waiter)?;
            }
            Ok(Answer::Job(Some(Box::new(info))))
        }
        PendingAnswer::Refused(refusal) => Err(refusal),
        // The owner opens the feed; nothing is read here.
        PendingAnswer::Feed { .. } => Err(RequestError::Unknown),
        PendingAnswer::Jobs { views, next, full, parents, index } => {
            let jobs = views
                .into_iter()
                .map(|view| {
                    let full = full && sees(&view.info.path);
                    fill(reader, view, full, parents, false)
                })
                .collect::<Result<_, _>>()?;
            Ok(Answer::Jobs(JobsPage { jobs, next, index }))
        }
        PendingAnswer::ParentJobs { child, parent, views, next, index } => {
            let keys = read_entry(reader, child)?.keys;
            let after = keys.iter().flat_map(|keys| &keys.after);
            if !after.into_iter().any(|known| known.job == parent) {
                return Err(RequestError::Forbidden);
            }
            let result = |view: JobView| {
                let result = view.result.map(|at| read(reader, at)).transpose()?;
                // The rest is for those who may inspect its queue.
                let (attempts, checkpoints) = (Vec::new(), Vec::new());
                let (token, worker, blocked, schedule) = (None, None, None, None);
                Ok(JobInfo {
                    result,
                    attempts,
                    checkpoints,
                    token,
                    worker,
                    blocked,
                    schedule,
                    progress: None,
                    ..view.info
                })
            };
            let jobs = views.into_iter().map(result).collect::<Result<_, _>>()?;
            Ok(Answer::Jobs(JobsPage { jobs, next, index }))
        }
        PendingAnswer::DeadGroups { groups, more } => dead_groups(reader, groups, more),
        PendingAnswer::Checkpoints(views) => {
            let checkpoint = |view: CheckpointView| {
                Ok(CheckpointInfo { bytes: Some(read(reader, view.bytes)?), ..view.info })
            };
            views.into_iter().map(checkpoint).collect::<Result<_, _>>().map(Answer::Checkpoints)
        }
    }
}

/// Groups with an example's error, as many as a page's bytes hold.
fn dead_groups(
    reader: &LogReader,
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
    reader: &LogReader,
    view: JobView,
    full: bool,
    parents: bool,
    for_waiter: bool,
) -> Result<JobInfo, RequestError> {
    let head = view.head();
    let mut info = view.info;
    if full {
        let entry = unless_left_out(read_entry(reader, view.entry), for_waiter)?;
        if let Some(entry) = entry {
            info.payload = Some(entry.payload);
            info.headers = Some(entry.headers);
            info.options = Some(entry.options);
            info.after = entry.keys.map(|keys| keys.after).unwrap_or_default();
        }
        info.result = view.result.map(|at| read(reader, at)).transpose()?;
    } else if parents {
        // One damaged entry, which is logged, does not hide the other jobs of a listing.
        info.after = read_parents(reader, head).unwrap_or_default();
    }
    for (attempt, at) in info.attempts.iter_mut().zip(view.attempt_errors) {
        attempt.error = at.map(|at| read_error(reader, at)).transpose()?;
    }
    info.error = view.error.map(|at| read_error(reader, at)).transpose()?;
    Ok(info)
}

/// The parents of a job whose entry begins there.
fn read_parents(reader: &LogReader, at: RecordRef) -> Result<Vec<Parent>, RequestError> {
    let bytes = read(reader, at)?;
    let length = bytes.len();
    let head = EntryHead::read(&mut Reader::new(bytes), length);
    let head = head.map_err(|why| undecodable(at, &why))?;
    Ok(head.keys.map(|keys| keys.after).unwrap_or_default())
}

fn read_entry(reader: &LogReader, at: RecordRef) -> Result<Entry, RequestError> {
    Entry::read(read(reader, at)?).map_err(|why| undecodable(at, &why))
}

/// Logs a record that was read and does not decode: its client is referred to the log.
fn undecodable(at: RecordRef, why: &WireError) -> RequestError {
    error!(?at, %why, "a record in the journal does not decode");
    RequestError::Unreadable
}

/// `None` for a part that could not be read and may be left out.
fn unless_left_out<T>(
    read: Result<T, RequestError>,
    may_be_left_out: bool,
) -> Result<Option<T>, RequestError> {
    match read {
        Err(_) if may_be_left_out => Ok(None),
        read => read.map(Some),
    }
}

fn read_error(reader: &LogReader, at: RecordRef) -> Result<JobError, RequestError> {
    let mut bytes = Reader::new(read(reader, at)?);
    JobError::decode(&mut bytes).map_err(|why| undecodable(at, &why))
}

fn read(reader: &LogReader, at: RecordRef) -> Result<Bytes, RequestError> {
    reader.read(at).map_err(|why| {
        error!(?at, %why, "the journal cannot be read back");
        RequestError::Unreadable
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use longshore_protocol::NewJob;
    use longshore_protocol::messages::work::{BatchBuilder, DeadGroup, JobTimes};
    use longshore_queue::{BodyBlock, Records};
    use parking_lot::Mutex;
    use tracing::span;

    use super::*;

    /// Fails with these errors, one per read, and then succeeds.
    struct Failing(Mutex<Vec<Errno>>, Bytes);

    impl Records for Failing {
        fn block(&self, _: RecordRef) -> Result<BodyBlock, LogReadError> {
            let Some(errno) = self.0.lock().pop() else {
                return Ok(BodyBlock { from: 0, bytes: self.1.clone() });
            };
            Err(LogReadError::Io { file: "segment".into(), error: Arc::new(errno.into()) })
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
        let assigned = Assignment {
            link: LinkId(1),
            subscription: 1,
            token: longshore_protocol::Token(1),
            queue: longshore_queue::QueueId(0),
            attempt: 1,
            deliveries: 1,
            lease_ms: 1_000,
            run_timeout_ms: 0,
            checkpoints: 0,
            times: JobTimes::default(),
            entry: part,
            of_template: false,
        };
        load_entry(&mut LogReader::new(Arc::new(records)).neighbours(), &assigned, || may_wait)
            .is_some()
    }

    #[test]
    fn lack_of_open_files_is_not_damage() {
        assert!(load(vec![Errno::NOMEM, Errno::MFILE], true));
        assert!(!load(vec![Errno::MFILE], false), "it does not retry for ever");
        assert!(!load(vec![Errno::IO], true), "a disk that cannot read is damage");
    }

    /// Counts what is logged.
    struct LoggedEvents(Arc<AtomicUsize>);

    impl tracing::Subscriber for LoggedEvents {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn records_that_do_not_decode_are_logged() {
        let body = Bytes::from_static(&[0xff; 8]);
        let at = RecordRef { index: 1, at: 0, length: body.len() as u32 };
        let reader = LogReader::new(Arc::new(Failing(Mutex::new(Vec::new()), body)));
        let logged = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(LoggedEvents(logged.clone()), || {
            assert_eq!(read_entry(&reader, at), Err(RequestError::Unreadable));
            assert_eq!(read_parents(&reader, at), Err(RequestError::Unreadable));
            assert_eq!(read_error(&reader, at), Err(RequestError::Unreadable));
        });
        assert_eq!(logged.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn groups_of_dead_letters_fill_at_most_a_page() {
        let mut out = longshore_protocol::FrameWriter::new();
        let error = JobError { kind: "Trouble".to_owned(), message: "x".repeat(8_000) };
        longshore_protocol::Encode::encode(&error, &mut out);
        let body = out.into_body();
        let at = RecordRef { index: 1, at: 0, length: body.len() as u32 };
        let reader = LogReader::new(Arc::new(Failing(Mutex::new(Vec::new()), body)));
        let group = DeadGroup {
            path: longshore_protocol::Path::new("/jobs/a").unwrap(),
            death: longshore_protocol::DeathReason::Buried,
            fingerprint: longshore_protocol::Fingerprint::of(&error),
            jobs: 3,
            first_at: 1,
            last_at: 2,
            example: longshore_protocol::JobId::default(),
            error: None,
        };
        let view = |error| DeadGroupView { group: group.clone(), error };
        let groups_of = |groups: Vec<DeadGroupView>| match complete(
            &reader,
            PendingAnswer::DeadGroups { groups, more: false },
            false,
            |_| true,
        ) {
            Ok(Answer::DeadGroups(groups_of)) => groups_of,
            other => panic!("{other:?}"),
        };
        let few = groups_of(vec![view(Some(at)), view(None)]);
        assert_eq!((few.groups.len(), few.more), (2, false));
        assert_eq!((&few.groups[0].error, &few.groups[1].error), (&Some(error), &None));
        let many = groups_of(vec![view(Some(at)); 1_000]);
        assert!(many.more);
        let mut out = longshore_protocol::FrameWriter::new();
        longshore_protocol::Encode::encode(&many.groups[..], &mut out);
        assert!(out.body_len() <= PAGE_BYTES_MAX && out.body_len() > PAGE_BYTES_MAX / 2);
    }

    #[test]
    fn loads_are_released_in_the_order_they_were_started() {
        let mut loads = OrderedLoads::new();
        let [first, second, third] = [loads.begin(), loads.begin(), loads.begin()];
        assert_eq!(loads.finish(second, "second").next(), None);
        assert_eq!(loads.finish(third, "third").next(), None);
        assert_eq!(loads.open(), 3, "finished loads that wait count");
        assert_eq!(loads.finish(first, "first").collect::<Vec<_>>(), ["first", "second", "third"]);
        assert_eq!(loads.open(), 0);
        let fourth = loads.begin();
        assert_eq!(loads.finish(fourth, "fourth").next(), Some("fourth"));
    }
}
