//! Random commands, biased towards edge cases: few ids and queues, times near deadlines, stale
//! tokens, small limits.

use bytes::Bytes;
use longshore_protocol::limits::CHECKPOINT_BYTES_MAX;
use longshore_protocol::messages::work::{
    Action, Checkpoint, Filter, NewSettle, Order, Selection, Source, Sources, Tokens,
};
use longshore_protocol::{
    Durability, Epoch, Gate, JobError, JobId, JobState, LinkId, NewJob, PathSet, PublisherId,
    Refusal, Role, Token,
};

use super::super::scenario::{atomic, batch, glob, id, path, session, settles};
use super::draw_jobs::{draw_action, draw_pace, draw_settings};
use super::driver::{Harness, IDS};
use crate::Rules;
use crate::command::{Command, LeaseEnd, Secret, Start};

const PATHS: [&str; 9] = [
    "/jobs/a",
    "/jobs/a",
    "/jobs/b",
    "/jobs/a/deep",
    "/jobs/c",
    "/jobs/d",
    "/elsewhere",
    "/sys/x",
    "/",
];
const PATTERNS: [&str; 6] = ["/jobs/a", "/jobs/*", "/jobs/**", "/jobs/{b,c}", "/**", "/jobs/d"];
const SESSIONS: [&str; 4] = ["ann", "bob", "cat", "dan"];
pub(super) const ERRORS: [(&str, &str); 4] =
    [("io", "no luck"), ("io", "no disk 7"), ("io", "no disk 8"), ("net", "no luck")];

/// A sequence of random numbers: splitmix64.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub(super) fn one_in(&mut self, so_many: usize) -> bool {
        self.below(so_many) == 0
    }

    pub(super) fn one_of<T: Clone>(&mut self, things: &[T]) -> Option<T> {
        if things.is_empty() { None } else { Some(things[self.below(things.len())].clone()) }
    }

    pub(super) fn path(&mut self) -> longshore_protocol::Path {
        path(PATHS[self.below(PATHS.len())])
    }

    pub(super) fn glob(&mut self) -> longshore_protocol::Glob {
        glob(PATTERNS[self.below(PATTERNS.len())])
    }

    /// The queues that a client may use: once in so often not all.
    pub(super) fn some_paths(&mut self, once_in: usize) -> Option<PathSet> {
        self.one_in(once_in).then(|| self.path_set())
    }

    pub(super) fn path_set(&mut self) -> PathSet {
        let deny = if self.one_in(3) { vec![self.glob()] } else { Vec::new() };
        PathSet { allow: vec![self.glob()], deny }
    }

    pub(super) fn id(&mut self) -> JobId {
        id(self.below(IDS as usize) as u32)
    }
}

/// The focus of a case: which commands are likely.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Focus {
    Anything,
    /// Workers come and go, and lose their leases.
    Losses,
    /// Attempts fail, dead letters are listed.
    Failures,
    /// Many checkpoints, some of them large.
    Checkpoints,
    /// Jobs end, under many retention settings.
    Retention,
    /// Workers take jobs from several sources.
    Sources,
}

/// The weight of each kind of command, in the order of `Harness::draw_kind`.
impl Focus {
    pub(super) fn of(number: u8) -> Focus {
        use Focus::{Anything, Checkpoints, Failures, Losses, Retention, Sources};
        [Anything, Anything, Anything, Losses, Failures, Checkpoints, Retention, Sources]
            [usize::from(number % 8)]
    }

    fn weights(self) -> [usize; 20] {
        match self {
            Focus::Anything => [4, 2, 4, 1, 6, 1, 10, 7, 3, 2, 4, 3, 2, 2, 3, 1, 1, 2, 2, 8],
            Focus::Losses => [1, 0, 3, 0, 8, 0, 4, 1, 40, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 2],
            Focus::Failures => [1, 0, 2, 0, 6, 0, 6, 14, 4, 0, 2, 6, 4, 0, 1, 1, 0, 0, 0, 6],
            Focus::Checkpoints => [1, 0, 2, 0, 4, 0, 3, 1, 0, 120, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2],
            Focus::Retention => [1, 0, 2, 0, 6, 0, 12, 6, 1, 0, 8, 4, 1, 0, 5, 0, 0, 0, 0, 10],
            Focus::Sources => [2, 1, 6, 2, 8, 2, 12, 4, 3, 0, 1, 1, 0, 6, 0, 0, 1, 1, 2, 4],
        }
    }
}

impl Harness {
    fn draw_kind(&self, draw: &mut Draw) -> usize {
        // First there have to be workers, and jobs.
        let focus = if self.log.len() < 40 { Focus::Anything } else { self.focus };
        let weights = focus.weights();
        let mut left = draw.below(weights.iter().sum());
        for (kind, weight) in weights.into_iter().enumerate() {
            if left < weight {
                return kind;
            }
            left -= weight;
        }
        unreachable!("the weights add up")
    }

    /// Sometimes moves to just before, at, or just after the next deadline; else time passes in
    /// various amounts.
    pub(super) fn draw_time(&mut self, draw: &mut Draw) {
        let ms = [0, 0, 1, 7, 40, 300, 2_500, 60_000, 3_600_000, 24 * 3_600_000]
            [draw.below(10).min(draw.below(10))];
        let due = self.model.next_timer_ms().map(|at| at.saturating_sub(self.now.mono_ms));
        let ms = match (draw.below(4), due) {
            (0, Some(wait)) => (wait + draw.below(3) as u64).saturating_sub(1),
            _ => ms,
        };
        self.now.mono_ms += ms;
        self.now.wall_ms = match draw.below(10) {
            0 => self.now.wall_ms.saturating_sub(ms.min(5_000)),
            1 => self.now.wall_ms + 2 * ms,
            _ => self.now.wall_ms + ms,
        };
    }

    /// A leased token, or a recent one.
    fn draw_token(&self, draw: &mut Draw) -> Option<Token> {
        let leased = self.model.tokens().0;
        let newest = self.tokens.len().saturating_sub(12);
        let lately = draw.one_of(&self.tokens[newest..]);
        match draw.below(10) {
            0..=1 => lately,
            // A job that gets more than its share reaches its limits.
            2..=7 if self.focus == Focus::Checkpoints => leased.first().copied().or(lately),
            _ => draw.one_of(&leased).or(lately),
        }
    }

    pub(super) fn draw_command(&mut self, draw: &mut Draw) -> Option<Command> {
        let newest = self.links.len().saturating_sub(6);
        let some_link = draw.one_of(&self.links[newest..]);
        let up: Vec<LinkId> = self.model.sessions.iter().filter_map(|s| s.link).collect();
        let link = if draw.one_in(20) { some_link } else { draw.one_of(&up) };
        let tool = link.unwrap_or_default();
        let request = draw.below(100) as u64;
        if self.focus != Focus::Checkpoints
            && draw.one_in(8)
            && let Some(id) = draw.one_of(&self.unrevivable())
        {
            let (action, pace, within) = (Action::Revive, None, None);
            let selection = match draw.below(4) {
                0 => Selection::Matching(Filter::of(glob("/**"))),
                1 => Selection::Ids(vec![id]),
                _ => {
                    let entry = self.draw_entry(draw);
                    return Some(Command::Replace { link: tool, request, id, entry });
                }
            };
            return Some(Command::Act { link: tool, request, action, selection, pace, within });
        }
        if self.has_limits() && draw.one_in(12) {
            let name = ["a", "b", "c", "d"][draw.below(4)].to_owned();
            return Some(match draw.below(4) {
                0 => Command::RemoveLimit { link: tool, request, name },
                _ => Command::SetLimit { link: tool, request, limit: draw.limit() },
            });
        }
        if self.has_schedules() && draw.one_in(4) {
            return self.draw_schedule_command(tool, request, draw);
        }
        Some(match self.draw_kind(draw) {
            0 => self.draw_link_up(draw)?,
            1 => Command::LinkLost { link: link? },
            2 => {
                let (link, subscription) = (link?, draw.below(3) as u32);
                let handlers = [1, 1, 2, 3, 100][draw.below(5)];
                let sources = self.draw_sources(draw);
                Command::Subscribe { link, subscription, sources, handlers }
            }
            3 if draw.one_in(2) => Command::Permit { link: link?, work: draw.some_paths(6) },
            3 => Command::Unsubscribe { link: link?, subscription: draw.below(3) as u32 },
            4 => Command::Credit {
                link: link?,
                subscription: draw.below(3) as u32,
                count: [0, 1, 2, 3, 9][draw.below(5)]
                    * if self.focus == Focus::Losses { 9 } else { 1 },
            },
            5 => Command::Recall {
                link: link?,
                subscription: draw.below(3) as u32,
                count: draw.below(4) as u32,
            },
            6 => self.draw_enqueue(link?, draw),
            7 => self.draw_settle(link?, draw),
            8 => self.draw_expire(draw),
            9 => self.draw_checkpoint(draw)?,
            10 => {
                let ids = (0..1 + draw.below(4)).map(|_| draw.id()).collect();
                let action = draw_action(draw);
                let pace = draw_pace(action, draw);
                let selection = Selection::Ids(ids);
                let within = draw.some_paths(4);
                Command::Act { link: tool, request, action, selection, pace, within }
            }
            11 => {
                let action = draw_action(draw);
                let selection = Selection::Matching(self.draw_filter(draw));
                let pace = draw_pace(action, draw);
                let within = draw.some_paths(4);
                Command::Act { link: tool, request, action, selection, pace, within }
            }
            12 => {
                let dead = |job: &&super::jobs::Job| job.state() == JobState::Dead;
                let dead: Vec<JobId> =
                    self.model.jobs.iter().filter(dead).map(|job| job.id).collect();
                let id = if draw.one_in(4) { draw.id() } else { draw.one_of(&dead)? };
                match &self.replaced {
                    Some(repeated) if draw.one_in(4) => repeated.clone(),
                    _ => Command::Replace { link: tool, request, id, entry: self.draw_entry(draw) },
                }
            }
            13 => {
                let gate = if draw.one_in(2) { Gate::Delivery } else { Gate::Enqueue };
                let (pattern, paused) = (draw.glob(), draw.one_in(3));
                Command::Pause { link: tool, request, gate, pattern, paused }
            }
            14 => Command::Configure {
                link: tool,
                request,
                path: draw.path(),
                changes: draw_settings(draw),
                reset: draw.one_in(4),
            },
            15 => Command::Damaged { token: self.draw_token(draw)? },
            16 => {
                let defaults: &[&str] =
                    [&["/jobs"] as &[&str], &["/jobs/a", "/jobs/c"]][usize::from(draw.one_in(3))];
                let paths: &[&str] = [&[] as &[&str], &["/jobs/b", "/elsewhere"]][draw.below(2)];
                // A lower limit changes no existing job; a new default applies at once.
                let rules = Rules {
                    jobs_per_queue: [4, 4, 2][draw.below(3)],
                    keep_ms: [self.limits.keep_ms, 700][usize::from(draw.one_in(4))],
                    ..self.limits.clone()
                };
                Command::Start(Start {
                    publisher: PublisherId([7; 16]),
                    epoch: Epoch(2),
                    boot: [1; 16],
                    secret: Secret([0x5e; 16]),
                    rules: Box::new(rules),
                    durability: Durability::Fsync,
                    paths: paths.iter().map(|text| path(text)).collect(),
                    defaults: defaults.iter().map(|text| path(text)).collect(),
                })
            }
            17 => {
                let Command::Enqueue { link, batch } = self.draw_enqueue(link?, draw) else {
                    return None;
                };
                let (sequence, jobs) = (batch.sequence, batch.len() as u32);
                Command::Refuse { link, sequence, jobs, refusal: Refusal::NoSpace }
            }
            // Mostly without a limit: otherwise little would happen.
            18 if draw.one_in(3) => {
                Command::Drain { link: tool, request, draining: draw.one_in(4) }
            }
            18 if draw.one_in(2) => Command::DeliveryBudget { budget: draw.below(6) as u64 },
            18 => Command::DeliveryBudget { budget: u64::MAX },
            _ => Command::Tick,
        })
    }

    /// Dead jobs that nobody may replace now, or not even revive: their queue is full, or another
    /// job has their unique key.
    fn unrevivable(&self) -> Vec<JobId> {
        let is_refused = |job: &&super::jobs::Job| {
            let rival = self.model.rival(job);
            job.state() == JobState::Dead && (rival.is_some() || self.model.is_full(&job.path))
        };
        self.model.jobs.iter().filter(is_refused).map(|job| job.id).collect()
    }

    fn draw_link_up(&mut self, draw: &mut Draw) -> Option<Command> {
        let link = self.state.next_link();
        self.links.push(link);
        let name = draw.one_of(&SESSIONS)?;
        // Most of its leases, and some that it no longer holds or never did.
        let newest = self.tokens.len().saturating_sub(12);
        let (leased, keep) = (self.model.tokens().0, draw.below(4));
        let mut resume: Vec<Token> = self.tokens[newest..].to_vec();
        resume.retain(|token| if leased.contains(token) { keep > 0 } else { draw.one_in(3) });
        if keep == 1 {
            resume.retain(|_| draw.one_in(2));
        }
        Some(Command::LinkUp {
            link,
            role: Role::Worker,
            session: session(name),
            name: name.into(),
            identity: if draw.one_in(30) { "cn:b" } else { "cn:a" }.into(),
            work: draw.some_paths(8),
            resume: Tokens(resume),
        })
    }

    fn draw_sources(&self, draw: &mut Draw) -> Sources {
        let most = if self.focus == Focus::Sources { 3 } else { 2 };
        let source = |draw: &mut Draw| Source {
            pattern: draw.glob(),
            weight: [1, 1, 2, 5, 0][draw.below(5)],
        };
        // The model does not know when the state passes over a queue that a limit holds back, so
        // that it cannot follow balances.
        let orders = if self.has_limits() { &[Order::Age, Order::Strict][..] } else { Order::ALL };
        Sources {
            order: orders[draw.below(orders.len())],
            patterns: (0..1 + draw.below(most)).map(|_| source(draw)).collect(),
        }
    }

    fn draw_enqueue(&mut self, link: LinkId, draw: &mut Draw) -> Command {
        let session = self.model.session_of(link);
        let next = session.map_or(1, |session| self.model.sessions[session].next_batch);
        let sequence = (next + [0, 0, 0, 0, 0, 0, 1, 2][draw.below(8)])
            .saturating_sub([0, 0, 0, 0, 0, 0, 1, 3][draw.below(8)]);
        let jobs: Vec<NewJob> = (0..draw.below(6)).map(|_| self.draw_job(draw)).collect();
        let batch = if draw.one_in(5) { atomic(sequence, &jobs) } else { batch(sequence, &jobs) };
        Command::Enqueue { link, batch }
    }

    fn draw_settle(&mut self, link: LinkId, draw: &mut Draw) -> Command {
        let sent = self.settles.entry(link).or_default();
        *sent += [1, 1, 1, 1, 2, 70][draw.below(6)];
        let sequence = sent.saturating_sub([0, 0, 0, 0, 1, 68][draw.below(6)]);
        let link_of = |token: Token| {
            let job = self.model.holder_of(token)?;
            match self.model.jobs[job].phase {
                super::jobs::Phase::Running { session, .. } => self.model.sessions[session].link,
                _ => None,
            }
        };
        let items: Vec<_> = (0..1 + draw.below(5))
            .filter_map(|_| {
                // Mostly its own.
                let own = |draw: &mut Draw| {
                    self.draw_token(draw).filter(|&token| link_of(token) == Some(link))
                };
                let token = own(draw).or_else(|| own(draw)).or_else(|| self.draw_token(draw))?;
                Some((token, self.draw_verdict(draw)))
            })
            .collect();
        Command::Settle { link, batch: settles(sequence, &items) }
    }

    fn draw_verdict(&self, draw: &mut Draw) -> NewSettle {
        let (kind, message) = ERRORS[draw.below(ERRORS.len())];
        let error = JobError { kind: kind.into(), message: message.into() };
        if self.has_limits() && draw.one_in(6) {
            return NewSettle::Throttle { ms: [0, 60][draw.below(2)] };
        }
        let bound = if self.focus == Focus::Failures { 7 } else { 11 };
        match draw.below(bound) {
            0..=3 => NewSettle::Fail(error),
            4 => NewSettle::Bury(error),
            5 => NewSettle::Release,
            6 => NewSettle::Snooze { ms: [0, 60][draw.below(2)] },
            7..=9 => NewSettle::Complete { result: None },
            _ => NewSettle::Complete { result: Some(Bytes::from_static(b"42")) },
        }
    }

    fn draw_expire(&self, draw: &mut Draw) -> Command {
        let count = if self.focus == Focus::Losses { 9 } else { 1 + draw.below(3) };
        // A case with one kind throughout reaches the limits of attempts and of lost deliveries.
        let kind = if self.focus == Focus::Losses { self.bias as usize % 4 } else { 9 };
        let lease = |token: Token, draw: &mut Draw| {
            let kind = if draw.one_in(8) { 9 } else { kind };
            let (started, uncounted, timed_out) = match kind {
                0..=1 => (false, false, false),
                2 => (true, false, false),
                3 => (true, false, true),
                _ => [
                    (false, false, false),
                    (true, false, false),
                    (true, false, true),
                    (false, true, false),
                    (true, true, false),
                ][draw.below(5)],
            };
            LeaseEnd { token, started, uncounted, timed_out }
        };
        let mut leases: Vec<LeaseEnd> = Vec::new();
        for _ in 0..count {
            leases.extend(self.draw_token(draw).map(|token| lease(token, draw)));
        }
        Command::Expire { leases }
    }

    fn draw_checkpoint(&self, draw: &mut Draw) -> Option<Command> {
        let token = self.draw_token(draw)?;
        let holder = self.model.holder_of(token).map(|job| &self.model.jobs[job]);
        let link = holder.and_then(|job| match job.phase {
            super::jobs::Phase::Running { session, .. } => self.model.sessions[session].link,
            _ => None,
        });
        let link = match link {
            Some(link) if !draw.one_in(10) => link,
            _ => draw.one_of(&self.links)?,
        };
        let next = holder.map_or(0, |job| job.sequence) + 1;
        let sequence = (next + [0, 0, 0, 0, 0, 0, 1, 0][draw.below(8)])
            .saturating_sub([0, 0, 0, 0, 0, 0, 1, 2][draw.below(8)])
            .max(1);
        let large = self.focus == Focus::Checkpoints && self.bias.is_multiple_of(4);
        let length = match draw.below(8) {
            0 => 0,
            1 if draw.one_in(4) => CHECKPOINT_BYTES_MAX + 1,
            2..=6 if large => CHECKPOINT_BYTES_MAX,
            _ => 3,
        };
        let bytes = Bytes::from_static(&[7; CHECKPOINT_BYTES_MAX + 1]).slice(..length);
        let body = Checkpoint::body_of(token, sequence, &bytes);
        let checkpoint = Checkpoint::decode(body).expect("it was built");
        Some(Command::Checkpoint { link, checkpoint })
    }
}
