//! Feeds: links that follow events of jobs, and how far each has read. A feed is a cursor into the
//! store's tail, which stores unread events once for all feeds. A link stores nothing beyond the
//! frame under way.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::limits::{FEED_EVENTS_MAX, FEEDS_MAX};
use longshore_protocol::messages::work::{
    FeedEnd, FeedEvent, FeedEvents, FeedPosition, FromPublisher, RequestError,
};
use longshore_protocol::{LinkId, Path};
use longshore_queue::{Cursor, Event, QueueId, QueueSet, Read, Tail};

/// The approximate size limit of one message of events, in bytes.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// The most bytes of an event beside its queue's path.
const EVENT_BYTES: usize = 48;
/// How often a feed without new events receives its position, so that it resumes from there.
const SILENT_FEED_INTERVAL: Duration = Duration::from_secs(1);

/// The feeds of all links.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    links: HashMap<LinkId, LinkFeeds>,
    /// The tail's position when all feeds were last pumped.
    pumped: Option<FeedPosition>,
    /// Some feed may have more to send without a new event.
    more: bool,
    /// When a feed without new events is to receive its position.
    report_at: Option<Instant>,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct LinkFeeds {
    /// Requested and not started yet.
    requested: Vec<u64>,
    open: Vec<Feed>,
}

#[derive(Debug)]
struct Feed {
    /// The link's request number.
    id: u64,
    queues: QueueSet,
    cursor: Cursor,
    reported_at: Instant,
    /// Its cursor has passed the position that its client received last.
    unreported: bool,
}

/// Where feeds write their messages.
pub(crate) trait FeedSink {
    /// True while events may be written to the link.
    fn has_room(&mut self, link: LinkId) -> bool;
    /// Writes a message to the link.
    fn send(&mut self, link: LinkId, message: &FromPublisher);
}

impl Feeds {
    /// True while there is no feed.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// When [`Feeds::pump`] has work without a new event.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        if self.more { Some(now) } else { self.report_at }
    }

    /// A link requests a feed; [`Feeds::begin`] follows once the answer may be sent. False if the
    /// link has as many feeds as it may. A feed with the same number replaces the older one.
    pub(crate) fn request(&mut self, link: LinkId, id: u64) -> bool {
        self.forget(link, id);
        let feeds = self.links.entry(link).or_default();
        // A link without feeds always has room, so no empty entry stays behind.
        let has_room = feeds.open.len() + feeds.requested.len() < FEEDS_MAX;
        if has_room {
            feeds.requested.push(id);
        }
        has_room
    }

    /// Starts the feed at the position that `tail` returns; none if it was cancelled meanwhile.
    pub(crate) fn begin(
        &mut self,
        (link, id): (LinkId, u64),
        queues: QueueSet,
        after: Option<FeedPosition>,
        tail: &Tail,
        now: Instant,
    ) -> Option<Result<FeedPosition, RequestError>> {
        let feeds = self.links.get_mut(&link)?;
        let position = feeds.requested.iter().position(|&requested| requested == id)?;
        feeds.requested.swap_remove(position);
        Some(match tail.cursor(after) {
            Ok(cursor) => {
                feeds.open.push(Feed { id, queues, cursor, reported_at: now, unreported: false });
                self.more = true;
                Ok(tail.position_of(&cursor))
            }
            Err(refusal) => {
                self.forget(link, id);
                Err(refusal)
            }
        })
    }

    /// A link cancels a feed.
    pub(crate) fn forget(&mut self, link: LinkId, id: u64) {
        if let Some(feeds) = self.links.get_mut(&link) {
            feeds.open.retain(|feed| feed.id != id);
            feeds.requested.retain(|&requested| requested != id);
            if feeds.is_empty() {
                self.links.remove(&link);
            }
        }
    }

    /// A link has ended.
    pub(crate) fn link_lost(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// A link has room for events again.
    pub(crate) fn ready(&mut self) {
        self.more = true;
    }

    /// Writes new events to every link that has room for them.
    pub(crate) fn pump<'a>(
        &mut self,
        tail: &Tail,
        path: impl Fn(QueueId) -> &'a Path,
        outlets: &mut impl FeedSink,
        now: Instant,
    ) {
        let position = tail.position();
        let none_to_report = self.report_at.is_none_or(|at| now < at);
        if self.links.is_empty() {
            // Else the owner would wake for feeds that are gone.
            (self.more, self.report_at) = (false, None);
            return;
        }
        if !self.more && none_to_report && self.pumped == Some(position) {
            return;
        }
        self.pumped = Some(position);
        self.more = false;
        self.report_at = None;
        let Feeds { links, more, report_at, scratch, .. } = self;
        links.retain(|&link, feeds| {
            let mut refused = None;
            let mut position = 0;
            feeds.open.retain_mut(|feed| {
                let pumped = feed.pump(link, tail, &path, outlets, scratch, now);
                match pumped {
                    FeedProgress::CaughtUp => {}
                    FeedProgress::More => *more = true,
                    FeedProgress::NoRoom => refused = refused.or(Some(position)),
                    FeedProgress::Ended => return false,
                }
                // Without room, the feed waits for room, not for the time.
                if feed.unreported && matches!(pumped, FeedProgress::CaughtUp) {
                    let at = feed.reported_at + SILENT_FEED_INTERVAL;
                    *report_at = Some(report_at.map_or(at, |before| before.min(at)));
                }
                position += 1;
                true
            });
            // The feeds that found no room go first next time.
            feeds.open.rotate_left(refused.unwrap_or(0));
            !feeds.is_empty()
        });
    }
}

/// How far a feed came.
enum FeedProgress {
    /// To the end of the tail.
    CaughtUp,
    /// It has more to send and may send it.
    More,
    /// It has more to send, and the link has no room.
    NoRoom,
    /// It fell behind the tail and received its end.
    Ended,
}

/// Buffers that are reused from message to message.
#[derive(Debug, Default)]
struct Scratch {
    events: Vec<Event>,
    path_numbers: HashMap<QueueId, u32>,
}

impl LinkFeeds {
    fn is_empty(&self) -> bool {
        self.requested.is_empty() && self.open.is_empty()
    }
}

impl Feed {
    /// Writes at most one message.
    fn pump<'a>(
        &mut self,
        link: LinkId,
        tail: &Tail,
        path: &impl Fn(QueueId) -> &'a Path,
        outlets: &mut impl FeedSink,
        scratch: &mut Scratch,
        now: Instant,
    ) -> FeedProgress {
        let id = self.id;
        let silent = now.saturating_duration_since(self.reported_at) >= SILENT_FEED_INTERVAL;
        let has_message = tail.has_more(&self.cursor) || self.unreported && silent;
        if !has_message {
            return FeedProgress::CaughtUp;
        }
        if !outlets.has_room(link) {
            return FeedProgress::NoRoom;
        }
        let Feed { queues, cursor, .. } = self;
        let before = *cursor;
        let events = &mut scratch.events;
        let mut read = |cursor: &mut Cursor, most: usize, events: &mut Vec<Event>| {
            events.clear();
            tail.read(cursor, most, |queue| queues.contains(queue, path), events)
        };
        let mut come = read(cursor, FEED_EVENTS_MAX, events);
        let fit = fitting(events, path);
        if fit < events.len() {
            *cursor = before;
            come = read(cursor, fit, events);
        }
        let Ok(Read { upto, more }) = come else {
            outlets.send(link, &FromPublisher::FeedEnded { id, end: FeedEnd::TooOld });
            return FeedProgress::Ended;
        };
        self.unreported = scratch.events.is_empty() && !silent;
        if !self.unreported {
            self.reported_at = now;
            let (paths, events) = scratch.name(path);
            outlets.send(link, &FromPublisher::Feed(FeedEvents { id, upto, paths, events }));
        }
        if more { FeedProgress::More } else { FeedProgress::CaughtUp }
    }
}

/// How many of the first events fit into a message; at least one.
fn fitting<'a>(events: &[Event], path: &impl Fn(QueueId) -> &'a Path) -> usize {
    let mut bytes = 0;
    let fits = |event: &&Event| {
        // As if each event named its own queue: that cuts only messages of very many queues.
        bytes += EVENT_BYTES + path(event.queue).as_str().len();
        bytes <= MESSAGE_BYTES_MAX
    };
    events.iter().take_while(fits).count().max(1)
}

impl Scratch {
    /// The events in their wire form, and the queues that they name.
    fn name<'a>(&mut self, path: &impl Fn(QueueId) -> &'a Path) -> (Vec<Path>, Vec<FeedEvent>) {
        self.path_numbers.clear();
        let mut paths = Vec::new();
        let mut named = |event: &Event| {
            let position = *self.path_numbers.entry(event.queue).or_insert_with(|| {
                paths.push(path(event.queue).clone());
                paths.len() as u32 - 1
            });
            FeedEvent {
                index: event.index,
                at: event.wall_ms,
                job: event.job,
                path: position,
                change: event.change,
                state: event.state,
                retrying: event.retrying,
                attempt: event.attempt,
            }
        };
        let events = self.events.iter().map(&mut named).collect();
        (paths, events)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use longshore_protocol::{Encode, Epoch, FrameWriter, Glob, JobChange, JobId, JobState};

    use super::*;

    const LINK: LinkId = LinkId(1);

    /// Accepts a number of messages, and no more.
    #[derive(Default)]
    struct BoundedSink {
        messages: usize,
        sent: Vec<FromPublisher>,
    }

    impl FeedSink for BoundedSink {
        fn has_room(&mut self, _: LinkId) -> bool {
            self.messages > 0
        }

        fn send(&mut self, _: LinkId, message: &FromPublisher) {
            self.messages = self.messages.saturating_sub(1);
            self.sent.push(message.clone());
        }
    }

    impl BoundedSink {
        fn of(messages: usize) -> BoundedSink {
            BoundedSink { messages, sent: Vec::new() }
        }

        fn events(&self) -> Vec<&FeedEvents> {
            let mut all = Vec::new();
            for sent in &self.sent {
                let FromPublisher::Feed(events) = sent else { panic!("{sent:?}") };
                all.push(events);
            }
            all
        }
    }

    fn event(index: u64, queue: u32) -> Event {
        Event {
            index,
            wall_ms: 1,
            job: JobId([index as u8; 16]),
            queue: QueueId(queue),
            attempt: 0,
            change: JobChange::Created,
            state: Some(JobState::Ready),
            retrying: false,
        }
    }

    fn tail(events: usize) -> Tail {
        let mut tail = Tail::new(events);
        tail.begin(1, Epoch(1));
        tail.extend(std::iter::empty(), 1);
        tail
    }

    fn paths(n: usize) -> Vec<Path> {
        (0..n).map(|n| Path::new(&format!("/jobs/{n}")).unwrap()).collect()
    }

    fn begin(feeds: &mut Feeds, id: u64, pattern: &str, tail: &Tail) {
        assert!(feeds.request(LINK, id));
        let queues = QueueSet::new(Glob::new(pattern).unwrap(), None);
        feeds.begin((LINK, id), queues, None, tail, Instant::now()).unwrap().unwrap();
    }

    #[test]
    fn feed_receives_events_of_its_queues_once_with_its_position() {
        let (mut tail, mut feeds, paths) = (tail(100), Feeds::default(), paths(3));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        begin(&mut feeds, 7, "/jobs/{0,2}", &tail);
        tail.extend([event(2, 0), event(2, 1), event(3, 2)].into_iter(), 4);
        let mut sink = BoundedSink::of(10);
        feeds.pump(&tail, path, &mut sink, Instant::now());
        feeds.pump(&tail, path, &mut sink, Instant::now());
        let [message] = sink.events()[..] else { panic!("{:?}", sink.sent) };
        assert_eq!((message.id, message.upto.index), (7, 4));
        assert_eq!(message.paths, [paths[0].clone(), paths[2].clone()]);
        assert_eq!(
            message.events.iter().map(|e| (e.index, e.path)).collect::<Vec<_>>(),
            [(2, 0), (3, 1)]
        );
    }

    #[test]
    fn silent_feed_receives_its_position_within_a_second() {
        let (mut tail, mut feeds, paths) = (tail(100), Feeds::default(), paths(2));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        let (requested, mut sink) = (Instant::now(), BoundedSink::of(10));
        begin(&mut feeds, 7, "/jobs/0", &tail);
        let begun = Instant::now();
        feeds.pump(&tail, path, &mut sink, begun);
        assert_eq!(feeds.next(begun), None, "its client has its position");
        tail.extend([event(2, 1)].into_iter(), 2);
        feeds.pump(&tail, path, &mut sink, begun);
        assert_eq!(sink.sent, [], "not at once");
        let report_time = feeds.next(begun).unwrap();
        assert!(
            report_time >= requested + SILENT_FEED_INTERVAL
                && report_time <= begun + SILENT_FEED_INTERVAL
        );
        feeds.pump(&tail, path, &mut sink, report_time - Duration::from_nanos(1));
        assert_eq!(sink.sent, []);
        feeds.pump(&tail, path, &mut sink, report_time);
        let [message] = sink.events()[..] else { panic!("{:?}", sink.sent) };
        assert_eq!((message.upto.index, message.events.len()), (2, 0));
        assert_eq!(feeds.next(report_time), None, "sent once");
        // A feed that leaves takes its deadline with it.
        tail.extend([event(3, 1)].into_iter(), 3);
        feeds.pump(&tail, path, &mut sink, report_time);
        assert!(feeds.next(report_time).is_some());
        feeds.link_lost(LINK);
        feeds.pump(&tail, path, &mut sink, report_time + SILENT_FEED_INTERVAL);
        assert_eq!(feeds.next(report_time), None);
    }

    #[test]
    fn without_a_feed_nothing_is_due() {
        let (tail, mut feeds, paths) = (tail(10), Feeds::default(), paths(1));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        let now = Instant::now();
        begin(&mut feeds, 1, "/**", &tail);
        feeds.link_lost(LINK);
        // Its link reported room before it ended.
        feeds.ready();
        assert_eq!(feeds.next(now), Some(now));
        feeds.pump(&tail, path, &mut BoundedSink::of(1), now);
        assert_eq!(feeds.next(now), None);
    }

    #[test]
    fn feeds_that_found_no_room_go_first_next_time() {
        let (mut tail, mut feeds, paths) = (tail(100), Feeds::default(), paths(1));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        for id in 1..=3 {
            begin(&mut feeds, id, "/**", &tail);
        }
        let mut order = Vec::new();
        for index in 2..8 {
            tail.extend([event(index, 0)].into_iter(), index);
            let mut sink = BoundedSink::of(1);
            feeds.ready();
            feeds.pump(&tail, path, &mut sink, Instant::now());
            order.extend(sink.events().iter().map(|message| message.id));
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 3], "each in its turn");
    }

    #[test]
    fn feed_that_falls_behind_ends_and_others_continue() {
        let (mut tail, mut feeds, paths) = (tail(10), Feeds::default(), paths(1));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        begin(&mut feeds, 1, "/**", &tail);
        for index in 2..40 {
            tail.extend([event(index, 0)].into_iter(), index);
        }
        begin(&mut feeds, 2, "/**", &tail);
        let mut sink = BoundedSink::of(10);
        feeds.pump(&tail, path, &mut sink, Instant::now());
        assert_eq!(sink.sent, [FromPublisher::FeedEnded { id: 1, end: FeedEnd::TooOld }]);
        tail.extend([event(40, 0)].into_iter(), 40);
        feeds.pump(&tail, path, &mut sink, Instant::now());
        assert!(matches!(&sink.sent[1], FromPublisher::Feed(message) if message.id == 2));
        feeds.forget(LINK, 2);
        assert!(feeds.is_empty());
    }

    #[test]
    fn many_events_of_one_command_are_split_into_bounded_messages() {
        const EVENTS: u32 = 25_000;
        let (mut tail, mut feeds) = (tail(65_536), Feeds::default());
        let long = "x".repeat(250);
        let paths: Vec<Path> = (0..EVENTS)
            .map(|n| Path::new(&format!("/{long}/{long}/{long}/{n}")).unwrap())
            .collect();
        let path = |queue: QueueId| &paths[queue.0 as usize];
        begin(&mut feeds, 1, "/**", &tail);
        tail.extend((0..EVENTS).map(|n| event(2, n)), 2);
        let mut message = HashSet::new();
        let mut messages = 0;
        while messages == 0 || feeds.more {
            let mut sink = BoundedSink::of(1);
            feeds.pump(&tail, path, &mut sink, Instant::now());
            let [events] = sink.events()[..] else { panic!("one message at a time") };
            let mut out = FrameWriter::new();
            events.encode(&mut out);
            assert!(out.body_len() <= MESSAGE_BYTES_MAX, "{} bytes", out.body_len());
            for event in &events.events {
                assert!(message.insert(events.paths[event.path as usize].clone()), "sent twice");
            }
            assert_eq!(events.upto.index, if feeds.more { 1 } else { 2 });
            messages += 1;
        }
        assert_eq!(message.len(), EVENTS as usize);
        assert!(messages > 10);
    }

    #[test]
    fn feed_cancelled_before_it_begins_does_not_begin() {
        let (tail, mut feeds) = (tail(10), Feeds::default());
        assert!(feeds.request(LINK, 1));
        assert!(!feeds.is_empty(), "events are recorded from here on");
        feeds.forget(LINK, 1);
        let everything = QueueSet::new(Glob::everything(), None);
        assert!(feeds.begin((LINK, 1), everything, None, &tail, Instant::now()).is_none());
        assert!(feeds.is_empty());
    }

    #[test]
    fn feeds_per_link_are_limited_and_refused_ones_leave_nothing() {
        let (tail, mut feeds) = (tail(10), Feeds::default());
        for id in 0..FEEDS_MAX as u64 {
            assert!(feeds.request(LINK, id));
        }
        assert!(!feeds.request(LINK, 99));
        assert!(feeds.request(LINK, 3), "the same number replaces its feed");
        let gone = FeedPosition { epoch: Epoch(1), index: 100 };
        let begun = feeds.begin(
            (LINK, 3),
            QueueSet::new(Glob::everything(), None),
            Some(gone),
            &tail,
            Instant::now(),
        );
        assert_eq!(begun, Some(Err(RequestError::Rewound)));
        assert!(feeds.request(LINK, 99), "there is room again");
        feeds.link_lost(LINK);
        assert!(feeds.is_empty());
    }
}
