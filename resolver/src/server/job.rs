//! A request that is being answered, a slice at a time.

use std::time::{Duration, Instant};

use longshore_protocol::codec::WireError;
use longshore_protocol::messages::resolver::{
    Announce, Announced, Changed, Column, FromReplica, Group, Listed, PathListed, PathTexts,
    PublishersKnown, RefusedPath, ReplicaStatus, RequestRefusal, TableAnswer, ToReplica, Tracked,
    Tracker, WatchPaths, WatchPublishers, Written,
};
use longshore_protocol::{Glob, PublisherId};

use crate::directory::{
    Cells, Children, Client, Confirming, Directory, Known, Matching, Resolver, Slot, Told,
    TooManyPieces, WARM, WatchRefusal,
};
use crate::replica_link::now;

/// How long a slice may take. What it is in the middle of is finished: some microseconds more, and up to some milliseconds where one change
/// is compared with thousands of watched globs, or the globs of a listing stand for tens of thousands of segments.
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
/// With so many bytes of publishers, terms and refusals no more paths go into one message of an answer. The last path adds at most what
/// 1,024 publishers and as many different terms take, some 10 MiB: together less than a frame may have, 20 MiB.
const ANSWER_BYTES_GOAL: usize = 1024 * 1024;

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
        matching: Option<Box<Matching>>,
    },
    Table {
        id: u64,
        began: Option<Tracker>,
        cells: Cells,
    },
    CheckChanged {
        id: u64,
        tracked: Vec<Tracked>,
        at: usize,
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
        groups: std::vec::IntoIter<Group>,
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
    pub(super) fn malformed(id: u64, fault: &WireError) -> Refusal {
        let code = match fault {
            WireError::OverLimit { .. } => RequestRefusal::OverLimit,
            WireError::Truncated { .. } | WireError::Invalid { .. } => RequestRefusal::Malformed,
        };
        Refusal { id, code, reason: format!("{code}: {fault}") }
    }

    /// There is no memory for it.
    pub(super) fn busy(id: u64) -> Refusal {
        let code = RequestRefusal::Busy;
        Refusal { id, code, reason: code.to_string() }
    }

    /// It is of a later version.
    pub(super) fn unknown(id: u64, tag: u8) -> Refusal {
        let code = RequestRefusal::UnknownRequest;
        Refusal { id, code, reason: format!("{code} (tag {tag})") }
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
    pub(super) fn new(request: Result<ToReplica, Refusal>) -> Job {
        match request {
            Ok(ToReplica::Resolve(ask)) => Job::Resolve { id: ask.id, paths: ask.paths, at: 0 },
            Ok(ToReplica::List(ask)) => {
                Job::List { id: ask.id, began: None, children: Children::new(&ask.path) }
            }
            Ok(ToReplica::ListMatching(ask)) => {
                Job::ListMatching { id: ask.id, began: None, globs: ask.globs, matching: None }
            }
            Ok(ToReplica::Status { id }) => Job::Status { id },
            Ok(ToReplica::WatchPublishers(watch)) => Job::Watch(watch),
            Ok(ToReplica::Unwatch { watch, .. }) => Job::Unwatch { watch },
            Ok(ToReplica::Announce(announce)) => Job::Announce(announce),
            Ok(ToReplica::Write(write)) => Job::Write {
                id: write.id,
                groups: write.groups.into_iter(),
                rest: None,
                at: 0,
                done: 0,
            },
            Ok(ToReplica::Confirm { id }) => Job::Confirm { id, confirming: Confirming::default() },
            Ok(ToReplica::Clear { id }) => Job::Clear { id },
            Ok(ToReplica::Table(ask)) => {
                Job::Table { id: ask.id, began: None, cells: Cells::new(&ask.path) }
            }
            Ok(ToReplica::CheckChanged(ask)) => {
                Job::CheckChanged { id: ask.id, tracked: ask.tracked, at: 0 }
            }
            Ok(ToReplica::WatchPaths(watch)) => Job::WatchPaths(watch),
            Ok(ToReplica::ListPublishers { id }) => {
                Job::ListPublishers { id, known: Known::default() }
            }
            Ok(ToReplica::ForgetPublisher { id, publisher }) => {
                Job::ForgetPublisher { id, publisher }
            }
            Err(refusal) => Job::Refuse(refusal),
        }
    }

    /// Does the next slice.
    pub(super) fn slice(&mut self, bench: &mut Bench<'_>) -> Progress {
        match self {
            Job::Resolve { id, paths, at } => resolve(bench, *id, paths, at),
            Job::List { id, began, children } => {
                list(bench, *id, began, |directory, out| children.take(directory, STRIDE, out))
            }
            Job::ListMatching { id, began, globs, matching } => {
                let matching = match matching {
                    Some(matching) => matching,
                    None => match Matching::new(&std::mem::take(globs)) {
                        Ok(new) => matching.insert(Box::new(new)),
                        Err(limit) => return over_limit(*id, &limit),
                    },
                };
                list(bench, *id, began, |directory, out| matching.take(directory, STRIDE, out))
            }
            Job::Table { id, began, cells } => table(bench, *id, began, cells),
            Job::CheckChanged { id, tracked, at } => check_changed(bench, *id, tracked, at),
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
            Job::Write { id, groups, rest, at, done } => write(bench, *id, groups, rest, at, done),
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
    let most = (*at + ANSWER_PATHS_MAX).min(paths.len());
    while *at < most
        && resolver.members() < ANSWER_MEMBERS_MAX
        && resolver.bytes() < ANSWER_BYTES_GOAL
        && let Some(path) = paths.get(*at)
    {
        if (*at).is_multiple_of(WARM) {
            bench.directory.warm(paths.from(*at));
        }
        resolver.answer(bench.directory, path);
        *at += 1;
        if (*at).is_multiple_of(STRIDE) && now() >= bench.until {
            break;
        }
    }
    let last = *at == paths.len();
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
    let mut paths = Vec::new();
    let last = loop {
        if take(bench.directory, &mut paths) {
            break true;
        }
        if paths.len() >= ANSWER_PATHS_MAX || now() >= bench.until {
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

fn check_changed(bench: &Bench<'_>, id: u64, tracked: &[Tracked], at: &mut usize) -> Progress {
    let mut changed = Vec::new();
    for Tracked { path, tracker } in tracked[*at..].iter().take(ANSWER_PATHS_MAX) {
        changed.push(bench.directory.changed_since(path, tracker));
        *at += 1;
        if (*at).is_multiple_of(STRIDE) && now() >= bench.until {
            break;
        }
    }
    let last = *at == tracked.len();
    let (complete, tracker) = (bench.directory.is_complete(), bench.directory.tracker());
    let answer = Some(FromReplica::Changed(Changed { id, last, complete, tracker, changed }));
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

fn write(
    bench: &mut Bench<'_>,
    id: u64,
    groups: &mut std::vec::IntoIter<Group>,
    rest: &mut Option<Group>,
    at: &mut usize,
    done: &mut u64,
) -> Progress {
    let slot: Slot = match bench.directory.writer(bench.client) {
        Ok(slot) => slot,
        Err(code) => return refused(id, code),
    };
    let (mut refusals, mut steps) = (Vec::new(), 0);
    loop {
        let group = rest.as_ref().and_then(|group| Some((group, group.paths.get(*at)?)));
        let Some((group, path)) = group else {
            match groups.next() {
                Some(group) => (*rest, *at) = (Some(group), 0),
                None => return Progress::Done(Some(written(id, true, *done, refusals))),
            }
            continue;
        };
        if (*at).is_multiple_of(WARM) {
            bench.directory.warm(group.paths.from(*at));
        }
        if let Err(reason) = bench.directory.write(slot, group.change, &group.terms, path) {
            refusals.push(RefusedPath { place: u32::try_from(*done).unwrap_or(u32::MAX), reason });
        }
        (*at, *done) = (*at + 1, *done + 1);
        steps += 1 + bench.directory.spent();
        let over = steps >= STRIDE && now() >= bench.until;
        steps %= STRIDE;
        if over || refusals.len() >= ANSWER_PATHS_MAX {
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
