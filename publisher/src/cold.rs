//! Things that are not in memory: read back on blocking threads, so that the owner never waits for a disk.

use std::collections::VecDeque;

use bytes::Bytes;
use longshore_protocol::messages::work::{Answer, JobInfo, JobsPage, RequestError};
use longshore_protocol::{Decode, Entry, JobError, LinkId, Reader as FieldReader};
use longshore_queue::{Asked, Handed, JobView, Reader, RecordRef};
use tokio::sync::mpsc;
use tracing::error;

use crate::input::Input;

/// Jobs in one load.
const LOAD_JOBS_MAX: usize = 512;
/// Bytes of entries in one load; a single larger entry is loaded alone.
const LOAD_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Loads at once, and answers at once: what bounds the memory that they hold.
const LOADS_MAX: usize = 4;

/// Jobs that wait for their entries, and answers that wait for their cold parts.
pub(crate) struct ColdLoads {
    reader: Reader,
    inputs: mpsc::Sender<Input>,
    pub(crate) jobs: VecDeque<Handed>,
    answers: VecDeque<ColdAnswer>,
    job_loads: usize,
    answer_loads: usize,
}

/// An answer with parts still to be read.
struct ColdAnswer {
    link: LinkId,
    id: u64,
    asked: Asked,
}

/// An answer that is whole.
pub(crate) struct LoadedAnswer {
    pub(crate) link: LinkId,
    pub(crate) id: u64,
    pub(crate) answer: Result<Answer, RequestError>,
}

impl ColdLoads {
    pub(crate) fn new(reader: Reader, inputs: mpsc::Sender<Input>) -> ColdLoads {
        ColdLoads {
            reader,
            inputs,
            jobs: VecDeque::new(),
            answers: VecDeque::new(),
            job_loads: 0,
            answer_loads: 0,
        }
    }

    /// An answer to be completed and sent.
    pub(crate) fn answer(&mut self, link: LinkId, id: u64, asked: Asked) {
        self.answers.push_back(ColdAnswer { link, id, asked });
    }

    /// A load of jobs has come back.
    pub(crate) fn jobs_loaded(&mut self) {
        self.job_loads -= 1;
    }

    /// An answer has come back.
    pub(crate) fn answer_loaded(&mut self) {
        self.answer_loads -= 1;
    }

    /// Starts as many loads as may run.
    pub(crate) fn start(&mut self) {
        while self.job_loads < LOADS_MAX && !self.jobs.is_empty() {
            let (mut jobs, mut bytes) = (Vec::new(), 0);
            while let Some(&handed) = self.jobs.front() {
                bytes += handed.entry.length as usize;
                if !jobs.is_empty() && (bytes > LOAD_BYTES_MAX || jobs.len() == LOAD_JOBS_MAX) {
                    break;
                }
                jobs.push(handed);
                self.jobs.pop_front();
            }
            self.job_loads += 1;
            let (reader, inputs) = (self.reader.clone(), self.inputs.clone());
            tokio::task::spawn_blocking(move || {
                let jobs =
                    jobs.into_iter().map(|handed| (handed, load_entry(&reader, &handed))).collect();
                let _stopping = inputs.blocking_send(Input::Loaded { jobs });
            });
        }
        while self.answer_loads < LOADS_MAX
            && let Some(ColdAnswer { link, id, asked }) = self.answers.pop_front()
        {
            self.answer_loads += 1;
            let (reader, inputs) = (self.reader.clone(), self.inputs.clone());
            tokio::task::spawn_blocking(move || {
                let answer = complete(&reader, asked);
                let _stopping =
                    inputs.blocking_send(Input::Answered(LoadedAnswer { link, id, answer }));
            });
        }
    }
}

fn load_entry(reader: &Reader, handed: &Handed) -> Option<Bytes> {
    let entry = match reader.read(handed.entry) {
        Ok(entry) => entry,
        Err(why) => {
            error!(token = handed.token.0, %why, "a job's entry cannot be read back");
            return None;
        }
    };
    match Entry::read(entry.clone()) {
        Ok(read) if read.is_intact() => Some(entry),
        Ok(read) => {
            error!(job = %read.id, at = ?handed.entry, "a job's payload is not what its producer wrote");
            None
        }
        Err(why) => {
            error!(token = handed.token.0, at = ?handed.entry, %why, "a job's entry is damaged");
            None
        }
    }
}

/// Reads the cold parts of an answer.
fn complete(reader: &Reader, asked: Asked) -> Result<Answer, RequestError> {
    match asked {
        Asked::Ready(answer) => Ok(answer),
        Asked::Job(None) => Ok(Answer::Job(None)),
        Asked::Job(Some(view)) => Ok(Answer::Job(Some(Box::new(fill(reader, *view, true)?)))),
        Asked::Refused(refusal) => Err(refusal),
        Asked::Jobs { views, next, full } => {
            let jobs =
                views.into_iter().map(|view| fill(reader, view, full)).collect::<Result<_, _>>()?;
            Ok(Answer::Jobs(JobsPage { jobs, next }))
        }
    }
}

fn fill(reader: &Reader, view: JobView, full: bool) -> Result<JobInfo, RequestError> {
    let mut info = view.info;
    if full {
        let entry = Entry::read(read(reader, view.entry)?).map_err(|_| RequestError::Unreadable)?;
        info.payload = Some(entry.payload);
        info.headers = Some(entry.headers);
        info.result = view.result.map(|at| read(reader, at)).transpose()?;
    }
    if let Some(at) = view.error {
        let mut bytes = FieldReader::new(read(reader, at)?);
        info.error = Some(JobError::decode(&mut bytes).map_err(|_| RequestError::Unreadable)?);
    }
    Ok(info)
}

fn read(reader: &Reader, at: RecordRef) -> Result<Bytes, RequestError> {
    reader.read(at).map_err(|why| {
        error!(?at, %why, "the journal cannot be read back");
        RequestError::Unreadable
    })
}
