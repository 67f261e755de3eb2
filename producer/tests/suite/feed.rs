//! The feed over real links: after any disturbance, its items converge to the publisher's jobs.

use std::collections::HashMap;
use std::time::Duration;

use crate::fake::FakePublisher;
use crate::fake::job_model::SharedJobModel;
use longshore_producer::{Feed, FeedFrom, FeedLoss, FeedPositions, FeedUpdate, Queues};
use longshore_protocol::{Glob, JobId, JobState, PublisherId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The state that a consumer builds from a feed.
#[derive(Default)]
struct Consumer {
    jobs: HashMap<(PublisherId, JobId), JobState>,
    /// The index of the last item of each job, which never goes back.
    shown: HashMap<(PublisherId, JobId), u64>,
    lost: Vec<FeedLoss>,
    away: usize,
    snapshots: usize,
}

impl Consumer {
    async fn read(&mut self, feed: &mut Feed) {
        let item = tokio::time::timeout(Duration::from_secs(20), feed.next()).await;
        let item = item.expect("something within 20 s").expect("a feed has no outcome");
        let of = item.publisher.id;
        match item.update {
            FeedUpdate::SnapshotBegins => {
                self.snapshots += 1;
                self.jobs.retain(|(publisher, _), _| *publisher != of);
                self.shown.retain(|(publisher, _), _| *publisher != of);
            }
            FeedUpdate::Jobs(jobs) => {
                assert!(!jobs.is_empty());
                for job in jobs {
                    self.show((of, job.id), Some(job.state), job.priority as u64);
                }
            }
            FeedUpdate::Changes(changes) => {
                for event in changes.events {
                    self.show((of, event.job), event.state, event.index);
                }
            }
            FeedUpdate::Lost(why) => self.lost.push(why),
            FeedUpdate::Away { .. } => self.away += 1,
            FeedUpdate::Follows { .. } | FeedUpdate::SnapshotEnds { .. } => {}
        }
    }

    fn show(&mut self, job: (PublisherId, JobId), state: Option<JobState>, index: u64) {
        let before = self.shown.insert(job, index).unwrap_or(0);
        assert!(index >= before, "{job:?} goes back from {before} to {index}");
        match state {
            Some(state) => self.jobs.insert(job, state),
            None => self.jobs.remove(&job),
        };
    }

    /// Reads until the feed has caught up, and compares the jobs.
    async fn catch_up(
        &mut self,
        feed: &mut Feed,
        publisher: &FakePublisher,
        model: &SharedJobModel,
    ) {
        model.0.lock().lag = 0;
        model.change_random_job();
        let index = model.0.lock().index;
        while feed.positions().0.get(&publisher.info.id).is_none_or(|at| at.index < index) {
            self.read(feed).await;
        }
        let is: HashMap<JobId, JobState> =
            model.jobs().into_iter().map(|(id, (state, _))| (id, state)).collect();
        let of = publisher.info.id;
        let seen: HashMap<JobId, JobState> = (self.jobs.iter())
            .filter(|((publisher, _), _)| *publisher == of)
            .map(|(&(_, id), &state)| (id, state))
            .collect();
        assert_eq!(seen, is);
        model.0.lock().lag = 20;
    }
}

fn to(publishers: &[&FakePublisher]) -> Queues {
    let options = Queues::builder().request_timeout(Duration::from_secs(2));
    options.to_publishers(publishers.iter().map(|p| p.info.clone()))
}

async fn start_with_model(n: u8, seed: u64, slots: usize) -> (FakePublisher, SharedJobModel) {
    let publisher = FakePublisher::start(n).await;
    let model = SharedJobModel::new(seed, slots);
    publisher.disk.lock().model = Some(model.clone());
    (publisher, model)
}

#[tokio::test]
async fn a_snapshot_and_concurrent_changes_converge() {
    for seed in 0..20 {
        let (publisher, model) = start_with_model(1, seed, 60).await;
        (0..200).for_each(|_| model.change_random_job());
        let mut feed = to(&[&publisher]).feed(Glob::everything(), FeedFrom::Snapshot);
        let mut consumer = Consumer::default();
        for _ in 0..100 {
            (0..7).for_each(|_| model.change_random_job());
            consumer.read(&mut feed).await;
        }
        consumer.catch_up(&mut feed, &publisher, &model).await;
        assert_eq!((consumer.snapshots, consumer.lost.len()), (1, 0));
        assert!(model.0.lock().pages >= 20);
    }
}

#[tokio::test]
async fn a_feed_resumes_after_a_restart_even_during_a_snapshot() {
    let mut random = StdRng::seed_from_u64(7);
    let (mut publisher, model) = start_with_model(1, 7, 300).await;
    let address = publisher.info.addresses[0].clone();
    (0..1_000).for_each(|_| model.change_random_job());
    let mut feed = to(&[&publisher]).feed(Glob::everything(), FeedFrom::Snapshot);
    let mut consumer = Consumer::default();
    for _ in 0..6 {
        for _ in 0..random.random_range(1..60) {
            (0..3).for_each(|_| model.change_random_job());
            consumer.read(&mut feed).await;
        }
        publisher.kill().await;
        model.restart();
        (0..50).for_each(|_| model.change_random_job());
        publisher.revive_at(address.clone()).await;
    }
    consumer.catch_up(&mut feed, &publisher, &model).await;
    assert_eq!((consumer.snapshots, consumer.lost.len()), (1, 0), "nothing was lost");
    assert!(consumer.away > 0, "the outage is reported");
}

#[tokio::test]
async fn dropped_changes_are_reported_and_followed_by_a_snapshot() {
    let (mut publisher, model) = start_with_model(1, 3, 60).await;
    let address = publisher.info.addresses[0].clone();
    (0..200).for_each(|_| model.change_random_job());
    let mut feed = to(&[&publisher]).feed(Glob::everything(), FeedFrom::Snapshot);
    let mut consumer = Consumer::default();
    consumer.catch_up(&mut feed, &publisher, &model).await;
    // While the feed is connected.
    (0..100).for_each(|_| model.change_random_job());
    model.forget_tail();
    consumer.catch_up(&mut feed, &publisher, &model).await;
    assert_eq!(consumer.lost, [FeedLoss::TooOld]);
    // While the publisher is away.
    publisher.kill().await;
    model.restart();
    (0..100).for_each(|_| model.change_random_job());
    model.forget_tail();
    publisher.revive_at(address.clone()).await;
    consumer.catch_up(&mut feed, &publisher, &model).await;
    assert_eq!(consumer.lost, [FeedLoss::TooOld, FeedLoss::TooOld]);
    assert_eq!(consumer.snapshots, 3);
}

#[tokio::test]
async fn a_publisher_that_lost_state_is_listed_again() {
    let (mut publisher, model) = start_with_model(1, 4, 60).await;
    let address = publisher.info.addresses[0].clone();
    (0..200).for_each(|_| model.change_random_job());
    let snapshot = model.snapshot();
    let mut feed = to(&[&publisher]).feed(Glob::everything(), FeedFrom::Snapshot);
    let mut consumer = Consumer::default();
    (0..50).for_each(|_| model.change_random_job());
    consumer.catch_up(&mut feed, &publisher, &model).await;
    publisher.kill().await;
    model.restart_from(snapshot);
    (0..90).for_each(|_| model.change_random_job());
    publisher.revive_at(address.clone()).await;
    while consumer.lost.is_empty() {
        consumer.read(&mut feed).await;
    }
    consumer.catch_up(&mut feed, &publisher, &model).await;
    assert_eq!((consumer.lost, consumer.snapshots), (vec![FeedLoss::Rewound], 2));
}

#[tokio::test]
async fn a_feed_resumes_from_positions_and_lists_new_publishers() {
    let (one, model) = start_with_model(1, 5, 60).await;
    (0..200).for_each(|_| model.change_random_job());
    let mut consumer = Consumer::default();
    let mut feed = to(&[&one]).feed(Glob::everything(), FeedFrom::Snapshot);
    assert_eq!(feed.positions(), FeedPositions::default());
    consumer.catch_up(&mut feed, &one, &model).await;
    let positions = feed.positions();
    drop(feed);
    (0..200).for_each(|_| model.change_random_job());
    let (two, other) = start_with_model(2, 6, 60).await;
    (0..200).for_each(|_| other.change_random_job());
    let mut feed = to(&[&one, &two]).feed(Glob::everything(), FeedFrom::After(positions));
    consumer.catch_up(&mut feed, &one, &model).await;
    consumer.catch_up(&mut feed, &two, &other).await;
    assert_eq!(consumer.snapshots, 2, "one of each publisher");
}

#[tokio::test]
async fn a_feed_from_now_on_reports_only_changes() {
    let (publisher, model) = start_with_model(1, 8, 60).await;
    (0..200).for_each(|_| model.change_random_job());
    let before = model.0.lock().index;
    let mut feed = to(&[&publisher]).feed(Glob::everything(), FeedFrom::Now);
    let mut consumer = Consumer::default();
    consumer.read(&mut feed).await;
    assert_eq!(feed.positions().0[&publisher.info.id].index, before);
    (0..200).for_each(|_| model.change_random_job());
    model.0.lock().lag = 0;
    let mut events = 0;
    while events < 200 {
        if let Some(item) = feed.next().await
            && let FeedUpdate::Changes(changes) = item.update
        {
            events += changes.events.len();
        }
    }
    assert_eq!((events, model.0.lock().pages), (200, 0));
}

#[tokio::test]
async fn a_slow_reader_delays_no_other_and_loses_nothing() {
    let (publisher, model) = start_with_model(1, 9, 60).await;
    let queues = to(&[&publisher]);
    let mut slow = queues.feed(Glob::everything(), FeedFrom::Snapshot);
    let mut consumer = Consumer::default();
    consumer.read(&mut slow).await;
    for _ in 0..2_000 {
        (0..10).for_each(|_| model.change_random_job());
    }
    let mut quick = queues.feed(Glob::everything(), FeedFrom::Snapshot);
    Consumer::default().catch_up(&mut quick, &publisher, &model).await;
    consumer.catch_up(&mut slow, &publisher, &model).await;
}
