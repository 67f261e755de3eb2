//! The thread that writes the file.

use std::time::{Duration, Instant};

use longshore_access::{AuditChain, AuditRecord};

use super::file::ChainedFile;
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
pub(super) fn run(shared: &Shared, file: ChainedFile<std::fs::File>) {
    let (mut chain, mut file) = (file.chain(), Some(file));
    loop {
        let done = match next(shared) {
            Work::Write(records) => retry(shared, || {
                let file = opened(shared, &mut file, chain)?;
                file.write(&records).map_err(|error| error.to_string())?;
                chain = file.chain();
                Ok(())
            }),
            Work::Reopen => {
                // First, as it holds the lock, and may be the same file.
                file = None;
                retry(shared, || {
                    chain = opened(shared, &mut file, chain)?.chain();
                    Ok(())
                })
            }
            Work::End => break,
        };
        if !done {
            break;
        }
    }
    // It releases the lock: the program may open the file again at once.
    drop(file);
    shared.queue.lock().has_ended = true;
    shared.ended.notify_all();
}

fn opened<'a>(
    shared: &Shared,
    file: &'a mut Option<ChainedFile<std::fs::File>>,
    chain: AuditChain,
) -> Result<&'a mut ChainedFile<std::fs::File>, String> {
    match file {
        Some(file) => Ok(file),
        none => Ok(none.insert(ChainedFile::open(&shared.file, Some(chain), now_unix_ms())?)),
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
            return Work::Write(records);
        }
        if std::mem::take(&mut queue.reopen) {
            return Work::Reopen;
        }
        if queue.closing {
            return Work::End;
        }
        shared.wake.wait(&mut queue);
    }
}

/// Does something until it succeeds; false if the last handle was dropped meanwhile. While it
/// fails, the log does.
fn retry(shared: &Shared, mut step: impl FnMut() -> Result<(), String>) -> bool {
    loop {
        let outcome = step();
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
    }
}
