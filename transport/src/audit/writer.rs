//! The thread that writes the file.

use std::fs::File;
use std::time::{Duration, Instant};

use longshore_access::{AuditChain, AuditRecord};

use super::file::{ChainedFile, FileError};
use super::{Shared, now_unix_ms, of_process};

/// Most records of one write and sync.
const BATCH_RECORDS_MAX: usize = 256;
/// The wait until a failed write is repeated.
const RETRY_WAIT: Duration = Duration::from_millis(250);

/// What the writer does next.
enum Work {
    Write(Vec<AuditRecord>),
    Reopen,
    End,
}

/// Writes until the last handle is dropped, and then what is left, if the file can be written.
/// Without a file it opens it, as soon as that works.
pub(super) fn run(shared: &Shared, mut file: Option<ChainedFile<File>>) {
    // The position that the next file continues.
    let mut chain = file.as_ref().map(ChainedFile::chain);
    let mut open_first = file.is_none();
    loop {
        let work = if std::mem::take(&mut open_first) { Work::Reopen } else { next(shared) };
        let records = match work {
            Work::Write(records) => records,
            Work::Reopen => {
                // First, as it holds the lock, and may be the same file.
                file = None;
                Vec::new()
            }
            Work::End => break,
        };
        let done = retry(shared, |reopen| {
            if reopen && let Some(file) = file.take() {
                file.give_up();
            }
            let file = opened(shared, &mut file, chain)?;
            chain = Some(file.chain());
            if !records.is_empty() {
                file.write(&records).map_err(|error| error.to_string())?;
                chain = Some(file.chain());
            }
            Ok(())
        });
        if !done {
            break;
        }
        shared.queue.lock().writing_since = None;
    }
    // It releases the lock: the program may open the file again at once.
    drop(file);
    shared.queue.lock().has_ended = true;
    shared.ended.notify_all();
}

fn opened<'a>(
    shared: &Shared,
    file: &'a mut Option<ChainedFile<File>>,
    chain: Option<AuditChain>,
) -> Result<&'a mut ChainedFile<File>, String> {
    match file {
        Some(file) => Ok(file),
        none => {
            let opened = ChainedFile::open(&shared.file, chain, now_unix_ms());
            Ok(none.insert(opened.map_err(FileError::into_text)?))
        }
    }
}

/// Waits for work.
fn next(shared: &Shared) -> Work {
    let mut queue = shared.queue.lock();
    loop {
        if !queue.records.is_empty() {
            let count = queue.records.len().min(BATCH_RECORDS_MAX);
            let mut records: Vec<AuditRecord> = queue.records.drain(..count).collect();
            let lost = std::mem::take(&mut queue.lost);
            if lost > 0 {
                let detail = format!("{lost} records had no room, as the file was not written");
                records.push(of_process("lose records", detail));
            }
            queue.writing_since = Some(Instant::now());
            return Work::Write(records);
        }
        if std::mem::take(&mut queue.reopen) {
            queue.writing_since = Some(Instant::now());
            return Work::Reopen;
        }
        if queue.closing {
            return Work::End;
        }
        shared.wake.wait(&mut queue);
    }
}

/// Does something until it succeeds; false if the last handle was dropped meanwhile. While it
/// fails, the log does. The step receives true if the file has been renamed meanwhile.
fn retry(shared: &Shared, mut step: impl FnMut(bool) -> Result<(), String>) -> bool {
    let mut reopen = false;
    loop {
        let outcome = step(std::mem::take(&mut reopen));
        let mut queue = shared.queue.lock();
        let file = shared.file.display();
        let Err(why) = outcome else {
            if queue.failing.take().is_some() {
                tracing::info!(%file, "the audit log can be written again: acts are accepted");
            }
            return true;
        };
        if queue.failing.as_ref() != Some(&why) {
            tracing::error!(%file, why, "the audit log cannot be written: acts are refused");
            queue.failing = Some(why);
        }
        let until = Instant::now() + RETRY_WAIT;
        // A record that is queued meanwhile wakes this thread, too.
        while !queue.closing && !shared.wake.wait_until(&mut queue, until).timed_out() {}
        if queue.closing {
            return false;
        }
        reopen = std::mem::take(&mut queue.reopen);
    }
}
