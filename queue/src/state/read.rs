//! Queries. They change nothing.

use longshore_protocol::limits::PAGE_JOBS_MAX;
use longshore_protocol::messages::work::{JobCounts, JobInfo, JobsQuery, QueueStat};
use longshore_protocol::{Glob, JobId, JobState, LinkId, Path, PathSet, Role, SessionId, Token};

use super::State;
use super::limits::PAGE_ROWS_MAX;
use super::related::Relation;
use super::row::{NONE, Substate};
use super::transition::SideRow;
use crate::command::{Secret, Start};
use crate::outcome::{JobView, QueueId, RunningLease};
use crate::rules::Rules;
use crate::time::Now;

/// Stats of the whole state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Jobs in any state.
    pub jobs: u64,
    /// Queues.
    pub queues: u64,
    /// Jobs that workers run.
    pub running: u64,
    /// Links that are up.
    pub links: u64,
    /// Settles refused for a stale token, ever. A queue's own counter excludes those whose queue is
    /// no longer known.
    pub stale_refused: u64,
}

/// How much a queue is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueUse<'a> {
    /// Its number.
    pub queue: QueueId,
    /// Its path.
    pub path: &'a Path,
    /// Its jobs, in any state.
    pub jobs: u64,
    /// Jobs that it has accepted, ever.
    pub enqueued: u64,
}

/// Jobs of a queue that have not ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WaitingJobs {
    /// Prepared, scheduled, ready and running ones.
    pub jobs: u64,
    /// Bytes of their entries: headers, options, payload.
    pub bytes: u64,
}

/// A link that is up, with its subscriptions and leases.
#[derive(Clone, Debug)]
pub struct LinkUse<'a> {
    /// Its number.
    pub link: LinkId,
    /// The client's role.
    pub role: Role,
    /// The client process's session, one per run.
    pub session: SessionId,
    /// The client process's name.
    pub name: &'a str,
    /// The patterns of its subscriptions.
    pub patterns: Vec<&'a Glob>,
    /// Its credits.
    pub credits: u32,
    /// Its leases.
    pub leases: u32,
}

impl State {
    /// The links that are up, oldest first.
    pub fn link_uses(&self) -> impl Iterator<Item = LinkUse<'_>> {
        self.links.iter().map(|(&link, up)| {
            let session = &self.sessions.table[up.session];
            let groups = up
                .subscriptions
                .values()
                .map(|&index| &self.dispatch.groups[self.dispatch.subscriptions[index].group]);
            LinkUse {
                link,
                role: session.role,
                session: session.id,
                name: self.names.text(session.name),
                patterns: groups
                    .flat_map(|group| &group.sources.sources.patterns)
                    .filter(|source| source.weight > 0)
                    .map(|source| &source.pattern)
                    .collect(),
                credits: session.credits,
                leases: session.lease_count,
            }
        })
    }

    /// The jobs of all queues by state, or none if there are more queues than `most`.
    pub fn counts(&self, most: usize) -> Option<JobCounts> {
        if self.queues.len() > most {
            return None;
        }
        let mut sum = JobCounts::default();
        self.queues.iter().for_each(|queue| sum += queue.counts);
        Some(sum)
    }

    /// Stats of the first queues, in the order of their creation.
    pub fn first_queue_stats(&self, most: usize, now: Now) -> Vec<QueueStat> {
        // The number of queues fits a `u32`.
        (0..self.queues.len().min(most) as u32).map(|number| self.queue_stat(number, now)).collect()
    }

    /// The path of a queue.
    ///
    /// # Panics
    /// For a number that this state never assigned.
    pub fn path(&self, queue: QueueId) -> &Path {
        &self.queues[queue.0 as usize].path
    }

    /// The number of queues; the next one created has this number.
    pub fn queues_len(&self) -> u32 {
        self.queues.len() as u32
    }

    /// True if there is a queue at that path.
    pub fn has_queue(&self, path: &Path) -> bool {
        self.paths.get(path).is_some()
    }

    /// The paths of all queues, in the order of their creation.
    pub fn queue_paths(&self) -> impl Iterator<Item = &Path> {
        self.queues.iter().map(|queue| &queue.path)
    }

    /// The use of the queues from that number on, in the order of their creation.
    pub fn queue_uses(&self, from: QueueId) -> impl Iterator<Item = QueueUse<'_>> {
        let rest = self.queues.get(from.0 as usize..).unwrap_or_default();
        (from.0..).zip(rest).map(|(number, queue)| QueueUse {
            queue: QueueId(number),
            path: &queue.path,
            jobs: queue.jobs(),
            enqueued: queue.enqueued,
        })
    }

    /// The jobs of a queue that have not ended.
    ///
    /// # Panics
    /// For a number that this state never assigned.
    pub fn waiting(&self, queue: QueueId) -> WaitingJobs {
        let queue = &self.queues[queue.0 as usize];
        WaitingJobs { jobs: queue.open_jobs(), bytes: queue.open_bytes }
    }

    /// How many jobs of each queue have died, ever, in the order of the queues' creation.
    pub fn deaths(&self) -> impl Iterator<Item = (&Path, u64)> {
        self.queues.iter().map(|queue| (&queue.path, queue.died))
    }

    /// Numbers and stats of the matching queues from that number on, in the order of their
    /// creation, which is that of the numbers.
    pub fn queue_stats(
        &self,
        pattern: &Glob,
        within: Option<&PathSet>,
        from: u64,
        now: Now,
    ) -> impl Iterator<Item = (u64, QueueStat)> {
        let queues = self.queues_within(pattern, within).into_iter();
        let queues = queues.skip_while(move |&number| u64::from(number) < from);
        queues.map(move |number| (u64::from(number), self.queue_stat(number, now)))
    }

    /// All of these stats.
    #[cfg(test)]
    pub(crate) fn all_queue_stats(&self, pattern: &Glob, now: Now) -> Vec<QueueStat> {
        self.queue_stats(pattern, None, 0, now).map(|(_, stat)| stat).collect()
    }

    /// Stats of one queue, if it exists.
    pub fn queue_stat_at(&self, path: &Path, now: Now) -> Option<QueueStat> {
        self.paths.get(path).map(|number| self.queue_stat(number, now))
    }

    fn queue_stat(&self, number: u32, now: Now) -> QueueStat {
        let queue = &self.queues[number as usize];
        let groups = queue.groups.iter().map(|member| &self.dispatch.groups[member.group]);
        let since = self.oldest_ready_since_ms(number);
        QueueStat {
            path: queue.path.clone(),
            counts: queue.counts,
            oldest_ready_ms: since.map(|since| now.mono_ms.saturating_sub(since)),
            enqueued: queue.enqueued,
            completed: queue.completed,
            failed: queue.failed,
            redelivered: queue.redelivered,
            stale_refused: queue.stale_refused,
            subscriptions: groups.clone().map(|group| u64::from(group.subscriptions)).sum(),
            credits: groups.map(|group| group.credits).sum(),
            died: queue.died,
            // Most queues are not paused, and the search ends with the queue's last pattern.
            paused_by: self.pauses.of(&queue.path).take(queue.pauses.into()).cloned().collect(),
            closed_by: self.closings.of(&queue.path).take(queue.closings.into()).cloned().collect(),
            settings: queue.settings.clone(),
            limited_by: self.limited_by(number),
        }
    }

    /// A page of jobs in the order of their rows, and the cursor of the next page. A page ends at
    /// its limit (1,000 jobs at most) or after 100,000 rows, so it may be short, or empty, without
    /// being the last.
    pub fn jobs(
        &self,
        query: &JobsQuery,
        within: Option<&PathSet>,
        now: Now,
    ) -> (Vec<JobView>, Option<u64>) {
        let mut matching = vec![false; self.queues.len()];
        for queue in self.queues_within(&query.filter.pattern, within) {
            matching[queue as usize] = true;
        }
        let limit = (query.limit as usize).min(PAGE_JOBS_MAX);
        let start = u32::try_from(query.cursor).unwrap_or(u32::MAX).min(self.rows.allocated());
        let relation = match query.related.map(|related| self.relation(related)) {
            Some(None) => return (Vec::new(), None),
            Some(Some(Relation::WaitedFor)) => {
                return self.waited_for(query, limit, |queue| matching[queue as usize], now);
            }
            Some(relation) => relation,
            None => None,
        };
        let (mut page, mut examined) = (Vec::new(), 0);
        for slot in start..self.rows.allocated() {
            if page.len() >= limit || examined >= PAGE_ROWS_MAX {
                return (page, Some(u64::from(slot)));
            }
            examined += 1;
            let row = &self.rows[slot];
            if row.substate != Substate::Free
                && matching[row.queue as usize]
                && relation.is_none_or(|known| self.has_relation(slot, known, &mut examined))
                && self.matches(row, &query.filter)
            {
                page.extend(self.view(slot, now));
            }
        }
        (page, None)
    }

    /// A job, if it exists.
    pub fn job(&self, id: &JobId, now: Now) -> Option<JobView> {
        self.view(self.rows.find(id)?, now)
    }

    /// The state of a job, if it exists.
    pub fn job_state(&self, id: &JobId) -> Option<JobState> {
        self.rows[self.rows.find(id)?].substate.state()
    }

    /// Every running lease.
    pub fn running(&self) -> impl Iterator<Item = RunningLease> {
        self.sessions.table.iter().flat_map(move |(_, session)| {
            let first = Some(session.leases.head).filter(|&slot| slot != NONE);
            let slots = std::iter::successors(first, |&slot| {
                Some(self.rows[slot].next).filter(|&slot| slot != NONE)
            });
            slots.map(move |slot| {
                let row = &self.rows[slot];
                RunningLease {
                    token: Token(row.when),
                    link: session.link,
                    worker_is_lost: !session.is_up && !session.ended_by_start,
                    lease_ms: self.lease_ms(row),
                    run_timeout_ms: self.run_timeout_ms(row),
                }
            })
        })
    }

    /// The job that has that lease.
    pub fn job_of(&self, token: Token) -> Option<JobId> {
        self.rows.find_token(token).map(|slot| self.rows[slot].id)
    }

    /// True when the link is up and its session holds that lease.
    pub fn holds(&self, token: Token, link: LinkId) -> bool {
        let slot = self.rows.find_token(token);
        slot.is_some_and(|slot| self.session_of(link) == Some(self.rows[slot].session))
    }

    /// The same, for a link that is up and a lease whose delivery was not sent yet, so that it
    /// cannot have settled it: while no lease is revoked, the answer needs no lookup of the job.
    pub fn is_still_leased_to(&self, token: Token, link: LinkId) -> bool {
        token.0 >= self.unrevoked_from || self.holds(token, link)
    }

    /// Stats of the whole state.
    pub fn totals(&self) -> Totals {
        Totals {
            jobs: u64::from(self.rows.used),
            queues: self.queues.len() as u64,
            running: self.rows.tokens() as u64,
            links: self.links.len() as u64,
            stale_refused: self.stale_refused,
        }
    }

    /// The index of the last command that was applied; 0 before the first.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The rules in effect.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The key of the index of ids; none before the first start.
    pub fn secret(&self) -> Option<Secret> {
        self.start.as_ref().map(|start| start.secret)
    }

    /// The last start's parameters.
    pub fn last_start(&self) -> Option<&Start> {
        self.start.as_deref()
    }

    /// The time of the last command.
    pub fn last_now(&self) -> Now {
        self.now
    }

    /// The index of the last command; 0 before the first.
    pub fn applied(&self) -> u64 {
        self.index
    }

    /// A link number that no link of this log has had.
    pub fn next_link(&self) -> LinkId {
        LinkId(self.next_link)
    }

    /// The numbers of the matching queues, in the order of their creation.
    pub(super) fn queues_matching(&self, pattern: &Glob) -> Vec<u32> {
        self.paths.matching(pattern)
    }

    /// Those of them whose paths are in the set.
    pub(super) fn queues_within(&self, pattern: &Glob, within: Option<&PathSet>) -> Vec<u32> {
        let mut queues = self.queues_matching(pattern);
        if let Some(within) = within {
            queues.retain(|&queue| within.contains(&self.queues[queue as usize].path));
        }
        queues
    }

    /// The path of a job, if it exists.
    pub fn path_of(&self, id: &JobId) -> Option<&Path> {
        let slot = self.rows.find(id)?;
        Some(&self.queues[self.rows[slot].queue as usize].path)
    }

    pub(super) fn view(&self, slot: u32, now: Now) -> Option<JobView> {
        let row = &self.rows[slot];
        let options = self.profiles.options(row.profile);
        let side = self.side(row);
        let (attempts, attempt_errors) = self.attempts_of(row);
        let checkpoints = self.checkpoints_of(row);
        let (checkpoints, checkpoint_bytes) =
            checkpoints.into_iter().map(|view| (view.info, view.bytes)).unzip();
        let is_running = row.substate == Substate::Running;
        let due_at = match row.substate {
            Substate::Timed => Some(row.when),
            Substate::Delayed | Substate::Retrying => {
                Some(now.wall_ms.saturating_add(row.when.saturating_sub(now.mono_ms)))
            }
            _ => None,
        };
        let has_ended = row.substate.is_retained() || row.substate == Substate::Dead;
        let worker = || self.names.text(self.sessions.table[row.session].name).to_owned();
        let info = JobInfo {
            id: row.id,
            path: self.queues[row.queue as usize].path.clone(),
            state: row.substate.state()?,
            retrying: row.substate == Substate::Retrying,
            priority: options.priority,
            attempt: row.attempt(),
            max_attempts: self.max_attempts(row),
            deliveries: row.deliveries,
            lease_ms: self.lease_ms(row),
            run_timeout_ms: self.run_timeout_ms(row),
            enqueued_at: row.enqueued_wall_ms,
            due_at,
            expires_at: side.and_then(|side| side.expires_at).filter(|_| row.attempts == 0),
            delivered_at: State::delivered_at(row, now),
            ended_at: has_ended.then_some(row.when),
            token: is_running.then_some(Token(row.when)),
            worker: is_running.then(worker),
            blocked: self.blocked_by(slot),
            death: self.death_of(row),
            error: None,
            schedule: self.template_of(slot).map(|template| template.name.clone()),
            batch: self.batch_info(slot),
            member_of: self.member_of(slot),
            replaces: side.and_then(|side| side.replaces),
            progress: None,
            attempts,
            checkpoints,
            payload_len: u64::from(row.payload_len()),
            payload: None,
            headers: None,
            result: None,
            options: None,
            after: Vec::new(),
        };
        Some(JobView {
            info,
            entry: self.location_of(slot),
            error: side.and_then(SideRow::error),
            result: side.and_then(|side| side.result),
            attempt_errors,
            checkpoints: checkpoint_bytes,
        })
    }
}
