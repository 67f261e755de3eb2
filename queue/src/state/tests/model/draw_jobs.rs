//! Random jobs, filters, actions and settings.

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, Filter, NextOccurrence, Pace};
use longshore_protocol::{
    Backoff, DeathReason, Due, FairKey, Fingerprint, FrameWriter, Idempotency, JobKeys, JobLimit,
    JobOptions, JobRate, JobState, LimitScope, LinkId, Missed, NewJob, OnConflict, Overlap,
    QueueSettings, Schedule, Timing, Unique, UniqueUntil,
};

use super::super::scenario::glob;
use super::draw_commands::{Draw, ERRORS, Focus};
use super::driver::{Harness, STEP_JOBS};
use crate::command::{Command, Occurrence, RunOfOccurrence};

impl Harness {
    pub(super) fn draw_job(&self, draw: &mut Draw) -> NewJob {
        let near = |draw: &mut Draw| self.now.wall_ms + [50, 1, 300, 0, 3_000][draw.below(5)];
        let waits = !self.prefers_running() || draw.one_in(4);
        let due = match draw.below(8) {
            0 if waits => Due::After(50),
            1 if waits => Due::At(near(draw)),
            2 => Due::At(self.now.wall_ms - 7),
            _ => Due::Now,
        };
        let expires_at = match draw.below(8) {
            0..=1 if waits => Some(near(draw)),
            2 => Some(self.now.wall_ms + 3_600_000),
            _ => None,
        };
        let lasting = self.focus == Focus::Losses;
        let options = JobOptions {
            priority: [0, 0, 0, 1, -1][draw.below(5)],
            due,
            prepared: waits && draw.one_in(if self.has_order_keys() { 3 } else { 8 }),
            expires_at,
            max_attempts: if lasting {
                [None, Some(10), Some(60)][draw.below(3)]
            } else {
                [None, None, Some(10), Some(1), Some(2)][draw.below(5)]
            },
            lease_ms: [None, None, Some(5_000)][draw.below(3)],
            run_timeout_ms: [None, None, Some(0), Some(70)][draw.below(4)],
            backoff: match draw.below(5) {
                0..=1 => None,
                2..=3 => Some(Backoff::Fixed(0)),
                _ => Some(Backoff::Hangfire),
            },
            keep_ms: [None, None, None, Some(0), Some(400), Some(86_400_000)][draw.below(6)],
            keep_result: draw.one_in(2),
        };
        NewJob {
            path: draw.path(),
            id: draw.id(),
            payload: Bytes::from_static([&b"one"[..], b"one", b"one", b"two"][draw.below(4)]),
            headers: Default::default(),
            options,
            keys: self.draw_keys(draw),
        }
    }

    fn draw_keys(&self, draw: &mut Draw) -> Option<Box<JobKeys>> {
        let has = self.has_keys();
        let idempotency = (draw.one_in(4) || has).then(|| draw.idempotency());
        let is_ordered = draw.one_in(10) || self.has_order_keys();
        let order = is_ordered.then(|| ["a", "b", "b"][draw.below(3)].to_owned());
        let fair = (draw.one_in(10) || self.has_fair_keys()).then(|| FairKey {
            key: ["a", "b", "c"][draw.below(3)].to_owned(),
            weight: [1, 1, 2, 1_000][draw.below(4)],
        });
        let unique = if self.has_uniques() { !draw.one_in(3) } else { draw.one_in(8) };
        let unique = unique.then(|| draw.unique());
        let limits = self.has_limits();
        let limit = (draw.one_in(10) || limits && draw.one_in(2)).then(|| draw.short_key());
        let cost = (limits && draw.one_in(3)).then(|| [1, 2, 2, 3, 7][draw.below(5)]);
        let mut keys =
            JobKeys { idempotency, order, unique, fair, limit, cost, ..JobKeys::default() };
        if draw.one_in(if self.has_uniques() { 3 } else { 12 }) {
            // One runs, and the latest waits for its turn.
            keys.order = Some("a".to_owned());
            keys.unique = Some(Unique::by_key("a").until_start().replace());
        }
        (!keys.is_empty()).then(|| Box::new(keys))
    }

    /// Cases in which most jobs have an idempotency key.
    fn has_keys(&self) -> bool {
        self.bias % 8 == 1
    }

    /// Cases in which most jobs have a unique key.
    fn has_uniques(&self) -> bool {
        matches!(self.bias % 8, 4 | 6)
    }

    /// Cases in which most jobs have an order key.
    fn has_order_keys(&self) -> bool {
        self.bias % 8 == 2
    }

    /// Cases in which most jobs have a fair key.
    fn has_fair_keys(&self) -> bool {
        self.bias % 8 == 3
    }

    /// Cases with schedules.
    pub(super) fn has_schedules(&self) -> bool {
        matches!(self.bias % 8, 2 | 6)
    }

    /// A command about a schedule, or about what comes due.
    pub(super) fn draw_schedule_command(
        &self,
        link: LinkId,
        request: u64,
        draw: &mut Draw,
    ) -> Option<Command> {
        let name = ["a", "b", "c"][draw.below(3)].to_owned();
        let at = self.now.wall_ms + [0, 1, 50, 300][draw.below(4)];
        let fires_at = at + [0, 0, 7][draw.below(3)];
        let next = (!draw.one_in(6)).then_some(NextOccurrence { due_at: at, fires_at });
        Some(match draw.below(10) {
            0..=2 => {
                let schedule = Schedule {
                    name,
                    path: draw.path(),
                    timing: Timing::Every { ms: [1_000, 2_000][draw.below(2)] },
                    starts_at: None,
                    ends_at: None,
                    jitter_ms: 0,
                    missed: Missed::Latest,
                    overlap: Overlap::ALL[draw.below(3)],
                    version: [None, Some(1), Some(2), Some(3)][draw.below(4)],
                };
                let mut job = self.draw_job(draw);
                if !draw.one_in(8) {
                    let options = &mut job.options;
                    (options.due, options.prepared, options.expires_at) = (Due::Now, false, None);
                    job.keys.iter_mut().for_each(|keys| keys.idempotency = None);
                    job.keys = job.keys.filter(|keys| !keys.is_empty());
                }
                let known = self.model.sorted_schedules();
                let same = draw.one_of(&known).filter(|_| draw.one_in(3));
                let schedule = Box::new(same.map_or(schedule, |known| known.schedule));
                let mut entry = FrameWriter::new();
                job.encode_entry_head(&mut entry);
                entry.put_shared(job.payload);
                let entry = entry.into_body();
                Command::PutSchedule { link, request, next, entry, schedule }
            }
            3 => Command::RemoveSchedule { link, request, name },
            4 => {
                let paused = draw.one_in(2);
                Command::PauseSchedule { link, request, name, paused, next }
            }
            5 => Command::RunSchedule { link, request, name, job: draw.id() },
            _ => {
                let due = self.state.due_schedules().map(|due| (due.number, due.next.due_at));
                let due: Vec<(u32, u64)> = due.collect();
                let occurrence = |draw: &mut Draw| {
                    let (schedule, due_at) = draw.one_of(&due)?;
                    let due_at = due_at - u64::from(draw.one_in(8));
                    let run = RunOfOccurrence { due_at: at.min(due_at), job: draw.id() };
                    let run = (!draw.one_in(6)).then_some(run);
                    let missed = draw.below(2) as u64;
                    Some(Occurrence { schedule, due_at, run, missed, next })
                };
                let occurrences = (0..1 + draw.below(3)).filter_map(|_| occurrence(draw)).collect();
                Command::Occur { occurrences }
            }
        })
    }

    /// Cases with limits.
    pub(super) fn has_limits(&self) -> bool {
        matches!(self.bias % 8, 5 | 7)
    }

    /// Cases in which jobs should run rather than wait.
    fn prefers_running(&self) -> bool {
        !matches!(self.focus, Focus::Anything | Focus::Retention)
    }

    pub(super) fn draw_entry(&self, draw: &mut Draw) -> Bytes {
        let mut job = self.draw_job(draw);
        job.keys = job.keys.filter(|_| draw.one_in(8));
        let mut head = FrameWriter::with_capacity(64);
        job.encode_entry_head(&mut head);
        head.put(&job.payload);
        let entry = head.into_body();
        if draw.one_in(12) { entry.slice(..20) } else { entry }
    }

    pub(super) fn draw_filter(&self, draw: &mut Draw) -> Filter {
        // Only a filter that matches nearly all jobs needs more than one small step.
        if self.limits.step_jobs < STEP_JOBS && draw.one_in(3) {
            return Filter::of(glob("/**"));
        }
        let mut filter = Filter::of(draw.glob());
        if draw.one_in(2) {
            filter.state = Some(JobState::ALL[draw.below(JobState::ALL.len())]);
        }
        if draw.one_in(4) {
            filter.death = Some(DeathReason::ALL[draw.below(DeathReason::ALL.len())]);
        }
        if draw.one_in(4) {
            let (kind, message) = [("", ""), ERRORS[0], ERRORS[1]][draw.below(3)];
            filter.fingerprint = Some(Fingerprint::of_parts(kind, message));
        }
        let ends: Vec<u64> =
            self.model.jobs.iter().filter_map(|job| Some(job.ended?.0.wall_ms)).collect();
        if draw.one_in(4) {
            filter.ended_from = draw.one_of(&ends);
        }
        if draw.one_in(4) {
            filter.ended_before = draw.one_of(&ends);
        }
        filter
    }
}

impl Draw {
    fn idempotency(&mut self) -> Idempotency {
        let key = ["a", "b", "c", "d", "another"][self.below(5)].to_owned();
        let for_ms = [None, Some(1), Some(60), Some(60), Some(3_000)][self.below(5)];
        Idempotency { key, for_ms }
    }

    fn short_key(&mut self) -> String {
        ["a", "a", "b"][self.below(3)].to_owned()
    }

    /// A limit whose rate gives each unit a whole number of milliseconds.
    pub(super) fn limit(&mut self) -> JobLimit {
        let rate = |units, per_ms, burst| Some(JobRate { units, per_ms, burst });
        let rates = [None, None, rate(1, 60, 1), rate(2, 60, 3), rate(5, 3_000, 2)];
        let rate = rates[self.below(5)];
        let most = [None, Some(1), Some(1), Some(2), Some(3)][self.below(5)];
        JobLimit {
            name: ["a", "b", "c", "d"][self.below(4)].to_owned(),
            pattern: self.glob(),
            scope: LimitScope::ALL[self.below(3)],
            concurrency: if rate.is_none() { most.or(Some(2)) } else { most },
            rate,
        }
    }

    fn unique(&mut self) -> Unique {
        use UniqueUntil::{End, For, Start};
        let key = ["a", "a", "a", "b", "another"][self.below(5)].to_owned();
        let until = [End, End, End, End, Start, Start, For(1), For(60), For(3_000)][self.below(9)];
        let on_conflict = OnConflict::ALL[self.below(3)];
        Unique { key, until, on_conflict }
    }
}

pub(super) fn draw_action(draw: &mut Draw) -> Action {
    use Action::{Cancel, Confirm, Drop, Revive};
    [Confirm, Confirm, Cancel, Revive, Revive, Drop][draw.below(6)]
}

pub(super) fn draw_pace(action: Action, draw: &mut Draw) -> Option<Pace> {
    (action == Action::Revive && draw.one_in(2)).then(|| Pace {
        per_second: [1, 3, 5_000][draw.below(3)],
        before: [0, 0, 5][draw.below(3)],
    })
}

pub(super) fn draw_settings(draw: &mut Draw) -> QueueSettings {
    let mut settings = QueueSettings::default();
    for _ in 0..draw.below(3) {
        match draw.below(8) {
            0 => settings.max_attempts = draw.one_of(&[1, 3, 40]),
            1 => settings.lease_ms = Some(2_000),
            2 => settings.run_timeout_ms = draw.one_of(&[0, 100]),
            3 => settings.backoff = draw.one_of(&[Backoff::Fixed(0), Backoff::Fixed(60)]),
            4 => settings.keep_ms = draw.one_of(&[0, 500, 3_600_000]),
            7 => settings.dead_blocks_order = draw.one_of(&[true, false]),
            5 => settings.keep_dead_ms = draw.one_of(&[0, 500, 3_600_000, 3_600_000]),
            _ => settings.keep_jobs = draw.one_of(&[0, 1, 2, 4]),
        }
    }
    settings
}
