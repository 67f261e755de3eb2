//! Defaults: paths below which a program creates values on request.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use hashbrown::HashMap;
use longshore_protocol::Path;
use longshore_protocol::messages::values::ValueRefusal;

use super::links::SubscriptionState;
use super::{Core, LinkNumber, LinkSink, SlotKey, SlotRefusal, Timer, Wakeup};
use crate::values::limits::{VALUE_DEFAULTS_MAX, VALUE_REQUEST_WAIT, VALUE_REQUESTS_MAX};

/// A default, as its program knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DefaultId(u64);

struct DefaultEntry {
    id: DefaultId,
    /// Requested, and not received by the program.
    requested: VecDeque<Path>,
    wakeup: Wakeup,
}

/// A path requested from a program.
struct OpenRequest {
    id: RequestId,
    by_default: DefaultId,
    /// The path of that default.
    default: Path,
    /// The subscriptions that wait for it.
    waiting: BTreeSet<(LinkNumber, u32)>,
    deadline: Instant,
}

/// One request of a path. The path may be requested again after this one failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestId(u64);

/// All defaults, and their open requests.
#[derive(Default)]
pub(super) struct Defaults {
    by_path: HashMap<Path, DefaultEntry>,
    requests: HashMap<Path, OpenRequest>,
    next: u64,
    next_request: u64,
}

/// The next request for a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NextRequest {
    /// Create this path.
    Ready(Path, RequestId),
    /// No request for now.
    Empty,
    /// No request ever: the default was removed.
    Gone,
}

impl<O: LinkSink> Core<O> {
    /// Declares a default.
    pub(crate) fn publish_default(
        &mut self,
        path: &Path,
    ) -> Result<(DefaultId, Wakeup), SlotRefusal> {
        if self.defaults.by_path.contains_key(path) {
            return Err(SlotRefusal::Taken);
        }
        if self.defaults.by_path.len() >= VALUE_DEFAULTS_MAX {
            return Err(SlotRefusal::Full);
        }
        let id = DefaultId(self.defaults.next);
        self.defaults.next += 1;
        let wakeup = Wakeup::default();
        let default = DefaultEntry { id, requested: VecDeque::new(), wakeup: wakeup.clone() };
        self.defaults.by_path.insert(path.clone(), default);
        Ok((id, wakeup))
    }

    /// Removes a default; subscriptions that wait for it are refused.
    pub(crate) fn unpublish_default(&mut self, path: &Path, id: DefaultId) -> bool {
        if self.defaults.by_path.get(path).is_none_or(|default| default.id != id) {
            return false;
        }
        self.defaults.by_path.remove(path);
        let requests = self.defaults.requests.iter();
        let open: Vec<(Path, RequestId)> = requests
            .filter(|(_, request)| request.by_default == id)
            .map(|(path, request)| (path.clone(), request.id))
            .collect();
        for (path, request) in open {
            self.decline(&path, request, None);
        }
        true
    }

    /// The next request for a default's program.
    pub(crate) fn next_request(&mut self, path: &Path, id: DefaultId) -> NextRequest {
        let Defaults { by_path, requests, .. } = &mut self.defaults;
        let Some(default) = by_path.get_mut(path).filter(|default| default.id == id) else {
            return NextRequest::Gone;
        };
        // Requests that timed out meanwhile are skipped.
        while let Some(requested) = default.requested.pop_front() {
            if let Some(request) = requests.get(&requested).filter(|it| it.by_default == id) {
                return NextRequest::Ready(requested, request.id);
            }
        }
        NextRequest::Empty
    }

    /// The program declines a request. It does not affect a later request of the same path.
    pub(crate) fn decline(&mut self, path: &Path, request: RequestId, reason: Option<&str>) {
        if self.defaults.requests.get(path).is_some_and(|open| open.id == request) {
            self.refuse_request(path, ValueRefusal::Declined, reason);
            self.pump_pending_links();
        }
    }

    /// Requests a path from the nearest default above it. False if there is none.
    pub(super) fn request_from_default(
        &mut self,
        path: &Path,
        by: (LinkNumber, u32),
        now: Instant,
    ) -> Result<bool, ValueRefusal> {
        let Defaults { by_path, requests, .. } = &mut self.defaults;
        if by_path.is_empty() {
            return Ok(false);
        }
        if let Some(request) = requests.get_mut(path) {
            request.waiting.insert(by);
            return Ok(true);
        }
        let mut above = Some(path.clone());
        let nearest = loop {
            match above {
                None => return Ok(false),
                // A program's default creates no path below `/sys`.
                Some(at) if path.is_reserved() && !at.is_reserved() => return Ok(false),
                Some(at) if by_path.contains_key(&at) => break at,
                Some(at) => above = at.parent(),
            }
        };
        let Some(default) = by_path.get_mut(&nearest) else { return Ok(false) };
        if requests.len() >= VALUE_REQUESTS_MAX {
            return Err(ValueRefusal::NoAnswer);
        }
        default.requested.push_back(path.clone());
        default.wakeup.notify_one();
        let by_default = default.id;
        let deadline = self.set_timer(now, VALUE_REQUEST_WAIT, Timer::Request(path.clone()));
        let id = RequestId(self.defaults.next_request);
        self.defaults.next_request += 1;
        let waiting = BTreeSet::from([by]);
        let request = OpenRequest { id, by_default, default: nearest, waiting, deadline };
        self.defaults.requests.insert(path.clone(), request);
        Ok(true)
    }

    /// The path has a value now: subscriptions that wait for it become active.
    pub(super) fn on_published(&mut self, path: &Path, key: SlotKey) {
        for (number, subscription) in self.remove_request(path) {
            if let Some(link) = self.links.get_mut(number)
                && let Some(entry) = link.subscriptions.get(subscription as usize)
                && let SubscriptionState::Requested(requested, policy) = &entry.state
                && requested == path
            {
                let policy = *policy;
                self.join(number, subscription, key, policy);
            }
        }
        self.pump_pending_links();
    }

    /// The program has taken too long.
    pub(super) fn request_timed_out(&mut self, path: &Path) {
        self.refuse_request(path, ValueRefusal::NoAnswer, None);
    }

    fn refuse_request(&mut self, path: &Path, code: ValueRefusal, reason: Option<&str>) {
        for (number, subscription) in self.remove_request(path) {
            if let Some(link) = self.links.get_mut(number)
                && let Some(entry) = link.subscriptions.get(subscription as usize)
                && let SubscriptionState::Requested(requested, _) = &entry.state
                && requested == path
            {
                if let Err(violation) = link.refuse(subscription, code, reason.map(Box::from)) {
                    link.end(violation.to_string());
                }
                self.links_to_pump.push(number);
            }
        }
    }

    /// Removes a request that is answered now; returns the subscriptions that waited for it.
    fn remove_request(&mut self, path: &Path) -> BTreeSet<(LinkNumber, u32)> {
        let Defaults { by_path, requests, .. } = &mut self.defaults;
        let Some(request) = requests.remove(path) else { return BTreeSet::new() };
        // A program that does not read its requests must not accumulate the paths of timed-out
        // ones.
        if let Some(default) = by_path.get_mut(&request.default) {
            default.requested.retain(|requested| requested != path);
        }
        self.timers.remove(&(request.deadline, Timer::Request(path.clone())));
        request.waiting
    }
}
