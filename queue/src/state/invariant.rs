//! What must hold between commands, checked by walking everything: for tests, and for a scrub of a
//! state in doubt.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::JobState;
use longshore_protocol::limits::{ATTEMPTS_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::{JobCounts, Order, Source};

use super::State;
use super::queue::{Queue, count};
use super::row::{NONE, Place};
use super::rows::{Links, List};

macro_rules! holds {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}

impl State {
    /// Walks all jobs, lists, sets and groups and compares them with the counters and with each
    /// other.
    ///
    /// # Errors
    /// The first thing that does not fit, in words.
    pub fn invariant(&self) -> Result<(), String> {
        holds!(self.dispatch.is_settled(), "a command left something to be handed out");
        self.rows_hold()?;
        self.queues_hold()?;
        self.dead_letters_hold()?;
        self.sessions_hold()?;
        self.groups_hold()
    }

    fn rows_hold(&self) -> Result<(), String> {
        let mut free = BTreeSet::new();
        let mut slot = self.rows.free;
        while slot != NONE {
            holds!(self.rows[slot].place == Place::Free, "row {slot} is used and free");
            holds!(free.insert(slot), "the free rows run in a circle");
            slot = self.rows[slot].next;
        }
        let mut counts = vec![JobCounts::default(); self.queues.len()];
        let (mut held, mut running, mut sides) = (0, 0, BTreeSet::new());
        let (mut mono, mut wall, mut expiring) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut profiles: BTreeMap<u32, u64> = BTreeMap::new();
        let mut names: BTreeMap<u32, u64> = BTreeMap::new();
        for slot in 0..self.rows.made() {
            let row = &self.rows[slot];
            if row.place == Place::Free {
                holds!(free.contains(&slot), "free row {slot} is not in the list of free rows");
                continue;
            }
            held += 1;
            count(&mut counts[row.queue as usize], row);
            *profiles.entry(row.profile).or_default() += 1;
            holds!(self.rows.find(&row.id) == Some(slot), "id {} leads elsewhere", row.id);
            holds!(
                (row.place == Place::Dead) == self.death_of(row).is_some(),
                "row {slot} has a reason of death, or none, wrongly"
            );
            if row.side != NONE {
                holds!(self.sides.get(row.side).is_some(), "row {slot} has lost its side row");
                holds!(sides.insert(row.side), "two rows share a side row");
                let side = &self.sides[row.side];
                if let Some(checkpoints) = &side.checkpoints {
                    let fits = checkpoints.kept.len() <= CHECKPOINTS_MAX
                        && checkpoints.bytes() <= CHECKPOINTS_BYTES_MAX;
                    holds!(fits, "row {slot} has too many checkpoints");
                    holds!(checkpoints.are_contiguous(), "row {slot} lacks a checkpoint");
                }
                let attempts = &side.attempts;
                holds!(attempts.len() <= ATTEMPTS_MAX, "row {slot} has too long a history");
                for attempt in attempts {
                    *names.entry(attempt.worker).or_default() += 1;
                }
            }
            if row.place == Place::Completed {
                *names.entry(row.session).or_default() += 1;
            }
            let waits = matches!(row.place.state(), Some(JobState::Scheduled | JobState::Ready));
            if row.side != NONE && waits && row.attempts == 0 {
                expiring.extend(self.sides[row.side].expires_at.map(|at| (at, slot)));
            }
            match row.place {
                Place::Delayed | Place::Retrying | Place::Prepared => mono.insert((row.when, slot)),
                Place::Timed => wall.insert((row.when, slot)),
                Place::Running => {
                    running += 1;
                    let token = longshore_protocol::Token(row.when);
                    holds!(row.when < self.next_token, "token {token} was never given");
                    holds!(self.rows.find_token(token) == Some(slot), "token {token} is lost");
                    true
                }
                _ => true,
            };
        }
        holds!(held == self.rows.held, "{} rows counted, {held} found", self.rows.held);
        holds!(self.rows.ids() == held as usize, "ids and rows differ");
        holds!(self.rows.tokens() == running, "tokens and running jobs differ");
        holds!(self.sides.len() == sides.len(), "side rows without a job");
        let items: u64 = self.sides.iter().map(|(_, side)| side.items()).sum();
        holds!(items == self.side_items, "attempts and checkpoints are miscounted");
        holds!(mono == self.due.mono, "the jobs due in monotonic time differ");
        holds!(wall == self.due.wall, "the jobs due in wall time differ");
        holds!(expiring == self.due.expiring, "the jobs that expire differ");
        for (number, profile) in self.profiles.table().iter() {
            let found = profiles.get(&number).copied().unwrap_or(0);
            holds!(number == 0 || profile.jobs == found, "profile {number} is miscounted");
            holds!(number == 0 || found > 0, "profile {number} is kept for nobody");
        }
        for (_, session) in self.sessions.table.iter() {
            *names.entry(session.name).or_default() += 1;
        }
        let counted = self.names.table().iter().map(|(number, name)| (number, name.uses));
        holds!(names == counted.collect(), "uses of names are miscounted");
        for (queue, counts) in self.queues.iter().zip(counts) {
            holds!(queue.counts == counts, "{}: counters differ from a full scan", queue.path);
        }
        Ok(())
    }

    fn queues_hold(&self) -> Result<(), String> {
        let mut collect = BTreeSet::new();
        for (number, queue) in (0u32..).zip(&self.queues) {
            let path = &queue.path;
            holds!(self.by_path.get(path) == Some(&number), "{path} leads to another queue");
            let ready = queue.ready.walk(&self.rows);
            holds!(ready.len() as u64 == queue.counts.ready, "{path}: ready jobs differ");
            holds!(queue.ready.len() == queue.counts.ready, "{path}: ready jobs are miscounted");
            let mut last = None;
            for (priority, place, slot) in ready {
                let row = &self.rows[slot];
                let options = self.profiles.options(row.profile);
                holds!(row.place == place && row.queue == number, "{path}: a wrong ready job");
                holds!(options.priority == priority, "{path}: a job of another priority");
                let key = (priority, place as u8, row.order());
                if let Some((p, k, order)) = last
                    && (p, k) == (key.0, key.1)
                {
                    holds!(order < key.2, "{path}: ready jobs are out of order");
                }
                last = Some(key);
            }
            let pauses = self.pauses.of(path).count();
            holds!(usize::from(queue.pauses) == pauses, "{path}: its pauses are miscounted");
            let closings = self.closings.of(path).count();
            holds!(usize::from(queue.closings) == closings, "{path}: its closings are miscounted");
            let (next, ready) = match pauses {
                0 => (queue.ready.next(&self.rows).map(|(head, _)| head), queue.counts.ready),
                _ => (None, 0),
            };
            holds!(queue.known_head == next, "{path}: its groups know another head");
            holds!(queue.known_ready == ready, "{path}: its groups count otherwise");
            let c = &queue.counts;
            for (name, list, links, jobs) in [
                ("scheduled", queue.scheduled, Links::Main, c.scheduled + c.retrying),
                ("running", queue.running, Links::Queue, c.running),
                ("prepared", queue.prepared, Links::Main, c.prepared),
            ] {
                let found = self.walk(list, links)?;
                holds!(found.len() as u64 == jobs, "{path}: {name} jobs differ");
                let is_own = |&slot: &u32| self.rows[slot].queue == number;
                holds!(found.iter().all(is_own), "{path}: another queue's {name} job");
            }
            self.kept_hold(number)?;
            collect.extend(queue.kept.collect_at.map(|at| (at, number)));
        }
        holds!(collect == self.due.collect, "the queues to be cleaned differ");
        Ok(())
    }

    fn dead_letters_hold(&self) -> Result<(), String> {
        let mut dead = vec![0; self.queues.len()];
        for (number, group) in self.dead.table().iter() {
            let (queue, reason) = (group.queue, group.reason);
            let name = format!(
                "{}: dead of {reason} {}",
                self.queues[queue as usize].path, group.fingerprint
            );
            holds!(self.dead.is_known_as(number, group), "{name}: there are two");
            let found = self.walk(group.list, Links::Main)?;
            holds!(found.len() as u64 == group.jobs && group.jobs > 0, "{name}: jobs differ");
            for row in found.into_iter().map(|slot| &self.rows[slot]) {
                let is_own = row.place == Place::Dead && row.queue == queue;
                holds!(is_own && row.session == number, "{name}: another's job");
                dead[queue as usize] += 1;
            }
        }
        for (queue, dead) in self.queues.iter().zip(dead) {
            holds!(queue.counts.dead == dead, "{}: dead jobs differ", queue.path);
        }
        Ok(())
    }

    /// A queue's ended jobs are in the order in which they ended, each where it belongs, and the
    /// next one is not overlooked.
    fn kept_hold(&self, number: u32) -> Result<(), String> {
        let queue = &self.queues[number as usize];
        let (path, kept) = (&queue.path, &queue.kept);
        let (mut jobs, mut own_goes, mut first) = (0, BTreeSet::new(), None);
        for (list, is_own) in [(kept.list, false), (kept.own, true)] {
            let mut last = 0;
            for slot in self.walk(list, Links::Main)? {
                let row = &self.rows[slot];
                holds!(row.place.is_kept() && row.queue == number, "{path}: keeps a wrong job");
                holds!(self.own_keep_ms(row).is_some() == is_own, "{path}: the wrong list");
                holds!(row.ended_mono_ms() >= last, "{path}: ended jobs are out of order");
                last = row.ended_mono_ms();
                let goes_at = last.saturating_add(self.keep_ms(row));
                first = first.into_iter().chain([goes_at]).min();
                if is_own {
                    own_goes.insert((goes_at, slot));
                }
                jobs += 1;
            }
        }
        holds!(jobs == queue.ended_jobs(), "{path}: ended jobs differ");
        let mut oldest_dead = BTreeSet::new();
        for (kind, group) in self.dead.of_queue(number) {
            let mut last = None;
            for died in self.walk(group.list, Links::Main)?.iter().map(|&s| &self.rows[s]) {
                let died = died.ended_mono_ms();
                holds!(last.is_none_or(|last| last <= died), "{path}: dead jobs out of order");
                if last.replace(died).is_none() {
                    oldest_dead.insert((died, kind));
                    let goes_at = died.saturating_add(self.keep_dead_ms(number));
                    first = first.into_iter().chain([goes_at]).min();
                }
            }
        }
        holds!(oldest_dead == kept.oldest_dead, "{path}: the oldest dead letters differ");
        holds!(own_goes == kept.own_goes, "{path}: ended jobs by when they go differ");
        if jobs > self.keep_jobs(number) {
            first = Some(self.now.mono_ms);
        }
        // A change of settings may have let jobs go at a time that is over: the next `Tick` looks.
        let looked_at =
            |at: u64| kept.collect_at.is_some_and(|known| known <= at.max(self.now.mono_ms));
        holds!(first.is_none_or(looked_at), "{path}: an ended job is kept for too long");
        Ok(())
    }

    fn sessions_hold(&self) -> Result<(), String> {
        let mut leaving = BTreeSet::new();
        let mut held = 0;
        for (number, session) in self.sessions.table.iter() {
            let id = session.id;
            holds!(self.sessions.by_id.get(&id) == Some(&number), "session {id} is lost");
            let leases = self.walk(session.held, Links::Main)?;
            holds!(leases.len() as u32 == session.held_count, "session {id}: leases differ");
            for slot in leases {
                let row = &self.rows[slot];
                let is_own = row.place == Place::Running && row.session == number;
                holds!(is_own, "session {id} holds what it does not");
                held += 1;
            }
            let link = self.links.get(&session.link).map(|link| link.session);
            holds!(session.is_up == (link == Some(number)), "session {id}: up or not");
            holds!(session.is_up != session.forget_at.is_some(), "session {id}: leaving or not");
            leaving.extend(session.forget_at.map(|at| (at, number)));
        }
        holds!(held == self.rows.tokens(), "leases that no session holds");
        let sessions = self.sessions.table.iter();
        let bytes: u64 = sessions.map(|(_, session)| session.answer_bytes()).sum();
        holds!(bytes == self.sessions.answer_bytes, "bytes of answers are miscounted");
        holds!(leaving == self.sessions.leaving, "the sessions to be forgotten differ");
        holds!(self.sessions.by_id.len() == self.sessions.table.len(), "sessions differ");
        Ok(())
    }

    fn groups_hold(&self) -> Result<(), String> {
        let mut of_links = 0;
        for (id, link) in &self.links {
            for (&number, &place) in &link.subscriptions {
                let s = &self.dispatch.subscriptions[place];
                let is_own = s.link == *id && s.number == number && s.session == link.session;
                holds!(is_own, "link {} names another's subscription", id.0);
                of_links += 1;
            }
        }
        holds!(of_links == self.dispatch.subscriptions.len(), "subscriptions without a link");
        for (number, group) in self.dispatch.groups.iter() {
            let sources = &group.sources;
            let texts = sources.patterns.iter().map(|source| source.pattern.as_str());
            let pattern = texts.collect::<Vec<_>>().join(" ");
            let known = self.dispatch.by_sources.get(sources);
            holds!(known == Some(&number), "{pattern} leads to another group");
            let all = self.dispatch.subscriptions.iter().filter(|(_, s)| s.group == number);
            let (mut turns, mut before, mut next) = (Vec::new(), NONE, group.waiting.head);
            while next != NONE {
                let s = &self.dispatch.subscriptions[next];
                holds!(s.before == before, "{pattern}: a turn does not lead back");
                holds!(turns.len() < group.subscriptions as usize, "{pattern}: turns in a circle");
                turns.push(next);
                (before, next) = (next, s.after);
            }
            holds!(group.waiting.tail == before, "{pattern}: turns do not end at their tail");
            holds!(group.waiting.count as usize == turns.len(), "{pattern}: turns miscounted");
            let (mut credits, mut subscriptions) = (0, 0);
            for (place, s) in all {
                subscriptions += 1;
                credits += u64::from(s.credit);
                let turns = turns.iter().filter(|&&waiting| waiting == place).count();
                holds!(turns == usize::from(s.credit > 0), "{pattern}: {turns} turns for one");
                let is_untold = group.untold.contains(&place);
                holds!(!is_untold || s.credit == 0, "{pattern}: credit, and to be told");
                let told = group.ready == 0 || !is_untold;
                holds!(told, "{pattern}: jobs wait, and a subscription without credit is not told");
            }
            holds!(subscriptions == group.subscriptions, "{pattern}: subscriptions differ");
            holds!(subscriptions > 0, "{pattern}: a group of nobody");
            holds!(credits == group.credits, "{pattern}: credits differ");
            let ready = |queue: &Queue| if queue.pauses == 0 { queue.counts.ready } else { 0 };
            let (mut jobs, mut heads) = (0, vec![BTreeSet::new(); group.lanes.balances().len()]);
            for (number_of, queue) in (0u32..).zip(&self.queues) {
                let matches = |source: &Source| source.pattern.matches(&queue.path);
                let lane = sources.patterns.iter().position(matches);
                let lane = lane.map(|lane| if sources.order == Order::Age { 0 } else { lane });
                let found = queue.groups.iter().filter(|member| member.group == number);
                let found: Vec<usize> = found.map(|member| member.lane as usize).collect();
                holds!(found == Vec::from_iter(lane), "{pattern}: {} is in {found:?}", queue.path);
                if let Some(lane) = lane {
                    jobs += ready(queue);
                    heads[lane].extend(queue.known_head.map(|head| (head, number_of)));
                }
            }
            holds!(jobs == group.ready, "{pattern}: ready jobs differ");
            let is_stalled = self.dispatch.stalled.contains(&number);
            let both_wait = jobs > 0 && credits > 0;
            let may_wait = is_stalled || both_wait && self.handouts == 0;
            holds!(both_wait == may_wait, "{pattern}: jobs and credits wait for each other");
            let next = group.lanes.next().map(|next| &self.queues[next.queue as usize].ready);
            let next = next.and_then(|ready| ready.next(&self.rows)).map(|(_, slot)| slot);
            let is_past = next.is_some_and(|slot| self.is_past(slot));
            holds!(!is_stalled || is_past, "{pattern}: stalled before a job that is in time");
            holds!(group.lanes.heads().eq(&heads), "{pattern}: heads differ");
            holds!(group.lanes.balances_hold(), "{pattern}: balances do not add up to 0");
        }
        Ok(())
    }

    fn walk(&self, list: List, links: Links) -> Result<Vec<u32>, String> {
        let (mut found, mut before, mut slot) = (Vec::new(), NONE, list.head);
        while slot != NONE {
            let row = &self.rows[slot];
            let (prev, next) = match links {
                Links::Main => (row.prev, row.next),
                Links::Queue => (row.queue_prev, row.queue_next),
            };
            holds!(prev == before, "row {slot} does not lead back");
            holds!(found.len() < self.rows.made() as usize, "a list runs in a circle");
            found.push(slot);
            (before, slot) = (slot, next);
        }
        holds!(list.tail == before, "a list does not end at its tail");
        Ok(found)
    }
}
