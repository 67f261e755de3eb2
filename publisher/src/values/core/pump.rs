//! From a link's line to its frames.

use longshore_protocol::limits::VALUE_BATCH_MAX;
use longshore_protocol::messages::values::{
    FromValuePublisher, Policy, Subscribed, SubscriptionEnded, ValueRefusal, tag,
};
use longshore_protocol::{Encode as _, FrameWriter, Value};

use super::line::Entry;
use super::links::{Stage, bytes_of};
use super::writes::answer_bytes;
use super::{Core, LinkNumber, LinkOutput, Offer};
use crate::values::limits::{CHUNK_BYTES, VALUE_QUEUE_BYTES_MAX};

/// Frames that one call writes at most; others have their turn then.
const FRAMES_AT_A_TIME: usize = 4;
/// What a subscription's news is counted for while its message is not written yet, beside its
/// value.
const ENTRY_BYTES: usize = 8;

/// Messages of a frame. Neighbours of one kind share a message.
#[derive(Default)]
struct Speech {
    out: FrameWriter,
    run: Run,
    /// Bytes of the run, about.
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

impl Speech {
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

    fn say(&mut self, message: &FromValuePublisher) {
        self.begin(Run::Nothing);
        message.encode(&mut self.out);
    }

    /// Writes the run that there was, and begins another.
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

impl<O: LinkOutput> Core<O> {
    /// Says what stands in the line, as far as there is room.
    pub(crate) fn pump(&mut self, number: LinkNumber) {
        for _ in 0..FRAMES_AT_A_TIME {
            let Some(link) = self.links.get_mut(number) else { return };
            if link.ends || link.line.is_empty() {
                return;
            }
            if !link.outlet.has_room() {
                return link.outlet.wait_for_room();
            }
            let mut speech = Speech::default();
            while speech.len() < CHUNK_BYTES && self.speak(number, &mut speech) {}
            speech.begin(Run::Nothing);
            let Some(link) = self.links.get_mut(number) else { return };
            if !speech.out.is_empty() {
                let frame = speech.out.finish();
                // Half of the queue was free, and a frame has at most a chunk and one value.
                let offer = link.outlet.offer(frame, 2 * VALUE_QUEUE_BYTES_MAX);
                debug_assert_eq!(offer, Offer::Taken, "a link with room takes a frame");
            }
            // Not before: whoever flushes looks at the queue next.
            link.outlet.advanced(link.line.gone());
        }
        if let Some(link) = self.links.get_mut(number).filter(|link| !link.line.is_empty()) {
            link.outlet.wait_for_room();
        }
    }

    /// Pumps the links that were put down for it.
    pub(super) fn pump_lined_up(&mut self) {
        while let Some(number) = self.lined_up.pop() {
            self.pump(number);
        }
    }

    /// Says the first thing of the line; false once there is none.
    fn speak(&mut self, link_number: LinkNumber, speech: &mut Speech) -> bool {
        let Some(link) = self.links.get_mut(link_number) else { return false };
        let subscription = match link.line.pop() {
            None => return false,
            Some(Entry::Refused { subscription, code, reason }) => {
                let reason = reason.map_or_else(|| code.to_string(), String::from);
                speech.say(&FromValuePublisher::Refused { subscription, code, reason });
                return true;
            }
            Some(Entry::Written(written)) => {
                link.writes_open -= 1;
                link.backlog_bytes -= answer_bytes(&written.outcome);
                speech.say(&FromValuePublisher::Written(*written));
                return true;
            }
            Some(Entry::Subscription(subscription)) => subscription,
        };
        let Some(told) = link.subscriptions.get_mut(subscription as usize) else { return true };
        told.in_line = false;
        match told.stage {
            Stage::Free | Stage::Asked(..) => {}
            Stage::Joining(key, policy) => {
                let slot = self.slots.get(key.slot as usize);
                match slot.filter(|held| held.generation == key.generation && held.path.is_some()) {
                    Some(held) => {
                        told.stage = Stage::Stands(key, policy);
                        let (number, value) = (key.slot, held.value.clone());
                        speech.subscribed(Subscribed { subscription, number, value });
                        self.move_to_set(key, link_number, true);
                    }
                    None => {
                        told.stage = Stage::Free;
                        link.forget_slot(key.slot, subscription);
                        let code = ValueRefusal::NotHere;
                        let reason = code.to_string();
                        speech.say(&FromValuePublisher::Refused { subscription, code, reason });
                    }
                }
            }
            Stage::Stands(key, Policy::DropOldest) => {
                if told.turn == 0 {
                    told.turn = told.waiting.len();
                }
                while told.turn > 0
                    && speech.len() < CHUNK_BYTES
                    && let Some(value) = told.waiting.pop_front()
                {
                    told.turn -= 1;
                    link.backlog_bytes -= bytes_of(&value);
                    speech.update(key.slot, value);
                }
                told.in_line = !told.waiting.is_empty();
                if told.turn > 0 {
                    link.line.put_back(subscription);
                } else if told.in_line {
                    // What has come since its turn began waits for the next: one value that changes
                    // all the time must not keep the others from being said.
                    link.line.push(Entry::Subscription(subscription));
                }
            }
            Stage::Stands(key, _) => {
                if let Some(held) = self.slots.get(key.slot as usize) {
                    speech.update(key.slot, held.value.clone());
                }
            }
            Stage::Leaves(slot, end) => {
                while let Some(value) = told.waiting.pop_front() {
                    link.backlog_bytes -= bytes_of(&value);
                    speech.update(slot, value);
                    if speech.len() >= CHUNK_BYTES && !told.waiting.is_empty() {
                        told.in_line = true;
                        link.line.put_back(subscription);
                        return true;
                    }
                }
                (told.stage, told.turn) = (Stage::Free, 0);
                speech.ended(SubscriptionEnded { subscription, end });
            }
        }
        true
    }
}
