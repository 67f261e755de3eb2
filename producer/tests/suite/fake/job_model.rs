//! A model of a publisher's jobs that change at random, with listings and a feed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use longshore_protocol::messages::work::{
    FeedEnd, FeedEvent, FeedEvents, FeedPosition, FromPublisher, JobInfo, JobsPage, RequestError,
};
use longshore_protocol::{Epoch, FrameWriter, JobChange, JobId, JobState, Path};
use longshore_transport::LinkSender;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A job whose `priority` is the index of its last change.
pub fn job(id: JobId, state: JobState, index: u64) -> JobInfo {
    let path = Path::new("/jobs").expect("a path");
    JobInfo { priority: index as i32, ..JobInfo::new(id, path, state) }
}

#[derive(Clone)]
pub struct SharedJobModel(pub Arc<Mutex<JobModel>>);

pub struct JobModel {
    random: StdRng,
    epoch: u64,
    /// The index recovered by the last restart.
    recovered: u64,
    pub index: u64,
    slots: Vec<Option<(JobId, JobState, u64)>>,
    tail: VecDeque<FeedEvent>,
    /// Events up to here are no longer retained.
    floor: u64,
    made: u64,
    /// Most events by which the feed lags behind, so that pages are ahead of it.
    pub lag: u64,
    pub slots_of_a_page: usize,
    pub pages: usize,
}

impl SharedJobModel {
    pub fn new(seed: u64, slots: usize) -> SharedJobModel {
        SharedJobModel(Arc::new(Mutex::new(JobModel {
            random: StdRng::seed_from_u64(seed),
            epoch: 1,
            recovered: 0,
            index: 0,
            slots: vec![None; slots],
            tail: VecDeque::new(),
            floor: 0,
            made: 0,
            lag: 20,
            slots_of_a_page: 3,
            pages: 0,
        })))
    }

    /// Changes a random job.
    pub fn change_random_job(&self) {
        self.0.lock().change_random_job();
    }

    /// All jobs, with the index of their last change.
    pub fn jobs(&self) -> HashMap<JobId, (JobState, u64)> {
        let model = self.0.lock();
        model.slots.iter().flatten().map(|&(id, state, index)| (id, (state, index))).collect()
    }

    /// Restarts without a loss.
    pub fn restart(&self) {
        let mut model = self.0.lock();
        model.epoch += 1;
        model.recovered = model.index;
    }

    /// Restarts with the state of `snapshot`.
    pub fn restart_from(&self, snapshot: ModelSnapshot) {
        let mut model = self.0.lock();
        model.epoch += 1;
        (model.index, model.recovered, model.slots) =
            (snapshot.index, snapshot.index, snapshot.slots);
        model.tail.retain(|event| event.index <= snapshot.index);
    }

    pub fn snapshot(&self) -> ModelSnapshot {
        let model = self.0.lock();
        ModelSnapshot { index: model.index, slots: model.slots.clone() }
    }

    /// Drops all retained events.
    pub fn forget_tail(&self) {
        let mut model = self.0.lock();
        model.floor = model.index;
        model.tail.clear();
    }

    pub fn open(&self, after: Option<FeedPosition>) -> Result<FeedPosition, RequestError> {
        let model = self.0.lock();
        match after {
            None => Ok(model.position(model.index)),
            Some(after) if after.epoch.0 < model.epoch && after.index > model.recovered => {
                Err(RequestError::Rewound)
            }
            Some(after) if after.index < model.floor => Err(RequestError::TooOld),
            Some(after) => Ok(model.position(after.index)),
        }
    }

    pub fn page(&self, cursor: u64) -> JobsPage {
        let mut model = self.0.lock();
        model.pages += 1;
        let (from, count) = (cursor as usize, model.slots_of_a_page);
        let shown = model.slots.iter().skip(from).take(count).flatten();
        JobsPage {
            jobs: shown.map(|&(id, state, index)| job(id, state, index)).collect(),
            next: (from + count < model.slots.len()).then_some((from + count) as u64),
            index: model.index,
        }
    }

    /// Sends events after `at`, with some delay, while the link lives.
    pub async fn pump(self, sender: LinkSender, id: u64, mut at: FeedPosition) {
        loop {
            let reported = self.0.lock().reported(id, &mut at);
            let ended = reported.is_err();
            let message = match reported {
                Err(end) => FromPublisher::FeedEnded { id, end },
                Ok(Some(events)) => FromPublisher::Feed(events),
                Ok(None) => {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
            };
            let mut out = FrameWriter::new();
            message.encode(&mut out);
            if sender.send(out.finish()).is_err() || ended {
                return;
            }
        }
    }
}

/// The jobs at some time.
pub struct ModelSnapshot {
    index: u64,
    slots: Vec<Option<(JobId, JobState, u64)>>,
}

impl JobModel {
    fn position(&self, index: u64) -> FeedPosition {
        FeedPosition { epoch: Epoch(self.epoch), index }
    }

    fn change_random_job(&mut self) {
        use JobState::{Completed, Dead, Ready, Running, Scheduled};
        self.index += 1;
        let slot = self.random.random_range(0..self.slots.len());
        let (id, change, state) = match self.slots[slot] {
            None => {
                self.made += 1;
                let id = JobId::new_v7(self.made, [slot as u8; 10]);
                (id, JobChange::Created, Some(Ready))
            }
            Some((id, ..)) if self.random.random_range(0..5) == 0 => (id, JobChange::Dropped, None),
            Some((id, ..)) => {
                let states = [Scheduled, Ready, Running, Completed, Dead];
                let state = states[self.random.random_range(0..states.len())];
                (id, JobChange::Failed, Some(state))
            }
        };
        self.slots[slot] = state.map(|state| (id, state, self.index));
        self.tail.push_back(FeedEvent {
            index: self.index,
            at: 1,
            job: id,
            path: 0,
            change,
            state,
            retrying: false,
            attempt: 0,
        });
    }

    fn reported(&mut self, id: u64, at: &mut FeedPosition) -> Result<Option<FeedEvents>, FeedEnd> {
        if at.index < self.floor {
            return Err(FeedEnd::TooOld);
        }
        let lag = if self.lag == 0 { 0 } else { self.random.random_range(0..=self.lag) };
        let upto = (at.index + self.random.random_range(1..30)).min(self.index.saturating_sub(lag));
        if upto <= at.index {
            return Ok(None);
        }
        let new = |event: &&FeedEvent| event.index > at.index && event.index <= upto;
        let events = self.tail.iter().filter(new).copied().collect();
        *at = self.position(upto);
        let paths = vec![Path::new("/jobs").expect("a path")];
        Ok(Some(FeedEvents { id, upto: *at, paths, events }))
    }
}
