//! A link that the test reads by hand, and what it received.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use longshore_protocol::messages::values::*;
use longshore_protocol::{Frame, Messages, Path, Value};

use super::super::{Core, LinkNumber, LinkSink, Offer, Violation};
use crate::values::limits::VALUE_QUEUE_BYTES_MAX;

pub(crate) fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

/// One received message, by the value's path.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Received {
    Subscribed(String, Value),
    Refused(String, ValueRefusal),
    Update(String, Value),
    Ended(String, SubscriptionEnd),
    Written(Written),
}

#[derive(Default)]
struct State {
    number: Option<LinkNumber>,
    /// Frames that the link accepted and the test has not read.
    queue: VecDeque<Frame>,
    queued: usize,
    capacity: usize,
    /// Frames are accepted but not read: they fill the queue.
    stalled: bool,
    /// Frames are not even accepted.
    stopped: bool,
    waits_for_room: bool,
    ended: Option<String>,
    /// The paths of subscriptions by number, and the publisher's numbers of subscriptions.
    subscribed: BTreeMap<u32, String>,
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
    ) -> Result<(), Violation> {
        let subscribed = SubscribeValue { subscription, path: path(text), policy };
        core.subscribe(self.number(), subscribed, |_| true, |path| path.as_str() == "/queue", now)?;
        // Only once the answer to the number's last use was read.
        if !self.0.borrow().stalled && !self.0.borrow().stopped {
            self.0.borrow_mut().subscribed.insert(subscription, text.to_owned());
        } else {
            self.0.borrow_mut().subscribed.entry(subscription).or_insert(text.to_owned());
        }
        core.pump_all();
        Ok(())
    }

    pub(crate) fn unsubscribe(&self, core: &mut Core<Subscriber>, numbers: &[u32]) {
        core.unsubscribe(self.number(), numbers);
    }

    /// The lowest free number.
    pub(crate) fn free_number(&self) -> u32 {
        let state = self.0.borrow();
        (0..).find(|number| !state.subscribed.contains_key(number)).unwrap()
    }

    /// The numbers and paths of its subscriptions, requested ones included.
    pub(crate) fn subscribed(&self) -> Vec<(u32, String)> {
        self.0.borrow().subscribed.iter().map(|(number, text)| (*number, text.clone())).collect()
    }

    /// Accepts nothing from now on.
    pub(crate) fn stop(&self) {
        self.0.borrow_mut().stopped = true;
    }

    /// Reads nothing from now on.
    pub(crate) fn stall(&self) {
        self.0.borrow_mut().stalled = true;
    }

    /// Fills the queue.
    pub(crate) fn fill(&self) {
        let mut state = self.0.borrow_mut();
        state.queued = state.capacity;
    }

    /// Reads everything that it accepted, until nothing waits.
    pub(crate) fn go_on(&self, core: &mut Core<Subscriber>) {
        while self.go_on_once(core) {}
    }

    /// Reads everything that it accepted, and is pumped once. False when nothing waited.
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

    /// The frames that were not read; marks them read.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let mut state = self.0.borrow_mut();
        state.queued = 0;
        let frames: Vec<_> = state.queue.drain(..).collect();
        drop(state);
        frames.iter().for_each(|frame| drop(self.read(frame)));
        frames
    }

    /// All messages that were not read.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received_from(usize::MAX)
    }

    /// The messages of the first unread frames.
    pub(crate) fn received_from(&self, frames: usize) -> Vec<Received> {
        let mut received = Vec::new();
        for _ in 0..frames {
            let Some(frame) = self.0.borrow_mut().queue.pop_front() else { break };
            let mut state = self.0.borrow_mut();
            state.queued = state.queued.saturating_sub(frame.len());
            drop(state);
            received.extend(self.read(&frame));
        }
        received
    }

    fn read(&self, frame: &Frame) -> Vec<Received> {
        let mut received = Vec::new();
        let body = Bytes::from(frame.parts().concat()).slice(4..);
        let mut state = self.0.borrow_mut();
        for message in Messages::new(body) {
            let (tag, body) = message.unwrap();
            match FromValuePublisher::decode(tag, body).unwrap().unwrap() {
                FromValuePublisher::Subscribed(all) => {
                    for Subscribed { subscription, number, value } in all {
                        let before = state.numbers.insert(number, subscription);
                        assert_eq!(before, None, "a number is announced twice");
                        let text = state.subscribed[&subscription].clone();
                        received.push(Received::Subscribed(text, value));
                    }
                }
                FromValuePublisher::Refused { subscription, code, .. } => {
                    let text = state.subscribed.remove(&subscription).unwrap();
                    received.push(Received::Refused(text, code));
                }
                FromValuePublisher::Updates(updates) => {
                    for (number, value) in updates.iter().map(Result::unwrap) {
                        let subscription = state.numbers.get(&number).expect("an announced number");
                        received
                            .push(Received::Update(state.subscribed[subscription].clone(), value));
                    }
                }
                FromValuePublisher::Ended(all) => {
                    for SubscriptionEnded { subscription, end } in all {
                        state.numbers.retain(|_, of| *of != subscription);
                        let text = state.subscribed.remove(&subscription).unwrap();
                        received.push(Received::Ended(text, end));
                    }
                }
                FromValuePublisher::Written(written) => received.push(Received::Written(written)),
                FromValuePublisher::Goodbye { .. } => {}
            }
        }
        received
    }
}

impl LinkSink for Subscriber {
    fn offer(&mut self, frame: Frame, limit: usize) -> Offer {
        let mut state = self.0.borrow_mut();
        // Frames from the backlog may exceed the limit of shared frames.
        let limit = if limit > VALUE_QUEUE_BYTES_MAX { limit } else { state.capacity };
        let full = state.queued > 0 && state.queued + frame.len() > limit;
        if full || (state.stopped && limit == state.capacity) {
            return Offer::Full;
        }
        if state.stalled || state.capacity < VALUE_QUEUE_BYTES_MAX {
            state.queued += frame.len();
        }
        state.queue.push_back(frame);
        Offer::Accepted
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
    /// Bytes of a link's waiting updates, and the length of its backlog.
    pub(crate) fn backlog_of(&mut self, link: &Subscriber) -> (usize, u64) {
        let link = self.links.get_mut(link.number()).unwrap();
        (link.backlog_bytes, link.backlog.end() - link.backlog.sent())
    }
}
