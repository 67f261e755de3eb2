//! What stands in a link's line.

use std::collections::VecDeque;

use longshore_protocol::messages::values::{ValueRefusal, Written};

/// One thing to be said to a link.
#[derive(Debug)]
pub(super) enum Entry {
    /// What there is to be said of this subscription when its turn has come.
    Subscription(u32),
    /// A subscription was not made.
    Refused { subscription: u32, code: ValueRefusal, reason: Option<Box<str>> },
    /// A write was answered.
    Written(Box<Written>),
}

/// Things to be said, in order. A subscription stands in it once at most.
#[derive(Debug, Default)]
pub(super) struct Line {
    entries: VecDeque<Entry>,
    /// Entries that were said, ever.
    gone: u64,
    /// Entries that are no subscriptions.
    answers: usize,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries that are no subscriptions: of these a subscriber that does not read could ask for
    /// ever more.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.answers += usize::from(!matches!(entry, Entry::Subscription(_)));
        self.entries.push_back(entry);
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.gone += 1;
        self.answers -= usize::from(!matches!(entry, Entry::Subscription(_)));
        Some(entry)
    }

    /// Puts a subscription back of which not all was said.
    pub(super) fn put_back(&mut self, subscription: u32) {
        self.gone -= 1;
        self.entries.push_front(Entry::Subscription(subscription));
    }

    /// Entries that were said, ever.
    pub(super) fn gone(&self) -> u64 {
        self.gone
    }

    /// How many will have been said once all that stands in it now has been.
    pub(super) fn end(&self) -> u64 {
        self.gone + self.entries.len() as u64
    }
}
