//! The contract of a log, as scenarios for any implementation.

use bytes::Bytes;

use crate::log::{Log, LogReadError};
use crate::{Now, RecordRef};

/// Checks the contract of [`Log`]; panics at the first violation.
///
/// `open(true)` opens a new, empty log; `open(false)` opens the last one again, after it was
/// dropped.
pub(crate) async fn log_conformance<L: Log>(mut open: impl FnMut(bool) -> L) {
    indexes_rise_by_one_and_commits_are_prefixes(&mut open).await;
    committed_records_are_readable_whole_and_in_parts(&mut open).await;
    dropped_wait_loses_nothing(&mut open).await;
    reopened_log_continues(&mut open).await;
}

const HEAD: &[u8] = b"head";

fn body(index: u64) -> Bytes {
    let length = (index as usize * 37) % 900;
    Bytes::from(vec![index as u8; length])
}

fn append<L: Log>(log: &mut L) -> u64 {
    let index = log.appended() + 1;
    let now = Now { mono_ms: index, wall_ms: index };
    let appended = log.append(now, 1, Bytes::from_static(HEAD), body(index));
    assert!(matches!(appended, Ok(given) if given == index), "an append returns the next index");
    assert_eq!(log.appended(), index);
    index
}

async fn commit_all<L: Log>(log: &mut L) {
    log.flush();
    let mut committed = log.committed();
    while committed < log.appended() {
        let further = log.committed_beyond(committed).await;
        let further = further.unwrap_or_else(|why| unreachable!("a log that works: {why}"));
        assert!(further > committed && further <= log.appended(), "commits are prefixes that grow");
        assert_eq!(further, log.committed());
        committed = further;
    }
    assert_eq!(log.uncommitted_bytes(), 0);
}

async fn indexes_rise_by_one_and_commits_are_prefixes<L: Log>(open: &mut impl FnMut(bool) -> L) {
    let mut log = open(true);
    assert_eq!((log.appended(), log.committed()), (0, 0), "a new log is empty");
    for round in 1..=10 {
        for _ in 0..round {
            append(&mut log);
        }
        assert!(log.uncommitted_bytes() > 0, "uncommitted bytes are counted");
        commit_all(&mut log).await;
    }
    assert_eq!(log.committed(), 55);
    assert!(log.metrics().written_bytes > 0);
}

async fn committed_records_are_readable_whole_and_in_parts<L: Log>(
    open: &mut impl FnMut(bool) -> L,
) {
    let mut log = open(true);
    for _ in 0..50 {
        append(&mut log);
    }
    commit_all(&mut log).await;
    assert_reads(&log);
    let reader = log.reader();
    let beyond = reader.read(RecordRef { index: 51, at: 0, length: 0 });
    assert!(matches!(beyond, Err(LogReadError::NotFound { index: 51 })), "{beyond:?}");
    let too_long = reader.read(RecordRef { index: 3, at: 0, length: 5_000 });
    assert!(matches!(too_long, Err(LogReadError::OutOfRange { .. })), "{too_long:?}");
}

fn assert_reads<L: Log>(log: &L) {
    let reader = log.reader();
    let mut neighbours = reader.neighbours();
    for index in 1..=log.committed() {
        let whole = [HEAD, &body(index)].concat();
        for (at, length) in [(0, whole.len()), (HEAD.len(), whole.len() - HEAD.len()), (1, 2)] {
            let part = RecordRef { index, at: at as u32, length: length as u32 };
            let expected = &whole[at..at + length];
            for read in [reader.read(part), neighbours.read(part), neighbours.read(part)] {
                assert!(
                    matches!(&read, Ok(part) if part[..] == *expected),
                    "{index} {at}: {read:?}"
                );
            }
        }
    }
}

async fn dropped_wait_loses_nothing<L: Log>(open: &mut impl FnMut(bool) -> L) {
    let mut log = open(true);
    for _ in 0..20 {
        append(&mut log);
        log.flush();
        drop(log.committed_beyond(log.committed()));
    }
    commit_all(&mut log).await;
    assert_eq!(log.committed(), 20);
}

async fn reopened_log_continues<L: Log>(open: &mut impl FnMut(bool) -> L) {
    let mut log = open(true);
    for _ in 0..20 {
        append(&mut log);
    }
    commit_all(&mut log).await;
    drop(log);
    for round in 1..=3 {
        let mut log = open(false);
        assert_eq!((log.appended(), log.committed()), (19 + round, 19 + round));
        assert_reads(&log);
        append(&mut log);
        commit_all(&mut log).await;
    }
}
