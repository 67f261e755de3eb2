//! A link that the test reads by hand, and what was heard on it.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use longshore_protocol::messages::values::*;
use longshore_protocol::{Frame, Messages, Path, Value};

use super::super::{Core, LinkNumber, LinkOutput, Misuse, Offer};
use crate::values::limits::VALUE_QUEUE_BYTES_MAX;

pub(crate) fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// One thing heard, by the value's path.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Heard {
    Subscribed(String, Value),
    Refused(String, ValueRefusal),
    Update(String, Value),
    Ended(String, SubscriptionEnd),
    Written(Written),
}

#[derive(Default)]
struct State {
    number: Option<LinkNumber>,
    /// Frames that the link took and the test has not read.
    queue: VecDeque<Frame>,
    queued: usize,
    capacity: usize,
    /// Nothing is read: what was taken fills the queue.
    stalled: bool,
    /// Not even that: nothing is taken.
    stopped: bool,
    waits_for_room: bool,
    ended: Option<String>,
    /// The paths of subscriptions, by number, and which of them the publisher's numbers are.
    wanted: BTreeMap<u32, String>,
    numbers: BTreeMap<u32, u32>,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Subscriber(Rc<RefCell<State>>);

impl Subscriber {
    pub(crate) fn new(capacity: usize) -> Subscriber {
        Subscriber(Rc::new(RefCell::new(State { capacity, ..State::default() })))
    }

    pub(crate) fn join(&self, core: &mut Core<Subscriber>) {
        let number = core.link_up("subscriber".into(), self.clone());
        self.0.borrow_mut().number = Some(number);
    }

    pub(crate) fn number(&self) -> LinkNumber {
        self.0.borrow().number.unwrap()
    }

    pub(crate) fn subscribe(
        &self,
        core: &mut Core<Subscriber>,
        subscription: u32,
        text: &str,
        policy: Policy,
        now: Instant,
    ) -> Result<(), Misuse> {
        let wanted = SubscribeValue { subscription, path: path(text), policy };
        core.subscribe(self.number(), wanted, |path| path.as_str() == "/queue", now)?;
        // After the answer to the number's last use was read.
        if !self.0.borrow().stalled && !self.0.borrow().stopped {
            self.0.borrow_mut().wanted.insert(subscription, text.to_owned());
        } else {
            self.0.borrow_mut().wanted.entry(subscription).or_insert(text.to_owned());
        }
        core.pump_all();
        Ok(())
    }

    pub(crate) fn unsubscribe(&self, core: &mut Core<Subscriber>, numbers: &[u32]) {
        core.unsubscribe(self.number(), numbers);
    }

    /// The numbers that are free, the lowest first.
    pub(crate) fn free_number(&self) -> u32 {
        let state = self.0.borrow();
        (0..).find(|number| !state.wanted.contains_key(number)).unwrap()
    }

    /// The numbers of what it follows, or has asked for.
    pub(crate) fn wanted(&self) -> Vec<(u32, String)> {
        self.0.borrow().wanted.iter().map(|(number, text)| (*number, text.clone())).collect()
    }

    /// Takes nothing any more.
    pub(crate) fn stop(&self) {
        self.0.borrow_mut().stopped = true;
    }

    /// Reads nothing any more.
    pub(crate) fn stall(&self) {
        self.0.borrow_mut().stalled = true;
    }

    /// Lets the queue be full.
    pub(crate) fn fill(&self) {
        let mut state = self.0.borrow_mut();
        state.queued = state.capacity;
    }

    /// Reads all that it took, until nothing waits.
    pub(crate) fn go_on(&self, core: &mut Core<Subscriber>) {
        while self.go_on_once(core) {}
    }

    /// Reads all that it took, and takes once more. False when nothing waited.
    pub(crate) fn go_on_once(&self, core: &mut Core<Subscriber>) -> bool {
        let waits = {
            let mut state = self.0.borrow_mut();
            (state.stopped, state.stalled, state.queued) = (false, false, 0);
            std::mem::take(&mut state.waits_for_room)
        };
        if waits {
            core.pump(self.number());
        }
        waits
    }

    pub(crate) fn queued(&self) -> usize {
        self.0.borrow().queued
    }

    pub(crate) fn ended(&self) -> Option<String> {
        self.0.borrow().ended.clone()
    }

    /// The frames that were not read; they are read now.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let mut state = self.0.borrow_mut();
        state.queued = 0;
        let frames: Vec<_> = state.queue.drain(..).collect();
        drop(state);
        frames.iter().for_each(|frame| drop(self.read(frame)));
        frames
    }

    /// All that was taken and not read.
    pub(crate) fn heard(&self) -> Vec<Heard> {
        self.heard_of(usize::MAX)
    }

    /// What the first frames that were taken say.
    pub(crate) fn heard_of(&self, frames: usize) -> Vec<Heard> {
        let mut heard = Vec::new();
        for _ in 0..frames {
            let Some(frame) = self.0.borrow_mut().queue.pop_front() else { break };
            let mut state = self.0.borrow_mut();
            state.queued = state.queued.saturating_sub(frame.len());
            drop(state);
            heard.extend(self.read(&frame));
        }
        heard
    }

    fn read(&self, frame: &Frame) -> Vec<Heard> {
        let mut heard = Vec::new();
        let body = Bytes::from(frame.parts().concat()).slice(4..);
        let mut state = self.0.borrow_mut();
        for message in Messages::new(body) {
            let (tag, body) = message.unwrap();
            match FromValuePublisher::decode(tag, body).unwrap().unwrap() {
                FromValuePublisher::Subscribed(all) => {
                    for Subscribed { subscription, number, value } in all {
                        let before = state.numbers.insert(number, subscription);
                        assert_eq!(before, None, "a number is told of twice");
                        let text = state.wanted[&subscription].clone();
                        heard.push(Heard::Subscribed(text, value));
                    }
                }
                FromValuePublisher::Refused { subscription, code, .. } => {
                    let text = state.wanted.remove(&subscription).unwrap();
                    heard.push(Heard::Refused(text, code));
                }
                FromValuePublisher::Updates(updates) => {
                    for (number, value) in updates.iter().map(Result::unwrap) {
                        let subscription =
                            state.numbers.get(&number).expect("a number that was told");
                        heard.push(Heard::Update(state.wanted[subscription].clone(), value));
                    }
                }
                FromValuePublisher::Ended(all) => {
                    for SubscriptionEnded { subscription, end } in all {
                        state.numbers.retain(|_, of| *of != subscription);
                        let text = state.wanted.remove(&subscription).unwrap();
                        heard.push(Heard::Ended(text, end));
                    }
                }
                FromValuePublisher::Written(written) => heard.push(Heard::Written(written)),
                FromValuePublisher::Goodbye { .. } => {}
            }
        }
        heard
    }
}

impl LinkOutput for Subscriber {
    fn offer(&mut self, frame: Frame, limit: usize) -> Offer {
        let mut state = self.0.borrow_mut();
        // What is said from the line goes beyond the limit of what was written for many.
        let limit = if limit > VALUE_QUEUE_BYTES_MAX { limit } else { state.capacity };
        let full = state.queued > 0 && state.queued + frame.len() > limit;
        if full || (state.stopped && limit == state.capacity) {
            return Offer::Full;
        }
        if state.stalled || state.capacity < VALUE_QUEUE_BYTES_MAX {
            state.queued += frame.len();
        }
        state.queue.push_back(frame);
        Offer::Taken
    }

    fn has_room(&self) -> bool {
        let state = self.0.borrow();
        !state.stopped && (state.queued == 0 || state.queued < state.capacity / 2)
    }

    fn wait_for_room(&mut self) {
        self.0.borrow_mut().waits_for_room = true;
    }

    fn advanced(&mut self, _: u64) {}

    fn end(&mut self, reason: String, _: Option<Frame>) {
        self.0.borrow_mut().ended = Some(reason);
    }
}

impl Core<Subscriber> {
    /// Bytes that wait for a link beside its queue, and how long its line is.
    pub(crate) fn backlog_of(&mut self, link: &Subscriber) -> (usize, u64) {
        let link = self.links.get_mut(link.number()).unwrap();
        (link.backlog_bytes, link.line.end() - link.line.gone())
    }
}
