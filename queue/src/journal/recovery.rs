//! From the files to the journal as it was: replay, and what to make of an end that is not whole.
//!
//! What is not a whole record is one of two things. A **torn tail**: the last commit before a power cut, never acknowledged;
//! it is cut off and said. Or **damage**: something acknowledged that the disk has not kept; start-up refuses. It is damage
//! when the mark says that it was committed, when a later commit is there (each says that all before it was durable), or
//! when a later segment is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use longshore_protocol::WireError;

use super::directory::{Directory, LOST_DIR, Segment};
use super::files::JournalFile;
use super::format::{
    FORMAT_VERSION, HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader, crc_seed, u64_at,
};
use super::locations::Locations;
use super::record::{FLAG_FIRST, NoRecord, RECORD_HEADER_BYTES, RecordHeader};
use super::{OpenError, Replayed};

/// Bytes read at a time.
const CHUNK_BYTES: usize = 4 * 1024 * 1024;
/// The first index of a journal.
const FIRST_INDEX: u64 = 1;

/// A journal read to its end.
pub(crate) struct Recovery {
    pub(crate) locations: Locations,
    /// Where to go on writing; none when there is no record yet.
    pub(crate) segment: Option<Segment>,
    pub(crate) last_index: u64,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) cut: Option<CutTail>,
    pub(crate) dropped: Option<Dropped>,
}

/// A tail that was cut off: the last commit before a power cut. Nobody was told that it was durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CutTail {
    /// The file.
    pub file: PathBuf,
    /// From which byte on.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What was dropped because damage was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The damaged file.
    pub file: PathBuf,
    /// Where the damage begins.
    pub offset: u64,
    /// The first index that was dropped; all later ones went with it.
    pub index: u64,
    /// The folder that holds what was dropped, as it was found.
    pub kept_in: PathBuf,
    /// How many bytes.
    pub bytes: u64,
}

/// The first thing that is not as it was written.
struct Damage {
    file: PathBuf,
    offset: u64,
    why: &'static str,
}

struct Found {
    header: SegmentHeader,
    path: PathBuf,
    file: Arc<dyn JournalFile>,
    length: u64,
}

/// Segments without a record that counts: made ahead, or begun and torn.
struct Unused {
    sequence: u64,
    path: PathBuf,
    file: Arc<dyn JournalFile>,
    length: u64,
}

/// Reads the whole journal. `mark` is the last index known to be committed, if any is.
pub(crate) fn recover(
    directory: &Directory,
    mark: u64,
    accept_loss: bool,
    replay: &mut dyn FnMut(Replayed) -> Result<(), WireError>,
) -> Result<Recovery, OpenError> {
    let (mut found, unused) = find_segments(directory)?;
    let mut recovery = Recovery {
        locations: Locations::default(),
        segment: None,
        last_index: FIRST_INDEX - 1,
        records: 0,
        bytes: 0,
        cut: None,
        dropped: None,
    };
    let mut damage = None;
    let mut end = SEGMENT_HEADER_BYTES as u64;
    let (mut place, mut in_part) = (0, 0);
    while place < found.len() {
        let segment = &found[place];
        if segment.header.first_index != recovery.last_index + 1 {
            let why = "commands before this segment are missing";
            damage = Some((place, Damage { file: segment.path.clone(), offset: 0, why }));
            break;
        }
        end = replay_segment(directory, segment, &mut recovery, replay)?;
        in_part = place + 1;
        let next_begins = found.get(place + 1).map(|next| next.header.first_index);
        if next_begins.is_some_and(|first| first != recovery.last_index + 1) {
            let why = "a later segment shows that more commands were committed";
            let (file, offset) = (segment.path.clone(), end);
            damage = Some((place, Damage { file, offset, why }));
            break;
        }
        place += 1;
    }
    if damage.is_none() {
        damage = proof_of_more(directory, &found, &unused, end, mark, recovery.last_index)?;
    }
    match damage {
        Some((_, damage)) if !accept_loss => {
            let Damage { file, offset, why } = damage;
            return Err(OpenError::Damaged { file, offset, index: recovery.last_index + 1, why });
        }
        Some((place, damage)) => {
            // A segment that was not replayed is dropped whole; the one that was replayed in part, from there on.
            let later = found.split_off(in_part);
            debug_assert!(place + 1 >= in_part);
            let tail = found.last().map(|last| (last, end));
            recovery.dropped =
                Some(set_aside(directory, damage, recovery.last_index + 1, tail, &later, &unused)?);
        }
        None => {
            if let Some(last) = found.last() {
                recovery.cut = cut_tail(last, end)?;
            }
        }
    }
    for unused in &unused {
        let io = |error| OpenError::io("removing", &unused.path, error);
        match directory.files.remove(&unused.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ => {}
        }
    }
    let segments_dir = directory.segments_dir();
    directory
        .files
        .sync_dir(&segments_dir)
        .map_err(|error| OpenError::io("syncing", &segments_dir, error))?;
    write_again(&found, &recovery.locations, end, mark)?;
    for segment in &found {
        directory.bytes.fetch_add(segment.length, std::sync::atomic::Ordering::Relaxed);
    }
    recovery.segment = found.pop().map(|last| go_on(directory, last, end));
    Ok(recovery)
}

fn find_segments(directory: &Directory) -> Result<(Vec<Found>, Vec<Unused>), OpenError> {
    let dir = directory.segments_dir();
    let names =
        directory.files.list(&dir).map_err(|error| OpenError::io("listing", &dir, error))?;
    let (mut found, mut unused) = (Vec::new(), Vec::new());
    for sequence in names.iter().filter_map(|name| Directory::sequence_of(name)) {
        directory.taken(sequence);
        let path = directory.segment_path(sequence);
        let io = |error| OpenError::io("reading", &path, error);
        let file = directory.files.open(&path).map_err(io)?;
        let length = file.len().map_err(io)?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        file.read_at(&mut bytes, 0).map_err(io)?;
        match SegmentHeader::decode(&bytes) {
            Ok(header) if header.publisher != directory.publisher => {
                let (expected, publisher) = (directory.publisher, header.publisher);
                return Err(OpenError::Foreign { file: path, publisher, expected });
            }
            Ok(header) if header.first_index != 0 && header.sequence == sequence => {
                found.push(Found { header, path, file, length });
            }
            Err(HeaderError::OtherFormat(version)) => {
                return Err(OpenError::other_format(&directory.dir, path, version));
            }
            Ok(_) | Err(HeaderError::Bad) => {
                unused.push(Unused { sequence, path, file, length });
            }
        }
    }
    found.sort_unstable_by_key(|segment| segment.header.first_index);
    unused.sort_unstable_by_key(|segment| segment.sequence);
    Ok((found, unused))
}

/// Replays what is whole; gives where that ends.
fn replay_segment(
    directory: &Directory,
    segment: &Found,
    recovery: &mut Recovery,
    replay: &mut dyn FnMut(Replayed) -> Result<(), WireError>,
) -> Result<u64, OpenError> {
    let io = |error| OpenError::io("reading", &segment.path, error);
    let sequence = segment.header.sequence;
    let mut scan =
        Scan::new(&*segment.file, segment.length, crc_seed(directory.publisher, sequence));
    let mut offsets = Vec::new();
    let end = loop {
        let (offset, header, body) = match scan.next().map_err(io)? {
            Ok(record) => record,
            Err(end) => break end,
        };
        if header.index != recovery.last_index + 1 {
            break offset;
        }
        let (index, kind) = (header.index, header.kind);
        replay(Replayed { index, now: header.now, kind, body }).map_err(|error| {
            OpenError::Undecodable { file: segment.path.clone(), offset, index, kind, error }
        })?;
        offsets.push(offset as u32);
        recovery.last_index = index;
        recovery.records += 1;
    };
    recovery.bytes += end;
    recovery.locations.extend(sequence, segment.header.first_index, &offsets, end as u32);
    Ok(end)
}

/// Looks for a sign that more was committed than was replayed.
fn proof_of_more(
    directory: &Directory,
    found: &[Found],
    unused: &[Unused],
    end: u64,
    mark: u64,
    last_index: u64,
) -> Result<Option<(usize, Damage)>, OpenError> {
    let place = found.len().saturating_sub(1);
    // Where the next record should be: after the last one, or in a segment whose header is not whole.
    let expected = found
        .last()
        .map(|last| (last.path.clone(), end))
        .or_else(|| unused.first().map(|first| (first.path.clone(), 0)))
        .unwrap_or_else(|| (directory.segments_dir(), 0));
    let damage = |why| {
        let (file, offset) = expected.clone();
        Ok(Some((place, Damage { file, offset, why })))
    };
    if mark > last_index {
        return damage("the mark shows that more commands were committed");
    }
    let tail =
        found.last().map(|last| (&last.file, &last.path, last.header.sequence, end, last.length));
    let others = unused.iter().map(|unused| {
        (&unused.file, &unused.path, unused.sequence, SEGMENT_HEADER_BYTES as u64, unused.length)
    });
    for (file, path, sequence, from, length) in tail.into_iter().chain(others) {
        let seed = crc_seed(directory.publisher, sequence);
        let io = |error| OpenError::io("reading", path, error);
        if later_commit(&**file, from, length, seed, last_index).map_err(io)? {
            return damage("a later commit shows that this one was committed");
        }
    }
    Ok(None)
}

/// Whether a record that begins a commit, later than the one that should follow `last_index`, stands anywhere after `from`.
fn later_commit(
    file: &dyn JournalFile,
    from: u64,
    length: u64,
    seed: u32,
    last_index: u64,
) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = from;
    while at + (RECORD_HEADER_BYTES as u64) <= length {
        let n = file.read_at(&mut chunk, at)?;
        if n < RECORD_HEADER_BYTES {
            break;
        }
        let bytes = &chunk[..n];
        if bytes.iter().any(|&byte| byte != 0) {
            for place in 0..=n - RECORD_HEADER_BYTES {
                let begins_a_commit = bytes[place + 14] & FLAG_FIRST != 0;
                if !begins_a_commit || u64_at(bytes, place + 16) <= last_index + 1 {
                    continue;
                }
                let offset = at + place as u64;
                let claimed = RecordHeader::claimed_len(&bytes[place..], length - offset);
                let Ok(claimed) = claimed else { continue };
                let mut record = vec![0; claimed];
                file.read_at(&mut record, offset)?;
                if RecordHeader::decode(&record, seed).is_ok() {
                    return Ok(true);
                }
            }
        }
        at += (n - (RECORD_HEADER_BYTES - 1)) as u64;
    }
    Ok(false)
}

/// Where the last byte that is not zero ends, from `from` on.
fn end_of_data(file: &dyn JournalFile, from: u64, length: u64) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let (mut at, mut end) = (from, from);
    while at < length {
        let n = file.read_at(&mut chunk, at)?;
        if n == 0 {
            break;
        }
        if let Some(last) = chunk[..n].iter().rposition(|&byte| byte != 0) {
            end = at + last as u64 + 1;
        }
        at += n as u64;
    }
    Ok(end)
}

/// Writes zeros over a torn tail: what is left of it must never follow a later record.
fn cut_tail(last: &Found, end: u64) -> Result<Option<CutTail>, OpenError> {
    let io = |error| OpenError::io("cutting the torn tail of", &last.path, error);
    let data_end = end_of_data(&*last.file, end, last.length).map_err(io)?;
    if data_end == end {
        return Ok(None);
    }
    erase(&*last.file, end, data_end).map_err(io)?;
    Ok(Some(CutTail { file: last.path.clone(), offset: end, bytes: data_end - end }))
}

fn erase(file: &dyn JournalFile, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; CHUNK_BYTES.min((to - from) as usize)];
    let mut at = from;
    while at < to {
        let n = (to - at).min(zeros.len() as u64);
        file.write_at(&zeros[..n as usize], at)?;
        at += n;
    }
    file.sync_data()
}

/// Writes again, and syncs, what is not known to be on the disk: what was read may be in the page cache alone, and after a
/// failed sync the system would not write it a second time by itself.
fn write_again(
    found: &[Found],
    locations: &Locations,
    end: u64,
    mark: u64,
) -> Result<(), OpenError> {
    for (place, segment) in found.iter().enumerate() {
        let first = segment.header.first_index;
        let unknown = first.max(mark + 1);
        // The first one that is not known to be there, if this segment has one.
        let located = locations.locate(unknown, 0);
        let Some(located) = located.filter(|at| at.sequence == segment.header.sequence) else {
            continue;
        };
        let io = |error| OpenError::io("writing the end again of", &segment.path, error);
        let to = if place + 1 == found.len() { end } else { segment.length };
        // The header may be as young as the first record.
        let mut at = if unknown == first { 0 } else { located.offset };
        let mut chunk = vec![0; CHUNK_BYTES];
        while at < to {
            let n = chunk.len().min((to - at) as usize);
            let n = segment.file.read_at(&mut chunk[..n], at).map_err(io)?;
            if n == 0 {
                break;
            }
            segment.file.write_at(&chunk[..n], at).map_err(io)?;
            at += n as u64;
        }
        segment.file.sync_data().map_err(io)?;
    }
    Ok(())
}

/// Moves all from the damage on out of the way, where people can look at it.
fn set_aside(
    directory: &Directory,
    damage: Damage,
    index: u64,
    tail: Option<(&Found, u64)>,
    later: &[Found],
    unused: &[Unused],
) -> Result<Dropped, OpenError> {
    let files = &directory.files;
    let kept_in = directory.dir.join(LOST_DIR);
    files.create_dir(&kept_in).map_err(|error| OpenError::io("making", &kept_in, error))?;
    let mut bytes = 0;
    if let Some((segment, from)) = tail {
        let io = |error| OpenError::io("setting aside the end of", &segment.path, error);
        let to = end_of_data(&*segment.file, from, segment.length).map_err(io)?;
        if to > from {
            let name = format!("{index}-{:010}-from-{from}.part", segment.header.sequence);
            copy(&*segment.file, from, to, &*files.create(&kept_in.join(name)).map_err(io)?)
                .map_err(io)?;
            bytes += to - from;
        }
    }
    let whole = later.iter().map(|segment| (&segment.path, segment.length));
    let whole = whole.chain(unused.iter().map(|segment| (&segment.path, segment.length)));
    for (path, length) in whole {
        let io = |error| OpenError::io("setting aside", path, error);
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        files.rename(path, &kept_in.join(format!("{index}-{name}"))).map_err(io)?;
        bytes += length;
    }
    files.sync_dir(&kept_in).map_err(|error| OpenError::io("syncing", &kept_in, error))?;
    if let Some((segment, from)) = tail {
        // Only now: until the copy lasts, this is the only one.
        let io = |error| OpenError::io("cutting the end of", &segment.path, error);
        let to = end_of_data(&*segment.file, from, segment.length).map_err(io)?;
        erase(&*segment.file, from, to).map_err(io)?;
    }
    Ok(Dropped { file: damage.file, offset: damage.offset, index, kept_in, bytes })
}

fn copy(from: &dyn JournalFile, start: u64, end: u64, to: &dyn JournalFile) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = start;
    while at < end {
        let n = chunk.len().min((end - at) as usize);
        let n = from.read_at(&mut chunk[..n], at)?;
        if n == 0 {
            break;
        }
        to.write_at(&chunk[..n], at - start)?;
        at += n as u64;
    }
    to.sync_data()
}

/// The last segment, ready for more.
fn go_on(directory: &Directory, last: Found, end: u64) -> Segment {
    let Found { header, path, file, length } = last;
    let (sequence, seed) = (header.sequence, crc_seed(directory.publisher, header.sequence));
    // A file that was cut short is as long as it is: the next segment is as good as the bytes that it lacks.
    Segment { file, path, sequence, seed, capacity: length, at: end, written_to: end }
}

/// Reads a segment's records in order, many to a read.
pub(crate) struct Scan<'a> {
    file: &'a dyn JournalFile,
    length: u64,
    seed: u32,
    at: u64,
    chunk: Bytes,
    chunk_at: u64,
}

impl<'a> Scan<'a> {
    pub(crate) fn new(file: &'a dyn JournalFile, length: u64, seed: u32) -> Scan<'a> {
        let at = SEGMENT_HEADER_BYTES as u64;
        Scan { file, length, seed, at, chunk: Bytes::new(), chunk_at: at }
    }

    /// The next record: its offset, header and body. Without one: where the whole records end.
    #[allow(clippy::type_complexity, reason = "read at its one call")]
    pub(crate) fn next(&mut self) -> io::Result<Result<(u64, RecordHeader, Bytes), u64>> {
        let left = self.length.saturating_sub(self.at);
        let header = self.bytes(RECORD_HEADER_BYTES.min(left as usize))?;
        let length = match RecordHeader::claimed_len(&header, left) {
            Ok(length) => length,
            Err(NoRecord::Empty | NoRecord::Bad) => return Ok(Err(self.at)),
        };
        drop(header);
        let record = self.bytes(length)?;
        if record.len() < length {
            return Ok(Err(self.at));
        }
        let Ok(header) = RecordHeader::decode(&record, self.seed) else {
            return Ok(Err(self.at));
        };
        let offset = self.at;
        self.at += length as u64;
        Ok(Ok((offset, header, record.slice(header.body_at()..))))
    }

    /// The next `n` bytes; fewer at the end of the file.
    fn bytes(&mut self, n: usize) -> io::Result<Bytes> {
        let mut from = (self.at - self.chunk_at) as usize;
        if from + n > self.chunk.len() {
            let left = self.length.saturating_sub(self.at) as usize;
            let size = n.max(CHUNK_BYTES).min(left);
            // The buffer is used again unless someone still holds a part of it.
            let mut chunk = std::mem::take(&mut self.chunk)
                .try_into_mut()
                .unwrap_or_else(|_| BytesMut::with_capacity(size));
            chunk.resize(size, 0);
            let read = self.file.read_at(&mut chunk, self.at)?;
            chunk.truncate(read);
            (self.chunk, self.chunk_at, from) = (chunk.freeze(), self.at, 0);
        }
        Ok(self.chunk.slice(from..(from + n).min(self.chunk.len())))
    }
}

impl OpenError {
    pub(crate) fn io(what: &'static str, file: &Path, error: io::Error) -> OpenError {
        OpenError::Io { what, file: file.to_owned(), error }
    }

    pub(crate) fn other_format(dir: &Path, file: PathBuf, version: u16) -> OpenError {
        if version > FORMAT_VERSION {
            OpenError::Newer { file, version }
        } else {
            OpenError::Older { dir: dir.to_owned(), version }
        }
    }
}
