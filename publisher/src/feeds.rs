//! Feeds: who follows what happens to jobs, and how far each has read. A feed is a cursor into the
//! store's tail; what it has not read is kept there once for all of them, and nothing is kept per
//! link beyond the frame under way.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_protocol::limits::{FEED_EVENTS_MAX, FEEDS_MAX};
use longshore_protocol::messages::work::{
    FeedEnd, FeedEvent, FeedEvents, FeedPosition, FromPublisher, RequestError,
};
use longshore_protocol::{Glob, LinkId, Path};
use longshore_queue::{Cursor, Event, QueueId, QueueSet, Read, Tail};

/// Bytes of one message of events, about.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// What an event takes beside its queue's path, at most, in bytes.
const EVENT_BYTES: usize = 48;
/// A feed whose queues are silent is told at most so often how far it has come, so that it resumes
/// from there.
const SILENT_FEEDS_TOLD_EVERY: Duration = Duration::from_secs(1);

/// The feeds of all links.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    links: HashMap<LinkId, LinkFeeds>,
    /// The tail's position when all feeds were last pumped.
    pumped: Option<FeedPosition>,
    /// Some feed may go on though nothing new has happened.
    more: bool,
    /// When a silent feed is to be told how far it has come, though nothing new happens until then.
    tell_at: Option<Instant>,
    scratch: Scratch,
}

#[derive(Debug, Default)]
struct LinkFeeds {
    /// Asked for, and not begun yet.
    asked: Vec<u64>,
    open: Vec<Feed>,
}

#[derive(Debug)]
struct Feed {
    /// The link's number for its request.
    id: u64,
    queues: QueueSet,
    cursor: Cursor,
    told_at: Instant,
    /// It has come further than it was told.
    untold: bool,
}

/// Where a feed's messages go.
pub(crate) trait Outlets {
    /// True while events may be written for the link.
    fn has_room(&mut self, link: LinkId) -> bool;
    /// Writes a message for the link.
    fn say(&mut self, link: LinkId, message: &FromPublisher);
}

impl Feeds {
    /// True while there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// When [`Feeds::pump`] has something to do though nothing new has happened.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        if self.more { Some(now) } else { self.tell_at }
    }

    /// A link asks for a feed: [`Feeds::begin`] follows once the answer may leave. False when it
    /// has as many as it may. The same number again takes the place of the feed before.
    pub(crate) fn ask(&mut self, link: LinkId, id: u64) -> bool {
        self.forget(link, id);
        let feeds = self.links.entry(link).or_default();
        // A link without any has room: no empty entry stays behind.
        let has_room = feeds.open.len() + feeds.asked.len() < FEEDS_MAX;
        if has_room {
            feeds.asked.push(id);
        }
        has_room
    }

    /// The feed begins where `tail` says that it does; none when it was forgotten meanwhile.
    pub(crate) fn begin(
        &mut self,
        (link, id): (LinkId, u64),
        pattern: Glob,
        after: Option<FeedPosition>,
        tail: &Tail,
        now: Instant,
    ) -> Option<Result<FeedPosition, RequestError>> {
        let feeds = self.links.get_mut(&link)?;
        let place = feeds.asked.iter().position(|&asked| asked == id)?;
        feeds.asked.swap_remove(place);
        Some(match tail.cursor(after) {
            Ok(cursor) => {
                let queues = QueueSet::new(pattern);
                feeds.open.push(Feed { id, queues, cursor, told_at: now, untold: false });
                self.more = true;
                Ok(tail.position_of(&cursor))
            }
            Err(refusal) => {
                self.forget(link, id);
                Err(refusal)
            }
        })
    }

    /// A link wants that feed no more.
    pub(crate) fn forget(&mut self, link: LinkId, id: u64) {
        if let Some(feeds) = self.links.get_mut(&link) {
            feeds.open.retain(|feed| feed.id != id);
            feeds.asked.retain(|&asked| asked != id);
            if feeds.is_empty() {
                self.links.remove(&link);
            }
        }
    }

    /// A link is gone.
    pub(crate) fn link_lost(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// A link has room for events again.
    pub(crate) fn ready(&mut self) {
        self.more = true;
    }

    /// Writes what has happened to every link that has room for it.
    pub(crate) fn pump<'a>(
        &mut self,
        tail: &Tail,
        path: impl Fn(QueueId) -> &'a Path,
        outlets: &mut impl Outlets,
        now: Instant,
    ) {
        let position = tail.position();
        let is_told = self.tell_at.is_none_or(|at| now < at);
        if self.links.is_empty() {
            self.tell_at = None;
            return;
        }
        if !self.more && is_told && self.pumped == Some(position) {
            return;
        }
        self.pumped = Some(position);
        self.more = false;
        self.tell_at = None;
        let Feeds { links, more, tell_at, scratch, .. } = self;
        links.retain(|&link, feeds| {
            let mut refused = None;
            let mut place = 0;
            feeds.open.retain_mut(|feed| {
                let pumped = feed.pump(link, tail, &path, outlets, scratch, now);
                match pumped {
                    Pumped::Even => {}
                    Pumped::More => *more = true,
                    Pumped::NoRoom => refused = refused.or(Some(place)),
                    Pumped::Ended => return false,
                }
                // Without room, the room to come is what it waits for.
                if feed.untold && matches!(pumped, Pumped::Even) {
                    let at = feed.told_at + SILENT_FEEDS_TOLD_EVERY;
                    *tell_at = Some(tell_at.map_or(at, |before| before.min(at)));
                }
                place += 1;
                true
            });
            // The next room is for those that found none now.
            feeds.open.rotate_left(refused.unwrap_or(0));
            !feeds.is_empty()
        });
    }
}

/// How far a feed came.
enum Pumped {
    /// To the present.
    Even,
    /// It has more to say, and may.
    More,
    /// It has more to say, and has to wait.
    NoRoom,
    /// It was told that it is too old.
    Ended,
}

/// Kept from message to message.
#[derive(Debug, Default)]
struct Scratch {
    events: Vec<Event>,
    places: HashMap<QueueId, u32>,
}

impl LinkFeeds {
    fn is_empty(&self) -> bool {
        self.asked.is_empty() && self.open.is_empty()
    }
}

impl Feed {
    /// Writes one message, if there is something to say.
    fn pump<'a>(
        &mut self,
        link: LinkId,
        tail: &Tail,
        path: &impl Fn(QueueId) -> &'a Path,
        outlets: &mut impl Outlets,
        scratch: &mut Scratch,
        now: Instant,
    ) -> Pumped {
        let id = self.id;
        let silent = now.saturating_duration_since(self.told_at) >= SILENT_FEEDS_TOLD_EVERY;
        let is_due = tail.is_beyond(&self.cursor) || self.untold && silent;
        if !is_due {
            return Pumped::Even;
        }
        if !outlets.has_room(link) {
            return Pumped::NoRoom;
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
            outlets.say(link, &FromPublisher::FeedEnded { id, end: FeedEnd::TooOld });
            return Pumped::Ended;
        };
        self.untold = scratch.events.is_empty() && !silent;
        if !self.untold {
            self.told_at = now;
            let (paths, events) = scratch.name(path);
            outlets.say(link, &FromPublisher::Feed(FeedEvents { id, upto, paths, events }));
        }
        if more { Pumped::More } else { Pumped::Even }
    }
}

/// How many of the first events fit into a message; at least one.
fn fitting<'a>(events: &[Event], path: &impl Fn(QueueId) -> &'a Path) -> usize {
    let mut bytes = 0;
    let fits = |event: &&Event| {
        // As if each event named its own queue: only messages of very many queues are cut by it.
        bytes += EVENT_BYTES + path(event.queue).as_str().len();
        bytes <= MESSAGE_BYTES_MAX
    };
    events.iter().take_while(fits).count().max(1)
}

impl Scratch {
    /// The events as a client reads them, and the queues that they name.
    fn name<'a>(&mut self, path: &impl Fn(QueueId) -> &'a Path) -> (Vec<Path>, Vec<FeedEvent>) {
        self.places.clear();
        let mut paths = Vec::new();
        let mut named = |event: &Event| {
            let place = *self.places.entry(event.queue).or_insert_with(|| {
                paths.push(path(event.queue).clone());
                paths.len() as u32 - 1
            });
            FeedEvent {
                index: event.index,
                at: event.wall_ms,
                job: event.job,
                path: place,
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

    use longshore_protocol::{Encode, Epoch, FrameWriter, JobChange, JobId, JobState};

    use super::*;

    const LINK: LinkId = LinkId(1);

    /// Takes so many messages, and no more.
    #[derive(Default)]
    struct Room {
        messages: usize,
        said: Vec<FromPublisher>,
    }

    impl Outlets for Room {
        fn has_room(&mut self, _: LinkId) -> bool {
            self.messages > 0
        }

        fn say(&mut self, _: LinkId, message: &FromPublisher) {
            self.messages = self.messages.saturating_sub(1);
            self.said.push(message.clone());
        }
    }

    impl Room {
        fn of(messages: usize) -> Room {
            Room { messages, said: Vec::new() }
        }

        fn events(&self) -> Vec<&FeedEvents> {
            let mut all = Vec::new();
            for said in &self.said {
                let FromPublisher::Feed(events) = said else { panic!("{said:?}") };
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
        assert!(feeds.ask(LINK, id));
        let pattern = Glob::new(pattern).unwrap();
        feeds.begin((LINK, id), pattern, None, tail, Instant::now()).unwrap().unwrap();
    }

    #[test]
    fn a_feed_is_told_its_queues_events_once_and_how_far_it_is() {
        let (mut tail, mut feeds, paths) = (tail(100), Feeds::default(), paths(3));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        begin(&mut feeds, 7, "/jobs/{0,2}", &tail);
        tail.extend([event(2, 0), event(2, 1), event(3, 2)].into_iter(), 4);
        let mut room = Room::of(10);
        feeds.pump(&tail, path, &mut room, Instant::now());
        feeds.pump(&tail, path, &mut room, Instant::now());
        let [told] = room.events()[..] else { panic!("{:?}", room.said) };
        assert_eq!((told.id, told.upto.index), (7, 4));
        assert_eq!(told.paths, [paths[0].clone(), paths[2].clone()]);
        assert_eq!(
            told.events.iter().map(|e| (e.index, e.path)).collect::<Vec<_>>(),
            [(2, 0), (3, 1)]
        );
    }

    #[test]
    fn a_silent_feed_is_told_where_it_is_within_a_second_though_nothing_more_happens() {
        let (mut tail, mut feeds, paths) = (tail(100), Feeds::default(), paths(2));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        let (asked, mut room) = (Instant::now(), Room::of(10));
        begin(&mut feeds, 7, "/jobs/0", &tail);
        let begun = Instant::now();
        feeds.pump(&tail, path, &mut room, begun);
        assert_eq!(feeds.next(begun), None, "it knows where it is");
        tail.extend([event(2, 1)].into_iter(), 2);
        feeds.pump(&tail, path, &mut room, begun);
        assert_eq!(room.said, [], "not at once");
        let due = feeds.next(begun).unwrap();
        assert!(due >= asked + SILENT_FEEDS_TOLD_EVERY && due <= begun + SILENT_FEEDS_TOLD_EVERY);
        feeds.pump(&tail, path, &mut room, due - Duration::from_nanos(1));
        assert_eq!(room.said, []);
        feeds.pump(&tail, path, &mut room, due);
        let [told] = room.events()[..] else { panic!("{:?}", room.said) };
        assert_eq!((told.upto.index, told.events.len()), (2, 0));
        assert_eq!(feeds.next(due), None, "once");
        // One that leaves takes its deadline along.
        tail.extend([event(3, 1)].into_iter(), 3);
        feeds.pump(&tail, path, &mut room, due);
        assert!(feeds.next(due).is_some());
        feeds.link_lost(LINK);
        feeds.pump(&tail, path, &mut room, due + SILENT_FEEDS_TOLD_EVERY);
        assert_eq!(feeds.next(due), None);
    }

    #[test]
    fn without_room_nothing_is_said_and_the_next_room_goes_to_the_one_that_found_none() {
        let (mut tail, mut feeds, paths) = (tail(100), Feeds::default(), paths(1));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        for id in 1..=3 {
            begin(&mut feeds, id, "/**", &tail);
        }
        let mut order = Vec::new();
        for index in 2..8 {
            tail.extend([event(index, 0)].into_iter(), index);
            let mut room = Room::of(1);
            feeds.ready();
            feeds.pump(&tail, path, &mut room, Instant::now());
            order.extend(room.events().iter().map(|told| told.id));
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 3], "each in its turn");
    }

    #[test]
    fn a_feed_that_fell_behind_is_told_so_and_ends_and_the_others_go_on() {
        let (mut tail, mut feeds, paths) = (tail(10), Feeds::default(), paths(1));
        let path = |queue: QueueId| &paths[queue.0 as usize];
        begin(&mut feeds, 1, "/**", &tail);
        for index in 2..40 {
            tail.extend([event(index, 0)].into_iter(), index);
        }
        begin(&mut feeds, 2, "/**", &tail);
        let mut room = Room::of(10);
        feeds.pump(&tail, path, &mut room, Instant::now());
        assert_eq!(room.said, [FromPublisher::FeedEnded { id: 1, end: FeedEnd::TooOld }]);
        tail.extend([event(40, 0)].into_iter(), 40);
        feeds.pump(&tail, path, &mut room, Instant::now());
        assert!(matches!(&room.said[1], FromPublisher::Feed(told) if told.id == 2));
        feeds.forget(LINK, 2);
        assert!(feeds.is_empty());
    }

    #[test]
    fn one_command_of_many_events_is_told_in_messages_of_bounded_size_without_a_gap() {
        const EVENTS: u32 = 25_000;
        let (mut tail, mut feeds) = (tail(65_536), Feeds::default());
        let long = "x".repeat(250);
        let paths: Vec<Path> = (0..EVENTS)
            .map(|n| Path::new(&format!("/{long}/{long}/{long}/{n}")).unwrap())
            .collect();
        let path = |queue: QueueId| &paths[queue.0 as usize];
        begin(&mut feeds, 1, "/**", &tail);
        tail.extend((0..EVENTS).map(|n| event(2, n)), 2);
        let mut told = HashSet::new();
        let mut messages = 0;
        while messages == 0 || feeds.more {
            let mut room = Room::of(1);
            feeds.pump(&tail, path, &mut room, Instant::now());
            let [events] = room.events()[..] else { panic!("one message at a time") };
            let mut out = FrameWriter::new();
            events.encode(&mut out);
            assert!(out.body_len() <= MESSAGE_BYTES_MAX, "{} bytes", out.body_len());
            for event in &events.events {
                assert!(told.insert(events.paths[event.path as usize].clone()), "told twice");
            }
            assert_eq!(events.upto.index, if feeds.more { 1 } else { 2 });
            messages += 1;
        }
        assert_eq!(told.len(), EVENTS as usize);
        assert!(messages > 10);
    }

    #[test]
    fn a_feed_that_is_forgotten_before_it_begins_does_not_begin() {
        let (tail, mut feeds) = (tail(10), Feeds::default());
        assert!(feeds.ask(LINK, 1));
        assert!(!feeds.is_empty(), "events are wanted from here on");
        feeds.forget(LINK, 1);
        let everything = Glob::everything();
        assert!(feeds.begin((LINK, 1), everything, None, &tail, Instant::now()).is_none());
        assert!(feeds.is_empty());
    }

    #[test]
    fn a_link_has_sixteen_feeds_and_a_refused_one_leaves_nothing_behind() {
        let (tail, mut feeds) = (tail(10), Feeds::default());
        for id in 0..FEEDS_MAX as u64 {
            assert!(feeds.ask(LINK, id));
        }
        assert!(!feeds.ask(LINK, 99));
        assert!(feeds.ask(LINK, 3), "the same number takes its own place");
        let gone = FeedPosition { epoch: Epoch(1), index: 100 };
        let begun = feeds.begin((LINK, 3), Glob::everything(), Some(gone), &tail, Instant::now());
        assert_eq!(begun, Some(Err(RequestError::Rewound)));
        assert!(feeds.ask(LINK, 99), "there is room again");
        feeds.link_lost(LINK);
        assert!(feeds.is_empty());
    }
}
