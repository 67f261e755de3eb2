//! Subscriptions, and whether each hand-out was the right one.

use longshore_protocol::messages::work::{Order, Source, Sources, Waiting};
use longshore_protocol::{JobChange, LinkId, Path};

use super::jobs::{Job, Place};
use super::naive::{Expected, Model};
use crate::outcome::{Handed, Reply};

#[derive(Clone)]
pub(super) struct Subscription {
    pub(super) link: LinkId,
    pub(super) number: u32,
    pub(super) sources: Sources,
    pub(super) credit: u32,
    pub(super) told: bool,
}

/// What subscriptions with the same weighted sources were handed while every lane had jobs, by lane.
#[derive(Clone)]
pub(super) struct Shares {
    sources: Sources,
    handed: Vec<u64>,
}

impl Model {
    pub(super) fn subscription(&mut self, link: LinkId, number: u32) -> Option<&mut Subscription> {
        self.subscriptions.iter_mut().find(|s| (s.link, s.number) == (link, number))
    }

    pub(super) fn subscribe(
        &mut self,
        link: LinkId,
        number: u32,
        sources: &Sources,
        to: &mut Expected<'_>,
    ) {
        if self.session_of(link).is_none() {
            return;
        }
        let own = self.subscriptions.iter().filter(|s| s.link == link).count();
        let refusal = if self.subscription(link, number).is_some() {
            Some(format!("the link has a subscription {number} already"))
        } else if own >= self.limits.subscriptions_per_link {
            Some(format!("the link has {own} subscriptions, as many as it may"))
        } else {
            None
        };
        match refusal {
            Some(reason) => {
                to.replies.push((link, Reply::SubscribeRefused { subscription: number, reason }));
            }
            None => self.subscriptions.push(Subscription {
                link,
                number,
                sources: sources.clone(),
                credit: 0,
                told: false,
            }),
        }
    }

    /// Ready jobs that the sources may be handed: not those of paused queues.
    fn ready_for<'a>(&'a self, sources: &Sources) -> impl Iterator<Item = &'a Job> {
        let ready = self.jobs.iter().filter(|job| job.place == Place::Ready);
        ready.filter(|job| sources.matches(&job.path) && !self.is_paused(&job.path))
    }

    /// The next job of one lane.
    fn head<'a>(&'a self, sources: &Sources, lane: usize) -> Option<&'a Job> {
        let own = self.ready_for(sources).filter(|job| lane_of(sources, &job.path) == Some(lane));
        own.min_by_key(|job| job.rank())
    }

    /// The jobs of which the sources' order takes the next one: one, or one of each lane if they go by weight.
    fn next_for<'a>(&'a self, sources: &Sources) -> Vec<&'a Job> {
        let mut heads = (0..sources.patterns.len()).filter_map(|lane| self.head(sources, lane));
        match sources.order {
            Order::Age => heads.min_by_key(|job| job.rank()).into_iter().collect(),
            Order::Strict => heads.next().into_iter().collect(),
            Order::Weighted => heads.collect(),
        }
    }

    /// Follows the hand-outs and checks each of them.
    pub(super) fn hand_out(&mut self, to: &mut Expected<'_>) {
        let mut handed = to.seen.handed.iter();
        while let Some(event) = to.seen_next() {
            match event.change {
                JobChange::Delivered => {
                    let handed = handed.next().expect("each delivery is told once");
                    self.hand(handed, to);
                }
                // It was about to be handed to somebody, and is too late.
                JobChange::Expired => {
                    let job = self.find(event.job).expect("jobs that expire are there");
                    let j = &self.jobs[job];
                    assert!(j.is_too_late(self.now), "{event:?} of {j:?}");
                    let wanted = self.subscriptions.iter().any(|s| {
                        s.credit > 0
                            && self.next_for(&s.sources).iter().any(|job| job.id == event.job)
                    });
                    assert!(wanted, "out of turn only a Tick lets a job expire");
                    self.shares.clear();
                    self.end(job, Place::Expired, JobChange::Expired, to);
                }
                _ => break,
            }
        }
        assert!(handed.next().is_none(), "each hand-out is told as an event");
        for s in self.subscriptions.iter().filter(|s| s.credit > 0) {
            let waits = self.ready_for(&s.sources).next();
            assert!(waits.is_none(), "{:?} has credit, and {waits:?} waits", s.sources);
        }
    }

    fn hand(&mut self, handed: &Handed, to: &mut Expected<'_>) {
        let session = self.session_of(handed.link).expect("jobs go to links that are up");
        let s = self.subscription(handed.link, handed.subscription).expect("and subscriptions");
        assert!(s.credit > 0, "nobody gets more than it has credit for");
        s.credit -= 1;
        s.told = false;
        let sources = s.sources.clone();
        let next = self.next_for(&sources);
        let best = next.iter().find(|job| job.entry == handed.entry);
        let best = best.unwrap_or_else(|| panic!("{handed:?} of {sources:?}, before {next:?}"));
        assert!(!best.is_too_late(self.now), "nothing is delivered past its time");
        let (id, path) = (best.id, best.path.clone());
        let queue = self.queues.iter().position(|queue| queue.path == path);
        assert_eq!(queue, Some(handed.queue.0 as usize));
        assert!(handed.token.0 >= self.next_token, "tokens rise");
        self.next_token = handed.token.0 + 1;
        self.share(&sources, &path);

        let now = self.now;
        let number = self.find(id).expect("it is ready");
        let job = &mut self.jobs[number];
        job.place = Place::Running { token: handed.token, session };
        job.deliveries += 1;
        (job.delivered, job.sequence) = (now, 0);
        let (again, checkpoints) = (job.deliveries > 1, job.checkpoints.len() as u16);
        let job = &self.jobs[number];
        let expected = Handed {
            attempt: job.attempt(),
            deliveries: job.deliveries,
            lease_ms: self.lease_ms(job),
            run_timeout_ms: self.run_timeout_ms(job),
            checkpoints,
            ..*handed
        };
        assert_eq!(*handed, expected);
        self.queue(&path).redelivered += u64::from(again);
        self.tell(number, JobChange::Delivered, to);
    }

    /// Weights hold over the jobs that are handed out while every lane has jobs: no lane is ever as much as two rounds away
    /// from its share.
    fn share(&mut self, sources: &Sources, taken: &Path) {
        if sources.order != Order::Weighted {
            return;
        }
        let lanes = sources.patterns.len();
        if (0..lanes).any(|lane| self.head(sources, lane).is_none()) {
            self.shares.retain(|shares| shares.sources != *sources);
            return;
        }
        if self.shares.iter().all(|shares| shares.sources != *sources) {
            self.shares.push(Shares { sources: sources.clone(), handed: vec![0; lanes] });
        }
        let shares = self.shares.iter_mut().find(|shares| shares.sources == *sources);
        let shares = shares.expect("it is there now");
        shares.handed[lane_of(sources, taken).expect("it was in a lane")] += 1;
        let weight = |source: &Source| u64::from(source.weight);
        let all: u64 = sources.patterns.iter().map(weight).sum();
        let jobs: u64 = shares.handed.iter().sum();
        for (source, &handed) in sources.patterns.iter().zip(&shares.handed) {
            let away = (handed * all).abs_diff(jobs * weight(source));
            assert!(away < 2 * all, "{:?} by {sources:?}", shares.handed);
        }
    }

    /// Who has no credit is told of waiting jobs, once until it has had some again.
    pub(super) fn tell_who_waits(&mut self, to: &mut Expected<'_>) {
        for number in 0..self.subscriptions.len() {
            let s = &self.subscriptions[number];
            let jobs = self.ready_for(&s.sources).count() as u64;
            if s.credit == 0 && !s.told && jobs > 0 {
                let waiting = Waiting { subscription: s.number, jobs };
                to.replies.push((s.link, Reply::Waiting(waiting)));
                self.subscriptions[number].told = true;
            }
        }
    }
}

/// The lane of a queue: a queue that several patterns match belongs to the first.
fn lane_of(sources: &Sources, path: &Path) -> Option<usize> {
    sources.patterns.iter().position(|source| source.pattern.matches(path))
}
