//! Defaults: paths below which a program makes values when somebody asks for them.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use hashbrown::HashMap;
use longshore_protocol::Path;
use longshore_protocol::messages::values::ValueRefusal;

use super::links::Stage;
use super::{Bell, Core, LinkNumber, LinkOutput, SlotKey, SlotRefusal, Timer};
use crate::values::limits::{VALUE_DEFAULTS_MAX, VALUE_REQUEST_WAIT, VALUE_REQUESTS_MAX};

/// A default, as its program holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DefaultId(u64);

struct Default {
    id: DefaultId,
    /// Asked for, and not taken by the program.
    asked: VecDeque<Path>,
    bell: Bell,
}

/// A path that a program was asked for.
struct Request {
    id: RequestId,
    by_default: DefaultId,
    /// The path of that default.
    default: Path,
    /// Who waits for it.
    waiting: BTreeSet<(LinkNumber, u32)>,
    late_at: Instant,
}

/// One time that a path was asked for. It may be asked for again, once that came to nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestId(u64);

/// All defaults, and what they were asked for.
#[derive(Default)]
pub(super) struct Defaults {
    by_path: HashMap<Path, Default>,
    requests: HashMap<Path, Request>,
    next: u64,
    next_request: u64,
}

/// What a program is to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Requests {
    /// This path.
    Asked(Path, RequestId),
    /// Nothing for now.
    Nothing,
    /// Nothing ever: the default is gone.
    Gone,
}

impl<O: LinkOutput> Core<O> {
    /// Declares a default.
    pub(crate) fn publish_default(
        &mut self,
        path: &Path,
    ) -> Result<(DefaultId, Bell), SlotRefusal> {
        if self.defaults.by_path.contains_key(path) {
            return Err(SlotRefusal::Taken);
        }
        if self.defaults.by_path.len() >= VALUE_DEFAULTS_MAX {
            return Err(SlotRefusal::Full);
        }
        let id = DefaultId(self.defaults.next);
        self.defaults.next += 1;
        let bell = Bell::default();
        let default = Default { id, asked: VecDeque::new(), bell: bell.clone() };
        self.defaults.by_path.insert(path.clone(), default);
        Ok((id, bell))
    }

    /// Takes a default back; who waits for an answer of it is refused.
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

    /// What the program of a default is to make next.
    pub(crate) fn next_request(&mut self, path: &Path, id: DefaultId) -> Requests {
        let Defaults { by_path, requests, .. } = &mut self.defaults;
        let Some(default) = by_path.get_mut(path).filter(|default| default.id == id) else {
            return Requests::Gone;
        };
        // Those that were late meanwhile are wanted no more.
        while let Some(asked) = default.asked.pop_front() {
            if let Some(request) = requests.get(&asked).filter(|it| it.by_default == id) {
                return Requests::Asked(asked, request.id);
            }
        }
        Requests::Nothing
    }

    /// The program does not make it. Says nothing to those who have asked again since.
    pub(crate) fn decline(&mut self, path: &Path, request: RequestId, reason: Option<&str>) {
        if self.defaults.requests.get(path).is_some_and(|open| open.id == request) {
            self.refuse_request(path, ValueRefusal::Declined, reason);
            self.pump_lined_up();
        }
    }

    /// Asks the nearest default above a path. False if there is none.
    pub(super) fn ask(
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
                // A default of a program makes none of Longshore's own.
                Some(at) if path.is_reserved() && !at.is_reserved() => return Ok(false),
                Some(at) if by_path.contains_key(&at) => break at,
                Some(at) => above = at.parent(),
            }
        };
        let Some(default) = by_path.get_mut(&nearest) else { return Ok(false) };
        if requests.len() >= VALUE_REQUESTS_MAX {
            return Err(ValueRefusal::NoAnswer);
        }
        default.asked.push_back(path.clone());
        default.bell.notify_one();
        let by_default = default.id;
        let late_at = self.set_timer(now, VALUE_REQUEST_WAIT, Timer::Request(path.clone()));
        let id = RequestId(self.defaults.next_request);
        self.defaults.next_request += 1;
        let waiting = BTreeSet::from([by]);
        let request = Request { id, by_default, default: nearest, waiting, late_at };
        self.defaults.requests.insert(path.clone(), request);
        Ok(true)
    }

    /// The path has a value now: who waits for it joins.
    pub(super) fn granted(&mut self, path: &Path, key: SlotKey) {
        for (number, subscription) in self.answered(path) {
            if let Some(link) = self.links.get_mut(number)
                && let Some(waits) = link.subscriptions.get(subscription as usize)
                && let Stage::Asked(asked, policy) = &waits.stage
                && asked == path
            {
                let policy = *policy;
                self.join(number, subscription, key, policy);
            }
        }
        self.pump_lined_up();
    }

    /// The program has taken too long.
    pub(super) fn request_is_late(&mut self, path: &Path) {
        self.refuse_request(path, ValueRefusal::NoAnswer, None);
    }

    fn refuse_request(&mut self, path: &Path, code: ValueRefusal, reason: Option<&str>) {
        for (number, subscription) in self.answered(path) {
            if let Some(link) = self.links.get_mut(number)
                && let Some(waits) = link.subscriptions.get(subscription as usize)
                && matches!(&waits.stage, Stage::Asked(asked, _) if asked == path)
            {
                if let Err(misuse) = link.refuse(subscription, code, reason.map(Box::from)) {
                    link.end(misuse.to_string());
                }
                self.lined_up.push(number);
            }
        }
    }

    /// Who waits for a path that is answered now.
    fn answered(&mut self, path: &Path) -> BTreeSet<(LinkNumber, u32)> {
        let Defaults { by_path, requests, .. } = &mut self.defaults;
        let Some(request) = requests.remove(path) else { return BTreeSet::new() };
        // A program that does not look would be left with the paths of all who have given up.
        if let Some(default) = by_path.get_mut(&request.default) {
            default.asked.retain(|asked| asked != path);
        }
        self.timers.remove(&(request.late_at, Timer::Request(path.clone())));
        request.waiting
    }
}
