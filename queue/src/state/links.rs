//! Starts, links, and the sessions behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use longshore_protocol::messages::work::{Attached, Tokens};
use longshore_protocol::{Durability, LinkId, Path, Role, SessionId, Token};

use super::State;
use super::row::NONE;
use crate::command::Start;
use crate::outcome::{Outcomes, Reply};
use crate::rules::Rules;

/// A link that is up.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) session: u32,
    /// Its subscriptions, by the client's numbers.
    pub(super) subscriptions: BTreeMap<u32, u32>,
}

/// Where the present start takes jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    paths: BTreeSet<Path>,
    defaults: BTreeSet<Path>,
}

impl Served {
    pub(super) fn of(start: &Start) -> Served {
        Served {
            paths: start.paths.iter().cloned().collect(),
            defaults: start.defaults.iter().cloned().collect(),
        }
    }

    /// True of the paths, the defaults, and all that lies below a default.
    pub(super) fn takes(&self, path: &Path) -> bool {
        if self.paths.contains(path) {
            return true;
        }
        let text = path.as_str();
        let above = text.match_indices('/').map(|(at, _)| if at == 0 { "/" } else { &text[..at] });
        above.chain([text]).any(|base| self.defaults.contains(base))
    }
}

impl State {
    /// Every link of the run before ends. Its leases stay with its sessions until they resume or
    /// expire.
    pub(super) fn begin(&mut self, start: &Start) {
        self.take_rules(&start.rules);
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.link_lost(link);
        }
        // An epoch that jumps, because starts were lost, takes the tokens with it.
        let floor = start.epoch.0.saturating_mul(self.rules.tokens_per_start);
        self.next_token = self.next_token.saturating_add(self.rules.tokens_per_start).max(floor);
        self.served = Served::of(start);
        for queue in &mut self.queues {
            queue.accepts = self.served.takes(&queue.path);
        }
        // Ids that are there lie where the first start's secret has them.
        let secret = self.start.as_ref().map_or(start.secret, |first| first.secret);
        if self.start.is_none() {
            self.rows.key_with(&secret.0);
        }
        self.start = Some(Arc::new(Start { secret, ..start.clone() }));
    }

    /// From now on these decide. What is kept may be kept for too long by them: the next `Tick`
    /// looks.
    fn take_rules(&mut self, rules: &Rules) {
        if self.rules == *rules {
            return;
        }
        self.rules = rules.clone();
        for queue in 0..self.queues.len() as u32 {
            let q = &self.queues[queue as usize];
            if q.ended_jobs() > 0 || q.counts.dead > 0 {
                self.collect_by(queue, self.now.mono_ms);
            }
        }
    }

    /// One command: the session's older link ends with its credits, the listed leases move, the
    /// others go back.
    pub(super) fn link_up(
        &mut self,
        link: LinkId,
        role: Role,
        id: SessionId,
        name: &str,
        resume: &Tokens,
        out: &mut Outcomes,
    ) {
        self.next_link = self.next_link.max(link.0.saturating_add(1));
        self.link_lost(link);
        let number = match self.sessions.by_id.get(&id).copied() {
            Some(number) => {
                let older = self.sessions.table[number].link;
                self.end_link(older);
                number
            }
            None if self.sessions.answer_bytes >= self.rules.answer_bytes => {
                let reason = format!(
                    "the publisher keeps {} MiB of answers for clients that may ask again, of at most {} MiB; \
                     it forgets those of a client an hour after its last link: try again then, or send fewer \
                     batches with mixed outcomes",
                    self.sessions.answer_bytes >> 20,
                    self.rules.answer_bytes >> 20,
                );
                out.replies.push((link, Reply::LinkRefused { reason }));
                return;
            }
            None if !self.make_room_for_a_session() => {
                let reason = format!(
                    "the publisher knows {} sessions, as many as it may; try again in an hour",
                    self.rules.sessions
                );
                out.replies.push((link, Reply::LinkRefused { reason }));
                return;
            }
            None => self.sessions.insert(id, link),
        };
        self.sessions.stay(number);
        let session = &mut self.sessions.table[number];
        session.link = link;
        session.is_up = true;
        session.role = role;
        let known = session.name;
        if known == NONE || self.names.text(known) != name {
            session.name = self.names.take(name);
            if known != NONE {
                self.names.give_back(known);
            }
        }
        self.links.insert(link, Link { session: number, subscriptions: BTreeMap::new() });

        let gone = self.resume(number, link, resume, out);
        let session = &self.sessions.table[number];
        let attached = Attached {
            durability: self.start.as_ref().map_or(Durability::None, |start| start.durability),
            next_batch: session.next_batch,
            next_settle: session.next_settle,
            gone,
            // Leases are soft, and so is their grace: whoever keeps their time fills it in.
            reconnect_grace_ms: 0,
        };
        out.replies.push((link, Reply::Attached(attached)));
    }

    /// Moves the listed leases of the session to the link and releases its others: their deliveries
    /// never arrived.
    fn resume(
        &mut self,
        session: u32,
        link: LinkId,
        resume: &Tokens,
        out: &mut Outcomes,
    ) -> Tokens {
        let held_by_session = |token: &Token| {
            self.rows.find_token(*token).is_some_and(|slot| self.rows[slot].session == session)
        };
        let (mut kept, gone): (Vec<Token>, Vec<Token>) =
            resume.0.iter().copied().partition(held_by_session);
        kept.sort_unstable();
        let mut slot = self.sessions.table[session].held.head;
        while slot != NONE {
            let (next, token) = (self.rows[slot].next, Token(self.rows[slot].when));
            if kept.binary_search(&token).is_ok() {
                out.moved.push((token, link));
            } else {
                self.take_lease(slot, out);
                self.return_unstarted(slot, out);
            }
            slot = next;
        }
        Tokens(gone)
    }

    /// True when one more session may be known, if need be by forgetting the one that has been
    /// without a link longest.
    fn make_room_for_a_session(&mut self) -> bool {
        if (self.sessions.table.len() as u64) < self.rules.sessions {
            return true;
        }
        let mut leaving = self.sessions.leaving.iter().map(|&(_, number)| number);
        let idle = leaving.find(|&number| self.sessions.table[number].held_count == 0);
        if let Some(number) = idle {
            self.forget_session(number);
        }
        idle.is_some()
    }

    /// Whoever it was is not known any more.
    pub(super) fn forget_session(&mut self, number: u32) {
        self.names.give_back(self.sessions.table[number].name);
        self.sessions.remove(number);
    }

    /// Credits and subscriptions end; leases stay.
    pub(super) fn link_lost(&mut self, link: LinkId) {
        if let Some(session) = self.end_link(link) {
            let forget_at = self.now.mono_ms.saturating_add(self.rules.session_kept_ms);
            self.sessions.leave(session, forget_at);
        }
    }

    /// The session of a link that is up.
    pub(super) fn session_of(&self, link: LinkId) -> Option<u32> {
        self.links.get(&link).map(|link| link.session)
    }

    fn end_link(&mut self, link: LinkId) -> Option<u32> {
        let ended = self.links.remove(&link)?;
        for &subscription in ended.subscriptions.values() {
            self.drop_subscription(subscription);
        }
        self.sessions.table[ended.session].is_up = false;
        Some(ended.session)
    }
}
