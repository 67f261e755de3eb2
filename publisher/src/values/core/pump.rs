//! From a link's backlog to its frames.

use longshore_protocol::limits::VALUE_BATCH_MAX;
use longshore_protocol::messages::values::{
    FromValuePublisher, Policy, Subscribed, SubscriptionEnd, SubscriptionEnded, ValueRefusal, tag,
};
use longshore_protocol::{Encode as _, FrameWriter, Value};

use super::backlog::BacklogEntry;
use super::links::{SubscriptionState, bytes_of};
use super::writes::answer_bytes;
use super::{Core, LinkNumber, LinkSink, Offer};
use crate::values::limits::{CHUNK_BYTES, VALUE_QUEUE_BYTES_MAX};

/// Most frames written per call; then other links have their turn.
const FRAMES_PER_PUMP: usize = 4;
/// The bytes that a subscription's message counts for before it is written, beside its value.
const ENTRY_BYTES: usize = 8;

/// Collects the messages of a frame. Neighbours of one kind share a message.
#[derive(Default)]
struct FrameBuilder {
    out: FrameWriter,
    run: Run,
    /// Approximate bytes of the run.
    bytes: usize,
}

#[derive(Default)]
enum Run {
    #[default]
    Nothing,
    Subscribed(Vec<Subscribed>),
    Updates(Vec<(u32, Value)>),
    Ended(Vec<SubscriptionEnded>),
}

impl FrameBuilder {
    fn len(&self) -> usize {
        self.out.body_len() + self.bytes
    }

    fn subscribed(&mut self, subscribed: Subscribed) {
        self.bytes += bytes_of(&subscribed.value) + ENTRY_BYTES;
        match &mut self.run {
            Run::Subscribed(run) if run.len() < VALUE_BATCH_MAX => run.push(subscribed),
            _ => self.begin(Run::Subscribed(vec![subscribed])),
        }
    }

    fn update(&mut self, number: u32, value: Value) {
        self.bytes += bytes_of(&value);
        match &mut self.run {
            Run::Updates(run) => run.push((number, value)),
            _ => self.begin(Run::Updates(vec![(number, value)])),
        }
    }

    fn ended(&mut self, ended: SubscriptionEnded) {
        self.bytes += ENTRY_BYTES;
        match &mut self.run {
            Run::Ended(run) if run.len() < VALUE_BATCH_MAX => run.push(ended),
            _ => self.begin(Run::Ended(vec![ended])),
        }
    }

    fn message(&mut self, message: &FromValuePublisher) {
        self.begin(Run::Nothing);
        message.encode(&mut self.out);
    }

    /// Writes the current run, and begins another.
    fn begin(&mut self, next: Run) {
        match std::mem::replace(&mut self.run, next) {
            Run::Nothing => {}
            Run::Subscribed(run) => {
                self.out.message(tag::SUBSCRIBED, |out| run.encode(out));
            }
            Run::Updates(run) => {
                let updates = run.iter().map(|(number, value)| (*number, value)).collect();
                FromValuePublisher::Updates(updates).encode(&mut self.out);
            }
            Run::Ended(run) => self.out.message(tag::ENDED, |out| run.encode(out)),
        }
        if matches!(self.run, Run::Nothing) {
            self.bytes = 0;
        }
    }
}

impl<O: LinkSink> Core<O> {
    /// Sends the backlog's entries, as far as there is room.
    pub(crate) fn pump(&mut self, number: LinkNumber) {
        for _ in 0..FRAMES_PER_PUMP {
            let Some(link) = self.links.get_mut(number) else { return };
            if link.ends || link.backlog.is_empty() {
                return;
            }
            if !link.sink.has_room() {
                return link.sink.wait_for_room();
            }
            let mut frame = FrameBuilder::default();
            while frame.len() < CHUNK_BYTES && self.write_next(number, &mut frame) {}
            frame.begin(Run::Nothing);
            let Some(link) = self.links.get_mut(number) else { return };
            if !frame.out.is_empty() {
                let frame = frame.out.finish();
                // Half of the queue was free, and a frame has at most a chunk and one value.
                let offer = link.sink.offer(frame, 2 * VALUE_QUEUE_BYTES_MAX);
                debug_assert_eq!(offer, Offer::Accepted, "a link with room takes a frame");
            }
            // Only after the offer: a flush checks the queue next.
            link.sink.advanced(link.backlog.sent());
        }
        if let Some(link) = self.links.get_mut(number).filter(|link| !link.backlog.is_empty()) {
            link.sink.wait_for_room();
        }
    }

    /// Pumps the links with new backlog entries.
    pub(super) fn pump_pending_links(&mut self) {
        while let Some(number) = self.links_to_pump.pop() {
            self.pump(number);
        }
    }

    /// Writes the backlog's first entry; false if there is none.
    fn write_next(&mut self, link_number: LinkNumber, frame: &mut FrameBuilder) -> bool {
        let Some(link) = self.links.get_mut(link_number) else { return false };
        let subscription = match link.backlog.pop() {
            None => return false,
            Some(BacklogEntry::Refused { subscription, code, reason }) => {
                let reason = reason.map_or_else(|| code.to_string(), String::from);
                frame.message(&FromValuePublisher::Refused { subscription, code, reason });
                return true;
            }
            Some(BacklogEntry::Written(written)) => {
                link.writes_open -= 1;
                link.backlog_bytes -= answer_bytes(&written.outcome);
                frame.message(&FromValuePublisher::Written(*written));
                return true;
            }
            Some(BacklogEntry::Subscription(subscription)) => subscription,
        };
        let Some(entry) = link.subscriptions.get_mut(subscription as usize) else {
            return true;
        };
        entry.in_backlog = false;
        match entry.state {
            SubscriptionState::Free | SubscriptionState::Requested(..) => {}
            SubscriptionState::Joining(key, policy) => {
                let slot = self.slots.get(key.slot as usize);
                match slot.filter(|slot| slot.generation == key.generation && slot.path.is_some()) {
                    Some(slot) => {
                        entry.state = SubscriptionState::Active(key, policy);
                        let (number, value) = (key.slot, slot.value.clone());
                        frame.subscribed(Subscribed { subscription, number, value });
                    }
                    // Removed, and the backlog had no space for its last value.
                    None => {
                        entry.state = SubscriptionState::Free;
                        link.forget_slot(key.slot, subscription);
                        let code = ValueRefusal::NotHere;
                        let reason = code.to_string();
                        frame.message(&FromValuePublisher::Refused { subscription, code, reason });
                    }
                }
            }
            SubscriptionState::Removed(number) => {
                if let Some(value) = entry.waiting.pop_front() {
                    link.backlog_bytes -= bytes_of(&value);
                    frame.subscribed(Subscribed { subscription, number, value });
                }
                entry.state = SubscriptionState::Free;
                let end = SubscriptionEnd::Unpublished;
                frame.ended(SubscriptionEnded { subscription, end });
            }
            SubscriptionState::Active(key, Policy::DropOldest) => {
                if entry.turn == 0 {
                    entry.turn = entry.waiting.len();
                }
                while entry.turn > 0
                    && frame.len() < CHUNK_BYTES
                    && let Some(value) = entry.waiting.pop_front()
                {
                    entry.turn -= 1;
                    link.backlog_bytes -= bytes_of(&value);
                    frame.update(key.slot, value);
                }
                entry.in_backlog = !entry.waiting.is_empty();
                if entry.turn > 0 {
                    link.backlog.put_back(subscription);
                } else if entry.in_backlog {
                    // Updates since its turn began wait for the next turn: a value that changes all
                    // the time must not delay the others.
                    link.backlog.push(BacklogEntry::Subscription(subscription));
                }
            }
            SubscriptionState::Active(key, _) => {
                if let Some(slot) = self.slots.get(key.slot as usize) {
                    frame.update(key.slot, slot.value.clone());
                }
            }
            SubscriptionState::Ending(slot, end) => {
                while let Some(value) = entry.waiting.pop_front() {
                    link.backlog_bytes -= bytes_of(&value);
                    frame.update(slot, value);
                    if frame.len() >= CHUNK_BYTES && !entry.waiting.is_empty() {
                        entry.in_backlog = true;
                        link.backlog.put_back(subscription);
                        return true;
                    }
                }
                (entry.state, entry.turn) = (SubscriptionState::Free, 0);
                frame.ended(SubscriptionEnded { subscription, end });
            }
        }
        true
    }
}
