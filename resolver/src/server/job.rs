//! A request that is being answered, a slice at a time.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::codec::WireError;
use longshore_protocol::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_GROUPS_MAX};
use longshore_protocol::messages::resolver::{
    Announce, Announced, Column, FromReplica, Group, Listed, PathListed, PathTexts,
    PublishersKnown, RefusedPath, ReplicaStatus, RequestCounts, RequestRefusal, TableAnswer,
    ToReplica, Tracker, WatchPaths, WatchPublishers, Write, Written, tag,
};
use longshore_protocol::{Decode, Glob, PublisherId, Reader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::directory::{
    Cells, Children, Client, Confirming, Directory, Known, Matching, Resolver, Slot, Told,
    TooManyPieces, WARM, WatchRefusal,
};
use crate::replica_link::now;

/// How long a slice may take. What it is in the middle of is finished: some microseconds more, and
/// up to some milliseconds where one change is compared with thousands of watched globs, or the
/// globs of a listing stand for tens of thousands of segments.
pub(super) const SLICE: Duration = Duration::from_millis(2);
/// Paths between two looks at the clock.
const STRIDE: usize = 64;
/// The same for publishers, each with up to 128 declared paths of 1 KiB.
const KNOWN_STRIDE: usize = 4;
/// Most publishers in one message of an answer: 8 MiB at most, of the 20 MiB that a frame may have.
const ANSWER_PUBLISHERS_MAX: usize = 64;
/// Most paths in one message of an answer.
const ANSWER_PATHS_MAX: usize = 4_096;
/// Most members of publisher sets in one message of an answer.
const ANSWER_MEMBERS_MAX: usize = 65_536;
/// With so many bytes of publishers, terms and refusals no more paths go into one message of an
/// answer. The last path adds at most 1,024 publishers of its own, as many of its default, and
/// different terms of each, 15 MiB: together less than a frame may have, 20 MiB.
pub(super) const ANSWER_BYTES_GOAL: usize = 1024 * 1024;

/// Bytes of paths, or of refusals, after which a message of an answer ends.
const LISTED_BYTES_GOAL: usize = 256 * 1024;
/// Segments that the globs of all listings which are being answered may stand for: four of the
/// largest. Each takes about [`GLOB_PIECE_BYTES`] until its listing is answered, however slowly its
/// client reads.
pub(super) const GLOB_PIECES_MAX: usize = 4 * 65_536;
/// See [`GLOB_PIECES_MAX`].
pub(super) const GLOB_PIECE_BYTES: usize = 256;
/// Memory of the one request that is being decoded, in bytes, beside its frame: 73,728 segments of
/// globs.
pub(super) const DECODED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A request that is being answered.
#[derive(Debug)]
pub(super) enum Job {
    Resolve {
        id: u64,
        paths: PathTexts,
        at: usize,
    },
    List {
        id: u64,
        began: Option<Tracker>,
        children: Children,
    },
    /// Its globs are taken apart at the first slice: that can be much to do.
    ListMatching {
        id: u64,
        began: Option<Tracker>,
        globs: Vec<Glob>,
        matching: Option<(Box<Matching>, OwnedSemaphorePermit)>,
    },
    Table {
        id: u64,
        began: Option<Tracker>,
        cells: Cells,
    },
    Status {
        id: u64,
    },
    ListPublishers {
        id: u64,
        known: Known,
    },
    ForgetPublisher {
        id: u64,
        publisher: PublisherId,
    },
    Watch(WatchPublishers),
    WatchPaths(WatchPaths),
    Unwatch {
        watch: u32,
    },
    Announce(Announce),
    Write {
        id: u64,
        /// Those that have not been checked, and the paths of the others: nothing is done of a
        /// request that does not decode.
        unchecked: Option<(Groups, usize)>,
        groups: Groups,
        rest: Option<Group>,
        at: usize,
        done: u64,
    },
    Confirm {
        id: u64,
        confirming: Confirming,
    },
    Clear {
        id: u64,
    },
    Refuse(Refusal),
}

/// Why a request is not even begun.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The request's number; 0 where it is too damaged to tell.
    id: u64,
    code: RequestRefusal,
    reason: String,
}

impl Refusal {
    /// It does not decode.
    fn malformed(id: u64, fault: &WireError) -> Refusal {
        let code = match fault {
            WireError::OverLimit { .. } => RequestRefusal::OverLimit,
            WireError::Truncated { .. } | WireError::Invalid { .. } => RequestRefusal::Malformed,
        };
        Refusal { id, code, reason: format!("{code}: {fault}") }
    }

    /// It is of a later version.
    fn unknown(id: u64, tag: u8) -> Refusal {
        let code = RequestRefusal::UnknownRequest;
        Refusal { id, code, reason: format!("{code} (tag {tag})") }
    }
}

/// The groups of a write, decoded one by one as they are done. As a list they would take up to
/// twenty times their frame, all of it at once, for as long as the client does not read.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    rest: Reader,
    left: usize,
}

impl Groups {
    /// The number of a write, and its groups.
    fn of(body: Bytes) -> Result<(u64, Groups), WireError> {
        let mut rest = Reader::new(body);
        let (id, left) = (rest.u64()?, rest.count("groups of a write", RESOLVER_GROUPS_MAX, 1)?);
        Ok((id, Groups { rest, left }))
    }
}

impl Iterator for Groups {
    type Item = Result<Group, WireError>;

    fn next(&mut self) -> Option<Result<Group, WireError>> {
        self.left = self.left.checked_sub(1)?;
        Some(Group::decode(&mut self.rest))
    }
}

/// What a job works with.
pub(super) struct Bench<'a> {
    pub(super) directory: &'a mut Directory,
    pub(super) client: Client,
    /// The client has come to write.
    pub(super) writes: bool,
    /// Filled in for [`Job::Status`].
    pub(super) status: &'a dyn Fn(&Directory) -> ReplicaStatus,
    pub(super) writer_ttl: Duration,
    /// See [`GLOB_PIECES_MAX`].
    pub(super) glob_pieces: &'a Arc<Semaphore>,
    /// When the slice ends.
    pub(super) until: Instant,
}

/// What a slice has come to.
pub(super) enum Progress {
    /// There is more to do.
    More(Option<FromReplica>),
    Done(Option<FromReplica>),
}

impl Job {
    /// The request of a message, or its refusal. None for what is no request: nobody waits for an
    /// answer to it.
    pub(super) fn next(
        message: Result<(u8, Bytes), WireError>,
        counts: &Cell<RequestCounts>,
    ) -> Option<Job> {
        let job = match message {
            Ok((tag, body)) => Job::decode(tag, body, counts)?,
            // What comes after it cannot be found.
            Err(error) => Err(Refusal::malformed(0, &error)),
        };
        Some(job.unwrap_or_else(|refusal| {
            count(counts, RequestCounts::add_refused);
            Job::Refuse(refusal)
        }))
    }

    fn decode(tag: u8, body: Bytes, counts: &Cell<RequestCounts>) -> Option<Result<Job, Refusal>> {
        let request = match tag {
            tag::WRITE => Ok(Some(ToReplica::Write(Write { id: 0, groups: Vec::new() }))),
            _ => ToReplica::decode(tag, body.clone()),
        };
        match request {
            Ok(Some(request)) => {
                count(counts, |counts| counts.add(&request));
                let id = ToReplica::id_of_damaged(&body);
                Some(Job::new(request, body).map_err(|error| Refusal::malformed(id, &error)))
            }
            Ok(None) if tag::REQUESTS.contains(&tag) => {
                Some(Err(Refusal::unknown(ToReplica::id_of_damaged(&body), tag)))
            }
            Ok(None) => None,
            Err(error) => Some(Err(Refusal::malformed(ToReplica::id_of_damaged(&body), &error))),
        }
    }

    /// Of a request that was read from `body`. The groups of a write are still to be read.
    fn new(request: ToReplica, body: Bytes) -> Result<Job, WireError> {
        Ok(match request {
            ToReplica::Resolve(ask) => Job::Resolve { id: ask.id, paths: ask.paths, at: 0 },
            ToReplica::List(ask) => {
                Job::List { id: ask.id, began: None, children: Children::new(&ask.path) }
            }
            ToReplica::ListMatching(ask) => {
                Job::ListMatching { id: ask.id, began: None, globs: ask.globs, matching: None }
            }
            ToReplica::Status { id } => Job::Status { id },
            ToReplica::WatchPublishers(watch) => Job::Watch(watch),
            ToReplica::Unwatch { watch, .. } => Job::Unwatch { watch },
            ToReplica::Announce(announce) => Job::Announce(announce),
            ToReplica::Write(_) => {
                let (id, groups) = Groups::of(body)?;
                let unchecked = Some((groups.clone(), 0));
                Job::Write { id, unchecked, groups, rest: None, at: 0, done: 0 }
            }
            ToReplica::Confirm { id } => Job::Confirm { id, confirming: Confirming::default() },
            ToReplica::Clear { id } => Job::Clear { id },
            ToReplica::Table(ask) => {
                Job::Table { id: ask.id, began: None, cells: Cells::new(&ask.path) }
            }
            ToReplica::WatchPaths(watch) => Job::WatchPaths(watch),
            ToReplica::ListPublishers { id } => Job::ListPublishers { id, known: Known::default() },
            ToReplica::ForgetPublisher { id, publisher } => Job::ForgetPublisher { id, publisher },
        })
    }

    /// Does the next slice.
    pub(super) fn slice(&mut self, bench: &mut Bench<'_>) -> Progress {
        match self {
            Job::Resolve { id, paths, at } => resolve(bench, *id, paths, at),
            Job::List { id, began, children } => {
                list(bench, *id, began, |directory, out| children.take(directory, STRIDE, out))
            }
            Job::ListMatching { id, began, globs, matching } => {
                if matching.is_none() {
                    let globs = std::mem::take(globs);
                    let pieces = match Matching::check(&globs) {
                        Ok(pieces) => pieces as u32,
                        Err(limit) => return over_limit(*id, &limit),
                    };
                    let Ok(taken) = bench.glob_pieces.clone().try_acquire_many_owned(pieces) else {
                        return refused(*id, RequestRefusal::Busy);
                    };
                    match Matching::new(&globs) {
                        Ok(new) => *matching = Some((Box::new(new), taken)),
                        Err(limit) => return over_limit(*id, &limit),
                    }
                }
                let Some((matching, _)) = matching else { return Progress::Done(None) };
                list(bench, *id, began, |directory, out| matching.take(directory, STRIDE, out))
            }
            Job::Table { id, began, cells } => table(bench, *id, began, cells),
            Job::Status { id } => {
                let status = (bench.status)(bench.directory);
                Progress::Done(Some(FromReplica::Status { id: *id, status }))
            }
            Job::Watch(WatchPublishers { id, watch, glob }) => {
                watched(*id, bench.directory.watch(bench.client, *watch, glob.clone()))
            }
            Job::WatchPaths(WatchPaths { id, watch, globs }) => {
                watched(*id, bench.directory.watch_paths(bench.client, *watch, globs))
            }
            Job::ListPublishers { id, known } => list_publishers(bench, *id, known),
            Job::ForgetPublisher { id, publisher } => match bench.directory.forget(*publisher) {
                Ok(known) => Progress::Done(Some(written(*id, true, u64::from(known), Vec::new()))),
                Err(code) => refused(*id, code),
            },
            Job::Unwatch { watch } => {
                bench.directory.unwatch(bench.client, *watch);
                Progress::Done(None)
            }
            Job::Announce(announce) => self::announce(bench, announce),
            Job::Write { id, unchecked, groups, rest, at, done } => match check(bench, unchecked) {
                Ok(true) => write(bench, *id, groups, rest, at, done),
                Ok(false) => Progress::More(None),
                Err(error) => malformed(*id, &error),
            },
            Job::Confirm { id, confirming } => confirm(bench, *id, confirming),
            Job::Clear { id } => match bench.directory.clear(bench.client) {
                Ok(()) => Progress::Done(Some(written(*id, true, 0, Vec::new()))),
                Err(code) => refused(*id, code),
            },
            Job::Refuse(Refusal { id, code, reason }) => {
                let reason = std::mem::take(reason);
                Progress::Done(Some(FromReplica::Refused { id: *id, code: *code, reason }))
            }
        }
    }
}

fn count(counts: &Cell<RequestCounts>, one: impl FnOnce(&mut RequestCounts)) {
    let mut changed = counts.get();
    one(&mut changed);
    counts.set(changed);
}

fn refused(id: u64, code: RequestRefusal) -> Progress {
    Progress::Done(Some(FromReplica::Refused { id, code, reason: code.to_string() }))
}

fn watched(id: u64, made: Result<(), WatchRefusal>) -> Progress {
    let Err(refusal) = made else { return Progress::Done(None) };
    let code = match refusal {
        WatchRefusal::TooLarge(_) => RequestRefusal::OverLimit,
        WatchRefusal::ReplicaFull(_) | WatchRefusal::ClientFull | WatchRefusal::GlobsFull => {
            RequestRefusal::TooManyWatches
        }
    };
    Progress::Done(Some(FromReplica::Refused { id, code, reason: refusal.to_string() }))
}

fn malformed(id: u64, error: &WireError) -> Progress {
    let Refusal { id, code, reason } = Refusal::malformed(id, error);
    Progress::Done(Some(FromReplica::Refused { id, code, reason }))
}

/// It asks for more than may be asked for at once.
fn over_limit(id: u64, limit: &TooManyPieces) -> Progress {
    let code = RequestRefusal::OverLimit;
    let reason = format!("{code}: {limit}");
    Progress::Done(Some(FromReplica::Refused { id, code, reason }))
}

fn written(id: u64, last: bool, done: u64, refused: Vec<RefusedPath>) -> FromReplica {
    FromReplica::Written(Written { id, last, done, refused })
}

fn resolve(bench: &Bench<'_>, id: u64, paths: &PathTexts, at: &mut usize) -> Progress {
    let mut resolver = Resolver::default();
    let mut texts = paths.from(*at);
    for done in 0..ANSWER_PATHS_MAX {
        if resolver.members() >= ANSWER_MEMBERS_MAX || resolver.bytes() >= ANSWER_BYTES_GOAL {
            break;
        }
        if done > 0 && done.is_multiple_of(STRIDE) && now() >= bench.until {
            break;
        }
        if done.is_multiple_of(WARM) {
            bench.directory.warm(texts.clone());
        }
        let Some(path) = texts.next() else { break };
        resolver.answer(bench.directory, path);
    }
    *at = texts.offset();
    let last = texts.is_empty();
    let answer = Some(FromReplica::Resolved(resolver.finish(bench.directory, id, last)));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

/// A slice that finds nothing is answered too: it shows that the replica is at work.
fn list(
    bench: &mut Bench<'_>,
    id: u64,
    began: &mut Option<Tracker>,
    mut take: impl FnMut(&mut Directory, &mut Vec<PathListed>) -> bool,
) -> Progress {
    let tracker = *began.get_or_insert_with(|| bench.directory.tracker());
    let (mut paths, mut counted, mut bytes) = (Vec::new(), 0, 0);
    let last = loop {
        if take(bench.directory, &mut paths) {
            break true;
        }
        bytes += paths[counted..].iter().map(|listed| listed.path.as_str().len()).sum::<usize>();
        counted = paths.len();
        let full = counted >= ANSWER_PATHS_MAX || bytes >= LISTED_BYTES_GOAL;
        if full || now() >= bench.until {
            break false;
        }
    };
    let complete = bench.directory.is_complete();
    let answer = Some(FromReplica::Listed(Listed { id, last, complete, tracker, paths }));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

fn table(
    bench: &mut Bench<'_>,
    id: u64,
    began: &mut Option<Tracker>,
    cells: &mut Cells,
) -> Progress {
    let tracker = *began.get_or_insert_with(|| bench.directory.tracker());
    let mut told = Told::default();
    let last = loop {
        if cells.take(bench.directory, STRIDE, &mut told) {
            break true;
        }
        if told.rows.len() + told.columns.len() >= ANSWER_PATHS_MAX || now() >= bench.until {
            break false;
        }
    };
    let complete = bench.directory.is_complete();
    let columns = told.columns.into_iter().map(|(name, rows)| Column { name, rows }).collect();
    let answer = TableAnswer { id, last, complete, tracker, rows: told.rows, columns };
    let answer = Some(FromReplica::Table(answer));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

fn list_publishers(bench: &Bench<'_>, id: u64, known: &mut Known) -> Progress {
    let mut publishers = Vec::new();
    let last = loop {
        if known.take(bench.directory, now(), KNOWN_STRIDE, &mut publishers) {
            break true;
        }
        if publishers.len() >= ANSWER_PUBLISHERS_MAX || now() >= bench.until {
            break false;
        }
    };
    let some = PublishersKnown { id, last, publishers };
    let answer = Some(FromReplica::PublishersKnown(some));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

fn announce(bench: &mut Bench<'_>, announce: &Announce) -> Progress {
    if !bench.writes {
        return refused(announce.id, RequestRefusal::NotAnnounced);
    }
    match bench.directory.announce(now(), bench.client, &announce.publisher, &announce.wanted) {
        Ok(held) => Progress::Done(Some(FromReplica::Announced(Announced {
            id: announce.id,
            held,
            writer_ttl_ms: u64::try_from(bench.writer_ttl.as_millis()).unwrap_or(u64::MAX),
        }))),
        Err(code) => refused(announce.id, code),
    }
}

/// Whether all groups of a write decode; false if there are more to check.
fn check(bench: &Bench<'_>, unchecked: &mut Option<(Groups, usize)>) -> Result<bool, WireError> {
    // Nothing of it will be done.
    if bench.directory.writer(bench.client).is_err() {
        return Ok(true);
    }
    let Some((groups, paths)) = unchecked else { return Ok(true) };
    let (what, limit) = ("paths of a write", RESOLVER_BATCH_PATHS_MAX as u64);
    let mut steps = 0;
    for group in groups.by_ref() {
        *paths += group?.paths.len();
        let value = *paths as u64;
        if value > limit {
            return Err(WireError::OverLimit { offset: 1, what, value, limit });
        }
        steps += 1;
        if steps % STRIDE == 0 && now() >= bench.until {
            return Ok(false);
        }
    }
    *unchecked = None;
    Ok(true)
}

fn write(
    bench: &mut Bench<'_>,
    id: u64,
    groups: &mut Groups,
    rest: &mut Option<Group>,
    at: &mut usize,
    done: &mut u64,
) -> Progress {
    let slot: Slot = match bench.directory.writer(bench.client) {
        Ok(slot) => slot,
        Err(code) => return refused(id, code),
    };
    let (mut refusals, mut refusals_bytes, mut steps, mut warmed) = (Vec::new(), 0, 0, 0);
    loop {
        let group = rest.as_ref().and_then(|group| {
            let mut texts = group.paths.from(*at);
            Some((group, texts.clone(), texts.next()?, texts.offset()))
        });
        let Some((group, ahead, path, after)) = group else {
            match groups.next() {
                Some(Ok(group)) => (*rest, *at, warmed) = (Some(group), 0, 0),
                Some(Err(error)) => return malformed(id, &error),
                None => return Progress::Done(Some(written(id, true, *done, refusals))),
            }
            continue;
        };
        if warmed == 0 {
            bench.directory.warm(ahead);
            warmed = WARM;
        }
        warmed -= 1;
        if let Err(reason) = bench.directory.write(slot, group.change, &group.terms, path) {
            refusals_bytes += reason.len();
            refusals.push(RefusedPath { place: u32::try_from(*done).unwrap_or(u32::MAX), reason });
        }
        (*at, *done) = (after, *done + 1);
        steps += 1 + bench.directory.spent();
        let over = steps >= STRIDE && now() >= bench.until;
        steps %= STRIDE;
        if over || refusals.len() >= ANSWER_PATHS_MAX || refusals_bytes >= LISTED_BYTES_GOAL {
            return Progress::More(Some(written(id, false, *done, refusals)));
        }
    }
}

fn confirm(bench: &mut Bench<'_>, id: u64, confirming: &mut Confirming) -> Progress {
    let slot = match bench.directory.writer(bench.client) {
        Ok(slot) => slot,
        Err(code) => return refused(id, code),
    };
    while !bench.directory.confirm(slot, confirming, STRIDE) {
        if now() >= bench.until {
            return Progress::More(Some(written(id, false, 0, Vec::new())));
        }
    }
    Progress::Done(Some(written(id, true, 0, Vec::new())))
}
