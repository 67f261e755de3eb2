//! Starts, links, and their sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use longshore_protocol::messages::work::{Attached, Tokens};
use longshore_protocol::{Durability, LinkId, Path, PathSet, Role, SessionId, Token};

use super::State;
use super::row::NONE;
use crate::command::Start;
use crate::outcome::{Outcomes, Reply};
use crate::rules::Rules;

/// The client of a new link.
#[derive(Clone, Copy)]
pub(super) struct ClientOfLink<'a> {
    /// Its process's name.
    pub(super) name: &'a str,
    /// Who it is; empty without an identity.
    pub(super) identity: &'a str,
    /// The queues whose jobs it may take; none for all.
    pub(super) work: Option<&'a PathSet>,
}

/// A link that is up.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) session: u32,
    /// Its subscriptions, by the client's numbers.
    pub(super) subscriptions: BTreeMap<u32, u32>,
    /// The patterns of all of them. Not in snapshots.
    pub(super) patterns: u64,
}

/// The paths and defaults of the present start.
#[derive(Clone, Debug, Default)]
pub(super) struct ServedPaths {
    paths: BTreeSet<Path>,
    defaults: BTreeSet<Path>,
}

impl ServedPaths {
    pub(super) fn of(start: &Start) -> ServedPaths {
        ServedPaths {
            paths: start.paths.iter().cloned().collect(),
            defaults: start.defaults.iter().cloned().collect(),
        }
    }

    /// True of the paths, the defaults, and all paths below a default.
    pub(super) fn accepts(&self, path: &Path) -> bool {
        if self.paths.contains(path) {
            return true;
        }
        let text = path.as_str();
        let above = text.match_indices('/').map(|(at, _)| if at == 0 { "/" } else { &text[..at] });
        above.chain([text]).any(|base| self.defaults.contains(base))
    }
}

impl State {
    /// Applies a start: every link of the run before ends. Its leases stay with its sessions until
    /// they resume or expire.
    pub(super) fn apply_start(&mut self, start: &Start) {
        self.take_rules(&start.rules);
        for (link, session) in
            self.links.iter().map(|(&link, up)| (link, up.session)).collect::<Vec<_>>()
        {
            self.link_lost(link);
            self.sessions.table[session].ended_by_start = true;
        }
        // An epoch that jumps, because starts were lost, advances the tokens, too.
        let floor = start.epoch.0.saturating_mul(self.rules.tokens_per_start);
        self.next_token = self.next_token.saturating_add(self.rules.tokens_per_start).max(floor);
        self.served = ServedPaths::of(start);
        for queue in &mut self.queues {
            queue.accepts = self.served.accepts(&queue.path);
        }
        // Existing ids are indexed with the first start's secret.
        let secret = self.start.as_ref().map_or(start.secret, |first| first.secret);
        if self.start.is_none() {
            self.rows.set_key(&secret.0);
        }
        self.start = Some(Arc::new(Start { secret, ..start.clone() }));
    }

    /// Replaces the rules. Ended jobs may exceed the new retention: the next `Tick` checks.
    fn take_rules(&mut self, rules: &Rules) {
        if self.rules == *rules {
            return;
        }
        self.rules = rules.clone();
        for queue in 0..self.queues.len() as u32 {
            let q = &self.queues[queue as usize];
            if q.ended_jobs() > 0 || q.counts.dead > 0 {
                self.schedule_cleanup(queue, self.now.mono_ms);
            }
        }
    }

    /// One command: the session's older link ends with its credits, the listed leases move, the
    /// others are released.
    pub(super) fn link_up(
        &mut self,
        link: LinkId,
        role: Role,
        id: SessionId,
        client: &ClientOfLink<'_>,
        resume: &Tokens,
        out: &mut Outcomes,
    ) {
        let ClientOfLink { name, identity, work } = *client;
        self.next_link = self.next_link.max(link.0.saturating_add(1));
        self.link_lost(link);
        let number = match self.sessions.by_id.get(&id).copied() {
            Some(number) if *self.sessions.table[number].identity != *identity => {
                let reason = "the session belongs to another client".to_owned();
                out.replies.push((link, Reply::LinkRefused { reason }));
                return;
            }
            Some(number) => {
                let older = self.sessions.table[number].link;
                self.end_link(older);
                number
            }
            None if self.sessions.answer_bytes >= self.rules.answer_bytes => {
                let reason = format!(
                    "the publisher stores {} MiB of answers for clients that may repeat a request, \
                     of at most {} MiB; it deletes those of a client an hour after its last link: \
                     try again then, or send fewer batches with mixed outcomes",
                    self.sessions.answer_bytes >> 20,
                    self.rules.answer_bytes >> 20,
                );
                out.replies.push((link, Reply::LinkRefused { reason }));
                return;
            }
            None if !self.make_room_for_session() => {
                let reason = format!(
                    "the publisher has reached its limit of {} sessions; try again in an hour",
                    self.rules.sessions
                );
                out.replies.push((link, Reply::LinkRefused { reason }));
                return;
            }
            None => {
                let number = self.sessions.insert(id, link);
                self.sessions.table[number].identity = identity.into();
                number
            }
        };
        self.sessions.cancel_removal(number);
        let session = &mut self.sessions.table[number];
        session.link = link;
        session.is_up = true;
        session.ended_by_start = false;
        session.role = role;
        session.work = work.cloned().map(Arc::new);
        let known = session.name;
        if known == NONE || self.names.text(known) != name {
            session.name = self.names.acquire(name);
            if known != NONE {
                self.names.release(known);
            }
        }
        let new = Link { session: number, subscriptions: BTreeMap::new(), patterns: 0 };
        self.links.insert(link, new);

        let gone = self.resume(number, link, resume, out);
        let session = &self.sessions.table[number];
        let attached = Attached {
            durability: self.start.as_ref().map_or(Durability::None, |start| start.durability),
            next_batch: session.next_batch,
            next_settle: session.next_settle,
            gone,
            // The grace is not in the state, like leases: the publisher fills it in.
            reconnect_grace_ms: 0,
        };
        out.replies.push((link, Reply::Attached(attached)));
    }

    /// Moves the listed leases of the session to the link and releases its others: their deliveries
    /// never arrived, or the client may no longer work on their queues.
    fn resume(
        &mut self,
        session: u32,
        link: LinkId,
        resume: &Tokens,
        out: &mut Outcomes,
    ) -> Tokens {
        let work = self.sessions.table[session].work.clone();
        let resumes = |token: &Token| {
            self.rows.find_token(*token).is_some_and(|slot| {
                let row = &self.rows[slot];
                let path = &self.queues[row.queue as usize].path;
                row.session == session && work.as_ref().is_none_or(|work| work.contains(path))
            })
        };
        let (mut resumed, gone): (Vec<Token>, Vec<Token>) =
            resume.0.iter().copied().partition(resumes);
        resumed.sort_unstable();
        let mut slot = self.sessions.table[session].leases.head;
        while slot != NONE {
            let (next, token) = (self.rows[slot].next, Token(self.rows[slot].when));
            if resumed.binary_search(&token).is_ok() {
                out.moved.push((token, link));
            } else {
                self.revoke_lease(slot, out);
                self.return_unstarted(slot, out);
            }
            slot = next;
        }
        Tokens(gone)
    }

    /// Whether one more session fits, if need be after removing the one that has been without a
    /// link longest.
    fn make_room_for_session(&mut self) -> bool {
        if (self.sessions.table.len() as u64) < self.rules.sessions {
            return true;
        }
        let mut to_remove = self.sessions.to_remove.iter().map(|&(_, number)| number);
        let idle = to_remove.find(|&number| self.sessions.table[number].lease_count == 0);
        if let Some(number) = idle {
            self.remove_session(number);
        }
        idle.is_some()
    }

    /// Removes a session.
    pub(super) fn remove_session(&mut self, number: u32) {
        self.names.release(self.sessions.table[number].name);
        self.sessions.remove(number);
    }

    /// A link ends: its credits and subscriptions end, its leases stay.
    pub(super) fn link_lost(&mut self, link: LinkId) {
        if let Some(session) = self.end_link(link) {
            let forget_at = self.now.mono_ms.saturating_add(self.rules.session_ttl_ms);
            self.sessions.schedule_removal(session, forget_at);
        }
    }

    /// The session of a link that is up.
    pub(super) fn session_of(&self, link: LinkId) -> Option<u32> {
        self.links.get(&link).map(|link| link.session)
    }

    fn end_link(&mut self, link: LinkId) -> Option<u32> {
        let ended = self.links.remove(&link)?;
        self.drop_subscriptions(ended.subscriptions.into_values());
        self.sessions.table[ended.session].is_up = false;
        Some(ended.session)
    }
}
