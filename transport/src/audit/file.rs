//! The file of an audit log. A failed write leaves nothing behind that a later one does not cut.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use longshore_access::{AUDIT_LINE_BYTES_MAX, AuditChain, AuditRecord};

use super::of_process;

/// The beginning of each line.
const LINE_START: &[u8] = b"{\"seq\":";

/// The most that may follow the last line after a power cut: all of one write, in general.
const TORN_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What the lines are written to.
pub(super) trait Storage {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    fn truncate(&mut self, bytes: u64) -> io::Result<()>;
}

impl Storage for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

/// A file of whole lines.
pub(super) struct ChainedFile<S> {
    storage: S,
    /// The bytes that are written and synced.
    bytes: u64,
    chain: AuditChain,
    /// There may be more after these bytes: a write has failed.
    is_torn: bool,
}

/// Why a file is not open.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum FileError {
    /// It is no log, or not the one that is meant.
    Unusable(String),
    /// It cannot be written now, as on a full disk.
    NotWritten(String),
}

impl FileError {
    pub(super) fn into_text(self) -> String {
        match self {
            FileError::Unusable(why) | FileError::NotWritten(why) => why,
        }
    }
}

/// How a file ends.
#[derive(PartialEq, Eq, Debug)]
struct FileEnd {
    /// After its last line; none without one.
    chain: Option<AuditChain>,
    /// Bytes after the last line feed.
    torn_bytes: u64,
}

impl ChainedFile<File> {
    /// Opens a file, or creates it. A new one continues after `expected`, and an old one must end
    /// there; without that, an old one continues as it ends.
    pub(super) fn open(
        path: &Path,
        expected: Option<AuditChain>,
        now_unix_ms: u64,
    ) -> Result<ChainedFile<File>, FileError> {
        ChainedFile::open_with(path, expected, now_unix_ms, sync_folder)
    }

    fn open_with(
        path: &Path,
        expected: Option<AuditChain>,
        now_unix_ms: u64,
        sync_folder: fn(&Path) -> io::Result<()>,
    ) -> Result<ChainedFile<File>, FileError> {
        let unusable = |why: &str| FileError::Unusable(why.to_owned());
        let not_written = |error: io::Error| FileError::NotWritten(error.to_string());
        let mut file = open_or_create(path).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => not_written(error),
            _ => FileError::Unusable(error.to_string()),
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(unusable("another process writes it: give each its own file"));
            }
            Err(TryLockError::Error(error)) => {
                return Err(FileError::Unusable(format!("it cannot be locked: {error}")));
            }
        }
        let metadata = file.metadata().map_err(|error| unusable(&error.to_string()))?;
        if !metadata.is_file() {
            return Err(unusable("it is not a regular file"));
        }
        let end = FileEnd::of(&mut file, metadata.len()).map_err(FileError::Unusable)?;
        let (is_new, torn_bytes) = (end.chain.is_none(), end.torn_bytes);
        let chain = match (end.chain, expected) {
            (Some(found), Some(expected)) if found != expected => {
                let why = format!("it ends with {found}, not {expected}: move it away");
                return Err(FileError::Unusable(why));
            }
            (found, expected) => found.or(expected).unwrap_or_default(),
        };
        let bytes = metadata.len() - torn_bytes;
        let mut opened = ChainedFile { storage: file, bytes, chain, is_torn: torn_bytes > 0 };
        let detail = match torn_bytes {
            0 => String::new(),
            bytes => format!("a line of {bytes} bytes without an end was cut off"),
        };
        let record =
            AuditRecord { time_unix_ms: now_unix_ms, ..of_process("open the log", detail) };
        let written = if is_new {
            let written = opened.write_with(&[record], AuditChain::begin_file);
            written.and_then(|()| sync_folder(path))
        } else if expected.is_none() || torn_bytes > 0 {
            opened.write(&[record])
        } else {
            Ok(())
        };
        written.map_err(|error| {
            // The next attempt writes this line again: left there, it would be one too many.
            let _left = opened.storage.truncate(bytes);
            not_written(error)
        })?;
        Ok(opened)
    }
}

impl<S: Storage> ChainedFile<S> {
    /// The position after its last line.
    pub(super) fn chain(&self) -> AuditChain {
        self.chain
    }

    /// Writes and syncs records. After an error none of them is there, once it is called again.
    pub(super) fn write(&mut self, records: &[AuditRecord]) -> io::Result<()> {
        self.write_with(records, AuditChain::append)
    }

    /// Removes what a failed write may have left, as far as that works: the file is given up.
    pub(super) fn give_up(mut self) {
        if self.is_torn {
            let _left = self.storage.truncate(self.bytes);
        }
    }

    fn write_with(
        &mut self,
        records: &[AuditRecord],
        line: fn(&mut AuditChain, &AuditRecord) -> String,
    ) -> io::Result<()> {
        let mut chain = self.chain;
        let text: String = records.iter().map(|record| line(&mut chain, record)).collect();
        if self.is_torn {
            self.storage.truncate(self.bytes)?;
        }
        self.is_torn = true;
        self.storage.append(text.as_bytes())?;
        // A failed sync may have dropped what was written: then all of it is written again.
        self.storage.sync()?;
        self.is_torn = false;
        self.bytes += text.len() as u64;
        self.chain = chain;
        Ok(())
    }
}

impl FileEnd {
    /// Reads the last line of a file of `bytes`.
    fn of(file: &mut File, bytes: u64) -> Result<FileEnd, String> {
        // The last line, and a torn one after it.
        let mut window = bytes.min(2 * AUDIT_LINE_BYTES_MAX as u64);
        loop {
            let mut tail = Vec::new();
            let read = file.seek(SeekFrom::Start(bytes - window));
            read.and_then(|_| file.take(window).read_to_end(&mut tail))
                .map_err(|error| error.to_string())?;
            let end = FileEnd::of_tail(&tail, window == bytes);
            if end.is_ok() || window >= bytes.min(TORN_BYTES_MAX) {
                return end;
            }
            window = (2 * window).min(bytes);
        }
    }

    /// Reads it from the last bytes of the file, or all of them.
    fn of_tail(tail: &[u8], is_all: bool) -> Result<FileEnd, String> {
        let foreign = |why: &dyn std::fmt::Display| {
            format!("its last line is not one of an audit log: {why}; move the file away")
        };
        let end = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let (lines, torn) = tail.split_at(end);
        // After a power cut a file may be longer than what was written to it.
        let zeros = torn.iter().rev().take_while(|byte| **byte == 0).count();
        let known = LINE_START.len().min(torn.len() - zeros);
        if torn[..known] != LINE_START[..known] {
            return Err(foreign(&"it has no end"));
        }
        let torn_bytes = torn.len() as u64;
        let Some(lines) = lines.strip_suffix(b"\n") else {
            return match is_all {
                true => Ok(FileEnd { chain: None, torn_bytes }),
                false => Err(foreign(&"it is too long")),
            };
        };
        let start = lines.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let start = start.or(is_all.then_some(0)).ok_or_else(|| foreign(&"it is too long"))?;
        let line = std::str::from_utf8(&lines[start..]).map_err(|error| foreign(&error))?;
        let chain = AuditChain::after_line(line).map_err(|error| foreign(&error))?;
        Ok(FileEnd { chain: Some(chain), torn_bytes })
    }
}

fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a new file's name durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use longshore_access::AuditVerifier;

    use super::*;

    /// A disk on which writes and syncs fail in turn.
    #[derive(Default)]
    struct Disk {
        bytes: Vec<u8>,
        /// How many bytes there is room for.
        room: usize,
        sync_fails: bool,
        truncate_fails: bool,
    }

    impl Storage for Disk {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let written = bytes.len().min(self.room - self.bytes.len());
            self.bytes.extend(&bytes[..written]);
            if written < bytes.len() { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }

        fn sync(&mut self) -> io::Result<()> {
            if self.sync_fails { Err(io::Error::other("sync")) } else { Ok(()) }
        }

        fn truncate(&mut self, bytes: u64) -> io::Result<()> {
            if self.truncate_fails {
                return Err(io::Error::other("truncate"));
            }
            self.bytes.truncate(bytes as usize);
            Ok(())
        }
    }

    #[test]
    fn records_of_failed_writes_are_in_the_file_once_when_they_succeed() {
        let storage = Disk { room: 1_000_000, ..Disk::default() };
        let chain = AuditChain::default();
        let mut file = ChainedFile { storage, bytes: 0, chain, is_torn: false };
        let record = |number: u32| of_process("pause", number.to_string());
        file.write_with(&[record(0)], AuditChain::begin_file).unwrap();
        file.storage.room = file.storage.bytes.len() + 100;
        assert!(file.write(&[record(1), record(2)]).is_err());
        file.storage.truncate_fails = true;
        file.storage.room = 1_000_000;
        assert!(file.write(&[record(1), record(2)]).is_err());
        file.storage.truncate_fails = false;
        file.storage.sync_fails = true;
        assert!(file.write(&[record(1), record(2)]).is_err());
        file.storage.sync_fails = false;
        file.write(&[record(1), record(2)]).unwrap();
        file.write(&[record(3)]).unwrap();
        let text = String::from_utf8(file.storage.bytes).unwrap();
        let mut verifier = AuditVerifier::default();
        for (number, line) in text.lines().enumerate() {
            verifier.line(line).unwrap();
            assert!(line.contains(&format!("\"detail\":\"{number}\"")), "{line}");
        }
        assert_eq!(verifier.position(), Some(file.chain));
        assert_eq!(file.chain.seq, 4);
    }

    #[test]
    fn a_file_that_could_not_be_opened_whole_opens_at_the_next_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.jsonl");
        let chain = ChainedFile::open(&path, None, 0).map(|file| file.chain()).ok().unwrap();
        let next = dir.path().join("next.jsonl");
        // The line is written, and then the name cannot be made durable.
        let failed = ChainedFile::open_with(&next, Some(chain), 0, |_| Err(io::Error::other("no")));
        assert_eq!(failed.err(), Some(FileError::NotWritten("no".to_owned())));
        let opened = ChainedFile::open(&next, Some(chain), 0).ok().unwrap();
        assert_eq!(opened.chain().seq, chain.seq + 1);
    }

    #[test]
    fn the_end_of_a_file_is_read_and_foreign_files_are_left_alone() {
        let mut chain = AuditChain::default();
        let line = chain.begin_file(&of_process("pause", String::new()));
        let at = |torn_bytes| Ok(FileEnd { chain: Some(chain), torn_bytes });
        let of = |text: &str, is_all| FileEnd::of_tail(text.as_bytes(), is_all);
        assert_eq!(of("", true), Ok(FileEnd { chain: None, torn_bytes: 0 }));
        assert_eq!(of(&line, true), at(0));
        assert_eq!(of(&format!("of a line\n{line}"), false), at(0));
        assert_eq!(of(&format!("{line}{{\"se"), true), at(4));
        assert_eq!(of(&format!("{line}{{\"seq\":7,"), true), at(9));
        assert_eq!(of("{\"seq\":1,", true), Ok(FileEnd { chain: None, torn_bytes: 9 }));
        for text in ["\0\0\0", "{\"s\0", "{\"seq\":7,\0"] {
            let torn_bytes = text.len() as u64;
            assert_eq!(of(&format!("{line}{text}"), true), at(torn_bytes));
            assert_eq!(of(text, true), Ok(FileEnd { chain: None, torn_bytes }));
        }
        for foreign in ["notes", "notes\n", "{\"seq\":1}\n", &format!("{line}notes"), "\n"] {
            assert!(of(foreign, true).is_err(), "{foreign:?}");
        }
        assert!(of(&line, false).is_err() && of("{\"seq\":1", false).is_err());
    }
}
