//! What goes out, by link: one frame for all that one release has for it.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::limits::{BATCH_JOBS_MAX, REQUESTS_OPEN_MAX};
use longshore_protocol::messages::work::{Deliver, Delivery, FromPublisher};
use longshore_protocol::{FrameWriter, LinkId, Path, Role, SessionId};
use longshore_queue::{Handed, QueueId};
use longshore_transport::LinkSender;
use tokio::sync::mpsc;
use tracing::info;

use crate::cold::{ColdAnswer, ColdJob, ColdLoads};
use crate::input::{Input, Up};
use crate::link::say_goodbye;

/// A frame is ended once it has this many bytes; a single larger message still goes out whole.
const FRAME_BYTES_TARGET: usize = 1024 * 1024;
/// Jobs wait here, as references, once a link has this many bytes under way to its socket.
const LINK_BYTES_UNDER_WAY_MAX: usize = 8 * 1024 * 1024;
/// Queues named in one delivery message; more make another message.
const DELIVER_PATHS_MAX: usize = 64;

/// The links, and what is on its way to each.
pub(crate) struct Router {
    links: HashMap<LinkId, Outlet>,
    sessions: HashMap<SessionId, LinkId>,
    /// Links that something was written for since the last [`Router::send_all`].
    touched: Vec<LinkId>,
    inputs: mpsc::Sender<Input>,
    /// The message being filled; kept so that no delivery allocates its list anew.
    deliver: Deliver,
    places: Vec<QueueId>,
    /// Jobs that were not sent, because their leases had ended or their entries were damaged;
    /// whoever takes them gives their credits back.
    pub(crate) unsent: Vec<Handed>,
}

struct Outlet {
    sender: LinkSender,
    role: Role,
    session: SessionId,
    name: String,
    /// It was told that it is attached: until then it is told nothing else.
    attached: bool,
    /// When it came, in milliseconds since 1970.
    since_ms: u64,
    frame: FrameWriter,
    /// Jobs that are this link's, and have not been written to a frame.
    backlog: VecDeque<Handed>,
    /// Its jobs that are being read back, or wait behind such a job.
    loading: usize,
    /// Bytes of their entries: as good as under way.
    loading_bytes: usize,
    /// Answers that wait for room on the link; their cold parts have not been read.
    answers: VecDeque<ColdAnswer>,
    /// Answers whose cold parts are being read, and about how many bytes they will have.
    answering: usize,
    answering_bytes: usize,
    touched: bool,
    /// A task waits for the link to have room, and will say so.
    awaited: bool,
    /// The same, of a feed: it goes on once the link has next to nothing under way.
    feed_awaited: bool,
    /// Requests that wait for their answers.
    requests: usize,
}

/// Where entries and paths come from.
pub(crate) trait Entries {
    /// The entry, if it is in memory.
    fn hot(&self, handed: &Handed) -> Option<Bytes>;
    /// True while the lease is still the link's, which has not been told of it.
    fn still_holds(&self, handed: &Handed) -> bool;
    /// The queue's path.
    fn path(&self, queue: QueueId) -> Path;
}

impl Router {
    pub(crate) fn new(inputs: mpsc::Sender<Input>) -> Router {
        Router {
            links: HashMap::new(),
            sessions: HashMap::new(),
            touched: Vec::new(),
            inputs,
            deliver: Deliver { subscription: 0, paths: Vec::new(), jobs: Vec::new() },
            places: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// Links that stand.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// When the link came, in milliseconds since 1970, while it stands.
    pub(crate) fn since(&self, link: LinkId) -> Option<u64> {
        self.links.get(&link).map(|outlet| outlet.since_ms)
    }

    /// True while the link stands.
    pub(crate) fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// The link is told that it is attached.
    pub(crate) fn attached(&mut self, link: LinkId) {
        if let Some(outlet) = self.links.get_mut(&link) {
            outlet.attached = true;
        }
    }

    /// The attached links of workers, with their names and sessions, in no order.
    pub(crate) fn workers(&self) -> impl Iterator<Item = (LinkId, &str, SessionId)> {
        let workers = self.links.iter().filter(|(_, o)| o.attached && o.role == Role::Worker);
        workers.map(|(&link, outlet)| (link, &*outlet.name, outlet.session))
    }

    /// Notes a request of the link; false if as many as may wait for their answers, or the link is
    /// gone.
    pub(crate) fn begin_request(&mut self, link: LinkId) -> bool {
        let open = self.links.get_mut(&link).filter(|outlet| outlet.requests < REQUESTS_OPEN_MAX);
        open.map(|outlet| outlet.requests += 1).is_some()
    }

    /// A request of the link has its answer.
    pub(crate) fn end_request(&mut self, link: LinkId) {
        if let Some(outlet) = self.links.get_mut(&link) {
            outlet.requests = outlet.requests.saturating_sub(1);
        }
    }

    /// Takes a link in. An older link of its session is closed: the session has moved.
    pub(crate) fn add(&mut self, up: &Up, now_ms: u64) {
        if let Some(older) = self.sessions.insert(up.session, up.link)
            && let Some(outlet) = self.links.remove(&older)
        {
            say_goodbye(
                &outlet.sender,
                "a newer link of the same session has replaced this one".to_owned(),
            );
        }
        let outlet = Outlet {
            sender: up.sender.clone(),
            role: up.role,
            session: up.session,
            name: up.name.clone(),
            attached: false,
            since_ms: now_ms,
            frame: FrameWriter::new(),
            backlog: VecDeque::new(),
            loading: 0,
            loading_bytes: 0,
            answers: VecDeque::new(),
            answering: 0,
            answering_bytes: 0,
            touched: false,
            awaited: false,
            feed_awaited: false,
            requests: 0,
        };
        self.links.insert(up.link, outlet);
    }

    /// Forgets a link. False when it was replaced before.
    pub(crate) fn remove(&mut self, link: LinkId) -> bool {
        let Some(outlet) = self.links.remove(&link) else { return false };
        if self.sessions.get(&outlet.session) == Some(&link) {
            self.sessions.remove(&outlet.session);
        }
        true
    }

    /// Tells a link why it is closed, and forgets it.
    pub(crate) fn refuse(&mut self, link: LinkId, reason: String) {
        if let Some(outlet) = self.links.get(&link) {
            say_goodbye(&outlet.sender, reason);
        }
        self.remove(link);
    }

    /// Tells every link why it is closed, and forgets them; gives which there were, in order.
    pub(crate) fn close_all(&mut self, reason: &str) -> Vec<LinkId> {
        let mut closed = Vec::with_capacity(self.links.len());
        for (link, outlet) in self.links.drain() {
            say_goodbye(&outlet.sender, reason.to_owned());
            closed.push(link);
        }
        self.sessions.clear();
        closed.sort_unstable();
        closed
    }

    /// Writes a message for a link; one for a link that is gone is nobody's.
    pub(crate) fn say(&mut self, link: LinkId, message: &FromPublisher) {
        let Some(outlet) = touch(&mut self.links, &mut self.touched, link) else { return };
        message.encode(&mut outlet.frame);
        if outlet.frame.body_len() >= FRAME_BYTES_TARGET {
            outlet.send_frame(link);
        }
    }

    /// Puts a job on its way.
    pub(crate) fn hand(&mut self, handed: Handed) {
        if let Some(outlet) = touch(&mut self.links, &mut self.touched, handed.link) {
            outlet.backlog.push_back(handed);
        }
    }

    /// Puts an answer on its way whose cold parts are still to be read.
    pub(crate) fn answer(&mut self, cold: ColdAnswer) {
        if let Some(outlet) = touch(&mut self.links, &mut self.touched, cold.link) {
            outlet.answers.push_back(cold);
        }
    }

    /// An answer's cold parts were read: the link has room for more.
    pub(crate) fn answered(&mut self, link: LinkId, bytes: usize) {
        if let Some(outlet) = touch(&mut self.links, &mut self.touched, link) {
            outlet.answering = outlet.answering.saturating_sub(1);
            outlet.answering_bytes = outlet.answering_bytes.saturating_sub(bytes);
        }
    }

    /// True while events may be written for the link: it has next to nothing under way. When it
    /// has, a task waits for that and says `FeedReady`.
    pub(crate) fn has_room_for_events(&mut self, link: LinkId) -> bool {
        let Some(outlet) = self.links.get_mut(&link) else { return false };
        if outlet.sender.queued_bytes() + outlet.frame.body_len() < FRAME_BYTES_TARGET {
            return true;
        }
        if !std::mem::replace(&mut outlet.feed_awaited, true) {
            let (sender, inputs) = (outlet.sender.clone(), self.inputs.clone());
            tokio::spawn(async move {
                if sender.ready(FRAME_BYTES_TARGET / 2).await.is_ok() {
                    let _stopping = inputs.send(Input::FeedReady { link }).await;
                }
            });
        }
        false
    }

    /// A link has room for events again.
    pub(crate) fn feed_ready(&mut self, link: LinkId) {
        if let Some(outlet) = self.links.get_mut(&link) {
            outlet.feed_awaited = false;
        }
    }

    /// Puts jobs on their way whose entries were read back from the journal; those without one go
    /// nowhere. Their links have room for more.
    pub(crate) fn hand_loaded(&mut self, mut jobs: Vec<ColdJob>, entries: &impl Entries) {
        let Router { links, touched, deliver, places, .. } = self;
        let target = |handed: &Handed| (handed.link, handed.subscription);
        for run in jobs.chunk_by_mut(|(a, _), (b, _)| target(a) == target(b)) {
            let (link, subscription) = target(&run[0].0);
            let Some(outlet) = touch(links, touched, link) else { continue };
            begin(deliver, places, subscription);
            for (handed, entry) in run {
                outlet.loading = outlet.loading.saturating_sub(1);
                let bytes = handed.entry.length as usize;
                outlet.loading_bytes = outlet.loading_bytes.saturating_sub(bytes);
                let Some(entry) = entry.take() else { continue };
                if places.len() >= DELIVER_PATHS_MAX || deliver.jobs.len() >= BATCH_JOBS_MAX {
                    outlet.write(link, deliver, places);
                }
                add(deliver, places, handed, entry, entries);
            }
            outlet.write(link, deliver, places);
        }
    }

    /// A link has room again.
    pub(crate) fn ready(&mut self, link: LinkId) {
        if let Some(outlet) = touch(&mut self.links, &mut self.touched, link) {
            outlet.awaited = false;
        }
    }

    /// Sends what was written. Jobs whose entries are not in memory go to `cold`, and those behind
    /// them; answers with parts that are not in memory do, too.
    pub(crate) fn send_all(&mut self, entries: &impl Entries, cold: &mut ColdLoads) {
        while let Some(link) = self.touched.pop() {
            let Some(outlet) = self.links.get_mut(&link) else { continue };
            outlet.touched = false;
            let (deliver, places) = (&mut self.deliver, &mut self.places);
            outlet.deliver(link, deliver, places, entries, &mut cold.jobs, &mut self.unsent);
            outlet.send_frame(link);
            outlet.load_answers(&mut cold.answers);
            // While something is read back, that is what is waited for.
            let waits = !outlet.backlog.is_empty() || !outlet.answers.is_empty();
            let reading = outlet.loading_bytes > 0 || outlet.answering > 0;
            if waits && !reading && !outlet.awaited {
                outlet.awaited = true;
                let (sender, inputs) = (outlet.sender.clone(), self.inputs.clone());
                tokio::spawn(async move {
                    if sender.ready(LINK_BYTES_UNDER_WAY_MAX / 2).await.is_ok() {
                        let _stopping = inputs.send(Input::Ready { link }).await;
                    }
                });
            }
        }
    }
}

fn touch<'a>(
    links: &'a mut HashMap<LinkId, Outlet>,
    touched: &mut Vec<LinkId>,
    link: LinkId,
) -> Option<&'a mut Outlet> {
    let outlet = links.get_mut(&link)?;
    if !outlet.touched {
        outlet.touched = true;
        touched.push(link);
    }
    Some(outlet)
}

impl Outlet {
    /// Moves jobs from the backlog into frames while the link has room.
    fn deliver(
        &mut self,
        link: LinkId,
        deliver: &mut Deliver,
        places: &mut Vec<QueueId>,
        entries: &impl Entries,
        cold: &mut VecDeque<ColdJob>,
        unsent: &mut Vec<Handed>,
    ) {
        let mut bytes = 0;
        begin(deliver, places, 0);
        while self.bytes_under_way() + bytes < LINK_BYTES_UNDER_WAY_MAX {
            let Some(handed) = self.backlog.pop_front() else { break };
            if !entries.still_holds(&handed) {
                unsent.push(handed);
                continue;
            }
            let entry = match entries.hot(&handed) {
                Some(entry) if self.loading == 0 => entry,
                // Behind one that is being read back it waits: a worker gets its jobs in their
                // order.
                hot => {
                    self.loading += 1;
                    self.loading_bytes += handed.entry.length as usize;
                    cold.push_back((handed, hot));
                    continue;
                }
            };
            let other =
                deliver.subscription != handed.subscription || places.len() >= DELIVER_PATHS_MAX;
            if other || deliver.jobs.len() >= BATCH_JOBS_MAX || bytes >= FRAME_BYTES_TARGET {
                self.write(link, deliver, places);
                deliver.subscription = handed.subscription;
                bytes = 0;
            }
            bytes += entry.len() + 32;
            add(deliver, places, &handed, entry, entries);
        }
        self.write(link, deliver, places);
    }

    /// Bytes that the link has taken, or is as good as to take.
    fn bytes_under_way(&self) -> usize {
        self.sender.queued_bytes()
            + self.frame.body_len()
            + self.loading_bytes
            + self.answering_bytes
    }

    /// Begins to complete answers while the link has room for them.
    fn load_answers(&mut self, cold: &mut VecDeque<ColdAnswer>) {
        while self.bytes_under_way() < LINK_BYTES_UNDER_WAY_MAX
            && let Some(answer) = self.answers.pop_front()
        {
            self.answering += 1;
            self.answering_bytes += answer.bytes();
            cold.push_back(answer);
        }
    }

    /// Ends a delivery message, and the frame if it is large.
    fn write(&mut self, link: LinkId, deliver: &mut Deliver, places: &mut Vec<QueueId>) {
        if deliver.jobs.is_empty() {
            return;
        }
        FromPublisher::encode_deliver(deliver, &mut self.frame);
        begin(deliver, places, deliver.subscription);
        if self.frame.body_len() >= FRAME_BYTES_TARGET {
            self.send_frame(link);
        }
    }

    fn send_frame(&mut self, link: LinkId) {
        if self.frame.is_empty() {
            return;
        }
        let frame = std::mem::take(&mut self.frame).finish();
        if let Err(error) = self.sender.send(frame) {
            // The link ends; its jobs come back by its leases.
            info!(link = link.0, worker = self.name, %error, "link closed: it takes no more");
            self.sender.close(error.to_string());
        }
    }
}

fn begin(deliver: &mut Deliver, places: &mut Vec<QueueId>, subscription: u32) {
    deliver.subscription = subscription;
    deliver.paths.clear();
    deliver.jobs.clear();
    places.clear();
}

fn add(
    deliver: &mut Deliver,
    places: &mut Vec<QueueId>,
    handed: &Handed,
    entry: Bytes,
    entries: &impl Entries,
) {
    // Neighbours mostly come from one queue: look from the end.
    let place = places.iter().rposition(|&queue| queue == handed.queue).unwrap_or_else(|| {
        places.push(handed.queue);
        deliver.paths.push(entries.path(handed.queue));
        places.len() - 1
    });
    deliver.jobs.push(Delivery {
        token: handed.token,
        path: place as u32,
        attempt: handed.attempt,
        deliveries: handed.deliveries,
        lease_ms: handed.lease_ms,
        checkpoints: handed.checkpoints,
        entry,
    });
}
