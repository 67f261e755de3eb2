//! A request in progress, answered in slices.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_access::Action;
use longshore_protocol::codec::WireError;
use longshore_protocol::limits::{RESOLVER_BATCH_PATHS_MAX, RESOLVER_GROUPS_MAX};
use longshore_protocol::messages::resolver::{
    Announce, Change, Column, FromReplica, Group, Listed, PathListed, PathTexts, PublishersKnown,
    RefusedPath, ReplicaStatus, RequestCounts, RequestRefusal, TableAnswer, ToReplica, Tracker,
    WatchPaths, WatchPublishers, Write, Written, tag,
};
use longshore_protocol::{Decode, Glob, PublisherId, Reader};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::directory::{
    AnswerBuilder, Cells, Children, Client, ConfirmProgress, Directory, GlobWalk, PREFETCH_PATHS,
    PathHashes, PublisherListing, Slot, TablePart, TooManySegments, WatchRefusal,
};
use crate::replica_link::now;
use crate::server::access::{AccessLog, ClientAccess, Publishing};
use crate::server::announcing::{self, Revoking};

/// The length of a slice. A step in progress is finished: some microseconds more, and up to some
/// milliseconds where one change is compared with thousands of watched globs, or where the globs of
/// a listing expand to tens of thousands of segments.
pub(super) const SLICE: Duration = Duration::from_millis(1);
/// Paths between two reads of the clock.
pub(super) const STRIDE: usize = 64;
/// Publishers between two reads, each with up to 128 declared paths of 1 KiB.
const KNOWN_STRIDE: usize = 4;
/// Most publishers in one message of an answer: at most 8 MiB of the 20 MiB of a frame.
const ANSWER_PUBLISHERS_MAX: usize = 64;
/// Most paths in one message of an answer.
const ANSWER_PATHS_MAX: usize = 4_096;
/// Most members of publisher sets in one message of an answer.
const ANSWER_MEMBERS_MAX: usize = 65_536;
/// After this many bytes of publishers, terms and refusals a message of an answer takes no further
/// paths. The last path adds at most 1,024 publishers of its own, as many of its default, and
/// different terms of each, 15 MiB: together less than the 20 MiB of a frame.
pub(super) const ANSWER_BYTES_GOAL: usize = 1024 * 1024;

/// Bytes of paths, or of refusals, after which a message of an answer ends.
const LISTED_BYTES_GOAL: usize = 256 * 1024;
/// Segments that the globs of all listings in progress may expand to: four of the largest listings.
/// Each takes about [`GLOB_SEGMENT_BYTES`] until its listing is answered, however slowly its client
/// reads.
pub(super) const GLOB_SEGMENTS_MAX: usize = 4 * 65_536;
/// See [`GLOB_SEGMENTS_MAX`].
pub(super) const GLOB_SEGMENT_BYTES: usize = 256;
/// Memory of the one request that is being decoded, in bytes, beside its frame: 73,728 segments of
/// globs.
pub(super) const DECODED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A request in progress.
#[derive(Debug)]
pub(super) enum Request {
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
    /// The globs are parsed in the first slice, since that can be expensive.
    ListMatching {
        id: u64,
        began: Option<Tracker>,
        globs: Vec<Glob>,
        matching: Option<(Box<GlobWalk>, OwnedSemaphorePermit)>,
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
        known: PublisherListing,
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
    Announce {
        announce: Announce,
        /// Set while what the publisher may no longer hold is removed.
        revoking: Option<Revoking>,
    },
    Write {
        id: u64,
        /// Groups that are still unchecked, and the paths of those already checked: a request that
        /// does not decode completely has no effect.
        unchecked: Option<(Groups, usize)>,
        groups: Groups,
        rest: Option<Group>,
        at: usize,
        done: u64,
    },
    Confirm {
        id: u64,
        progress: ConfirmProgress,
    },
    Clear {
        id: u64,
    },
    Refuse(Refusal),
}

/// Why a request is refused before it begins.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The request's number; 0 if it cannot be decoded.
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

/// The groups of a write, decoded one by one as they are applied. As a list they would take up to
/// twenty times their frame, for as long as the client does not read.
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

/// What a request works with.
pub(super) struct Context<'a> {
    pub(super) directory: &'a mut Directory,
    pub(super) client: Client,
    /// The client's role is that of a writer.
    pub(super) writes: bool,
    pub(super) access: &'a ClientAccess,
    pub(super) access_log: &'a mut AccessLog,
    /// Computes the answer of [`Request::Status`].
    pub(super) status: &'a dyn Fn(&Directory) -> ReplicaStatus,
    pub(super) writer_ttl: Duration,
    /// See [`GLOB_SEGMENTS_MAX`].
    pub(super) glob_segments: &'a Arc<Semaphore>,
    /// The publisher as which the client has registered first.
    pub(super) registered_as: &'a mut Option<PublisherId>,
    /// Most paths that the client's identity may have registered.
    pub(super) paths_max: Option<u32>,
    /// The end of the slice.
    pub(super) until: Instant,
}

impl Context<'_> {
    /// The refusal of a request that the client may not make, as it concerns the replica as a
    /// whole.
    fn forbidden_at_server(&mut self, id: u64, action: Action) -> Option<Progress> {
        if self.access.may_at_server(action) {
            return None;
        }
        self.access_log.refused_at_server(now(), self.access, action);
        let (code, reason) = (RequestRefusal::Forbidden, self.access.forbidden_at_server(action));
        Some(Progress::Done(Some(FromReplica::Refused { id, code, reason })))
    }
}

/// The result of a slice.
pub(super) enum Progress {
    /// There is more to do.
    More(Option<FromReplica>),
    Done(Option<FromReplica>),
}

impl Request {
    /// The request of a message, or its refusal. `None` for messages that are no requests: they get
    /// no answer.
    pub(super) fn next(
        message: Result<(u8, Bytes), WireError>,
        counts: &Cell<RequestCounts>,
    ) -> Option<Request> {
        let request = match message {
            Ok((tag, body)) => Request::decode(tag, body, counts)?,
            // The messages after it cannot be found.
            Err(error) => Err(Refusal::malformed(0, &error)),
        };
        Some(request.unwrap_or_else(|refusal| {
            count(counts, RequestCounts::add_refused);
            Request::Refuse(refusal)
        }))
    }

    fn decode(
        tag: u8,
        body: Bytes,
        counts: &Cell<RequestCounts>,
    ) -> Option<Result<Request, Refusal>> {
        let request = match tag {
            tag::WRITE => Ok(Some(ToReplica::Write(Write { id: 0, groups: Vec::new() }))),
            _ => ToReplica::decode(tag, body.clone()),
        };
        match request {
            Ok(Some(request)) => {
                count(counts, |counts| counts.add(&request));
                let id = ToReplica::id_of_undecodable(&body);
                Some(Request::new(request, body).map_err(|error| Refusal::malformed(id, &error)))
            }
            Ok(None) if tag::REQUESTS.contains(&tag) => {
                Some(Err(Refusal::unknown(ToReplica::id_of_undecodable(&body), tag)))
            }
            Ok(None) => None,
            Err(error) => {
                Some(Err(Refusal::malformed(ToReplica::id_of_undecodable(&body), &error)))
            }
        }
    }

    /// A request decoded from `body`. The groups of a write are decoded later.
    fn new(request: ToReplica, body: Bytes) -> Result<Request, WireError> {
        Ok(match request {
            ToReplica::Resolve(ask) => Request::Resolve { id: ask.id, paths: ask.paths, at: 0 },
            ToReplica::List(ask) => {
                Request::List { id: ask.id, began: None, children: Children::new(&ask.path) }
            }
            ToReplica::ListMatching(ask) => {
                Request::ListMatching { id: ask.id, began: None, globs: ask.globs, matching: None }
            }
            ToReplica::Status { id } => Request::Status { id },
            ToReplica::WatchPublishers(watch) => Request::Watch(watch),
            ToReplica::Unwatch { watch, .. } => Request::Unwatch { watch },
            ToReplica::Announce(announce) => Request::Announce { announce, revoking: None },
            ToReplica::Write(_) => {
                let (id, groups) = Groups::of(body)?;
                let unchecked = Some((groups.clone(), 0));
                Request::Write { id, unchecked, groups, rest: None, at: 0, done: 0 }
            }
            ToReplica::Confirm { id } => {
                Request::Confirm { id, progress: ConfirmProgress::default() }
            }
            ToReplica::Clear { id } => Request::Clear { id },
            ToReplica::Table(ask) => {
                Request::Table { id: ask.id, began: None, cells: Cells::new(&ask.path) }
            }
            ToReplica::WatchPaths(watch) => Request::WatchPaths(watch),
            ToReplica::ListPublishers { id } => {
                Request::ListPublishers { id, known: PublisherListing::default() }
            }
            ToReplica::ForgetPublisher { id, publisher } => {
                Request::ForgetPublisher { id, publisher }
            }
        })
    }

    /// Runs the next slice.
    pub(super) fn slice(&mut self, context: &mut Context<'_>) -> Progress {
        match self {
            Request::Resolve { id, paths, at } => resolve(context, *id, paths, at),
            Request::List { id, began, children } => {
                let scope = &context.access.scope;
                list(context, *id, began, |directory, out| {
                    children.take(directory, scope, STRIDE, out)
                })
            }
            Request::ListMatching { id, began, globs, matching } => {
                if matching.is_none() {
                    let globs = std::mem::take(globs);
                    let segments = match GlobWalk::check(&globs) {
                        Ok(segments) => segments as u32,
                        Err(limit) => return over_limit(*id, &limit),
                    };
                    let Ok(taken) = context.glob_segments.clone().try_acquire_many_owned(segments)
                    else {
                        return refused(*id, RequestRefusal::Busy);
                    };
                    match GlobWalk::new(&globs) {
                        Ok(new) => *matching = Some((Box::new(new), taken)),
                        Err(limit) => return over_limit(*id, &limit),
                    }
                }
                let Some((matching, _)) = matching else { return Progress::Done(None) };
                let scope = &context.access.scope;
                list(context, *id, began, |directory, out| {
                    matching.take(directory, scope, STRIDE, out)
                })
            }
            Request::Table { id, began, cells } => table(context, *id, began, cells),
            Request::Status { id } => {
                if let Some(refused) = context.forbidden_at_server(*id, Action::Inspect) {
                    return refused;
                }
                let status = (context.status)(context.directory);
                Progress::Done(Some(FromReplica::Status { id: *id, status }))
            }
            Request::Watch(WatchPublishers { id, watch, glob }) => {
                watched(*id, context.directory.watch(context.client, *watch, glob.clone()))
            }
            Request::WatchPaths(WatchPaths { id, watch, globs }) => {
                watched(*id, context.directory.watch_paths(context.client, *watch, globs))
            }
            Request::ListPublishers { id, known } => list_publishers(context, *id, known),
            Request::ForgetPublisher { id, publisher } => {
                if let Some(refused) = context.forbidden_at_server(*id, Action::Operate) {
                    return refused;
                }
                if let Err(why) = context.access_log.forget_publisher(context.access, *publisher) {
                    tracing::debug!(%why, "an act is refused");
                    return refused(*id, RequestRefusal::NotAudited);
                }
                match context.directory.forget(*publisher) {
                    Ok(known) => {
                        Progress::Done(Some(written(*id, true, u64::from(known), Vec::new())))
                    }
                    Err(code) => refused(*id, code),
                }
            }
            Request::Unwatch { watch } => {
                context.directory.unwatch(context.client, *watch);
                Progress::Done(None)
            }
            Request::Announce { announce, revoking } => {
                announcing::announce(context, announce, revoking)
            }
            Request::Write { id, unchecked, groups, rest, at, done } => {
                match check(context, unchecked) {
                    Ok(true) => write(context, *id, groups, rest, at, done),
                    Ok(false) => Progress::More(None),
                    Err(error) => malformed(*id, &error),
                }
            }
            Request::Confirm { id, progress } => confirm(context, *id, progress),
            Request::Clear { id } => match context.directory.clear(context.client) {
                Ok(()) => Progress::Done(Some(written(*id, true, 0, Vec::new()))),
                Err(code) => refused(*id, code),
            },
            Request::Refuse(Refusal { id, code, reason }) => {
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

pub(super) fn refused(id: u64, code: RequestRefusal) -> Progress {
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

/// It exceeds the limit of one request.
fn over_limit(id: u64, limit: &TooManySegments) -> Progress {
    let code = RequestRefusal::OverLimit;
    let reason = format!("{code}: {limit}");
    Progress::Done(Some(FromReplica::Refused { id, code, reason }))
}

pub(super) fn written(id: u64, last: bool, done: u64, refused: Vec<RefusedPath>) -> FromReplica {
    FromReplica::Written(Written { id, last, done, refused })
}

fn resolve(context: &mut Context<'_>, id: u64, paths: &PathTexts, at: &mut usize) -> Progress {
    let mut builder = AnswerBuilder::default();
    let (access, stride) = (context.access, context.access.scope.paths_in(STRIDE));
    let sees_everything = access.scope.is_everything();
    let mut texts = paths.from(*at);
    let mut hashes = [PathHashes::default(); PREFETCH_PATHS];
    for done in 0..ANSWER_PATHS_MAX {
        if builder.members() >= ANSWER_MEMBERS_MAX || builder.bytes() >= ANSWER_BYTES_GOAL {
            break;
        }
        if done > 0 && done.is_multiple_of(stride) && now() >= context.until {
            break;
        }
        if done.is_multiple_of(PREFETCH_PATHS) {
            hashes = context.directory.prefetch(texts.clone());
        }
        let Some(path) = texts.next() else { break };
        if !sees_everything
            && let Ok(path) = path.check()
            && !access.scope.contains(path)
        {
            // The same whether it exists or not.
            context.access_log.refused(now(), access, Action::Resolve, path);
            builder.answer_not_found();
            continue;
        }
        builder.answer(context.directory, path, hashes[done % PREFETCH_PATHS]);
    }
    *at = texts.offset();
    let last = texts.is_empty();
    let answer = Some(FromReplica::Resolved(builder.finish(context.directory, id, last)));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

/// An empty slice is answered too: it shows that the replica is alive.
fn list(
    context: &mut Context<'_>,
    id: u64,
    began: &mut Option<Tracker>,
    mut take: impl FnMut(&mut Directory, &mut Vec<PathListed>) -> bool,
) -> Progress {
    let tracker = *began.get_or_insert_with(|| context.directory.tracker());
    let (mut paths, mut counted, mut bytes) = (Vec::new(), 0, 0);
    let last = loop {
        if take(context.directory, &mut paths) {
            break true;
        }
        bytes += paths[counted..].iter().map(|listed| listed.path.as_str().len()).sum::<usize>();
        counted = paths.len();
        let full = counted >= ANSWER_PATHS_MAX || bytes >= LISTED_BYTES_GOAL;
        if full || now() >= context.until {
            break false;
        }
    };
    let complete = context.directory.is_complete();
    let answer = Some(FromReplica::Listed(Listed { id, last, complete, tracker, paths }));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

fn table(
    context: &mut Context<'_>,
    id: u64,
    began: &mut Option<Tracker>,
    cells: &mut Cells,
) -> Progress {
    let tracker = *began.get_or_insert_with(|| context.directory.tracker());
    let mut table = TablePart::default();
    let last = loop {
        if cells.take(context.directory, &context.access.scope, STRIDE, &mut table) {
            break true;
        }
        if table.rows.len() + table.columns.len() >= ANSWER_PATHS_MAX || now() >= context.until {
            break false;
        }
    };
    let complete = context.directory.is_complete();
    let columns = table.columns.into_iter().map(|(name, rows)| Column { name, rows }).collect();
    let answer = TableAnswer { id, last, complete, tracker, rows: table.rows, columns };
    let answer = Some(FromReplica::Table(answer));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

fn list_publishers(context: &Context<'_>, id: u64, known: &mut PublisherListing) -> Progress {
    let mut publishers = Vec::new();
    let scope = context.access.scope_of_publishers();
    let last = loop {
        if known.take(context.directory, &scope, now(), KNOWN_STRIDE, &mut publishers) {
            break true;
        }
        if publishers.len() >= ANSWER_PUBLISHERS_MAX || now() >= context.until {
            break false;
        }
    };
    let some = PublishersKnown { id, last, publishers };
    let answer = Some(FromReplica::PublishersKnown(some));
    if last { Progress::Done(answer) } else { Progress::More(answer) }
}

/// Whether all groups of a write decode; false if there are more to check.
fn check(
    context: &Context<'_>,
    unchecked: &mut Option<(Groups, usize)>,
) -> Result<bool, WireError> {
    // The write will be refused anyway.
    if context.directory.writer(context.client).is_err() {
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
        if steps % STRIDE == 0 && now() >= context.until {
            return Ok(false);
        }
    }
    *unchecked = None;
    Ok(true)
}

fn write(
    context: &mut Context<'_>,
    id: u64,
    groups: &mut Groups,
    rest: &mut Option<Group>,
    at: &mut usize,
    done: &mut u64,
) -> Progress {
    let slot: Slot = match context.directory.writer(context.client) {
        Ok(slot) => slot,
        Err(code) => return refused(id, code),
    };
    let access = context.access;
    let publishing = access.publishing(context.directory.publisher_at(slot));
    let (everything, cost) = (publishing.is_everything(), publishing.cost());
    context.directory.limit_paths(slot, context.paths_max);
    let (mut refusals, mut refusals_bytes, mut steps) = (Vec::new(), 0, 0);
    let (mut hashes, mut prefetched) = ([PathHashes::default(); PREFETCH_PATHS], 0);
    loop {
        let group = rest.as_ref().and_then(|group| {
            let mut texts = group.paths.from(*at);
            Some((group, texts.clone(), texts.next()?, texts.offset()))
        });
        let Some((group, ahead, path, after)) = group else {
            match groups.next() {
                Some(Ok(group)) => (*rest, *at, prefetched) = (Some(group), 0, 0),
                Some(Err(error)) => return malformed(id, &error),
                None => return Progress::Done(Some(written(id, true, *done, refusals))),
            }
            continue;
        };
        if prefetched == 0 {
            hashes = context.directory.prefetch(ahead);
        }
        let path_hashes = hashes[prefetched];
        prefetched = (prefetched + 1) % PREFETCH_PATHS;
        let (kind, default) = (group.terms.kind, group.change == Change::PublishDefault);
        let outcome = if !everything
            && group.change.publishes()
            && let Ok(path) = path.check()
            && !publishing.allows(kind, path, default)
        {
            context.access_log.refused(now(), access, Publishing::action(kind), path);
            Err(publishing.refusal(kind, path, default))
        } else {
            context.directory.write(slot, group.change, &group.terms, path, path_hashes)
        };
        if let Err(reason) = outcome {
            refusals_bytes += reason.len();
            refusals.push(RefusedPath { place: u32::try_from(*done).unwrap_or(u32::MAX), reason });
        }
        (*at, *done) = (after, *done + 1);
        steps += 1 + context.directory.spent() + if everything { 0 } else { cost };
        let over = steps >= STRIDE && now() >= context.until;
        steps %= STRIDE;
        if over || refusals.len() >= ANSWER_PATHS_MAX || refusals_bytes >= LISTED_BYTES_GOAL {
            return Progress::More(Some(written(id, false, *done, refusals)));
        }
    }
}

fn confirm(context: &mut Context<'_>, id: u64, progress: &mut ConfirmProgress) -> Progress {
    let slot = match context.directory.writer(context.client) {
        Ok(slot) => slot,
        Err(code) => return refused(id, code),
    };
    while !context.directory.confirm(slot, progress, STRIDE) {
        if now() >= context.until {
            return Progress::More(Some(written(id, false, 0, Vec::new())));
        }
    }
    Progress::Done(Some(written(id, true, 0, Vec::new())))
}
