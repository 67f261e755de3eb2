//! Large requests are answered slice by slice.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::limits::{
    ADDRESSES_MAX, FRAME_BYTES_MAX, LATER_BYTES_MAX, PUBLISHERS_PER_PATH_MAX, TERMS_BYTES_MAX,
};
use longshore_protocol::messages::resolver::{
    Change, FromReplica, Group, ListMatching, PathText, PathTexts, ReplicaStatus, RequestRefusal,
    Resolve, Table, ToReplica, Write, tag,
};
use longshore_protocol::{
    Address, Encode, Epoch, Glob, Homes, Incarnation, LaterFields, Path, PublisherId,
    PublisherInfo, Terms,
};

use tokio::sync::Semaphore;

use crate::directory::{Client, Directory, Rules};
use crate::server::access::{AccessLog, ClientAccess};
use crate::server::request::{Context, GLOB_SEGMENTS_MAX, Progress, Request};

const PATHS: usize = 10_000;
const WRITER: Client = Client(1);
const TTL: Duration = Duration::from_secs(120);

fn directory(now: Instant) -> Directory {
    let rules = Rules { paths_max: PATHS, ..Rules::small(TTL) };
    let mut directory = Directory::new(now, Incarnation([1; 16]), rules);
    let publisher =
        PublisherInfo::new(PublisherId([1; 16]), Epoch(1), "left", [([127, 0, 0, 1], 4000)]);
    directory.announce(now, WRITER, &publisher, &[]).unwrap();
    directory
}

fn group(change: Change, paths: PathTexts) -> Group {
    Group { change, terms: Terms::default(), paths }
}

fn paths() -> PathTexts {
    let paths: Vec<Path> = (0..PATHS).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
    paths.iter().collect()
}

/// The request as the server loop decodes it.
fn job(request: &ToReplica) -> Request {
    let mut out = FrameWriter::new();
    request.encode(&mut out);
    let message = Messages::new(out.into_body()).next().unwrap();
    Request::next(message, &Cell::default()).unwrap()
}

/// The answers to a request whose every slice is over before it begins: each slice does only the
/// work between two reads of the clock.
fn answers(directory: &mut Directory, client: Client, request: ToReplica) -> Vec<FromReplica> {
    answers_of(directory, client, job(&request))
}

fn answers_of(directory: &mut Directory, client: Client, mut job: Request) -> Vec<FromReplica> {
    let status = |_: &Directory| -> ReplicaStatus { unreachable!("no test requests it") };
    let until = Instant::now();
    let glob_segments = &Arc::new(Semaphore::new(GLOB_SEGMENTS_MAX));
    let (access, access_log) = (&ClientAccess::everything(), &mut AccessLog::new());
    let (status, writer_ttl) = (&status, TTL);
    let mut context = Context {
        directory,
        client,
        writes: true,
        access,
        access_log,
        status,
        writer_ttl,
        glob_segments,
        registered_as: &mut None,
        paths_max: None,
        until,
    };
    let mut answers = Vec::new();
    loop {
        match job.slice(&mut context) {
            Progress::More(answer) => answers.extend(answer),
            Progress::Done(answer) => {
                answers.extend(answer);
                return answers;
            }
        }
    }
}

fn publish_all(directory: &mut Directory) -> Vec<FromReplica> {
    let groups = vec![
        group(Change::Publish, paths()),
        group(Change::PublishDefault, [&Path::root()].into_iter().collect()),
    ];
    answers(directory, WRITER, ToReplica::Write(Write { id: 7, groups }))
}

#[tokio::test]
async fn a_large_write_is_answered_in_slices_and_counts_every_path_once() {
    let mut directory = directory(Instant::now());
    let answers = publish_all(&mut directory);
    assert!(answers.len() > 100, "{} answers", answers.len());
    let mut done_before = 0;
    for (at, answer) in answers.iter().enumerate() {
        let FromReplica::Written(written) = answer else { panic!("{answer:?}") };
        assert_eq!((written.id, written.last), (7, at == answers.len() - 1));
        assert!(written.done > done_before || written.last);
        done_before = written.done;
    }
    assert_eq!(done_before, PATHS as u64 + 1);
    assert_eq!(directory.published_len(), PATHS);
    // The directory is full: only the default was refused, identified by its index.
    let FromReplica::Written(last) = &answers[answers.len() - 1] else { panic!("no answer") };
    assert_eq!(last.refused.len(), 1);
    assert_eq!(last.refused[0].place, PATHS as u32);
}

#[tokio::test]
async fn large_reads_are_answered_in_slices() {
    let mut directory = directory(Instant::now());
    publish_all(&mut directory);
    let resolve = ToReplica::Resolve(Resolve { id: 8, paths: paths() });
    let slices = answers(&mut directory, Client(2), resolve);
    assert!(slices.len() > 100);
    let answered = |slice: &FromReplica| match slice {
        FromReplica::Resolved(resolved) => resolved.answers.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(slices.iter().map(answered).sum::<usize>(), PATHS);

    let globs = vec![Glob::new("/jobs/*7").unwrap()];
    let list = ToReplica::ListMatching(ListMatching { id: 9, globs });
    let slices = answers(&mut directory, Client(2), list);
    assert!(slices.len() > 100);
    let listed = |slice: &FromReplica| match slice {
        FromReplica::Listed(listed) => listed.paths.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(slices.iter().map(listed).sum::<usize>(), PATHS / 10);
}

#[tokio::test]
async fn an_answer_is_also_limited_by_the_bytes_of_its_terms() {
    const TERMS: usize = 4_000;
    let mut directory = directory(Instant::now());
    let slot = directory.writer(WRITER).unwrap();
    let paths: Vec<Path> = (0..TERMS).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
    for (n, path) in paths.iter().enumerate() {
        // Terms of nearly the maximum length: the names of 46 homes, of 128 bytes each.
        let names = (0..46).map(|home| format!("{n:064}{home:064}")).collect();
        let homes = Homes::new([("/jobs".parse().unwrap(), names)]).unwrap();
        let terms = Terms { homes, ..Terms::default() };
        directory.write_text(slot, Change::Publish, &terms, path.into()).unwrap();
    }
    let status = |_: &Directory| -> ReplicaStatus { unreachable!("no test requests it") };
    let until = Instant::now() + TTL;
    let (directory, client) = (&mut directory, Client(2));
    let glob_segments = &Arc::new(Semaphore::new(GLOB_SEGMENTS_MAX));
    let (access, access_log) = (&ClientAccess::everything(), &mut AccessLog::new());
    let (status, writer_ttl) = (&status, TTL);
    let mut context = Context {
        directory,
        client,
        writes: false,
        access,
        access_log,
        status,
        writer_ttl,
        glob_segments,
        registered_as: &mut None,
        paths_max: None,
        until,
    };
    let ask = Resolve { id: 8, paths: paths.iter().collect() };
    let (mut job, mut answered, mut over) = (job(&ToReplica::Resolve(ask)), 0, false);
    while !over {
        let progress = job.slice(&mut context);
        over = matches!(progress, Progress::Done(_));
        let (Progress::More(answer) | Progress::Done(answer)) = progress;
        let Some(FromReplica::Resolved(resolved)) = answer else { panic!("{answer:?}") };
        answered += resolved.answers.len();
        let mut out = FrameWriter::new();
        FromReplica::Resolved(resolved).encode(&mut out);
        assert!(out.body_len() < 2 << 20, "{} bytes", out.body_len());
    }
    assert_eq!(answered, TERMS);
}

#[test]
fn globs_that_expand_to_too_many_segments_are_refused() {
    let globs = vec![Glob::new(&("/{a,b}".repeat(8) + "/c")).unwrap(); 64];
    let ask = ListMatching { id: 9, globs };
    let mut directory = directory(Instant::now());
    let answers = answers(&mut directory, Client(2), ToReplica::ListMatching(ask));
    let [FromReplica::Refused { id: 9, code, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*code, RequestRefusal::OverLimit);
}

#[test]
fn a_listing_beyond_the_budget_of_segments_is_refused_until_another_ends() {
    let globs = vec![Glob::new("/a/{b,c}/**").unwrap()];
    let ask = ToReplica::ListMatching(ListMatching { id: 9, globs });
    let (mut directory, glob_segments) = (directory(Instant::now()), &Arc::new(Semaphore::new(8)));
    let status = &|_: &Directory| -> ReplicaStatus { unreachable!("no test requests it") };
    let (directory, until) = (&mut directory, Instant::now());
    let (client, writes, writer_ttl) = (Client(2), false, TTL);
    let (access, access_log) = (&ClientAccess::everything(), &mut AccessLog::new());
    let mut context = Context {
        directory,
        client,
        writes,
        access,
        access_log,
        status,
        writer_ttl,
        glob_segments,
        registered_as: &mut None,
        paths_max: None,
        until,
    };
    let first = job(&ask);
    let others = glob_segments.clone().try_acquire_many_owned(1).unwrap();
    let mut busy = |mut job: Request| match job.slice(&mut context) {
        Progress::Done(Some(FromReplica::Refused { id: 9, code, .. })) => {
            assert_eq!(code, RequestRefusal::Busy);
            true
        }
        _ => false,
    };
    assert!(busy(first));
    drop(others);
    assert!(!busy(job(&ask)) && !busy(job(&ask)), "its share of the budget is released with it");
    assert_eq!(glob_segments.available_permits(), 8);
}

#[tokio::test]
async fn a_client_that_has_not_announced_a_publisher_writes_nothing() {
    let mut directory = directory(Instant::now());
    let groups = vec![group(Change::Publish, paths())];
    let write = ToReplica::Write(Write { id: 7, groups });
    let answers = answers(&mut directory, Client(2), write);
    let [FromReplica::Refused { id: 7, code, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*code, RequestRefusal::NotAnnounced);
    assert_eq!(directory.published_len(), 0);
}

#[test]
fn a_write_that_does_not_decode_to_its_end_has_no_effect() {
    let mut directory = directory(Instant::now());
    let mut out = FrameWriter::new();
    out.message(tag::WRITE, |out| {
        out.u64(7);
        out.u64(2);
        group(Change::Publish, paths()).encode(out);
        out.u32_fixed(99);
    });
    let message = Messages::new(out.into_body()).next().unwrap();
    let job = Request::next(message, &Cell::default()).unwrap();
    let answers = answers_of(&mut directory, WRITER, job);
    let [FromReplica::Refused { id: 7, code, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*code, RequestRefusal::Malformed);
    assert_eq!(directory.published_len(), 0);
}

#[test]
fn a_table_is_answered_in_slices() {
    let now = Instant::now();
    let mut directory = directory(now);
    let slot = directory.writer(WRITER).unwrap();
    for n in 0..PATHS / 2 {
        let path = Path::new(&format!("/jobs/{n}/{}", n % 3)).unwrap();
        directory.change(slot, Change::Publish, &path).unwrap();
    }
    let ask = Table { id: 7, path: Path::new("/jobs").unwrap() };
    let parts = answers(&mut directory, Client(9), ToReplica::Table(ask));
    assert!(parts.len() > 10, "{} parts", parts.len());
    let (mut rows, mut columns) = (BTreeSet::new(), BTreeMap::new());
    for part in &parts {
        let FromReplica::Table(part) = part else { panic!("{part:?}") };
        part.rows.iter().for_each(|row| assert!(rows.insert(row.clone()), "{row} twice"));
        for column in &part.columns {
            *columns.entry(column.name.clone()).or_insert(0) += column.rows;
        }
    }
    assert_eq!(rows.len(), PATHS / 2);
    let each = |n: usize| (PATHS / 2 + 2 - n) as u64 / 3;
    let expected = (0..3).map(|n| (n.to_string(), each(n))).collect();
    assert_eq!(columns, expected);
}

/// A publisher whose record has the maximum length.
fn largest_publisher(n: u16) -> PublisherInfo {
    let mut id = [0; 16];
    id[..2].copy_from_slice(&n.to_be_bytes());
    let mut info = PublisherInfo::new(PublisherId(id), Epoch(1), "p".repeat(128), [([127; 4], n)]);
    let host: Address = format!("{}:1", vec!["h".repeat(63); 3].join(".")).parse().unwrap();
    while info.addresses.len() < ADDRESSES_MAX && info.check().is_ok() {
        info.addresses.push(host.clone());
    }
    info.addresses.pop();
    fill(|later| {
        info.later = later;
        info.check().is_ok()
    });
    info
}

/// Distinct terms whose record has the maximum length.
fn largest_terms(n: u16) -> Terms {
    let names = (0..58).map(|home| format!("{n:050}{home:050}")).collect();
    let homes = Homes::new([("/jobs".parse().unwrap(), names)]).unwrap();
    let mut terms = Terms { homes, ..Terms::default() };
    fill(|later| {
        terms.later = later;
        terms.bytes() <= TERMS_BYTES_MAX
    });
    terms
}

/// Adds as many fields of later versions as fit.
fn fill(mut fits: impl FnMut(LaterFields) -> bool) {
    let later = |bytes| LaterFields::new(&vec![1; bytes]).unwrap();
    let (mut fit, mut over) = (0, LATER_BYTES_MAX + 1);
    while over - fit > 1 {
        let middle = fit.midpoint(over);
        if fits(later(middle)) {
            fit = middle;
        } else {
            over = middle;
        }
    }
    assert!(fits(later(fit)), "the record has it now");
}

#[test]
fn the_longest_answer_about_a_path_and_its_default_fits_a_frame() {
    let now = Instant::now();
    let publishers = 2 * PUBLISHERS_PER_PATH_MAX;
    let rules = Rules { publishers_max: publishers, ..Rules::small(TTL) };
    let mut directory = Directory::new(now, Incarnation([1; 16]), rules);
    for n in 0..publishers as u16 {
        let client = Client(u64::from(n) + 1);
        directory.announce(now, client, &largest_publisher(n), &[]).unwrap();
        let (change, path) = match n % 2 {
            0 => (Change::Publish, "/jobs/a"),
            _ => (Change::PublishDefault, "/jobs"),
        };
        let slot = directory.writer(client).unwrap();
        let path = Path::new(path).unwrap();
        directory.write_text(slot, change, &largest_terms(n), PathText::from(&path)).unwrap();
    }
    let paths = [Path::new("/jobs/a").unwrap()].iter().collect();
    let answers = answers(&mut directory, WRITER, ToReplica::Resolve(Resolve { id: 1, paths }));
    let [FromReplica::Resolved(answer)] = &answers[..] else { panic!("one message") };
    assert_eq!((answer.publishers.len(), answer.terms.len()), (publishers, publishers));
    let mut out = FrameWriter::new();
    answers[0].encode(&mut out);
    assert!(out.body_len() < FRAME_BYTES_MAX, "{} bytes", out.body_len());
}
