//! A link's backlog of messages to send.

use std::collections::VecDeque;

use longshore_protocol::messages::values::{ValueRefusal, Written};

#[derive(Debug)]
pub(super) enum BacklogEntry {
    /// Send what this subscription needs at that time: a value, updates, or its end.
    Subscription(u32),
    /// A subscription was refused.
    Refused { subscription: u32, code: ValueRefusal, reason: Option<Box<str>> },
    /// A write was answered.
    Written(Box<Written>),
}

/// Entries in sending order. A subscription is in it at most once.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    entries: VecDeque<BacklogEntry>,
    /// Entries sent in total.
    sent: u64,
    /// Entries that are not subscriptions.
    answers: usize,
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Entries that are not subscriptions: a subscriber that does not read could cause any number
    /// of them.
    pub(super) fn answers(&self) -> usize {
        self.answers
    }

    /// The next entry to send.
    pub(super) fn front(&self) -> Option<&BacklogEntry> {
        self.entries.front()
    }

    pub(super) fn push(&mut self, entry: BacklogEntry) {
        self.answers += usize::from(!matches!(entry, BacklogEntry::Subscription(_)));
        self.entries.push_back(entry);
    }

    pub(super) fn pop(&mut self) -> Option<BacklogEntry> {
        let entry = self.entries.pop_front()?;
        self.sent += 1;
        self.answers -= usize::from(!matches!(entry, BacklogEntry::Subscription(_)));
        Some(entry)
    }

    /// Puts a subscription back that has more to send.
    pub(super) fn put_back(&mut self, subscription: u32) {
        self.sent -= 1;
        self.entries.push_front(BacklogEntry::Subscription(subscription));
    }

    /// Entries sent in total.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// The value of [`Backlog::sent`] once all present entries are sent.
    pub(super) fn end(&self) -> u64 {
        self.sent + self.entries.len() as u64
    }
}
