//! The tail against a complete list.

use longshore_protocol::{JobChange, JobId, PathSet};
use proptest::prelude::*;

use super::*;

fn event(index: u64, n: u64) -> Event {
    Event {
        index,
        wall_ms: n,
        job: JobId::default(),
        queue: QueueId((n % 3) as u32),
        attempt: 0,
        change: JobChange::Created,
        state: None,
        retrying: false,
    }
}

fn extend_with(tail: &mut Tail, index: u64, events: u64) {
    tail.extend((0..events).map(|n| event(index, n)), index);
}

fn at(epoch: u64, index: u64) -> Option<FeedPosition> {
    Some(FeedPosition { epoch: Epoch(epoch), index })
}

/// The indexes of all events after a position.
fn after(tail: &Tail, position: Option<FeedPosition>) -> Result<Vec<u64>, RequestError> {
    let mut out = Vec::new();
    let mut cursor = tail.cursor(position)?;
    let read = tail.read(&mut cursor, usize::MAX, |_| true, &mut out)?;
    assert_eq!(read, Read { upto: tail.position(), more: false });
    Ok(out.iter().map(|event| event.index).collect())
}

#[test]
fn reader_gets_events_after_its_position_and_new_ones_only_later() {
    let mut tail = Tail::new(10);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 0);
    for index in 2..=4 {
        extend_with(&mut tail, index, 2);
    }
    assert_eq!(after(&tail, at(1, 2)), Ok(vec![3, 3, 4, 4]));
    assert_eq!(after(&tail, at(1, 4)), Ok(vec![]));
    let mut cursor = tail.cursor(None).unwrap();
    assert!(!tail.has_more(&cursor));
    extend_with(&mut tail, 5, 1);
    assert!(tail.has_more(&cursor));
    let mut out = Vec::new();
    tail.read(&mut cursor, 10, |_| true, &mut out).unwrap();
    assert_eq!(out, [event(5, 0)]);
}

#[test]
fn reading_selected_queues_advances_past_the_others() {
    let mut tail = Tail::new(10);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 3);
    extend_with(&mut tail, 2, 2);
    let (mut out, mut cursor) = (Vec::new(), tail.cursor(at(1, 0)).unwrap());
    let read = tail.read(&mut cursor, 10, |queue| queue.0 == 2, &mut out).unwrap();
    assert_eq!(out, [event(1, 2)]);
    assert_eq!(read.upto.index, 2);
}

#[test]
fn position_within_a_large_command_resumes_before_it() {
    let mut tail = Tail::new(10);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 2);
    extend_with(&mut tail, 2, 4);
    let (mut out, mut cursor) = (Vec::new(), tail.cursor(at(1, 0)).unwrap());
    let read = tail.read(&mut cursor, 4, |_| true, &mut out).unwrap();
    assert_eq!((out.len(), read.upto.index, read.more), (4, 1, true), "two of the second are left");
    let read = tail.read(&mut cursor, 4, |_| true, &mut out).unwrap();
    assert_eq!((out.len(), read.upto.index, read.more), (6, 2, false), "and follow without a gap");
}

#[test]
fn reader_behind_the_ring_gets_too_old() {
    let mut tail = Tail::new(4);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 0);
    let mut cursor = tail.cursor(None).unwrap();
    extend_with(&mut tail, 2, 2);
    extend_with(&mut tail, 3, 2);
    let mut in_time = cursor;
    assert!(tail.read(&mut in_time, 10, |_| true, &mut Vec::new()).is_ok());
    extend_with(&mut tail, 4, 1);
    let mut out = Vec::new();
    let late = tail.read(&mut cursor, 10, |_| false, &mut out);
    assert_eq!(late, Err(RequestError::TooOld), "also a reader of other queues");
    assert_eq!(after(&tail, at(1, 1)), Err(RequestError::TooOld));
    assert_eq!(after(&tail, at(1, 2)), Ok(vec![3, 3, 4]), "all of a command's events or none");
    assert_eq!(tail.read(&mut in_time, 10, |_| true, &mut out).map(|read| read.more), Ok(false));
    assert_eq!(out, [event(4, 0)]);
}

#[test]
fn command_larger_than_the_ring_retains_no_events() {
    let mut tail = Tail::new(4);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 2);
    extend_with(&mut tail, 2, 9);
    assert!(tail.is_empty());
    assert_eq!(after(&tail, at(1, 1)), Err(RequestError::TooOld));
    assert_eq!(after(&tail, at(1, 2)), Ok(vec![]));
    extend_with(&mut tail, 3, 4);
    assert_eq!(after(&tail, at(1, 2)), Ok(vec![3; 4]));
}

#[test]
fn positions_lost_by_a_start_are_rewound() {
    let mut tail = Tail::new(100);
    tail.begin(1, Epoch(1));
    for index in 1..=5 {
        extend_with(&mut tail, index, 1);
    }
    // Commands 6 to 8 of the first start are lost: the second one reuses their indexes.
    tail.begin(6, Epoch(2));
    extend_with(&mut tail, 6, 0);
    for index in 7..=9 {
        extend_with(&mut tail, index, 1);
    }
    assert_eq!(after(&tail, at(1, 5)), Ok(vec![7, 8, 9]));
    assert_eq!(after(&tail, at(1, 6)), Err(RequestError::Rewound));
    assert_eq!(after(&tail, at(1, 8)), Err(RequestError::Rewound));
    assert_eq!(after(&tail, at(2, 8)), Ok(vec![9]));
    assert_eq!(after(&tail, at(2, 10)), Err(RequestError::Rewound), "from a future position");
    assert_eq!(after(&tail, at(3, 2)), Err(RequestError::Rewound), "from an unknown start");
    // Skipped epochs behave like any other.
    tail.begin(10, Epoch(50));
    extend_with(&mut tail, 10, 0);
    assert_eq!(after(&tail, at(2, 9)), Ok(vec![]));
    assert_eq!(after(&tail, at(2, 10)), Err(RequestError::Rewound));
}

#[test]
fn rewind_is_detected_after_its_start_left_the_ring() {
    let mut tail = Tail::new(2);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 0);
    tail.begin(2, Epoch(2));
    for index in 2..=9 {
        extend_with(&mut tail, index, 1);
    }
    assert_eq!(after(&tail, at(1, 8)), Err(RequestError::Rewound));
    assert_eq!(after(&tail, at(2, 8)), Ok(vec![9]));
}

#[test]
fn only_positions_before_a_snapshot_are_too_old() {
    let mut tail = Tail::new(10);
    tail.resume(7, Epoch(3));
    assert_eq!(tail.position(), FeedPosition { epoch: Epoch(3), index: 7 });
    assert_eq!(after(&tail, at(3, 6)), Err(RequestError::TooOld));
    assert_eq!(after(&tail, at(1, 2)), Err(RequestError::TooOld));
    assert_eq!(after(&tail, at(3, 7)), Ok(vec![]));
    assert_eq!(after(&tail, at(2, 7)), Err(RequestError::Rewound), "its command 7 was another");
    assert_eq!(after(&tail, at(3, 8)), Err(RequestError::Rewound), "it does not exist yet");
    assert_eq!(after(&tail, at(4, 5)), Err(RequestError::Rewound));
    extend_with(&mut tail, 8, 2);
    tail.begin(9, Epoch(4));
    extend_with(&mut tail, 9, 1);
    assert_eq!(after(&tail, at(3, 7)), Ok(vec![8, 8, 9]));
    assert_eq!(after(&tail, at(3, 8)), Ok(vec![9]));
    assert_eq!(after(&tail, at(3, 9)), Err(RequestError::Rewound));
    assert_eq!(after(&tail, at(3, 6)), Err(RequestError::TooOld));
}

#[test]
fn without_recording_only_the_present_can_be_followed() {
    let mut tail = Tail::new(10);
    tail.begin(1, Epoch(1));
    extend_with(&mut tail, 1, 3);
    let mut old = tail.cursor(None).unwrap();
    tail.stop();
    extend_with(&mut tail, 2, 0);
    extend_with(&mut tail, 3, 0);
    assert!(tail.is_empty());
    // Commands 4 and 5 were applied and not yet added when recording starts.
    tail.record_beyond(5);
    extend_with(&mut tail, 5, 0);
    let mut fresh = tail.cursor(None).unwrap();
    extend_with(&mut tail, 6, 2);
    let mut out = Vec::new();
    assert_eq!(tail.read(&mut old, 10, |_| true, &mut out), Err(RequestError::TooOld));
    assert_eq!(tail.read(&mut fresh, 10, |_| true, &mut out).unwrap().upto.index, 6);
    assert_eq!(out, [event(6, 0), event(6, 1)]);
    assert_eq!(after(&tail, at(1, 4)), Err(RequestError::TooOld));
}

#[test]
fn starts_without_events_take_bounded_memory() {
    let mut tail = Tail::new(10);
    for start in 1..=10_000 {
        tail.begin(start, Epoch(start));
        extend_with(&mut tail, start, 0);
    }
    assert!(tail.starts.len() <= STARTS_MAX);
    assert_eq!(after(&tail, at(9_999, 9_999)), Ok(vec![]));
    assert_eq!(after(&tail, at(9_999, 10_000)), Err(RequestError::Rewound));
    assert_eq!(after(&tail, at(5, 5)), Err(RequestError::TooOld));
}

#[test]
fn queue_set_matches_queues_by_path() {
    let paths: Vec<Path> =
        ["/a/x", "/b/x", "/a/y"].iter().map(|path| path.parse().unwrap()).collect();
    let deny = vec!["/*/y".parse().unwrap()];
    let within = PathSet { allow: vec!["/**".parse().unwrap()], deny };
    for (within, expected) in
        [(None, [true, true, false]), (Some(Arc::new(within)), [false, true, false])]
    {
        let mut set = QueueSet::new("/a/*".parse().unwrap(), within);
        let mut contains = |n| set.contains(QueueId(n), |queue| &paths[queue.0 as usize]);
        assert_eq!([contains(2), contains(0), contains(1)], expected);
    }
}

#[derive(Clone, Debug)]
enum TailStep {
    /// This many commands, each with this many events.
    Extend(u64, u64),
    Open,
    OpenAt(u64),
    Read(usize, usize, u32),
    /// This many commands are lost; the log is replayed from its beginning, or from a snapshot this
    /// many commands before its end.
    Restart(u64, Option<u64>),
    Stop,
    Record,
}

fn steps() -> impl Strategy<Value = Vec<TailStep>> {
    let step = prop_oneof![
        8 => (1..4u64, 0..6u64).prop_map(|(commands, events)| TailStep::Extend(commands, events)),
        2 => Just(TailStep::Open),
        2 => (0..30u64).prop_map(TailStep::OpenAt),
        8 => (0..5usize, 0..8usize, 0..8u32)
            .prop_map(|(n, most, queues)| TailStep::Read(n, most, queues)),
        1 => (0..4u64, proptest::option::of(0..9u64))
            .prop_map(|(lost, back)| TailStep::Restart(lost, back)),
        1 => Just(TailStep::Stop),
        1 => Just(TailStep::Record),
    ];
    proptest::collection::vec(step, 1..80)
}

/// A reader of the complete list.
struct ModelReader {
    cursor: Cursor,
    /// The number of events that it has passed.
    passed: usize,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A reader without `TooOld` reads the selected part of the complete list, event by event.
    #[test]
    fn readers_never_see_a_gap(steps in steps()) {
        const ROOM: usize = 16;
        let mut tail = Tail::new(ROOM);
        tail.begin(1, Epoch(1));
        extend_with(&mut tail, 1, 0);
        // All events ever, recorded or not, that the log still has.
        let mut list: Vec<Event> = Vec::new();
        let (mut index, mut epoch) = (1, 1);
        let mut starts = vec![(1, 1)];
        let mut readers: Vec<ModelReader> = Vec::new();
        for step in steps {
            match step {
                TailStep::Extend(commands, events) => {
                    for _ in 0..commands {
                        index += 1;
                        let new: Vec<Event> = (0..events).map(|n| event(index, n)).collect();
                        list.extend(&new);
                        // The state creates events only while they are recorded.
                        let reported = if tail.is_recording() { new } else { Vec::new() };
                        tail.extend(reported.into_iter(), index);
                    }
                }
                TailStep::Open => {
                    let cursor = tail.cursor(None).unwrap();
                    readers.push(ModelReader { cursor, passed: list.len() });
                }
                TailStep::OpenAt(back) => {
                    let from = index.saturating_sub(back);
                    match tail.cursor(at(epoch, from)) {
                        Ok(cursor) => {
                            let passed = list.partition_point(|event| event.index <= from);
                            readers.push(ModelReader { cursor, passed });
                        }
                        Err(why) => {
                            prop_assert_eq!(why, RequestError::TooOld);
                            // Refused only if the ring could not contain it, or if nothing was
                            // recorded.
                            let since = list.iter().filter(|event| event.index > from).count();
                            prop_assert!(since > ROOM || tail.floor > from);
                        }
                    }
                }
                TailStep::Read(n, most, queues) if n < readers.len() => {
                    let selects = |queue: QueueId| queues & (1 << queue.0) != 0;
                    let ModelReader { cursor, passed } = &mut readers[n];
                    let (mut out, before) = (Vec::new(), *cursor);
                    match tail.read(cursor, most, selects, &mut out) {
                        Ok(Read { upto, more }) => {
                            let rest = list[*passed..].iter().filter(|event| selects(event.queue));
                            let plain: Vec<Event> = rest.clone().take(most).copied().collect();
                            prop_assert_eq!(&out, &plain);
                            prop_assert_eq!(more, rest.count() > most);
                            // Every selected event up to there was read.
                            let unread = list[*passed..]
                                .iter()
                                .filter(|event| selects(event.queue))
                                .skip(most);
                            prop_assert!(unread.clone().all(|event| event.index > upto.index));
                            *passed = match list[*passed..]
                                .iter()
                                .enumerate()
                                .filter(|(_, e)| selects(e.queue))
                                .nth(most)
                            {
                                Some((position, _)) => *passed + position,
                                None => list.len(),
                            };
                        }
                        Err(why) => {
                            prop_assert_eq!(why, RequestError::TooOld);
                            prop_assert_eq!(*cursor, before);
                            readers.remove(n);
                        }
                    }
                }
                TailStep::Restart(lost, back) => {
                    // A restart replays the log without its last commands, and records all events.
                    let last = index.saturating_sub(lost).max(1);
                    list.retain(|event| event.index <= last);
                    starts.retain(|&(at, _)| at <= last);
                    starts.push((last + 1, epoch + 1));
                    tail = Tail::new(ROOM);
                    let snapshot = back.map_or(0, |back| last.saturating_sub(back));
                    if let Some(&(_, start)) = starts.iter().rfind(|start| start.0 <= snapshot) {
                        tail.resume(snapshot, Epoch(start));
                        prop_assert_eq!(
                            tail.position(),
                            FeedPosition { epoch: Epoch(start), index: snapshot }
                        );
                    }
                    for command in snapshot + 1..=last + 1 {
                        for &(at, start) in starts.iter().filter(|start| start.0 == command) {
                            tail.begin(at, Epoch(start));
                        }
                        let events = list.iter().filter(|event| event.index == command);
                        tail.extend(events.copied(), command);
                    }
                    for seen in last + 1..=index {
                        prop_assert_eq!(tail.cursor(at(epoch, seen)), Err(RequestError::Rewound));
                    }
                    (epoch, index) = (epoch + 1, last + 1);
                    readers.clear();
                }
                TailStep::Stop => tail.stop(),
                TailStep::Record => tail.record_beyond(index),
                TailStep::Read(..) => {}
            }
            prop_assert!(tail.len() <= ROOM);
        }
    }
}
