//! Subscriptions, and whether each delivery was correct.

use std::ops::Deref;

use longshore_protocol::messages::work::{Order, Sources, Waiting};
use longshore_protocol::{Glob, JobChange, LinkId, Path, PathSet};

use super::driver::STEP_JOBS;
use super::jobs::{Job, Phase};
use super::naive::{Expected, Model};
use crate::outcome::{Assignment, Reply};

/// Sources, and the queues among them that the client may take jobs of; none for all.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct PermittedSources {
    sources: Sources,
    pub(super) within: Option<PathSet>,
}

impl Deref for PermittedSources {
    type Target = Sources;

    fn deref(&self) -> &Sources {
        &self.sources
    }
}

#[derive(Clone)]
pub(super) struct Subscription {
    pub(super) link: LinkId,
    pub(super) number: u32,
    pub(super) sources: PermittedSources,
    pub(super) credit: u32,
    pub(super) notified: bool,
}

/// The balance of each lane of weighted sources, while they have subscriptions.
#[derive(Clone)]
pub(super) struct Shares {
    sources: PermittedSources,
    balances: Vec<i64>,
}

impl Model {
    pub(super) fn subscription(&mut self, link: LinkId, number: u32) -> Option<&mut Subscription> {
        self.subscriptions.iter_mut().find(|s| (s.link, s.number) == (link, number))
    }

    pub(super) fn subscribe(
        &mut self,
        link: LinkId,
        number: u32,
        (sources, handlers): (&Sources, u32),
        to: &mut Expected<'_>,
    ) {
        let Some(session) = self.session_of(link) else { return };
        let within = self.sessions[session].work.clone();
        let own = self.subscriptions.iter().filter(|s| s.link == link);
        let own = own.map(|s| s.sources.sources.patterns.len()).sum::<usize>();
        let most = self.limits.patterns_per_link;
        let refusal = if self.subscription(link, number).is_some() {
            Some(format!("the link has a subscription {number} already"))
        } else if (own + sources.patterns.len()) as u64 > most {
            Some(format!(
                "{} patterns and the {own} of the link's other subscriptions are over the limit \
                 of {most}; combine several in one: /jobs/{{a,b}}",
                sources.patterns.len()
            ))
        } else {
            None
        };
        match refusal {
            Some(reason) => {
                to.replies.push((link, Reply::SubscribeRefused { subscription: number, reason }));
            }
            None => {
                self.sessions[session].handlers = handlers as usize;
                self.subscriptions.push(Subscription {
                    link,
                    number,
                    sources: PermittedSources { sources: sources.clone(), within },
                    credit: 0,
                    notified: false,
                });
            }
        }
    }

    /// A subscription whose queues have changed is notified again.
    pub(super) fn permit(&mut self, link: LinkId, work: Option<&PathSet>) {
        let Some(session) = self.session_of(link) else { return };
        self.sessions[session].work = work.cloned();
        for s in self.subscriptions.iter_mut().filter(|s| s.link == link) {
            if s.sources.within.as_ref() != work {
                (s.sources.within, s.notified) = (work.cloned(), false);
            }
        }
    }

    /// Ready jobs of the sources, without those of queues that are paused or limited.
    fn ready_for<'a>(&'a self, sources: &PermittedSources) -> impl Iterator<Item = &'a Job> {
        let ready = self.jobs.iter().filter(|job| job.phase == Phase::Ready);
        let is_open = |job: &Job| !self.is_paused(&job.path) && !self.limited.contains(&job.path);
        ready.filter(move |job| lane_of(sources, &job.path).is_some() && is_open(job))
    }

    /// The jobs of which one is the next of one lane.
    fn heads(&self, sources: &PermittedSources, lane: usize, of: &Path) -> Vec<&Job> {
        self.heads_where(of, |path| lane_of(sources, path) == Some(lane))
    }

    /// A queue that a limit holds back is passed over: all that a limit may hold back are, but that
    /// of the job.
    fn heads_where(&self, of: &Path, is_own: impl Fn(&Path) -> bool) -> Vec<&Job> {
        let queues = self.queues.iter().map(|queue| &queue.path);
        let is_open = |path: &Path| path == of || !self.may_be_held(path);
        let queues = queues.filter(|path| is_own(path) && !self.is_paused(path) && is_open(path));
        self.possible_heads(&queues.collect::<Vec<_>>())
    }

    /// The candidates for the sources' next job: one, or one of each lane if they are weighted;
    /// more where shares of fair keys are equal.
    fn next_for(&self, sources: &PermittedSources, of: &Path) -> Vec<&Job> {
        let mut heads = (0..sources.patterns.len()).map(|lane| self.heads(sources, lane, of));
        match sources.order {
            Order::Age => self.heads_where(of, |path| lane_of(sources, path).is_some()),
            Order::Strict => heads.find(|heads| !heads.is_empty()).unwrap_or_default(),
            Order::Weighted => heads.flatten().collect(),
        }
    }

    /// Follows the state's deliveries and checks each of them.
    pub(super) fn dispatch_jobs(&mut self, to: &mut Expected<'_>) {
        let subscriptions = &self.subscriptions;
        self.shares.retain(|shares| subscriptions.iter().any(|s| s.sources == shares.sources));
        for session in 0..self.sessions.len() {
            // With several subscriptions, others may still wait once one has got a handler.
            let link = self.sessions[session].link;
            let of_session = |s: &&Subscription| Some(s.link) == link && s.credit > 0;
            let may_remain = self.subscriptions.iter().filter(of_session).count() > 1;
            self.sessions[session].may_be_parked &= may_remain || !self.has_free_handler(session);
        }
        let mut delivered = to.actual.assignments.iter();
        let mut expired = 0;
        while let Some(event) = to.next_actual_event() {
            self.note_parked();
            match event.change {
                JobChange::Delivered => {
                    let delivered = delivered.next().expect("each delivery has one event");
                    self.check_delivery(delivered, to);
                }
                // It was about to be delivered, and has expired.
                JobChange::Expired => {
                    let job = self.find(event.job).expect("jobs that expire are there");
                    let j = &self.jobs[job];
                    assert!(j.has_expired(self.now), "{event:?} of {j:?}");
                    let is_next = self.subscriptions.iter().any(|s| {
                        s.credit > 0
                            && self
                                .next_for(&s.sources, &j.path)
                                .iter()
                                .any(|job| job.id == event.job)
                    });
                    assert!(is_next, "out of turn only a Tick lets a job expire");
                    expired += 1;
                    self.end(job, Phase::Expired, JobChange::Expired, to);
                }
                JobChange::Blocked | JobChange::Unblocked => self.settle_turns(to),
                _ => break,
            }
        }
        self.settle_turns(to);
        self.note_parked();
        for session in 0..self.sessions.len() {
            self.sessions[session].may_be_parked &= !self.has_free_handler(session);
        }
        assert!(delivered.next().is_none(), "each delivery has an event");
        assert!(expired as u64 <= self.limits.step_jobs, "{expired} expire in one step");
        for s in self.subscriptions.iter().filter(|s| s.credit > 0) {
            let waits = self.ready_for(&s.sources).next();
            // If so many jobs expired instead, in a Tick or here, an expired one may have to wait
            // for the next command.
            let may_stall = expired_jobs(to) as u64 >= self.limits.step_jobs
                && waits.is_some_and(|job| {
                    let next = self.next_for(&s.sources, &job.path);
                    next.iter().any(|job| job.has_expired(self.now))
                });
            // Or as many jobs or queues were held back.
            let may_stall =
                may_stall || self.limits.step_jobs < STEP_JOBS && !self.job_limits.is_empty();
            let session = self.session_of(s.link).expect("it is up");
            let is_parked = self.sessions[session].may_be_parked;
            let is_done = waits.is_none() || may_stall || is_parked || self.delivery_budget == 0;
            assert!(is_done, "{:?} has credit, and {waits:?} waits", s.sources);
        }
    }

    /// A session has fewer leases than its worker has handlers.
    fn has_free_handler(&self, session: usize) -> bool {
        let is_own =
            |job: &&Job| matches!(job.phase, Phase::Running { session: s, .. } if s == session);
        self.jobs.iter().filter(is_own).count() < self.sessions[session].handlers
    }

    /// Notes the sessions that wait for a free handler: from then on until one is free, they may
    /// get no job at all.
    fn note_parked(&mut self) {
        let waits = |s: &&Subscription| {
            let session = self.session_of(s.link).expect("it is up");
            s.credit > 0
                && !self.has_free_handler(session)
                && self.queues.iter().any(|queue| {
                    let next = self.next_for(&s.sources, &queue.path);
                    next.iter().any(|job| self.needs_free_handler(job))
                })
        };
        let links: Vec<LinkId> = self.subscriptions.iter().filter(waits).map(|s| s.link).collect();
        for link in links {
            let session = self.session_of(link).expect("it is up");
            self.sessions[session].may_be_parked = true;
        }
    }

    fn check_delivery(&mut self, delivered: &Assignment, to: &mut Expected<'_>) {
        let session = self.session_of(delivered.link).expect("jobs go to links that are up");
        let has_free_handler = self.has_free_handler(session);
        let s =
            self.subscription(delivered.link, delivered.subscription).expect("and subscriptions");
        assert!(s.credit > 0, "a delivery needs credit");
        s.credit -= 1;
        s.notified = false;
        let sources = s.sources.clone();
        assert!(self.delivery_budget > 0, "a delivery needs budget");
        if self.delivery_budget != u64::MAX {
            self.delivery_budget -= 1;
        }
        let path = self.queues[delivered.queue.0 as usize].path.clone();
        let next = self.next_for(&sources, &path);
        let best = next.iter().find(|job| job.location() == delivered.entry);
        let best = best.unwrap_or_else(|| panic!("{delivered:?} of {sources:?}, before {next:?}"));
        assert!(!best.has_expired(self.now), "no expired job is delivered");
        let needs_one = self.needs_free_handler(best);
        assert!(has_free_handler || !needs_one, "{best:?} needs a free handler");
        let (id, path) = (best.id, best.path.clone());
        let queue = self.queues.iter().position(|queue| queue.path == path);
        assert_eq!(queue, Some(delivered.queue.0 as usize));
        assert!(delivered.token.0 >= self.next_token, "tokens rise");
        self.next_token = delivered.token.0 + 1;
        self.share(&sources, &path);
        self.charge_share(self.find(id).expect("it is ready"));

        let now = self.now;
        let number = self.find(id).expect("it is ready");
        self.start(number);
        let job = &mut self.jobs[number];
        job.phase = Phase::Running { token: delivered.token, session };
        job.deliveries += 1;
        (job.delivered, job.sequence) = (now, 0);
        self.start_unique(number);
        let job = &self.jobs[number];
        let (repeated, checkpoints) = (job.deliveries > 1, job.checkpoints.len() as u16);
        let job = &self.jobs[number];
        let expected = Assignment {
            attempt: job.attempt(),
            deliveries: job.deliveries,
            lease_ms: self.lease_ms(job),
            run_timeout_ms: self.run_timeout_ms(job),
            checkpoints,
            times: job.times(now),
            of_template: job.made_by.is_some(),
            ..*delivered
        };
        assert_eq!(*delivered, expected);
        self.queue(&path).redelivered += u64::from(repeated);
        self.emit(number, JobChange::Delivered, to);
    }

    /// Smooth weighted round robin: each lane that has jobs gains its weight; the one with the
    /// highest balance, the first of several, is next, and pays the weights of all.
    fn share(&mut self, sources: &PermittedSources, taken: &Path) {
        let lanes = 0..sources.patterns.len();
        let with_jobs: Vec<usize> =
            lanes.clone().filter(|&lane| !self.heads(sources, lane, taken).is_empty()).collect();
        if sources.order != Order::Weighted || with_jobs.len() < 2 {
            return;
        }
        if self.shares.iter().all(|shares| shares.sources != *sources) {
            let balances = vec![0; lanes.len()];
            self.shares.push(Shares { sources: sources.clone(), balances });
        }
        let shares = self.shares.iter_mut().find(|shares| shares.sources == *sources);
        let balances = &mut shares.expect("it is there now").balances;
        let weight = |lane: usize| i64::from(sources.patterns[lane].weight);
        for &lane in &with_jobs {
            balances[lane] += weight(lane);
        }
        let most = with_jobs.iter().map(|&lane| balances[lane]).max();
        let next = with_jobs.iter().copied().find(|&lane| Some(balances[lane]) == most);
        assert_eq!(lane_of(sources, taken), next, "{balances:?} by {sources:?}");
        balances[next.expect("two have jobs")] -=
            with_jobs.iter().map(|&lane| weight(lane)).sum::<i64>();
    }

    /// Subscriptions without credit are notified of waiting jobs, once until they have had credit
    /// again.
    pub(super) fn notify_waiting_subscriptions(&mut self, to: &mut Expected<'_>) {
        for number in 0..self.subscriptions.len() {
            let s = &self.subscriptions[number];
            let jobs = self.ready_for(&s.sources).count() as u64;
            if s.credit == 0 && !s.notified && jobs > 0 {
                let waiting = Waiting { subscription: s.number, jobs };
                to.replies.push((s.link, Reply::Waiting(waiting)));
                self.subscriptions[number].notified = true;
            }
        }
    }
}

fn expired_jobs(to: &Expected<'_>) -> usize {
    to.actual.events.iter().filter(|event| event.change == JobChange::Expired).count()
}

/// The lane of a queue: a queue that several patterns match belongs to the first. One of weight 0
/// takes no jobs.
pub(super) fn lane_of(sources: &PermittedSources, path: &Path) -> Option<usize> {
    if sources.within.as_ref().is_some_and(|within| !permits(within, path)) {
        return None;
    }
    let mut sources = sources.patterns.iter().enumerate();
    let (lane, source) = sources.find(|(_, source)| source.pattern.matches(path))?;
    (source.weight != 0).then_some(lane)
}

/// Whether a client may use the queue.
pub(super) fn permits(within: &PathSet, path: &Path) -> bool {
    let is_in = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(path));
    is_in(&within.allow) && !is_in(&within.deny)
}
