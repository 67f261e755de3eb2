//! Invariants that hold between commands, checked by a full scan: for tests, and for a suspect
//! state.

use std::collections::{BTreeMap, BTreeSet};

use longshore_protocol::JobState;
use longshore_protocol::limits::{ATTEMPTS_MAX, CHECKPOINTS_BYTES_MAX, CHECKPOINTS_MAX};
use longshore_protocol::messages::work::Order;

use super::State;
use super::key_table::Keyed;
use super::order::age;
use super::queue::Queue;
use super::row::{NONE, Substate};
use super::rows::{Links, List};
use super::unique::Until;

macro_rules! ensure {
    ($condition:expr, $($what:tt)+) => {
        if !$condition {
            return Err(format!($($what)+));
        }
    };
}

impl State {
    /// Scans all jobs, lists, sets and groups and compares them with the counters and with each
    /// other.
    ///
    /// # Errors
    /// A description of the first violation.
    pub fn invariant(&self) -> Result<(), String> {
        ensure!(self.dispatch.is_settled(), "a command left something to deliver");
        self.check_rows()?;
        self.check_queues()?;
        self.check_dead_letters()?;
        self.check_sessions()?;
        self.check_keys()?;
        self.check_orders()?;
        self.check_uniques()?;
        self.check_limits()?;
        self.check_schedules()?;
        self.check_graph().map_err(str::to_owned)?;
        self.check_batches().map_err(str::to_owned)?;
        self.check_held().map_err(str::to_owned)?;
        self.check_groups()
    }

    fn check_rows(&self) -> Result<(), String> {
        let mut free = BTreeSet::new();
        let mut slot = self.rows.free;
        while slot != NONE {
            ensure!(self.rows[slot].substate == Substate::Free, "row {slot} is used and free");
            ensure!(free.insert(slot), "the free rows run in a circle");
            slot = self.rows[slot].next;
        }
        let mut scanned: Vec<Queue> =
            self.queues.iter().map(|queue| Queue::new(queue.path.clone())).collect();
        let (mut used, mut running, mut sides) = (0, 0, BTreeSet::new());
        let (mut mono, mut wall, mut expiring) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut profiles: BTreeMap<u32, u64> = BTreeMap::new();
        let mut names: BTreeMap<u32, u64> = BTreeMap::new();
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            if row.substate == Substate::Free {
                ensure!(free.contains(&slot), "free row {slot} is not in the list of free rows");
                continue;
            }
            used += 1;
            scanned[row.queue as usize].enter(row.substate, row.entry);
            *profiles.entry(row.profile).or_default() += 1;
            ensure!(self.rows.find(&row.id) == Some(slot), "id {} leads elsewhere", row.id);
            ensure!(
                (row.substate == Substate::Dead) == self.death_of(row).is_some(),
                "row {slot} has a reason of death, or none, wrongly"
            );
            if row.side != NONE {
                ensure!(self.sides.get(row.side).is_some(), "row {slot} has lost its side row");
                ensure!(sides.insert(row.side), "two rows share a side row");
                let side = &self.sides[row.side];
                if let Some(checkpoints) = &side.checkpoints {
                    let fits = checkpoints.list.len() <= CHECKPOINTS_MAX
                        && checkpoints.bytes() <= CHECKPOINTS_BYTES_MAX;
                    ensure!(fits, "row {slot} has too many checkpoints");
                    ensure!(checkpoints.are_contiguous(), "row {slot} lacks a checkpoint");
                }
                let attempts = &side.attempts;
                ensure!(attempts.len() <= ATTEMPTS_MAX, "row {slot} has too long a history");
                for attempt in attempts {
                    *names.entry(attempt.worker).or_default() += 1;
                }
            }
            if row.substate == Substate::Completed && row.session != NONE {
                *names.entry(row.session).or_default() += 1;
            }
            let waits = matches!(
                row.substate.state(),
                Some(JobState::Scheduled | JobState::Ready | JobState::Blocked)
            );
            if row.side != NONE && waits && row.attempts == 0 {
                expiring.extend(self.sides[row.side].expires_at.map(|at| (at, slot)));
            }
            match row.substate {
                Substate::Delayed | Substate::Retrying | Substate::Prepared => {
                    mono.insert((row.when, slot))
                }
                Substate::Timed => wall.insert((row.when, slot)),
                Substate::Running => {
                    running += 1;
                    let token = longshore_protocol::Token(row.when);
                    ensure!(row.when < self.next_token, "token {token} was never given");
                    ensure!(self.rows.find_token(token) == Some(slot), "token {token} is lost");
                    true
                }
                _ => true,
            };
        }
        ensure!(used == self.rows.used, "{} rows counted, {used} found", self.rows.used);
        ensure!(self.rows.ids() == used as usize, "ids and rows differ");
        ensure!(self.rows.tokens() == running, "tokens and running jobs differ");
        ensure!(self.sides.len() == sides.len(), "side rows without a job");
        let items: u64 = self.sides.iter().map(|(_, side)| side.items()).sum();
        ensure!(items == self.side_items, "attempts and checkpoints are miscounted");
        ensure!(mono == self.timers.mono, "the jobs due in monotonic time differ");
        ensure!(wall == self.timers.wall, "the jobs due in wall time differ");
        ensure!(expiring == self.timers.expiring, "the jobs that expire differ");
        for (number, profile) in self.profiles.table().iter() {
            let found = profiles.get(&number).copied().unwrap_or(0);
            ensure!(number == 0 || profile.jobs == found, "profile {number} is miscounted");
            ensure!(number == 0 || found > 0, "profile {number} has no user");
        }
        for (_, session) in self.sessions.table.iter() {
            *names.entry(session.name).or_default() += 1;
        }
        let counted = self.names.table().iter().map(|(number, name)| (number, name.uses));
        ensure!(names == counted.collect(), "uses of names are miscounted");
        for (queue, scanned) in self.queues.iter().zip(scanned) {
            let same = queue.counts == scanned.counts && queue.open_bytes == scanned.open_bytes;
            ensure!(same, "{}: counters differ from a full scan", queue.path);
        }
        Ok(())
    }

    fn check_queues(&self) -> Result<(), String> {
        let (mut collect, mut sorted) = (BTreeSet::new(), 0);
        for (number, queue) in (0u32..).zip(&self.queues) {
            let path = &queue.path;
            ensure!(self.paths.get(path) == Some(number), "{path} leads to another queue");
            let ready = queue.ready.walk(&self.rows);
            let all = queue.ready.len() + queue.fair_ready;
            ensure!(ready.len() as u64 == queue.ready.len(), "{path}: ready jobs differ");
            ensure!(all == queue.counts.ready, "{path}: ready jobs are miscounted");
            sorted += ready.iter().filter(|(_, is_late, _)| *is_late).count();
            sorted += queue.ended.own_removals.len();
            let mut last = None;
            for (priority, is_late, slot) in ready {
                let row = &self.rows[slot];
                let options = self.profiles.options(row.profile);
                let is_ready = match row.substate {
                    Substate::Fresh => !is_late,
                    substate => substate == Substate::Returned,
                };
                ensure!(is_ready && row.queue == number, "{path}: a wrong ready job");
                ensure!(options.priority == priority, "{path}: a job of another priority");
                let key = (priority, is_late, row.order());
                if let Some((p, k, order)) = last
                    && (p, k) == (key.0, key.1)
                {
                    ensure!(order < key.2, "{path}: ready jobs are out of order");
                }
                last = Some(key);
            }
            let pauses = self.pauses.of(path).count();
            ensure!(usize::from(queue.pauses) == pauses, "{path}: its pauses are miscounted");
            let closings = self.closings.of(path).count();
            ensure!(usize::from(queue.closings) == closings, "{path}: its closings are miscounted");
            let (next, ready) = match queue.delivers() {
                true => (self.next_ready(number).map(|(head, _)| head), queue.counts.ready),
                false => (None, 0),
            };
            ensure!(queue.known_head == next, "{path}: its groups know another head");
            ensure!(queue.known_ready == ready, "{path}: its groups count otherwise");
            let c = &queue.counts;
            for (name, list, links, jobs) in [
                ("scheduled", queue.scheduled, Links::Main, c.scheduled + c.retrying),
                ("running", queue.running, Links::Queue, c.running),
                ("prepared", queue.prepared, Links::Main, c.prepared),
                ("blocked", queue.blocked, Links::Main, c.blocked),
            ] {
                let found = self.walk(list, links)?;
                ensure!(found.len() as u64 == jobs, "{path}: {name} jobs differ");
                let is_own = |&slot: &u32| self.rows[slot].queue == number;
                ensure!(found.iter().all(is_own), "{path}: another queue's {name} job");
            }
            self.check_ended(number)?;
            collect.extend(queue.ended.cleanup_at.map(|at| (at, number)));
        }
        ensure!(collect == self.timers.cleanup, "the queues with a cleanup timer differ");
        ensure!(sorted as u64 == self.sorted_jobs, "jobs in sorted sets are miscounted");
        Ok(())
    }

    fn check_dead_letters(&self) -> Result<(), String> {
        let mut dead = vec![0; self.queues.len()];
        for (number, group) in self.dead.table().iter() {
            let (queue, reason) = (group.queue, group.reason);
            let name = format!(
                "{}: dead of {reason} {}",
                self.queues[queue as usize].path, group.fingerprint
            );
            ensure!(self.dead.is_known_as(number, group), "{name}: there are two");
            let found = self.walk(group.list, Links::Main)?;
            ensure!(found.len() as u64 == group.jobs && group.jobs > 0, "{name}: jobs differ");
            for row in found.into_iter().map(|slot| &self.rows[slot]) {
                let is_own = row.substate == Substate::Dead && row.queue == queue;
                ensure!(is_own && row.session == number, "{name}: another's job");
                dead[queue as usize] += 1;
            }
        }
        for (queue, dead) in self.queues.iter().zip(dead) {
            ensure!(queue.counts.dead == dead, "{}: dead jobs differ", queue.path);
        }
        Ok(())
    }

    /// A queue's ended jobs are in the order in which they ended, each in its list, and the next
    /// one to remove has a timer.
    fn check_ended(&self, number: u32) -> Result<(), String> {
        let queue = &self.queues[number as usize];
        let (path, ended) = (&queue.path, &queue.ended);
        let (mut jobs, mut own_removals, mut first) = (0, BTreeSet::new(), None);
        for (list, is_own) in [(ended.list, false), (ended.own, true)] {
            let mut last = 0;
            for slot in self.walk(list, Links::Main)? {
                let row = &self.rows[slot];
                ensure!(
                    row.substate.is_retained() && row.queue == number,
                    "{path}: a job in the wrong list of ended jobs"
                );
                ensure!(self.own_keep_ms(row).is_some() == is_own, "{path}: the wrong list");
                ensure!(row.ended_mono_ms() >= last, "{path}: ended jobs are out of order");
                last = row.ended_mono_ms();
                let removal_at = last.saturating_add(self.keep_ms(row));
                first = first.into_iter().chain([removal_at]).min();
                if is_own {
                    own_removals.insert((removal_at, slot));
                }
                jobs += 1;
            }
        }
        ensure!(jobs == queue.listed_ended(), "{path}: ended jobs differ");
        let mut oldest_dead = BTreeSet::new();
        for (kind, group) in self.dead.of_queue(number) {
            let mut last = None;
            for died in self.walk(group.list, Links::Main)?.iter().map(|&s| &self.rows[s]) {
                let died = died.ended_mono_ms();
                ensure!(last.is_none_or(|last| last <= died), "{path}: dead jobs out of order");
                if last.replace(died).is_none() {
                    oldest_dead.insert((died, kind));
                    let removal_at = died.saturating_add(self.keep_dead_ms(number));
                    first = first.into_iter().chain([removal_at]).min();
                }
            }
        }
        ensure!(oldest_dead == ended.oldest_dead, "{path}: the oldest dead letters differ");
        ensure!(own_removals == ended.own_removals, "{path}: ended jobs by when they go differ");
        if jobs > self.keep_jobs(number) {
            first = Some(self.now.mono_ms);
        }
        // A change of settings may make jobs removable in the past: the next `Tick` removes them.
        let looked_at =
            |at: u64| ended.cleanup_at.is_some_and(|known| known <= at.max(self.now.mono_ms));
        ensure!(first.is_none_or(looked_at), "{path}: an ended job outlives its retention");
        Ok(())
    }

    fn check_sessions(&self) -> Result<(), String> {
        let mut to_remove = BTreeSet::new();
        let mut leases_found = 0;
        for (number, session) in self.sessions.table.iter() {
            let id = session.id;
            ensure!(self.sessions.by_id.get(&id) == Some(&number), "session {id} is lost");
            let leases = self.walk(session.leases, Links::Main)?;
            ensure!(leases.len() as u32 == session.lease_count, "session {id}: leases differ");
            for slot in leases {
                let row = &self.rows[slot];
                let is_own = row.substate == Substate::Running && row.session == number;
                ensure!(is_own, "session {id} lists a lease that it does not have");
                leases_found += 1;
            }
            let link = self.links.get(&session.link).map(|link| link.session);
            ensure!(session.is_up == (link == Some(number)), "session {id}: link state differs");
            ensure!(!session.is_up || !session.ended_by_start, "session {id} is up and ended");
            ensure!(
                session.is_up != session.forget_at.is_some(),
                "session {id}: removal time differs"
            );
            to_remove.extend(session.forget_at.map(|at| (at, number)));
        }
        ensure!(leases_found == self.rows.tokens(), "leases without a session");
        let sessions = self.sessions.table.iter();
        let bytes: u64 = sessions.map(|(_, session)| session.answer_bytes()).sum();
        ensure!(bytes == self.sessions.answer_bytes, "bytes of answers are miscounted");
        ensure!(to_remove == self.sessions.to_remove, "the sessions to remove differ");
        ensure!(self.sessions.by_id.len() == self.sessions.table.len(), "sessions differ");
        Ok(())
    }

    fn check_keys(&self) -> Result<(), String> {
        let mut ends = BTreeSet::new();
        for (slot, held) in self.keys.table().entries().iter() {
            let found = self.keys.find(held.queue, held.text());
            ensure!(found == Some(slot), "key {slot} leads elsewhere");
            ends.insert((held.ends_at, slot));
        }
        ensure!(ends == self.keys.ends, "the ends of keys differ");
        ensure!(self.keys.table().indexed() == ends.len(), "the index has keys that do not exist");
        Ok(())
    }

    /// The turn of each key is a job's with that key that is ready, runs or is between attempts, or
    /// dead if its queue says so. Nobody is blocked where nobody has the turn.
    fn check_orders(&self) -> Result<(), String> {
        ensure!(self.orders.unsettled.is_empty(), "a command left a turn to give");
        let (mut blocked, mut shared) = (BTreeSet::new(), BTreeSet::new());
        let mut profiles = BTreeMap::<u32, u32>::new();
        for (_, profile) in self.profiles.table().iter() {
            *profiles.entry(profile.keys.order).or_default() += 1;
        }
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            if row.substate == Substate::Free {
                continue;
            }
            let key = self.order_key_of(slot);
            let share = self.share_of(slot);
            if share != NONE && row.substate == Substate::Returned {
                shared.insert((share, row.order(), slot));
            }
            ensure!(share == NONE || row.substate != Substate::Fresh, "row {slot} has no share");
            let has_turn = key != NONE && self.orders.table[key].turn == slot;
            let needs_turn = matches!(
                row.substate,
                Substate::Fresh
                    | Substate::Returned
                    | Substate::Running
                    | Substate::Retrying
                    | Substate::Limited
            );
            let may_have = matches!(
                row.substate,
                Substate::Delayed | Substate::Timed | Substate::Dead | Substate::Prepared
            );
            ensure!(key == NONE || !needs_turn || has_turn, "row {slot} runs out of turn");
            ensure!(!has_turn || needs_turn || may_have, "row {slot} keeps a turn");
            ensure!(key == NONE || row.queue == self.orders.table[key].queue, "another's key");
            if row.substate == Substate::Blocked {
                ensure!(key != NONE, "row {slot} waits for no turn");
                blocked.insert((key, age(row), slot));
            }
        }
        let lists = self.orders.table.entries().iter().map(|(number, key)| (number, key.blocked));
        let listed = self.orders.blocked.check(&self.rows, lists, age)?;
        ensure!(blocked == listed, "the blocked jobs differ");
        self.check_shares(&shared)?;
        for (number, key) in self.orders.table.entries().iter() {
            let (queue, text) = key.key();
            let found = self.orders.table.find(queue, text);
            ensure!(found == Some(number), "order key {number} leads elsewhere");
            ensure!(profiles.get(&number) == Some(&key.profiles), "profiles are miscounted");
            let waits = blocked.iter().any(|&(key, ..)| key == number);
            ensure!(!waits || key.turn != NONE, "jobs wait for a turn that nobody has");
        }
        ensure!(
            self.orders.table.indexed() == self.orders.table.len(),
            "the index has order keys that do not exist"
        );
        Ok(())
    }

    fn check_uniques(&self) -> Result<(), String> {
        let mut jobs: BTreeMap<u32, u32> = BTreeMap::new();
        for slot in 0..self.rows.allocated() {
            let Some(unique) = self.unique_of(slot) else { continue };
            *jobs.entry(unique.key).or_default() += 1;
            let (row, key) = (&self.rows[slot], &self.uniques.table[unique.key]);
            ensure!(key.queue == row.queue, "row {slot} has another queue's unique key");
            ensure!(!row.substate.is_retained(), "row {slot} has ended with a unique key");
            let holds = key.holder == Some(row.id);
            let waits = row.substate.is_open() && row.deliveries == 0;
            let must = match unique.until {
                Until::End => row.substate.is_open(),
                Until::Start => waits,
                Until::Time => continue,
            };
            ensure!(holds == must, "row {slot} holds its unique key wrongly");
        }
        let mut ends = BTreeSet::new();
        for (number, key) in self.uniques.table.entries().iter() {
            let found = self.uniques.table.find(key.queue, key.text());
            ensure!(found == Some(number), "unique key {number} leads elsewhere");
            let found = jobs.get(&number).copied().unwrap_or(0);
            ensure!(key.jobs == found, "the jobs of unique key {number} are miscounted");
            ensure!(key.holder.is_some() || found > 0, "unique key {number} is not used");
            if key.has_end() {
                ends.insert((key.ends_at, number));
            }
        }
        ensure!(ends == self.uniques.ends, "the ends of unique keys differ");
        let keys = self.uniques.table.entries().len();
        ensure!(self.uniques.table.indexed() == keys, "the index has keys that do not exist");
        Ok(())
    }

    fn check_groups(&self) -> Result<(), String> {
        let mut of_links = 0;
        for (id, link) in &self.links {
            for (&number, &index) in &link.subscriptions {
                let s = &self.dispatch.subscriptions[index];
                let is_own = s.link == *id && s.number == number && s.session == link.session;
                ensure!(is_own, "link {} names another's subscription", id.0);
                of_links += 1;
            }
            let of = |index: &u32| &self.dispatch.groups[self.dispatch.subscriptions[*index].group];
            let patterns =
                link.subscriptions.values().map(|index| of(index).sources.sources.patterns.len());
            ensure!(patterns.sum::<usize>() as u64 == link.patterns, "link {} patterns", id.0);
        }
        ensure!(of_links == self.dispatch.subscriptions.len(), "subscriptions without a link");
        let (mut parked, mut are_parked) = (BTreeSet::new(), 0);
        for (number, session) in self.sessions.table.iter() {
            for &index in &session.parked {
                let s = self.dispatch.subscriptions.get(index);
                let is_own = s.is_some_and(|s| s.session == number && s.is_parked);
                ensure!(is_own && parked.insert(index), "another's parked subscription");
                let is_busy = session.lease_count >= session.handlers;
                ensure!(is_busy, "a subscription is parked, and a handler is free");
            }
        }
        // The first queue of a line may have room, and lack only a credit.
        let first = self.limits.entries.values().filter_map(|entry| entry.line.front());
        let has_room = |queue: &u32| {
            let next = self.next_ready(*queue).filter(|_| self.queues[*queue as usize].pauses == 0);
            next.is_some_and(|(_, slot)| self.fits_limits(*queue, slot))
        };
        let open = first.copied().filter(|_| self.dispatch.credits == 0).filter(has_room);
        let open: Vec<&Queue> = open.map(|queue| &self.queues[queue as usize]).collect();
        for (number, group) in self.dispatch.groups.iter() {
            let sources = &group.sources;
            let texts = sources.sources.patterns.iter().map(|source| source.pattern.as_str());
            let pattern = texts.collect::<Vec<_>>().join(" ");
            let known = self.dispatch.by_sources.get(sources);
            ensure!(known == Some(&number), "{pattern} leads to another group");
            let all = self.dispatch.subscriptions.iter().filter(|(_, s)| s.group == number);
            let (mut turns, mut before, mut next) = (Vec::new(), NONE, group.waiting.head);
            while next != NONE {
                let s = &self.dispatch.subscriptions[next];
                ensure!(s.before == before, "{pattern}: a turn does not lead back");
                ensure!(turns.len() < group.subscriptions as usize, "{pattern}: turns in a circle");
                turns.push(next);
                (before, next) = (next, s.after);
            }
            ensure!(group.waiting.tail == before, "{pattern}: turns do not end at their tail");
            ensure!(group.waiting.count as usize == turns.len(), "{pattern}: turns miscounted");
            let (mut credits, mut subscriptions) = (0, 0);
            for (index, s) in all {
                subscriptions += 1;
                let work = &self.sessions.table[s.session].work;
                ensure!(*work == sources.within, "{pattern}: a subscription has other rights");
                credits += u64::from(s.credit);
                let turns = turns.iter().filter(|&&waiting| waiting == index).count();
                are_parked += usize::from(s.is_parked);
                let has_turn = s.credit > 0 && !s.is_parked;
                ensure!(turns == usize::from(has_turn), "{pattern}: {turns} turns for one");
                ensure!(!s.is_parked || s.credit > 0, "{pattern}: one is parked without credit");
                let is_unnotified = group.unnotified.contains(&index);
                ensure!(
                    !is_unnotified || s.credit == 0,
                    "{pattern}: a subscription with credit is marked unnotified"
                );
                let is_open = open.iter().any(|q| sources.lane_of(&q.path).is_some());
                let is_notified = group.ready == 0 && !is_open || !is_unnotified;
                ensure!(
                    is_notified,
                    "{pattern}: jobs wait, and a subscription without credit is unnotified"
                );
            }
            ensure!(subscriptions == group.subscriptions, "{pattern}: subscriptions differ");
            ensure!(subscriptions > 0, "{pattern}: a group without subscriptions");
            ensure!(credits == group.credits, "{pattern}: credits differ");
            let ready = |queue: &Queue| if queue.delivers() { queue.counts.ready } else { 0 };
            let (mut jobs, mut heads) = (0, vec![BTreeSet::new(); group.lanes.balances().len()]);
            for (number_of, queue) in (0u32..).zip(&self.queues) {
                let is_permitted =
                    sources.within.as_ref().is_none_or(|within| within.contains(&queue.path));
                let lane = sources.sources.source_of(&queue.path).filter(|_| is_permitted);
                let is_one_lane = sources.sources.order == Order::Age;
                let lane = lane.map(|lane| if is_one_lane { 0 } else { lane });
                let found = queue.groups.iter().filter(|member| member.group == number);
                let found: Vec<usize> = found.map(|member| member.lane as usize).collect();
                ensure!(found == Vec::from_iter(lane), "{pattern}: {} is in {found:?}", queue.path);
                if let Some(lane) = lane {
                    jobs += ready(queue);
                    heads[lane].extend(queue.known_head.map(|head| (head, number_of)));
                }
            }
            ensure!(jobs == group.ready, "{pattern}: ready jobs differ");
            let is_stalled = self.dispatch.stalled.contains(&number);
            let both_wait = jobs > 0 && !turns.is_empty();
            let may_wait = is_stalled || both_wait && self.delivery_budget == 0;
            ensure!(both_wait == may_wait, "{pattern}: jobs and credits wait for each other");
            let next = group.lanes.next().and_then(|next| self.next_ready(next.queue));
            let next = next.map(|(_, slot)| slot);
            let is_skipped = next.is_some_and(|slot| {
                let queue = self.rows[slot].queue;
                let fits = self.fits_limits(queue, slot) && self.still_has_room(slot);
                self.is_expired(slot) || !fits
            });
            ensure!(!is_stalled || is_skipped, "{pattern}: stalled before a job that may start");
            ensure!(group.lanes.heads().eq(&heads), "{pattern}: heads differ");
            ensure!(group.lanes.balances_are_valid(), "{pattern}: balances do not add up to 0");
        }
        ensure!(are_parked == parked.len(), "parked subscriptions differ");
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
            ensure!(prev == before, "row {slot} does not lead back");
            ensure!(found.len() < self.rows.allocated() as usize, "a list runs in a circle");
            found.push(slot);
            (before, slot) = (slot, next);
        }
        ensure!(list.tail == before, "a list does not end at its tail");
        Ok(found)
    }
}
