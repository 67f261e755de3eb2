//! The audit log of a process's servers: administrative acts, refused accesses and changes of the
//! rules, in a file that a thread of its own writes. [`longshore_access::AuditChain`] has the form
//! of its lines.

mod client_limits;
mod file;
mod link_audit;
mod writer;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longshore_access::{AuditOutcome, AuditRecord, Identity};
use parking_lot::{Condvar, Mutex};

use client_limits::ClientLimits;
use file::{ChainedFile, FileError};
pub use link_audit::LinkAudit;

/// Most records that wait to be written. With as many, acts are refused, and other records are
/// counted only.
pub const AUDIT_RECORDS_QUEUED_MAX: usize = 4_096;
/// Most records of refused accesses, and of [`AuditLog::note`], in each [`LIMITS_PERIOD`] of one
/// identity, and of all clients without one; further ones are counted. At this rate a client causes
/// about 150 MB a day.
const RECORDS_MAX: u32 = 50;
const LIMITS_PERIOD: Duration = Duration::from_secs(10);
/// A write that takes longer refuses acts.
const HANG_WAIT: Duration = Duration::from_secs(5);
/// The longest that the last handle waits until everything is written.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// An audit log. Cheap to clone; clones share the file. By default there is none: nothing is
/// recorded.
///
/// While it cannot be written it is *failing*: administrative acts are refused, everything else
/// goes on, and it recovers by itself once it can be written.
#[derive(Clone, Default)]
pub struct AuditLog(Option<Arc<Handle>>);

/// The client of a record.
#[derive(Clone, Copy, Debug)]
pub struct AuditClient<'a> {
    /// The name of the server.
    pub server: &'a str,
    /// Who the client is.
    pub identity: Option<&'a Identity>,
    /// Its address.
    pub address: SocketAddr,
}

/// What a client does, or tries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AuditedAct {
    /// The act.
    pub action: &'static str,
    /// What it concerns; there is one record for each.
    pub targets: Vec<String>,
    /// What is to be known beside that.
    pub detail: String,
}

/// The audit log cannot be written, so nothing was done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the audit log cannot be written: {0}")]
pub struct NotAudited(String);

/// Why an audit log does not open.
#[derive(Debug, thiserror::Error)]
#[error("the audit log {file}: {why}", file = file.display())]
pub struct AuditOpenError {
    /// Its file.
    pub file: PathBuf,
    /// The reason, with the remedy.
    pub why: String,
}

/// Ends the writer when the last clone is dropped.
struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    file: PathBuf,
    queue: Mutex<Queue>,
    /// For the writer: there is something to do.
    wake: Condvar,
    /// For the last handle: the writer has ended.
    ended: Condvar,
}

struct Queue {
    records: VecDeque<AuditRecord>,
    /// Records that had no room, since the last one that says so.
    lost: u64,
    /// Why the file cannot be written.
    failing: Option<String>,
    /// The beginning of the write that is under way.
    writing_since: Option<Instant>,
    refusals: ClientLimits,
    notes: ClientLimits,
    /// The file is to be opened again.
    reopen: bool,
    closing: bool,
    has_ended: bool,
}

impl AuditLog {
    /// Opens a file, created if missing with mode 0600, and continues its chain. One process at a
    /// time. If it cannot be written, as on a full disk, the log begins as a failing one. Blocks
    /// for the disk.
    pub fn open(file: &Path) -> Result<AuditLog, AuditOpenError> {
        let failed = |why: String| AuditOpenError { file: file.to_owned(), why };
        let (opened, failing) = match ChainedFile::open(file, None, now_unix_ms()) {
            Ok(opened) => (Some(opened), None),
            Err(FileError::NotWritten(why)) => {
                tracing::error!(
                    file = %file.display(), why,
                    "the audit log cannot be written: acts are refused"
                );
                (None, Some(why))
            }
            Err(FileError::Unusable(why)) => return Err(failed(why)),
        };
        AuditLog::begin(file, opened, failing).map_err(|error| failed(error.to_string()))
    }

    fn begin(
        file: &Path,
        opened: Option<ChainedFile<File>>,
        failing: Option<String>,
    ) -> io::Result<AuditLog> {
        let queue = Queue {
            records: VecDeque::new(),
            lost: 0,
            failing,
            writing_since: None,
            refusals: ClientLimits::new(RECORDS_MAX, LIMITS_PERIOD),
            notes: ClientLimits::new(RECORDS_MAX, LIMITS_PERIOD),
            reopen: false,
            closing: false,
            has_ended: false,
        };
        let shared = Arc::new(Shared {
            file: file.to_owned(),
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            ended: Condvar::new(),
        });
        let of_writer = shared.clone();
        std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || writer::run(&of_writer, opened))?;
        Ok(AuditLog(Some(Arc::new(Handle { shared }))))
    }

    /// Opens the file again, once what waits is written: an operator has renamed it. The new file
    /// continues the chain of the old one.
    pub fn reopen(&self) {
        if let Some(Handle { shared }) = self.0.as_deref() {
            shared.queue.lock().reopen = true;
            shared.wake.notify_one();
        }
    }

    /// Writes what waits, for up to two seconds, and ends. For the end of a program whose tasks may
    /// still have clones; the last clone that is dropped does the same.
    pub fn close(&self) {
        if let Some(handle) = &self.0 {
            handle.close();
        }
    }

    /// Why it cannot be written; none if it can.
    pub fn failing(&self) -> Option<String> {
        self.0.as_ref()?.shared.queue.lock().failing.clone()
    }

    /// Records an administrative act that begins now; an error if it must not, as the log is
    /// failing. The record is queued: a crash before it is on disk loses it, in general within
    /// milliseconds; while the disk hangs, acts are accepted for five more seconds.
    pub fn allow(
        &self,
        client: AuditClient<'_>,
        act: impl FnOnce() -> AuditedAct,
    ) -> Result<(), NotAudited> {
        let Some(Handle { shared }) = self.0.as_deref() else { return Ok(()) };
        let records = records_of(client, act(), &AuditOutcome::Allowed);
        let mut queue = shared.queue.lock();
        if let Some(why) = &queue.failing {
            return Err(NotAudited(why.clone()));
        }
        if let Some(since) = queue.writing_since.filter(|since| since.elapsed() > HANG_WAIT) {
            let seconds = since.elapsed().as_secs();
            return Err(NotAudited(format!("its disk has not finished a write for {seconds} s")));
        }
        if queue.records.len() + records.len() > AUDIT_RECORDS_QUEUED_MAX {
            let full = format!("{AUDIT_RECORDS_QUEUED_MAX} records wait to be written");
            return Err(NotAudited(full));
        }
        records.into_iter().for_each(|record| shared.push(&mut queue, record));
        Ok(())
    }

    /// Records, at a bounded rate, what no administrator does and what goes on while the log is
    /// failing.
    pub fn note(&self, client: AuditClient<'_>, act: impl FnOnce() -> AuditedAct) {
        let Some(Handle { shared }) = self.0.as_deref() else { return };
        let mut queue = shared.queue.lock();
        let admitted = queue.notes.admit(client.identity, Instant::now());
        let Some(left_out) = admitted else { return };
        for record in records_of(client, act(), &AuditOutcome::Allowed) {
            shared.push(&mut queue, AuditRecord { left_out, ..record });
        }
    }

    /// Records, at a bounded rate, what a client was refused: the target, and the reason.
    pub fn refuse(
        &self,
        client: AuditClient<'_>,
        action: &'static str,
        what: impl FnOnce() -> (String, String),
    ) {
        let Some(Handle { shared }) = self.0.as_deref() else { return };
        let mut queue = shared.queue.lock();
        let admitted = queue.refusals.admit(client.identity, Instant::now());
        let Some(left_out) = admitted else { return };
        let (target, reason) = what();
        let act = AuditedAct { action, targets: vec![target], detail: String::new() };
        for record in records_of(client, act, &AuditOutcome::Refused { reason }) {
            shared.push(&mut queue, AuditRecord { left_out, ..record });
        }
    }

    /// Records a change of the rules of a server.
    pub fn rules_changed(&self, server: &str, changes: &dyn fmt::Display) {
        if let Some(Handle { shared }) = self.0.as_deref() {
            let (action, detail) = ("change rules", changes.to_string());
            let record = AuditRecord { server: server.to_owned(), ..of_process(action, detail) };
            shared.push(&mut shared.queue.lock(), record);
        }
    }
}

impl Shared {
    fn push(&self, queue: &mut Queue, record: AuditRecord) {
        tracing::info!(target: "longshore::audit", record = %Shown(&record));
        if queue.records.len() >= AUDIT_RECORDS_QUEUED_MAX {
            queue.lost += 1;
            return;
        }
        queue.records.push_back(record);
        self.wake.notify_one();
    }
}

impl Handle {
    fn close(&self) {
        let mut queue = self.shared.queue.lock();
        queue.closing = true;
        self.shared.wake.notify_one();
        let until = Instant::now() + CLOSE_WAIT;
        while !queue.has_ended && !self.shared.ended.wait_until(&mut queue, until).timed_out() {}
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.0.as_ref().map(|handle| &handle.shared.file);
        f.debug_tuple("AuditLog").field(&file).finish()
    }
}

/// A record as an event: its JSON text, which has no line feed.
struct Shown<'a>(&'a AuditRecord);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_json())
    }
}

fn records_of(
    client: AuditClient<'_>,
    act: AuditedAct,
    outcome: &AuditOutcome,
) -> Vec<AuditRecord> {
    let AuditedAct { action, targets, detail } = act;
    let record = |target| AuditRecord {
        server: client.server.to_owned(),
        identity: client.identity.map(Identity::to_string).unwrap_or_default(),
        address: client.address.to_string(),
        target,
        outcome: outcome.clone(),
        ..of_process(action, detail.clone())
    };
    targets.into_iter().map(record).collect()
}

/// A record of this process itself.
fn of_process(action: &'static str, detail: String) -> AuditRecord {
    AuditRecord {
        time_unix_ms: now_unix_ms(),
        server: String::new(),
        identity: String::new(),
        address: String::new(),
        action,
        target: String::new(),
        detail,
        outcome: AuditOutcome::Allowed,
        left_out: 0,
    }
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_without_room_at_its_start_begins_once_there_is_some() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.jsonl");
        // Until the file is a file.
        std::fs::create_dir(&file).unwrap();
        let log = AuditLog::begin(&file, None, Some("no space".to_owned())).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let client = AuditClient { server: "left", identity: None, address };
        let act = || AuditedAct { action: "pause", targets: vec![], detail: String::new() };
        assert!(log.allow(client, act).is_err());
        log.rules_changed("left", &"1 rules added");
        std::fs::remove_dir(&file).unwrap();
        while log.failing().is_some() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(log.allow(client, act).is_ok());
        drop(log);
        let text = std::fs::read_to_string(&file).unwrap();
        let mut verifier = longshore_access::AuditVerifier::default();
        text.lines().for_each(|line| verifier.line(line).unwrap());
        assert!(text.contains("open the log") && text.contains("1 rules added"), "{text}");
    }
}
