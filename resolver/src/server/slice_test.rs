//! Large requests are answered slice by slice.

use std::time::{Duration, Instant};

use longshore_protocol::messages::resolver::{
    Change, FromReplica, Group, ListMatching, PathText, ReplicaStatus, RequestRefusal, Resolve,
    ToReplica, Write,
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
    };
    directory.announce(now, WRITER, &publisher, &[]).unwrap();
    directory
}

fn group(change: Change, paths: Vec<PathText>) -> Group {
    Group { change, terms: Terms::default(), paths }
}

fn paths() -> Vec<PathText> {
    (0..PATHS).map(|n| PathText::from(&Path::new(&format!("/jobs/{n}")).unwrap())).collect()
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
        group(Change::PublishDefault, vec![PathText::from(&Path::root())]),
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
async fn who_has_not_announced_a_publisher_writes_nothing() {
    let mut directory = directory(Instant::now());
    let groups = vec![group(Change::Publish, paths())];
    let write = ToReplica::Write(Write { id: 7, groups });
    let answers = answers(&mut directory, Client(2), write);
    let [FromReplica::Refused { id: 7, code, .. }] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!(*code, RequestRefusal::NotAnnounced);
    assert_eq!(directory.published_len(), 0);
}
