//! Large requests are answered slice by slice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use longshore_protocol::frame::FrameWriter;
use longshore_protocol::messages::resolver::{
    Change, CheckChanged, FromReplica, Group, ListMatching, PathTexts, ReplicaStatus,
    RequestRefusal, Resolve, Table, ToReplica, Tracked, Write,
};
use longshore_protocol::{Epoch, Glob, Incarnation, Path, PublisherId, PublisherInfo, Terms};

use crate::directory::{Client, Directory, Rules};
use crate::server::job::{Bench, Job, Progress};

const PATHS: usize = 10_000;
const WRITER: Client = Client(1);
const TTL: Duration = Duration::from_secs(120);

fn directory(now: Instant) -> Directory {
    let rules = Rules {
        writer_ttl: TTL,
        stand_still_max: TTL,
        fresh: true,
        publishers_max: 2,
        paths_max: PATHS,
        watches_max: 2,
    };
    let mut directory = Directory::new(now, Incarnation([1; 16]), rules);
    let publisher = PublisherInfo {
        id: PublisherId([1; 16]),
        epoch: Epoch(1),
        name: "left".into(),
        addresses: vec![([127, 0, 0, 1], 4000).into()],
        later: Default::default(),
    };
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

/// The answers to a request whose every slice is over before it begins: only what is done between two looks at the clock.
fn answers(directory: &mut Directory, client: Client, request: ToReplica) -> Vec<FromReplica> {
    let status = |_: &Directory| -> ReplicaStatus { unreachable!("nobody asks") };
    let until = Instant::now();
    let mut bench =
        Bench { directory, client, writes: true, status: &status, writer_ttl: TTL, until };
    let (mut job, mut answers) = (Job::new(Ok(request)), Vec::new());
    loop {
        match job.slice(&mut bench) {
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
async fn a_large_write_is_answered_slice_by_slice_and_every_path_counts_once() {
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
    // The directory is full: the default was refused, alone, by its place.
    let FromReplica::Written(last) = &answers[answers.len() - 1] else { panic!("no answer") };
    assert_eq!(last.refused.len(), 1);
    assert_eq!(last.refused[0].place, PATHS as u32);
}

#[tokio::test]
async fn large_reads_are_answered_slice_by_slice_too() {
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
async fn an_answer_is_cut_by_the_bytes_of_its_terms_too() {
    const TERMS: usize = 4_000;
    let mut directory = directory(Instant::now());
    let slot = directory.writer(WRITER).unwrap();
    let paths: Vec<Path> = (0..TERMS).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect();
    for (n, path) in paths.iter().enumerate() {
        // As long as terms may be: the names of 64 homes, of 128 bytes each.
        let homes = (0..64).map(|home| format!("{n:064}{home:064}")).collect();
        let terms = Terms { homes, ..Terms::default() };
        directory.write(slot, Change::Publish, &terms, path.into()).unwrap();
    }
    let status = |_: &Directory| -> ReplicaStatus { unreachable!("nobody asks") };
    let until = Instant::now() + TTL;
    let (directory, client) = (&mut directory, Client(2));
    let mut bench =
        Bench { directory, client, writes: false, status: &status, writer_ttl: TTL, until };
    let ask = Resolve { id: 8, paths: paths.iter().collect() };
    let (mut job, mut answered, mut over) = (Job::new(Ok(ToReplica::Resolve(ask))), 0, false);
    while !over {
        let progress = job.slice(&mut bench);
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
fn globs_are_taken_apart_at_the_first_slice_and_too_many_are_refused_then() {
    let globs = vec![Glob::new(&("/{a,b}".repeat(8) + "/c")).unwrap(); 64];
    let ask = ListMatching { id: 9, globs };
    let job = Job::new(Ok(ToReplica::ListMatching(ask.clone())));
    assert!(matches!(job, Job::ListMatching { matching: None, .. }), "{job:?}");
    let mut directory = directory(Instant::now());
    let answers = answers(&mut directory, Client(2), ToReplica::ListMatching(ask));
    let [FromReplica::Refused { id: 9, code, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*code, RequestRefusal::OverLimit);
}

#[tokio::test]
async fn who_has_not_announced_a_publisher_writes_nothing() {
    let mut directory = directory(Instant::now());
    let groups = vec![group(Change::Publish, paths())];
    let write = ToReplica::Write(Write { id: 7, groups });
    let answers = answers(&mut directory, Client(2), write);
    let [FromReplica::Refused { id: 7, code, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*code, RequestRefusal::NotAnnounced);
    assert_eq!(directory.published_len(), 0);
}

#[test]
fn a_table_and_trackers_are_answered_slice_by_slice() {
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

    let before = directory.tracker();
    directory.change(slot, Change::Publish, &Path::new("/jobs/7/else").unwrap()).unwrap();
    let tracked = |text: &str| Tracked { path: Path::new(text).unwrap(), tracker: before };
    let tracked = (0..500).map(|n| tracked(&format!("/jobs/{n}"))).collect();
    let ask = CheckChanged { id: 8, tracked };
    let parts = answers(&mut directory, Client(9), ToReplica::CheckChanged(ask));
    assert!(parts.len() > 5, "{} parts", parts.len());
    let mut changed = Vec::new();
    for part in parts {
        let FromReplica::Changed(part) = part else { panic!("{part:?}") };
        changed.extend(part.changed);
    }
    let places: Vec<usize> = (0..500).filter(|&n| changed[n]).collect();
    assert_eq!((changed.len(), places), (500, vec![7]));
}
