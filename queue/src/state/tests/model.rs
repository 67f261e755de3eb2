//! A naive model, written to be read: every question is answered by looking at every job. Random commands with random
//! clocks go to both, and everything that can be seen from outside must agree after each.

use std::collections::BTreeMap;

use bytes::Bytes;
use longshore_protocol::messages::work::{
    ActOutcome, Action, ActionReport, Attached, Credit, Enqueued, Filter, JobCounts, NewSettle,
    Selection, Settled, Sources, Tokens, Waiting,
};
use longshore_protocol::{
    Backoff, BatchRefusal, DeathReason, Due, Durability, EnqueueOutcome, Epoch, Glob, JobId,
    JobOptions, JobState, LinkId, NewJob, Path, PublisherId, Refusal, Revoked, Role, Runs,
    SettleOutcome, Token,
};
use proptest::prelude::*;

use super::snapshots::replay;
use super::story::*;
use crate::command::{Command, Expired, Start};
use crate::outcome::{Outcomes, Reply};
use crate::state::State;
use crate::state::limits::Limits;
use crate::state::rows::random_of;
use crate::time::Now;

const COMMANDS: usize = 100;
const LIMITS: Limits =
    Limits { jobs_per_queue: 9, queues: 4, ended_per_queue: 3, ..Limits::STANDARD };
const PATHS: [&str; 7] =
    ["/jobs/a", "/jobs/b", "/jobs/a/deep", "/jobs/c", "/jobs/d", "/elsewhere", "/sys/x"];
const PATTERNS: [&str; 6] = ["/jobs/a", "/jobs/*", "/jobs/**", "/jobs/{b,c}", "/**", "/jobs/d"];
const SESSIONS: [&str; 4] = ["ann", "bob", "cat", "dan"];
const DAY_MS: u64 = 24 * 3_600_000;
const HOUR_MS: u64 = 3_600_000;

/// Cases; `LONGSHORE_MODEL_CASES` asks for more.
fn cases() -> u32 {
    let asked = std::env::var("LONGSHORE_MODEL_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(2_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn the_state_does_what_the_model_does(
        draws in prop::collection::vec(any::<[u16; 6]>(), COMMANDS)
    ) {
        let mut stage = Stage::begin();
        for draw in draws {
            stage.play(Draw { numbers: draw, next: 0 });
        }
        let Stage { story, .. } = stage;
        let bytes = story.state.snapshot_bytes();
        prop_assert!(replay(&story, LIMITS).snapshot_bytes() == bytes, "replay differs");
    }
}

/// Random numbers, drawn one after the other.
struct Draw {
    numbers: [u16; 6],
    next: usize,
}

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        let number = self.numbers[self.next % 6].rotate_left(3 * (self.next / 6) as u32);
        self.next += 1;
        usize::from(number) % bound
    }

    fn one_of<T: Copy>(&mut self, things: &[T]) -> Option<T> {
        if things.is_empty() { None } else { Some(things[self.below(things.len())]) }
    }
}

/// The state and its model, side by side.
struct Stage {
    story: Story,
    model: Model,
    links: Vec<LinkId>,
    tokens: Vec<Token>,
    settles: BTreeMap<LinkId, u64>,
}

impl Stage {
    fn begin() -> Stage {
        let story = Story::with_limits(LIMITS);
        let mut model = Model { now: story.now, ..Model::default() };
        model.start(&["/jobs"]);
        Stage { story, model, links: Vec::new(), tokens: Vec::new(), settles: BTreeMap::new() }
    }

    fn play(&mut self, mut draw: Draw) {
        let ms = [0, 0, 1, 7, 40, 300, 2_500, 60_000, HOUR_MS, DAY_MS][draw.below(10)];
        self.story.now.mono_ms += ms;
        self.story.now.wall_ms = match draw.below(8) {
            0 => self.story.now.wall_ms.saturating_sub(ms),
            1 => self.story.now.wall_ms + 2 * ms,
            _ => self.story.now.wall_ms + ms,
        };
        self.model.now = self.story.now;
        if draw.below(12) == 0 {
            let bytes = self.story.state.snapshot_bytes();
            self.story.state = State::restore_with_limits(&bytes, LIMITS).expect("it was written");
            assert!(self.story.state.snapshot_bytes() == bytes, "restoring changes the bytes");
        }
        let Some(command) = self.draw_command(&mut draw) else { return };
        let out = self.story.apply(command.clone());
        let expected = self.model.apply(&command, self.story.index);
        self.compare(&command, out, expected);
    }

    fn draw_command(&mut self, draw: &mut Draw) -> Option<Command> {
        let newest = self.links.len().saturating_sub(6);
        let link = draw.one_of(&self.links[newest..]);
        let newest = self.tokens.len().saturating_sub(12);
        let tokens: Vec<Token> = self.tokens[newest..].to_vec();
        Some(match draw.below(24) {
            0..=1 => {
                let link = self.story.state.next_link();
                self.links.push(link);
                let name = draw.one_of(&SESSIONS)?;
                let keep = draw.below(4);
                let listed =
                    tokens.iter().enumerate().filter(|(n, _)| !(n + keep).is_multiple_of(4));
                let resume = Tokens(listed.map(|(_, &token)| token).collect());
                let session = session(name);
                Command::LinkUp { link, role: Role::Worker, session, name: name.into(), resume }
            }
            2 => Command::LinkLost { link: link? },
            3..=4 => Command::Subscribe {
                link: link?,
                subscription: draw.below(3) as u32,
                sources: Sources::one(glob(draw.one_of(&PATTERNS)?)),
            },
            5 if draw.below(2) == 0 => {
                Command::Unsubscribe { link: link?, subscription: draw.below(3) as u32 }
            }
            5..=8 => Command::Credit {
                link: link?,
                subscription: draw.below(3) as u32,
                count: draw.below(5) as u32,
            },
            9 => Command::Recall {
                link: link?,
                subscription: draw.below(3) as u32,
                count: draw.below(4) as u32,
            },
            10..=14 => {
                let link = link?;
                let next =
                    self.model.session_of(link).map_or(1, |s| self.model.sessions[s].next_batch);
                let sequence = (next + [0, 0, 0, 0, 0, 0, 1, 2][draw.below(8)])
                    .saturating_sub([0, 0, 0, 0, 1, 3][draw.below(6)]);
                let jobs: Vec<NewJob> = (0..draw.below(5)).map(|_| draw_job(draw)).collect();
                let jobs: Vec<NewJob> = jobs.into_iter().map(|job| self.at_a_time(job)).collect();
                let batch = if draw.below(5) == 0 {
                    atomic(sequence, &jobs)
                } else {
                    batch(sequence, &jobs)
                };
                Command::Enqueue { link, batch }
            }
            15..=18 => {
                let link = link?;
                let sent = self.settles.entry(link).or_default();
                *sent += [1, 1, 1, 2, 70][draw.below(5)];
                let sequence = sent.saturating_sub([0, 0, 0, 1, 68][draw.below(5)]);
                let items: Vec<_> = (0..1 + draw.below(4))
                    .filter_map(|_| Some((draw.one_of(&tokens)?, draw_verdict(draw))))
                    .collect();
                Command::Settle { link, batch: settles(sequence, &items) }
            }
            19 => {
                let flags = draw.below(8);
                let lease = |(n, &token): (usize, &Token)| Expired {
                    token,
                    started: (n + flags).is_multiple_of(2),
                    restart: flags == 7,
                    timed_out: false,
                };
                let chosen =
                    tokens.iter().enumerate().filter(|(n, _)| (n + flags).is_multiple_of(3));
                Command::Expire { leases: chosen.map(lease).collect() }
            }
            20 => {
                let action = draw.one_of(&[Action::Cancel, Action::Revive, Action::Drop])?;
                let state =
                    [None, Some(JobState::Dead), Some(JobState::Ready), Some(JobState::Running)];
                let selection = match draw.below(3) {
                    0 => Selection::Matching(
                        Filter::of(glob(draw.one_of(&PATTERNS)?)).in_state(draw.one_of(&state)?),
                    ),
                    _ => Selection::Ids((0..4).map(|_| id(draw.below(30) as u32)).collect()),
                };
                Command::Act {
                    link: link.unwrap_or_default(),
                    request: 9,
                    action,
                    selection,
                    pace: None,
                }
            }
            21 if draw.below(2) == 0 => Command::Damaged { token: draw.one_of(&tokens)? },
            22 if draw.below(4) == 0 => {
                let defaults: &[&str] =
                    [&["/jobs"] as &[&str], &["/jobs/a", "/jobs/c"]][draw.below(2)];
                Command::Start(Start {
                    publisher: PublisherId([7; 16]),
                    epoch: Epoch(2),
                    boot: [1; 16],
                    durability: Durability::Fsync,
                    paths: Vec::new(),
                    defaults: defaults.iter().map(|text| path(text)).collect(),
                })
            }
            _ => Command::Tick,
        })
    }

    fn at_a_time(&self, mut job: NewJob) -> NewJob {
        if let Due::At(ms) = job.options.due {
            job.options.due = Due::At(self.story.now.wall_ms + ms - 50);
        }
        job
    }

    fn compare(&mut self, command: &Command, mut out: Outcomes, mut expected: Expected) {
        for handed in &out.handed {
            self.tokens.push(handed.token);
            let path = self.story.state.path(handed.queue).clone();
            self.model.hand(handed, &path);
        }
        self.model.nothing_waits_for_nothing();
        expected.replies.extend(self.model.tell());
        out.ended.sort_unstable();
        expected.ended.sort_unstable();
        out.revoked.sort_unstable();
        expected.revoked.sort_unstable();
        out.moved.sort_unstable();
        expected.moved.sort_unstable();
        let by_link = |(link, reply): &(LinkId, Reply)| (*link, format!("{reply:?}"));
        out.replies.sort_by_key(by_link);
        expected.replies.sort_by_key(by_link);
        assert_eq!(out.replies, expected.replies, "{command:?}");
        assert_eq!(out.ended, expected.ended, "{command:?}");
        assert_eq!(out.revoked, expected.revoked, "{command:?}");
        assert_eq!(out.moved, expected.moved, "{command:?}");
        assert_eq!(out.queues_made, expected.queues_made, "{command:?}");
        self.compare_jobs();
        self.compare_queues();
        assert_eq!(self.story.state.next_due(self.story.now), self.model.next_due());
    }

    fn compare_jobs(&self) {
        for number in 0..30 {
            let view = self.story.state.job(&id(number), self.story.now);
            let job = self.model.jobs.iter().find(|job| job.id == id(number));
            let (Some(view), Some(job)) = (&view, job) else {
                assert!(view.is_none() && job.is_none(), "job {number} is kept, or not: {job:?}");
                continue;
            };
            let info = &view.info;
            let now = self.story.now;
            let (token, worker) = match job.place {
                Place::Running { token, session } => {
                    (Some(token), Some(self.model.sessions[session].name.clone()))
                }
                _ => (None, None),
            };
            let due_at = match job.place {
                Place::Timed(at) => Some(at),
                Place::Delayed(at) | Place::Retrying(at) => {
                    Some(now.wall_ms + at.saturating_sub(now.mono_ms))
                }
                _ => None,
            };
            assert_eq!(info.state, job.place.state());
            assert_eq!(info.retrying, matches!(job.place, Place::Retrying(_)));
            assert_eq!(info.priority, job.options.priority);
            assert_eq!(info.attempt, job.attempts + u16::from(token.is_some()));
            assert_eq!((info.deliveries, info.token), (job.deliveries, token));
            assert_eq!((info.due_at, info.ended_at), (due_at, job.ended_wall_ms));
            assert_eq!((info.enqueued_at, &info.worker), (job.enqueued_wall_ms, &worker));
            assert_eq!(info.payload_len, job.payload.len() as u64);
            let death = if let Place::Dead(reason) = job.place { Some(reason) } else { None };
            assert_eq!(info.death, death);
            assert_eq!((view.error.is_some(), view.result.is_some()), (job.error, job.result));
            assert_eq!(view.entry.index, job.order.0);
        }
    }

    fn compare_queues(&self) {
        let stats = self.story.state.queue_stats(&glob("/**"), self.story.now);
        assert_eq!(stats.len(), self.model.queues.len());
        for (stat, queue) in stats.iter().zip(&self.model.queues) {
            let mut counts = JobCounts::default();
            for job in self.model.jobs.iter().filter(|job| job.path == queue.path) {
                match job.place {
                    Place::Ready => counts.ready += 1,
                    Place::Delayed(_) | Place::Timed(_) => counts.scheduled += 1,
                    Place::Retrying(_) => counts.retrying += 1,
                    Place::Running { .. } => counts.running += 1,
                    Place::Completed => counts.completed += 1,
                    Place::Cancelled => counts.cancelled += 1,
                    Place::Dead(_) => counts.dead += 1,
                }
            }
            let matching =
                || self.model.subscriptions.iter().filter(|s| s.pattern.matches(&queue.path));
            assert_eq!((&stat.path, stat.counts), (&queue.path, counts));
            assert_eq!(
                [stat.enqueued, stat.completed, stat.failed, stat.redelivered, stat.stale_refused],
                [queue.enqueued, queue.completed, queue.failed, queue.redelivered, queue.stale],
            );
            assert_eq!(stat.subscriptions, matching().count() as u64);
            assert_eq!(stat.credits, matching().map(|s| u64::from(s.credit)).sum::<u64>());
        }
    }
}

fn draw_job(draw: &mut Draw) -> NewJob {
    let options = JobOptions {
        priority: [0, 0, 0, 1, -1][draw.below(5)],
        due: [Due::Now, Due::Now, Due::Now, Due::After(50), Due::At(100), Due::At(0)]
            [draw.below(6)],
        max_attempts: [None, Some(10), Some(1), Some(2)][draw.below(4)],
        backoff: [None, Some(Backoff::Fixed(0)), Some(Backoff::Hangfire)][draw.below(3)].clone(),
        keep_result: draw.below(2) == 0,
        ..JobOptions::default()
    };
    let payload = [&b"one"[..], b"one", b"one", b"two"][draw.below(4)];
    NewJob {
        path: path(PATHS[draw.below(PATHS.len())]),
        id: id(draw.below(30) as u32),
        payload: Bytes::from_static(payload),
        headers: Default::default(),
        options,
    }
}

fn draw_verdict(draw: &mut Draw) -> NewSettle {
    match draw.below(9) {
        0..=1 => NewSettle::Complete { result: None },
        2 => NewSettle::Complete { result: Some(Bytes::from_static(b"42")) },
        3..=5 => fail(),
        6 => NewSettle::Release,
        7 => NewSettle::Snooze { ms: [0, 60][draw.below(2)] },
        _ => NewSettle::Bury(error("no")),
    }
}

/// What the model says a command brings about, but for who gets which job.
#[derive(Default)]
struct Expected {
    replies: Vec<(LinkId, Reply)>,
    ended: Vec<Token>,
    revoked: Vec<(LinkId, Revoked, Token)>,
    moved: Vec<(Token, LinkId)>,
    queues_made: Vec<Path>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Place {
    Ready,
    Delayed(u64),
    Timed(u64),
    Retrying(u64),
    Running { token: Token, session: usize },
    Completed,
    Cancelled,
    Dead(DeathReason),
}

impl Place {
    fn state(self) -> JobState {
        match self {
            Place::Ready => JobState::Ready,
            Place::Delayed(_) | Place::Timed(_) | Place::Retrying(_) => JobState::Scheduled,
            Place::Running { .. } => JobState::Running,
            Place::Completed => JobState::Completed,
            Place::Cancelled => JobState::Cancelled,
            Place::Dead(_) => JobState::Dead,
        }
    }

    fn is_open(self) -> bool {
        !matches!(self, Place::Completed | Place::Cancelled | Place::Dead(_))
    }

    fn is_kept_for_a_while(self) -> bool {
        matches!(self, Place::Completed | Place::Cancelled)
    }
}

#[derive(Debug)]
struct Job {
    id: JobId,
    path: Path,
    payload: Bytes,
    options: JobOptions,
    order: (u64, usize),
    place: Place,
    attempts: u16,
    deliveries: u16,
    lost: u32,
    enqueued_wall_ms: u64,
    ended_wall_ms: Option<u64>,
    ended_mono_ms: u64,
    /// The how-manieth end it was.
    end: u64,
    /// The how-manieth time that a job was scheduled.
    scheduled: u64,
    error: bool,
    result: bool,
}

struct Queue {
    path: Path,
    enqueued: u64,
    completed: u64,
    failed: u64,
    redelivered: u64,
    stale: u64,
    /// When the state will look at its ended jobs.
    collect_at: Option<u64>,
}

struct Session {
    name: String,
    link: Option<LinkId>,
    next_batch: u64,
    batches: Vec<(u64, Runs<EnqueueOutcome>)>,
    next_settle: u64,
    settles: BTreeMap<u64, Runs<SettleOutcome>>,
    lost: Vec<(Token, Path)>,
    forget_at: Option<u64>,
    known: bool,
}

struct Subscription {
    link: LinkId,
    number: u32,
    pattern: Glob,
    credit: u32,
    told: bool,
}

#[derive(Default)]
struct Model {
    now: Now,
    defaults: Vec<Path>,
    jobs: Vec<Job>,
    queues: Vec<Queue>,
    sessions: Vec<Session>,
    subscriptions: Vec<Subscription>,
    ends: u64,
    schedules: u64,
    last_token: Token,
}

impl Model {
    fn apply(&mut self, command: &Command, index: u64) -> Expected {
        let mut to = Expected::default();
        match command {
            Command::Start(start) => {
                let defaults: Vec<&str> = start.defaults.iter().map(Path::as_str).collect();
                self.start(&defaults);
            }
            Command::LinkUp { link, name, resume, .. } => {
                self.link_up(*link, name, resume, &mut to)
            }
            Command::LinkLost { link } => self.link_lost(*link),
            Command::Subscribe { link, subscription, sources } => {
                let pattern = &sources.patterns[0].pattern;
                let number = *subscription;
                if self.session_of(*link).is_none() {
                } else if self.subscription(*link, number).is_some() {
                    let reason = format!("the link has a subscription {number} already");
                    let refused = Reply::SubscribeRefused { subscription: number, reason };
                    to.replies.push((*link, refused));
                } else {
                    let pattern = pattern.clone();
                    let new = Subscription { link: *link, number, pattern, credit: 0, told: false };
                    self.subscriptions.push(new);
                }
            }
            Command::Unsubscribe { link, subscription } => {
                self.subscriptions.retain(|s| (s.link, s.number) != (*link, *subscription));
            }
            Command::Credit { link, subscription, count } => {
                if let Some(s) = self.subscription(*link, *subscription)
                    && *count > 0
                {
                    s.credit += count;
                    s.told = false;
                }
            }
            Command::Recall { link, subscription, count } => {
                if let Some(s) = self.subscription(*link, *subscription) {
                    let count = s.credit.min(*count);
                    s.credit -= count;
                    let returned = Credit { subscription: *subscription, count };
                    to.replies.push((*link, Reply::Returned(returned)));
                }
            }
            Command::Enqueue { link, .. } => {
                if let Some(session) = self.session_of(*link) {
                    self.enqueue(*link, session, command, index, &mut to);
                }
            }
            Command::Settle { link, .. } => {
                if let Some(session) = self.session_of(*link) {
                    self.settle(*link, session, command, &mut to);
                }
            }
            Command::Expire { leases } => {
                leases.iter().for_each(|lease| self.expire(lease, &mut to))
            }
            Command::Act { link, request, action, selection, .. } => {
                let report = self.act(*action, selection, &mut to);
                to.replies.push((*link, Reply::Acted { request: *request, report }));
            }
            Command::Damaged { token } => {
                if let Some(job) = self.holder_of(*token) {
                    self.take(job, &mut to);
                    self.die(job, DeathReason::PayloadDamaged);
                }
            }
            Command::Checkpoint { .. }
            | Command::Replace { .. }
            | Command::Pause { .. }
            | Command::Configure { .. } => {}
            Command::Tick => self.tick(),
        }
        to
    }

    fn start(&mut self, defaults: &[&str]) {
        let up: Vec<LinkId> = self.sessions.iter().filter_map(|session| session.link).collect();
        up.into_iter().for_each(|link| self.link_lost(link));
        self.defaults = defaults.iter().map(|text| path(text)).collect();
    }

    fn session_of(&self, link: LinkId) -> Option<usize> {
        self.sessions.iter().position(|session| session.link == Some(link))
    }

    fn subscription(&mut self, link: LinkId, number: u32) -> Option<&mut Subscription> {
        self.subscriptions.iter_mut().find(|s| (s.link, s.number) == (link, number))
    }

    fn holder_of(&self, token: Token) -> Option<usize> {
        let holds = |job: &Job| matches!(job.place, Place::Running { token: t, .. } if t == token);
        self.jobs.iter().position(holds)
    }

    fn queue(&mut self, path: &Path) -> &mut Queue {
        self.queues.iter_mut().find(|queue| queue.path == *path).expect("jobs have queues")
    }

    fn link_up(&mut self, link: LinkId, name: &str, resume: &Tokens, to: &mut Expected) {
        let number = match self.sessions.iter().position(|s| s.known && s.name == name) {
            Some(number) => number,
            None => {
                self.sessions.push(Session {
                    name: name.to_owned(),
                    link: None,
                    next_batch: 1,
                    batches: Vec::new(),
                    next_settle: 1,
                    settles: BTreeMap::new(),
                    lost: Vec::new(),
                    forget_at: None,
                    known: true,
                });
                self.sessions.len() - 1
            }
        };
        if let Some(older) = self.sessions[number].link {
            self.subscriptions.retain(|s| s.link != older);
        }
        self.sessions[number].link = Some(link);
        self.sessions[number].forget_at = None;
        let is_own = |model: &Model, token: Token| {
            let held = model.holder_of(token).map(|job| model.jobs[job].place);
            matches!(held, Some(Place::Running { session, .. }) if session == number)
        };
        let gone = resume.0.iter().copied().filter(|&token| !is_own(self, token)).collect();
        for job in 0..self.jobs.len() {
            let Place::Running { token, session } = self.jobs[job].place else { continue };
            if session == number && resume.0.contains(&token) {
                to.moved.push((token, link));
            } else if session == number {
                let silent = self.sessions[number].link.take();
                self.take(job, to);
                self.sessions[number].link = silent;
                self.lose_delivery(job);
            }
        }
        let session = &self.sessions[number];
        let attached = Attached {
            durability: Durability::Fsync,
            next_batch: session.next_batch,
            next_settle: session.next_settle,
            gone: Tokens(gone),
        };
        to.replies.push((link, Reply::Attached(attached)));
    }

    fn link_lost(&mut self, link: LinkId) {
        if let Some(session) = self.session_of(link) {
            self.subscriptions.retain(|s| s.link != link);
            self.sessions[session].link = None;
            self.sessions[session].forget_at = Some(self.now.mono_ms + HOUR_MS);
        }
    }

    fn takes(&self, path: &Path) -> Result<(), Refusal> {
        if path.is_reserved() {
            Err(Refusal::Reserved)
        } else if self.defaults.iter().any(|base| path.is_at_or_below(base)) {
            Ok(())
        } else {
            Err(Refusal::NotHere)
        }
    }

    fn enqueue(
        &mut self,
        link: LinkId,
        session: usize,
        command: &Command,
        index: u64,
        to: &mut Expected,
    ) {
        let Command::Enqueue { batch, .. } = command else { return };
        let sequence = batch.sequence;
        let s = &self.sessions[session];
        let kept = s.batches.iter().rev().take(64).find(|(n, _)| *n == sequence);
        let outcome = if sequence == 0 {
            Err(BatchRefusal::Malformed)
        } else if sequence < s.next_batch {
            kept.map(|(_, outcomes)| outcomes.clone()).ok_or(BatchRefusal::UnknownProducer)
        } else if sequence > s.next_batch {
            let is_new = s.next_batch == 1;
            Err(if is_new { BatchRefusal::UnknownProducer } else { BatchRefusal::SequenceGap })
        } else {
            // An atomic batch is tried out on a copy first.
            let (jobs, queues) = (self.jobs.len(), self.queues.len());
            let counted: Vec<u64> = self.queues.iter().map(|queue| queue.enqueued).collect();
            let mut outcomes: Vec<EnqueueOutcome> = batch
                .entries()
                .enumerate()
                .map(|(nth, entry)| {
                    let bytes =
                        batch.body().slice(entry.at as usize..(entry.at + entry.length) as usize);
                    let read = longshore_protocol::Entry::read(bytes).expect("it was built");
                    self.take_job(read, &batch.paths[entry.path], (index, nth))
                })
                .collect();
            let is_refused =
                |outcome: &EnqueueOutcome| matches!(outcome, EnqueueOutcome::Refused(_));
            if batch.atomic && outcomes.iter().any(is_refused) {
                self.jobs.truncate(jobs);
                self.queues.truncate(queues);
                self.queues.iter_mut().zip(counted).for_each(|(queue, n)| queue.enqueued = n);
                for outcome in outcomes.iter_mut().filter(|outcome| !is_refused(outcome)) {
                    *outcome = EnqueueOutcome::Refused(Refusal::BatchRefused);
                }
            }
            to.queues_made.extend(self.queues[queues..].iter().map(|queue| queue.path.clone()));
            let outcomes: Runs<EnqueueOutcome> = outcomes.into_iter().collect();
            let s = &mut self.sessions[session];
            s.next_batch += 1;
            s.batches.push((sequence, outcomes.clone()));
            Ok(outcomes)
        };
        to.replies.push((link, Reply::Enqueued(Enqueued { sequence, outcome })));
    }

    fn take_job(
        &mut self,
        entry: longshore_protocol::Entry,
        path: &Path,
        order: (u64, usize),
    ) -> EnqueueOutcome {
        if let Some(known) = self.jobs.iter().find(|job| job.id == entry.id) {
            let same = known.payload == entry.payload;
            let conflict = EnqueueOutcome::Refused(Refusal::IdConflict);
            return if same { EnqueueOutcome::Existing } else { conflict };
        }
        if let Err(refusal) = self.takes(path) {
            return EnqueueOutcome::Refused(refusal);
        }
        let open = self.jobs.iter().filter(|job| job.path == *path && job.place.is_open()).count();
        let is_new = self.queues.iter().all(|queue| queue.path != *path);
        if is_new && self.queues.len() >= LIMITS.queues {
            return EnqueueOutcome::Refused(Refusal::TooManyQueues);
        }
        if open as u64 >= LIMITS.jobs_per_queue {
            return EnqueueOutcome::Refused(Refusal::QueueFull);
        }
        if is_new {
            self.queues.push(Queue {
                path: path.clone(),
                enqueued: 0,
                completed: 0,
                failed: 0,
                redelivered: 0,
                stale: 0,
                collect_at: None,
            });
        }
        self.queue(path).enqueued += 1;
        self.schedules += 1;
        let place = match entry.options.due {
            Due::After(ms) if ms > 0 => Place::Delayed(self.now.mono_ms + ms),
            Due::At(ms) if ms > self.now.wall_ms => Place::Timed(ms),
            _ => Place::Ready,
        };
        self.jobs.push(Job {
            id: entry.id,
            path: path.clone(),
            payload: entry.payload,
            options: entry.options,
            order,
            place,
            attempts: 0,
            deliveries: 0,
            lost: 0,
            enqueued_wall_ms: self.now.wall_ms,
            ended_wall_ms: None,
            ended_mono_ms: 0,
            end: 0,
            scheduled: self.schedules,
            error: false,
            result: false,
        });
        EnqueueOutcome::Created
    }

    fn settle(&mut self, link: LinkId, session: usize, command: &Command, to: &mut Expected) {
        use longshore_protocol::messages::work::Verdict;
        let Command::Settle { batch, .. } = command else { return };
        let sequence = batch.sequence;
        let s = &self.sessions[session];
        let outcomes = if let Some(known) = s.settles.get(&sequence) {
            known.clone()
        } else if sequence == 0 || sequence + 64 < s.next_settle {
            Runs::default()
        } else {
            let mut outcomes = Runs::default();
            for item in batch.items() {
                let held = self.holder_of(item.token).filter(|&job| {
                    matches!(self.jobs[job].place, Place::Running { session: s, .. } if s == session)
                });
                let Some(number) = held else {
                    let lost = self.sessions[session].lost.iter().find(|(t, _)| *t == item.token);
                    if let Some((_, path)) = lost.cloned() {
                        self.queue(&path).stale += 1;
                    }
                    outcomes.push(SettleOutcome::StaleToken);
                    continue;
                };
                to.ended.push(item.token);
                outcomes.push(SettleOutcome::Accepted);
                let now = self.now;
                self.schedules += 1;
                let job = &mut self.jobs[number];
                job.scheduled = self.schedules;
                match item.verdict {
                    Verdict::Complete(result) => {
                        job.attempts += 1;
                        job.result = result.is_some() && job.options.keep_result;
                        let path = job.path.clone();
                        self.queue(&path).completed += 1;
                        self.end(number, Place::Completed);
                    }
                    Verdict::Fail(_) => {
                        job.attempts += 1;
                        job.error = true;
                        let n = job.attempts;
                        let wait = job
                            .options
                            .backoff
                            .clone()
                            .unwrap_or_default()
                            .wait_ms(n, random_of(&job.id, n));
                        if n >= job.options.max_attempts.unwrap_or(10) {
                            job.place = Place::Dead(DeathReason::AttemptsExhausted);
                            job.ended_wall_ms = Some(now.wall_ms);
                        } else if wait == 0 {
                            job.place = Place::Ready;
                        } else {
                            job.place = Place::Retrying(now.mono_ms + wait);
                        }
                        let path = job.path.clone();
                        self.queue(&path).failed += 1;
                    }
                    Verdict::Release | Verdict::Snooze(0) => job.place = Place::Ready,
                    Verdict::Snooze(ms) => job.place = Place::Delayed(now.mono_ms + ms),
                    Verdict::Bury(_) => {
                        job.attempts += 1;
                        job.error = true;
                        self.die(number, DeathReason::Buried);
                    }
                }
            }
            let s = &mut self.sessions[session];
            s.next_settle = s.next_settle.max(sequence + 1);
            s.settles.insert(sequence, outcomes.clone());
            if s.settles.len() > 64 {
                s.settles.pop_first();
            }
            outcomes
        };
        to.replies.push((link, Reply::Settled(Settled { sequence, outcomes })));
    }

    fn expire(&mut self, lease: &Expired, to: &mut Expected) {
        let Some(number) = self.holder_of(lease.token) else { return };
        if let Place::Running { session, .. } = self.jobs[number].place
            && let Some(link) = self.sessions[session].link
        {
            to.revoked.push((link, Revoked::LeaseLost, lease.token));
        }
        self.take(number, to);
        let job = &mut self.jobs[number];
        if lease.restart {
            job.place = Place::Ready;
        } else if lease.started {
            job.attempts += 1;
            job.place = Place::Ready;
            if job.attempts >= job.options.max_attempts.unwrap_or(10) {
                self.die(number, DeathReason::WorkerLost);
            }
        } else {
            self.lose_delivery(number);
        }
    }

    fn lose_delivery(&mut self, number: usize) {
        let job = &mut self.jobs[number];
        job.lost += 1;
        job.place = Place::Ready;
        if job.lost >= 30.max(3 * u32::from(job.options.max_attempts.unwrap_or(10))) {
            self.die(number, DeathReason::Undeliverable);
        }
    }

    /// A lease ends, and not by its holder.
    fn take(&mut self, number: usize, to: &mut Expected) {
        if let Place::Running { token, session } = self.jobs[number].place {
            to.ended.push(token);
            let path = self.jobs[number].path.clone();
            self.sessions[session].lost.push((token, path));
        }
    }

    fn die(&mut self, number: usize, reason: DeathReason) {
        self.jobs[number].place = Place::Dead(reason);
        self.jobs[number].ended_wall_ms = Some(self.now.wall_ms);
    }

    fn end(&mut self, number: usize, place: Place) {
        self.ends += 1;
        let now = self.now;
        let job = &mut self.jobs[number];
        job.place = place;
        job.end = self.ends;
        job.ended_wall_ms = Some(now.wall_ms);
        job.ended_mono_ms = now.mono_ms;
        let path = job.path.clone();
        let queue = self.queue(&path);
        queue.collect_at = queue.collect_at.or(Some(now.mono_ms + DAY_MS));
        self.keep_the_newest(&path);
    }

    fn keep_the_newest(&mut self, path: &Path) {
        let ended = |job: &&Job| job.path == *path && job.place.is_kept_for_a_while();
        let mut ends: Vec<u64> = self.jobs.iter().filter(ended).map(|job| job.end).collect();
        ends.sort_unstable();
        if ends.len() as u64 > LIMITS.ended_per_queue {
            let oldest = ends[0];
            self.jobs.retain(|job| !(job.place.is_kept_for_a_while() && job.end == oldest));
        }
    }

    fn act(&mut self, action: Action, selection: &Selection, to: &mut Expected) -> ActionReport {
        let mut report = ActionReport::default();
        let applies = |job: &Job| match action {
            Action::Cancel => job.place.is_open(),
            Action::Revive => matches!(job.place, Place::Dead(_)),
            Action::Drop => job.place.state().is_end(),
            Action::Confirm => false,
        };
        let is_named = matches!(selection, Selection::Ids(_));
        let tell = |report: &mut ActionReport, outcome| {
            if is_named {
                report.outcomes.push(outcome);
            }
        };
        let mut order: Vec<JobId> = match selection {
            Selection::Ids(ids) => ids.clone(),
            Selection::Matching(Filter { pattern, state, .. }) => {
                // Queue by queue; ready ones in their order, then scheduled, then running ones in the order they came.
                let wanted = |job: &&Job| {
                    pattern.matches(&job.path)
                        && state.is_none_or(|state| state == job.place.state())
                        && (action != Action::Drop
                            || state.is_some()
                            || matches!(job.place, Place::Dead(_)))
                        && applies(job)
                };
                let mut jobs: Vec<&Job> = self.jobs.iter().filter(wanted).collect();
                jobs.sort_by_key(|job| match job.place {
                    Place::Ready => (0, -i64::from(job.options.priority), job.order),
                    Place::Running { token, .. } => (2, 0, (token.0, 0)),
                    _ => (1, 0, (job.scheduled, 0)),
                });
                jobs.iter().map(|job| job.id).collect()
            }
        };
        for id in order.drain(..) {
            let Some(number) = self.jobs.iter().position(|job| job.id == id) else {
                report.unknown += 1;
                tell(&mut report, ActOutcome::Unknown);
                continue;
            };
            if !applies(&self.jobs[number]) {
                report.refused += 1;
                let state = self.jobs[number].place.state();
                tell(&mut report, ActOutcome::NotInState(state));
                continue;
            }
            report.done += 1;
            tell(&mut report, ActOutcome::Done);
            match action {
                Action::Confirm => {}
                Action::Cancel => {
                    if let Place::Running { token, session } = self.jobs[number].place
                        && let Some(link) = self.sessions[session].link
                    {
                        to.revoked.push((link, Revoked::Cancelled, token));
                    }
                    let ran = matches!(self.jobs[number].place, Place::Running { .. });
                    self.jobs[number].attempts += u16::from(ran);
                    self.take(number, to);
                    self.end(number, Place::Cancelled);
                }
                Action::Revive => {
                    let job = &mut self.jobs[number];
                    (job.attempts, job.deliveries, job.lost) = (0, 0, 0);
                    job.ended_wall_ms = None;
                    job.place = Place::Ready;
                }
                Action::Drop => {
                    self.jobs.remove(number);
                }
            }
        }
        report
    }

    fn tick(&mut self) {
        let now = self.now;
        for job in &mut self.jobs {
            let is_due = match job.place {
                Place::Delayed(at) | Place::Retrying(at) => at <= now.mono_ms,
                Place::Timed(at) => at <= now.wall_ms,
                _ => false,
            };
            if is_due {
                job.place = Place::Ready;
            }
        }
        for queue in &mut self.queues {
            if queue.collect_at.is_some_and(|at| at <= now.mono_ms) {
                self.jobs.retain(|job| {
                    job.path != queue.path
                        || !job.place.is_kept_for_a_while()
                        || job.ended_mono_ms + DAY_MS > now.mono_ms
                });
                let own = self.jobs.iter().filter(|job| job.path == queue.path);
                let ended = own.filter(|job| job.place.is_kept_for_a_while());
                queue.collect_at = ended.map(|job| job.ended_mono_ms + DAY_MS).min();
            }
        }
        for number in 0..self.sessions.len() {
            let holds = |job: &Job| matches!(job.place, Place::Running { session, .. } if session == number);
            let is_busy = self.jobs.iter().any(holds);
            let session = &mut self.sessions[number];
            if session.forget_at.is_some_and(|at| at <= now.mono_ms) {
                session.known = is_busy;
                session.forget_at = is_busy.then_some(now.mono_ms + HOUR_MS);
            }
        }
    }

    /// A job goes to a credit. It must be the one that its subscription should get now.
    fn hand(&mut self, handed: &crate::outcome::Handed, path: &Path) {
        let session = self.session_of(handed.link).expect("jobs go to links that are up");
        let s = self.subscription(handed.link, handed.subscription).expect("and subscriptions");
        assert!(s.credit > 0, "nobody gets more than it has credit for");
        s.credit -= 1;
        s.told = false;
        let pattern = s.pattern.clone();
        let ready = self.jobs.iter_mut().filter(|job| job.place == Place::Ready);
        let best = ready
            .filter(|job| pattern.matches(&job.path))
            .min_by_key(|job| (std::cmp::Reverse(job.options.priority), job.order))
            .expect("there is a job to hand out");
        assert!(handed.token > self.last_token, "tokens rise");
        assert_eq!((&best.path, best.order.0), (path, handed.entry.index));
        best.place = Place::Running { token: handed.token, session };
        best.deliveries += 1;
        let seen = (handed.attempt, handed.deliveries, handed.lease_ms);
        assert_eq!(seen, (best.attempts + 1, best.deliveries, 30_000));
        let again = best.deliveries > 1;
        self.last_token = handed.token;
        self.queue(path).redelivered += u64::from(again);
    }

    fn ready_for(&self, pattern: &Glob) -> u64 {
        let ready = self.jobs.iter().filter(|job| job.place == Place::Ready);
        ready.filter(|job| pattern.matches(&job.path)).count() as u64
    }

    fn nothing_waits_for_nothing(&self) {
        for s in self.subscriptions.iter().filter(|s| s.credit > 0) {
            assert_eq!(self.ready_for(&s.pattern), 0, "{} has credit, and jobs wait", s.pattern);
        }
    }

    fn tell(&mut self) -> Vec<(LinkId, Reply)> {
        let mut told = Vec::new();
        for number in 0..self.subscriptions.len() {
            let s = &self.subscriptions[number];
            let jobs = self.ready_for(&s.pattern);
            if s.credit == 0 && !s.told && jobs > 0 {
                told.push((s.link, Reply::Waiting(Waiting { subscription: s.number, jobs })));
                self.subscriptions[number].told = true;
            }
        }
        told
    }

    fn next_due(&self) -> Option<u64> {
        let now = self.now;
        let jobs = self.jobs.iter().filter_map(|job| match job.place {
            Place::Delayed(at) | Place::Retrying(at) => Some(at),
            Place::Timed(at) => Some(now.mono_ms + at.saturating_sub(now.wall_ms)),
            _ => None,
        });
        let queues = self.queues.iter().filter_map(|queue| queue.collect_at);
        jobs.chain(queues).chain(self.sessions.iter().filter_map(|s| s.forget_at)).min()
    }
}
