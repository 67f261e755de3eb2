//! Outgoing messages per link: one frame for everything that one release has for a link.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_access::{Identity, Rights};
use longshore_protocol::limits::{BATCH_JOBS_MAX, REQUESTS_OPEN_MAX};
use longshore_protocol::messages::work::{Deliver, Delivery, FromPublisher};
use longshore_protocol::{FrameWriter, LinkId, Path, Role, SessionId, Token};
use longshore_queue::{Assignment, QueueId};
use longshore_transport::LinkSender;
use tokio::sync::mpsc;
use tracing::info;

use crate::cold::{ColdAnswer, ColdJob, ColdLoads};
use crate::event::{NewLink, OwnerEvent};
use crate::link::send_goodbye;
use crate::link_log;

/// A frame ends once it has this many bytes; a single larger message is still sent whole.
const FRAME_BYTES_TARGET: usize = 1024 * 1024;
/// Once a link has this many bytes in flight, its jobs wait here as references. Their leases begin
/// when they are written: a lease of 30 s, renewed 10 s after the arrival, needs 200 KB/s.
const LINK_BYTES_UNDER_WAY_MAX: usize = 4 * 1024 * 1024;
/// Queues named in one delivery message; more need another message.
const DELIVER_PATHS_MAX: usize = 64;

/// The links, and what is queued for each.
pub(crate) struct Router {
    links: HashMap<LinkId, LinkOutput>,
    sessions: HashMap<SessionId, LinkId>,
    /// Links written to since the last [`Router::send_all`].
    dirty: Vec<LinkId>,
    events: mpsc::Sender<OwnerEvent>,
    /// The delivery message under construction; reused, so that no delivery allocates a new list.
    deliver: Deliver,
    queues: Vec<QueueId>,
    /// Jobs that were not sent, because their leases had ended or their entries were damaged. The
    /// caller takes them and returns their credits.
    pub(crate) unsent: Vec<Assignment>,
    /// Jobs that were not written in the round in which they were assigned, and those of them that
    /// are written now. The caller takes them, for their leases.
    pub(crate) waiting: Vec<(LinkId, Token)>,
    pub(crate) sent_late: Vec<(LinkId, Token)>,
}

struct LinkOutput {
    sender: LinkSender,
    role: Role,
    session: SessionId,
    name: String,
    identity: Option<Arc<Identity>>,
    rights: Arc<Rights>,
    /// Its `Attached` was sent; nothing else is sent before that.
    attached: bool,
    /// When it attached, in milliseconds since 1970.
    since_ms: u64,
    frame: FrameWriter,
    /// Jobs assigned to this link that are not yet written to a frame.
    backlog: VecDeque<Assignment>,
    /// How many of them, from the front, were reported as waiting.
    backlog_waiting: usize,
    /// Jobs that are being read from the journal, or wait behind such a job.
    loading: usize,
    /// Bytes of their entries, which count as in flight.
    loading_bytes: usize,
    /// Answers that wait for room on the link; their cold parts are not read yet.
    answers: VecDeque<ColdAnswer>,
    /// Answers whose cold parts are being read, and about how many bytes they will have.
    answering: usize,
    answering_bytes: usize,
    dirty: bool,
    /// A task waits for room on the link, and will send `Ready`.
    ready_pending: bool,
    /// The same for feeds, which continue once the link has next to nothing in flight.
    feed_ready_pending: bool,
    /// Requests that wait for their answers.
    requests: usize,
}

/// Where entries and paths come from.
pub(crate) trait EntrySource {
    /// The entry, if it is in memory.
    fn cached(&self, assigned: &Assignment) -> Option<Bytes>;
    /// True while the link holds the lease.
    fn is_still_leased_to(&self, assigned: &Assignment) -> bool;
    /// The queue's path.
    fn path(&self, queue: QueueId) -> Path;
}

impl Router {
    pub(crate) fn new(events: mpsc::Sender<OwnerEvent>) -> Router {
        Router {
            links: HashMap::new(),
            sessions: HashMap::new(),
            dirty: Vec::new(),
            events,
            deliver: Deliver { subscription: 0, paths: Vec::new(), jobs: Vec::new() },
            queues: Vec::new(),
            unsent: Vec::new(),
            waiting: Vec::new(),
            sent_late: Vec::new(),
        }
    }

    /// The number of links.
    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    /// When the link attached, in milliseconds since 1970.
    pub(crate) fn since(&self, link: LinkId) -> Option<u64> {
        self.links.get(&link).map(|output| output.since_ms)
    }

    /// Who the link's client is, and its address.
    pub(crate) fn client(&self, link: LinkId) -> Option<(Option<&Identity>, SocketAddr)> {
        let output = self.links.get(&link)?;
        Some((output.identity.as_deref(), output.sender.peer_address()))
    }

    /// What the link's client may do; nothing once the link is gone.
    pub(crate) fn rights(&self, link: LinkId) -> Option<&Arc<Rights>> {
        self.links.get(&link).map(|output| &output.rights)
    }

    /// The link's client has gained rights. Returns those before; none if the link is gone.
    pub(crate) fn set_rights(&mut self, link: LinkId, rights: Arc<Rights>) -> Option<Arc<Rights>> {
        let output = self.links.get_mut(&link)?;
        Some(std::mem::replace(&mut output.rights, rights))
    }

    /// True while the link is open.
    pub(crate) fn has(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// True while the link's messages count. What waits here when a link loses its rights does not.
    pub(crate) fn serves(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|output| !output.sender.was_cut())
    }

    /// The link's `Attached` is being sent.
    pub(crate) fn attached(&mut self, link: LinkId) {
        if let Some(output) = self.links.get_mut(&link) {
            output.attached = true;
        }
    }

    /// The attached links of workers, with their names and sessions, in no order.
    pub(crate) fn workers(&self) -> impl Iterator<Item = (LinkId, &str, SessionId)> {
        let workers = self.links.iter().filter(|(_, o)| o.attached && o.role == Role::Worker);
        workers.map(|(&link, output)| (link, &*output.name, output.session))
    }

    /// Counts a request of the link; false if the link is gone or has reached its limit of open
    /// requests.
    pub(crate) fn begin_request(&mut self, link: LinkId) -> bool {
        let open = self.links.get_mut(&link).filter(|output| output.requests < REQUESTS_OPEN_MAX);
        open.map(|output| output.requests += 1).is_some()
    }

    /// A request of the link has its answer.
    pub(crate) fn end_request(&mut self, link: LinkId) {
        if let Some(output) = self.links.get_mut(&link) {
            output.requests = output.requests.saturating_sub(1);
        }
    }

    /// True if the session of a new link has a link of another client.
    pub(crate) fn belongs_to_another(&self, up: &NewLink) -> bool {
        let older = self.sessions.get(&up.session).and_then(|link| self.links.get(link));
        older.is_some_and(|older| older.identity != up.identity)
    }

    /// Adds a link. An older link of its session is closed, and returned: the session has moved.
    pub(crate) fn add(&mut self, up: &NewLink, now_ms: u64) -> Option<LinkId> {
        let older = self.sessions.insert(up.session, up.link);
        if let Some(output) = older.and_then(|older| self.links.remove(&older)) {
            send_goodbye(
                &output.sender,
                "a newer link of the same session has replaced this one".to_owned(),
            );
        }
        let output = LinkOutput {
            sender: up.sender.clone(),
            role: up.role,
            session: up.session,
            name: up.name.clone(),
            identity: up.identity.clone(),
            rights: up.rights.clone(),
            attached: false,
            since_ms: now_ms,
            frame: FrameWriter::new(),
            backlog: VecDeque::new(),
            backlog_waiting: 0,
            loading: 0,
            loading_bytes: 0,
            answers: VecDeque::new(),
            answering: 0,
            answering_bytes: 0,
            dirty: false,
            ready_pending: false,
            feed_ready_pending: false,
            requests: 0,
        };
        self.links.insert(up.link, output);
        older
    }

    /// Removes a link. False if it was replaced before.
    pub(crate) fn remove(&mut self, link: LinkId) -> bool {
        let Some(output) = self.links.remove(&link) else { return false };
        if self.sessions.get(&output.session) == Some(&link) {
            self.sessions.remove(&output.session);
        }
        true
    }

    /// Closes a link with a reason, and removes it.
    pub(crate) fn refuse(&mut self, link: LinkId, reason: String) {
        if let Some(output) = self.links.get(&link) {
            send_goodbye(&output.sender, reason);
        }
        self.remove(link);
    }

    /// Closes and removes every link with a reason; returns them in order.
    pub(crate) fn close_all(&mut self, reason: &str) -> Vec<LinkId> {
        let mut closed = Vec::with_capacity(self.links.len());
        for (link, output) in self.links.drain() {
            send_goodbye(&output.sender, reason.to_owned());
            closed.push(link);
        }
        self.sessions.clear();
        closed.sort_unstable();
        closed
    }

    /// Writes a message for a link; ignores a link that is gone.
    pub(crate) fn send(&mut self, link: LinkId, message: &FromPublisher) {
        let Some(output) = mark_dirty(&mut self.links, &mut self.dirty, link) else { return };
        message.encode(&mut output.frame);
        if output.frame.body_len() >= FRAME_BYTES_TARGET {
            output.send_frame(link);
        }
    }

    /// Queues a job for its link.
    pub(crate) fn assign(&mut self, assigned: Assignment) {
        match mark_dirty(&mut self.links, &mut self.dirty, assigned.link) {
            Some(output) => output.backlog.push_back(assigned),
            // It is sent to nobody.
            None => self.waiting.push((assigned.link, assigned.token)),
        }
    }

    /// Queues an answer whose cold parts are still to be read.
    pub(crate) fn answer(&mut self, cold: ColdAnswer) {
        if let Some(output) = mark_dirty(&mut self.links, &mut self.dirty, cold.link) {
            output.answers.push_back(cold);
        }
    }

    /// An answer's cold parts were read: the link has room for more.
    pub(crate) fn answered(&mut self, link: LinkId, bytes: usize) {
        if let Some(output) = mark_dirty(&mut self.links, &mut self.dirty, link) {
            output.answering = output.answering.saturating_sub(1);
            output.answering_bytes = output.answering_bytes.saturating_sub(bytes);
        }
    }

    /// True while events may be written for the link: it has next to nothing in flight. Otherwise a
    /// task waits for that and sends `FeedReady`.
    pub(crate) fn has_room_for_events(&mut self, link: LinkId) -> bool {
        let Some(output) = self.links.get_mut(&link) else { return false };
        if output.sender.queued_bytes() + output.frame.body_len() < FRAME_BYTES_TARGET {
            return true;
        }
        if !std::mem::replace(&mut output.feed_ready_pending, true) {
            let (sender, events) = (output.sender.clone(), self.events.clone());
            tokio::spawn(async move {
                if sender.ready(FRAME_BYTES_TARGET / 2).await.is_ok() {
                    let _stopping = events.send(OwnerEvent::FeedReady { link }).await;
                }
            });
        }
        false
    }

    /// A link has room for events again.
    pub(crate) fn feed_ready(&mut self, link: LinkId) {
        if let Some(output) = self.links.get_mut(&link) {
            output.feed_ready_pending = false;
        }
    }

    /// Writes jobs whose entries were read from the journal; jobs without an entry are dropped.
    /// Their links have room for more.
    pub(crate) fn route_loaded(&mut self, mut jobs: Vec<ColdJob>, entries: &impl EntrySource) {
        let Router { links, dirty, deliver, queues, sent_late, .. } = self;
        let target = |assigned: &Assignment| (assigned.link, assigned.subscription);
        for run in jobs.chunk_by_mut(|(a, _), (b, _)| target(a) == target(b)) {
            let (link, subscription) = target(&run[0].0);
            let Some(output) = mark_dirty(links, dirty, link) else { continue };
            begin(deliver, queues, subscription);
            for (assigned, entry) in run {
                output.loading = output.loading.saturating_sub(1);
                let bytes = assigned.entry.length as usize;
                output.loading_bytes = output.loading_bytes.saturating_sub(bytes);
                let Some(entry) = entry.take() else { continue };
                if queues.len() >= DELIVER_PATHS_MAX || deliver.jobs.len() >= BATCH_JOBS_MAX {
                    output.write(link, deliver, queues);
                }
                sent_late.push((link, assigned.token));
                add(deliver, queues, assigned, entry, entries);
            }
            output.write(link, deliver, queues);
        }
    }

    /// A link has room again.
    pub(crate) fn ready(&mut self, link: LinkId) {
        if let Some(output) = mark_dirty(&mut self.links, &mut self.dirty, link) {
            output.ready_pending = false;
        }
    }

    /// Sends what was written. Jobs whose entries are not in memory go to `cold`, and so do the
    /// jobs behind them, and answers with parts that are not in memory.
    pub(crate) fn send_all(&mut self, entries: &impl EntrySource, cold: &mut ColdLoads) {
        while let Some(link) = self.dirty.pop() {
            let Some(output) = self.links.get_mut(&link) else { continue };
            output.dirty = false;
            let (deliver, queues) = (&mut self.deliver, &mut self.queues);
            let mut unwritten = Unwritten {
                cold: &mut cold.jobs,
                unsent: &mut self.unsent,
                waiting: &mut self.waiting,
                sent_late: &mut self.sent_late,
            };
            output.deliver(link, deliver, queues, entries, &mut unwritten);
            output.send_frame(link);
            output.load_answers(&mut cold.answers);
            // While a read is under way, its end triggers the next send.
            let waits = !output.backlog.is_empty() || !output.answers.is_empty();
            let reading = output.loading_bytes > 0 || output.answering > 0;
            if waits && !reading && !output.ready_pending {
                output.ready_pending = true;
                let (sender, events) = (output.sender.clone(), self.events.clone());
                tokio::spawn(async move {
                    if sender.ready(LINK_BYTES_UNDER_WAY_MAX / 2).await.is_ok() {
                        let _stopping = events.send(OwnerEvent::LinkReady { link }).await;
                    }
                });
            }
        }
    }
}

fn mark_dirty<'a>(
    links: &'a mut HashMap<LinkId, LinkOutput>,
    dirty: &mut Vec<LinkId>,
    link: LinkId,
) -> Option<&'a mut LinkOutput> {
    let output = links.get_mut(&link)?;
    if !output.dirty {
        output.dirty = true;
        dirty.push(link);
    }
    Some(output)
}

/// Where jobs go that are not written at once.
struct Unwritten<'a> {
    cold: &'a mut VecDeque<ColdJob>,
    unsent: &'a mut Vec<Assignment>,
    waiting: &'a mut Vec<(LinkId, Token)>,
    sent_late: &'a mut Vec<(LinkId, Token)>,
}

impl LinkOutput {
    /// Moves jobs from the backlog into frames while the link has room.
    fn deliver(
        &mut self,
        link: LinkId,
        deliver: &mut Deliver,
        queues: &mut Vec<QueueId>,
        entries: &impl EntrySource,
        unwritten: &mut Unwritten<'_>,
    ) {
        let mut bytes = 0;
        begin(deliver, queues, 0);
        while self.bytes_under_way() + bytes < LINK_BYTES_UNDER_WAY_MAX {
            let Some(assigned) = self.backlog.pop_front() else { break };
            let has_waited = self.backlog_waiting > 0;
            self.backlog_waiting -= usize::from(has_waited);
            if !entries.is_still_leased_to(&assigned) {
                unwritten.unsent.push(assigned);
                continue;
            }
            let entry = match entries.cached(&assigned) {
                Some(entry) if self.loading == 0 => entry,
                // A job behind one that is being read waits: a worker receives its jobs in order.
                cached => {
                    self.loading += 1;
                    self.loading_bytes += assigned.entry.length as usize;
                    if !has_waited {
                        unwritten.waiting.push((link, assigned.token));
                    }
                    unwritten.cold.push_back((assigned, cached));
                    continue;
                }
            };
            if has_waited {
                unwritten.sent_late.push((link, assigned.token));
            }
            let other =
                deliver.subscription != assigned.subscription || queues.len() >= DELIVER_PATHS_MAX;
            if other || deliver.jobs.len() >= BATCH_JOBS_MAX || bytes >= FRAME_BYTES_TARGET {
                self.write(link, deliver, queues);
                deliver.subscription = assigned.subscription;
                bytes = 0;
            }
            bytes += entry.len() + 32;
            add(deliver, queues, &assigned, entry, entries);
        }
        self.write(link, deliver, queues);
        let new = self.backlog.iter().skip(self.backlog_waiting);
        unwritten.waiting.extend(new.map(|assigned| (link, assigned.token)));
        self.backlog_waiting = self.backlog.len();
    }

    /// Bytes in the send queue, and bytes that will be added to it.
    fn bytes_under_way(&self) -> usize {
        self.sender.queued_bytes()
            + self.frame.body_len()
            + self.loading_bytes
            + self.answering_bytes
    }

    /// Starts to complete answers while the link has room for them.
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
    fn write(&mut self, link: LinkId, deliver: &mut Deliver, queues: &mut Vec<QueueId>) {
        if deliver.jobs.is_empty() {
            return;
        }
        FromPublisher::encode_deliver(deliver, &mut self.frame);
        begin(deliver, queues, deliver.subscription);
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
            // The link ends; its jobs return through its leases.
            if let Some(left_out) = link_log::admit() {
                let (link, worker) = (link.0, &self.name);
                info!(link, worker, %error, left_out, "link closed: it takes no more");
            }
            self.sender.close(error.to_string());
        }
    }
}

fn begin(deliver: &mut Deliver, queues: &mut Vec<QueueId>, subscription: u32) {
    deliver.subscription = subscription;
    deliver.paths.clear();
    deliver.jobs.clear();
    queues.clear();
}

fn add(
    deliver: &mut Deliver,
    queues: &mut Vec<QueueId>,
    assigned: &Assignment,
    entry: Bytes,
    entries: &impl EntrySource,
) {
    // Neighbours mostly come from one queue: search from the end.
    let position = queues.iter().rposition(|&queue| queue == assigned.queue).unwrap_or_else(|| {
        queues.push(assigned.queue);
        deliver.paths.push(entries.path(assigned.queue));
        queues.len() - 1
    });
    deliver.jobs.push(Delivery {
        token: assigned.token,
        path: position as u32,
        attempt: assigned.attempt,
        deliveries: assigned.deliveries,
        lease_ms: assigned.lease_ms,
        checkpoints: assigned.checkpoints,
        times: assigned.times,
        entry,
    });
}
