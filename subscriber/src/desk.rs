//! The desk between links and lanes: jobs come in by the batch, lanes take them one by one, ends go out by the batch. It joins
//! the cores under one lock, which nobody holds across an await; a lane takes it once per job, a link once per frame.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use longshore_protocol::limits::{BATCH_BYTES_MAX, TOKENS_MAX};
use longshore_protocol::messages::work::{Attached, Deliver, NewSettle, Settled, Tokens};
use longshore_protocol::{Path, PublisherId, PublisherInfo, Revoked, SettleOutcome, Token};
use longshore_transport::LinkSender;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::durable::{Action, Durable, Input};
use crate::leases::Leases;
use crate::settles::{End, Settles};
use crate::signal::LeaseSignal;
use crate::{CancelReason, PublisherState, WorkerStats};

/// Bytes of settles that a link is given at a time; the rest follows when they are in its send queue.
const SETTLE_BYTES_TOGETHER: usize = BATCH_BYTES_MAX;

/// Everything that a run of a worker knows.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) started: Instant,
    state: Mutex<State>,
    /// Wakes one lane.
    lanes: Notify,
    /// Wakes the director: something to connect, a deadline that moved, a count that it waits for.
    pub(crate) director: Notify,
    publishers: watch::Sender<Vec<PublisherState>>,
}

/// A publisher's number at the desk; it keeps it when its link dies and comes back.
pub(crate) type PlaceId = u32;

#[derive(Debug)]
struct State {
    durable: Durable,
    actions: Vec<Action>,
    shown: u64,
    connects: Vec<(PlaceId, PublisherInfo)>,
    places: Vec<Place>,
    place_ids: HashMap<PublisherId, PlaceId>,
    /// Jobs that wait for a lane.
    ready: VecDeque<Waiting>,
    /// Jobs whose publisher was told that they start: never more than there are lanes for them.
    announced: VecDeque<Waiting>,
    announcing: bool,
    concurrency: usize,
    running: usize,
    stage: Stage,
    stats: WorkerStats,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Stage {
    Open,
    /// No job is begun any more.
    Draining,
    /// What handlers still return is not wanted any more.
    GivenBack,
}

/// One publisher.
#[derive(Debug)]
struct Place {
    id: PublisherId,
    leases: Leases<Option<Arc<LeaseSignal>>>,
    settles: Settles,
    /// The link, from the moment it is attached.
    sender: Option<LinkSender>,
    wake: Arc<Notify>,
    /// To be said at the next opportunity.
    grant: u32,
    recall: u32,
    unsubscribe: bool,
}

/// A job that waits for a lane.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) place: PlaceId,
    pub(crate) token: Token,
    pub(crate) path: Path,
    pub(crate) attempt: u16,
    pub(crate) deliveries: u16,
    pub(crate) entry: Bytes,
}

/// What a handler made of its job.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) place: PlaceId,
    pub(crate) token: Token,
    pub(crate) settle: NewSettle,
    pub(crate) panicked: bool,
    pub(crate) damaged: bool,
}

/// What a lane that asks for work is told.
#[derive(Debug)]
pub(crate) enum Next {
    /// Run this.
    Job(Waiting),
    /// Tell these publishers that these attempts begin, then call [`Desk::announced`], whatever becomes of the telling.
    Announce(Vec<(LinkSender, Tokens)>, Vec<Waiting>),
    /// Wait for [`Desk::wait`], then ask again.
    Nothing,
    /// There will be no more.
    Stop,
}

/// What a link is to send, in this order.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) settles: Vec<Bytes>,
    pub(crate) unsubscribe: bool,
    pub(crate) grant: u32,
    pub(crate) recall: u32,
    pub(crate) renew: Vec<Token>,
    /// There are more settles: ask again once these are sent.
    pub(crate) more: bool,
    /// When to ask again if nothing happens before.
    pub(crate) deadline: Option<Duration>,
}

/// A publisher pushed more jobs than a link could ever resume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it pushed jobs far beyond its credits: {held} are held, the limit is {limit}")]
pub(crate) struct Flooded {
    held: usize,
    limit: usize,
}

impl Desk {
    pub(crate) fn new(concurrency: usize, bound: usize, seed: u64) -> Arc<Desk> {
        let bound = u32::try_from(bound).unwrap_or(u32::MAX);
        Arc::new(Desk {
            started: Instant::now(),
            state: Mutex::new(State {
                durable: Durable::new(bound, seed),
                actions: Vec::new(),
                shown: 0,
                connects: Vec::new(),
                places: Vec::new(),
                place_ids: HashMap::new(),
                ready: VecDeque::new(),
                announced: VecDeque::new(),
                announcing: false,
                concurrency,
                running: 0,
                stage: Stage::Open,
                stats: WorkerStats::default(),
            }),
            lanes: Notify::new(),
            director: Notify::new(),
            publishers: watch::Sender::default(),
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn stats(&self) -> WorkerStats {
        self.state.lock().stats_now()
    }

    pub(crate) fn publishers(&self) -> watch::Receiver<Vec<PublisherState>> {
        self.publishers.subscribe()
    }
}

/// The lanes' side.
impl Desk {
    /// Hands in the end of the last job, if there was one, and asks for the next.
    pub(crate) fn next(&self, ended: Option<Ended>, signal: &mut Arc<LeaseSignal>) -> Next {
        let mut state = self.state.lock();
        if let Some(ended) = ended {
            self.end(&mut state, ended);
        }
        if state.stage > Stage::Open {
            return Next::Stop;
        }
        while let Some(job) = state.announced.pop_front() {
            let Some(lease) = state.place(job.place).leases.get_mut(job.token) else { continue };
            let ends = lease.ends();
            match Arc::get_mut(signal) {
                Some(signal) => signal.renew_for(ends),
                None => *signal = Arc::new(LeaseSignal::running_until(ends)),
            }
            lease.holder = Some(signal.clone());
            state.running += 1;
            self.wake_a_lane(&state);
            return Next::Job(job);
        }
        if state.announcing || state.ready.is_empty() {
            return Next::Nothing;
        }
        state.announce()
    }

    /// The publishers were told, or could not be: the jobs can run.
    pub(crate) fn announced(&self, jobs: Vec<Waiting>) {
        let mut state = self.state.lock();
        state.announcing = false;
        state.announced.extend(jobs);
        // A drain may have come in between: then they were given back with the others.
        self.wake_a_lane(&state);
    }

    /// Waits until there may be work. Cancel safe.
    pub(crate) async fn wait(&self) {
        self.lanes.notified().await;
    }

    fn wake_a_lane(&self, state: &State) {
        let for_one_more = !state.announced.is_empty()
            || (!state.announcing && !state.ready.is_empty() && state.running < state.concurrency);
        if for_one_more || state.stage > Stage::Open {
            self.lanes.notify_one();
        }
    }

    fn end(&self, state: &mut State, ended: Ended) {
        state.running -= 1;
        let stage = state.stage;
        if stage > Stage::Open && state.running == 0 {
            self.director.notify_one();
        }
        state.stats.panicked += u64::from(ended.panicked);
        state.stats.damaged += u64::from(ended.damaged);
        let place = state.place(ended.place);
        let holds = place.leases.remove(ended.token).is_some();
        // A result whose lease was lost still goes out: it is refused, and counted here and there. A failure would be noise.
        let wanted = holds || matches!(ended.settle, NewSettle::Complete { .. });
        let linked = place.sender.is_some();
        if stage < Stage::GivenBack && wanted {
            place.settles.push(ended.token, &ended.settle, linked);
            if place.settles.is_ready() {
                place.wake.notify_one();
            }
        }
        if stage < Stage::GivenBack && !(wanted && linked) {
            let publisher = place.id;
            self.step(state, Input::Freed { publisher, jobs: 1 });
        }
    }
}

/// The links' side.
impl Desk {
    /// Every token held at a publisher without an answered settle: what a new link resumes.
    pub(crate) fn resume(&self, place: PlaceId) -> Tokens {
        let mut state = self.state.lock();
        let place = state.place(place);
        let held = place.leases.iter().map(|(token, _)| token);
        let mut tokens: Vec<Token> = held.chain(place.settles.tokens()).collect();
        tokens.sort_unstable();
        tokens.dedup();
        // Bounds elsewhere keep it below; what is left out is released and comes again.
        tokens.truncate(TOKENS_MAX);
        Tokens(tokens)
    }

    /// The link is attached. Gives the attempts that are under way, for the publisher to know again.
    pub(crate) fn attached(&self, place: PlaceId, sender: LinkSender, answer: Attached) -> Tokens {
        let now = self.now();
        let mut state = self.state.lock();
        let at = state.place(place);
        let lost = at.leases.revoke(&answer.gone.0);
        at.sender = Some(sender);
        at.settles.attached(answer.next_settle);
        at.leases.connected(now);
        let started = at.leases.iter().filter(|(_, lease)| lease.started);
        let started = Tokens(started.map(|(token, _)| token).collect());
        let publisher = at.id;
        self.lose(&mut state, place, lost, CancelReason::LeaseLost);
        self.step(&mut state, Input::Attached(publisher));
        started
    }

    /// A try came to nothing, or the link is dead.
    pub(crate) fn link_lost(&self, place: PlaceId, reason: String) {
        let mut state = self.state.lock();
        let at = state.place(place);
        let was_attached = at.sender.take().is_some();
        at.leases.disconnected();
        (at.grant, at.recall, at.unsubscribe) = (0, 0, false);
        let freed = at.settles.detached();
        let busy = at.leases.len() > 0 || at.settles.unanswered() > 0;
        let publisher = at.id;
        if freed > 0 {
            self.step(&mut state, Input::Freed { publisher, jobs: freed });
        }
        let input = if was_attached {
            tracing::warn!(%publisher, %reason, "link to the publisher lost");
            Input::LinkLost { publisher, reason, busy }
        } else {
            tracing::debug!(%publisher, %reason, "no link to the publisher");
            Input::TryFailed { publisher, reason, busy }
        };
        self.step(&mut state, input);
        self.director.notify_one();
    }

    /// Jobs came.
    pub(crate) fn delivered(&self, place: PlaceId, deliver: Deliver) -> Result<(), Flooded> {
        const LIMIT: usize = TOKENS_MAX / 2;
        let now = self.now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let jobs = u32::try_from(deliver.jobs.len()).unwrap_or(u32::MAX);
        let publisher = state.place(place).id;
        let held = state.place(place).leases.len() + deliver.jobs.len();
        if held > LIMIT {
            return Err(Flooded { held, limit: LIMIT });
        }
        self.step(state, Input::Delivered { publisher, jobs });
        let at = &mut state.places[place as usize];
        for job in deliver.jobs {
            state.stats.redelivered += u64::from(job.deliveries > 1);
            if state.stage > Stage::Open {
                at.settles.push(job.token, &NewSettle::Release, true);
                continue;
            }
            let Some(path) = deliver.paths.get(job.path as usize) else { continue };
            at.leases.insert(now, job.token, Duration::from_millis(u64::from(job.lease_ms)), None);
            state.ready.push_back(Waiting {
                place,
                token: job.token,
                path: path.clone(),
                attempt: job.attempt,
                deliveries: job.deliveries,
                entry: job.entry,
            });
        }
        self.wake_a_lane(state);
        Ok(())
    }

    pub(crate) fn returned(&self, place: PlaceId, credits: u32) {
        let mut state = self.state.lock();
        let publisher = state.place(place).id;
        self.step(&mut state, Input::Returned { publisher, credits });
    }

    pub(crate) fn waiting(&self, place: PlaceId, jobs: u64) {
        let mut state = self.state.lock();
        let publisher = state.place(place).id;
        self.step(&mut state, Input::Waiting { publisher, jobs });
    }

    pub(crate) fn settled(&self, place: PlaceId, settled: &Settled) {
        let mut state = self.state.lock();
        let Some(ends) = state.place(place).settles.answered(settled) else { return };
        let mut stale = 0u64;
        for (token, end, outcome) in ends {
            let stats = &mut state.stats;
            match outcome {
                Some(SettleOutcome::Accepted) => match end {
                    End::Completed => stats.completed += 1,
                    End::Failed => stats.failed += 1,
                    End::Released => stats.released += 1,
                    End::Snoozed => stats.snoozed += 1,
                    End::Buried => stats.buried += 1,
                },
                Some(SettleOutcome::StaleToken) => stale += 1,
                // Checked before it was sent, so publisher and worker disagree about the limit. The lease still runs.
                Some(SettleOutcome::ResultTooLarge) => {
                    let error =
                        crate::failure::job_error("ResultTooLarge", SettleOutcome::ResultTooLarge);
                    state.place(place).settles.push(token, &NewSettle::Bury(error), false);
                }
                None => stats.unanswered += 1,
            }
        }
        if stale > 0 {
            state.stats.stale_refused += stale;
            let publisher = state.place(place).id;
            tracing::warn!(%publisher, stale, "ends of jobs refused with StaleToken: their leases were lost");
        }
        if state.stage > Stage::Open {
            self.director.notify_one();
        }
    }

    pub(crate) fn renewed(&self, place: PlaceId, stale: &[Token]) {
        let mut state = self.state.lock();
        let lost = state.place(place).leases.renewed(stale, |signal, ends| {
            if let Some(signal) = signal {
                signal.extend(ends);
            }
        });
        self.lose(&mut state, place, lost, CancelReason::LeaseLost);
    }

    pub(crate) fn revoked(&self, place: PlaceId, reason: Revoked, tokens: &[Token]) {
        let mut state = self.state.lock();
        let lost = state.place(place).leases.revoke(tokens);
        let reason = match reason {
            Revoked::Cancelled => CancelReason::Cancelled,
            Revoked::LeaseLost => CancelReason::LeaseLost,
        };
        self.lose(&mut state, place, lost, reason);
    }

    /// What the link is to send now. `settles` false when its send queue is long: ends of jobs wait then, and with them credits.
    pub(crate) fn outgoing(&self, place: PlaceId, settles: bool) -> Outgoing {
        let now = self.now();
        let mut state = self.state.lock();
        let mut out = Outgoing::default();
        let at = state.place(place);
        let publisher = at.id;
        let (mut freed, mut bytes) = (0, 0);
        while settles
            && bytes < SETTLE_BYTES_TOGETHER
            && let Some(sealed) = at.settles.next_to_send()
        {
            freed += sealed.freed;
            bytes += sealed.body.len();
            out.settles.push(sealed.body);
        }
        out.more = settles && at.settles.is_ready();
        let due = at.leases.due(now);
        out.renew = due.renew;
        if !due.lost.is_empty() {
            tracing::warn!(%publisher, leases = due.lost.len(), "leases over: their renewal was not answered in time");
            self.lose(&mut state, place, due.lost, CancelReason::LeaseLost);
        }
        if freed > 0 {
            self.step(&mut state, Input::Freed { publisher, jobs: freed });
        }
        let at = state.place(place);
        out.grant = std::mem::take(&mut at.grant);
        out.recall = std::mem::take(&mut at.recall);
        out.unsubscribe = std::mem::take(&mut at.unsubscribe);
        out.deadline = at.leases.next_due();
        out
    }

    /// Wakes the link of a publisher: it has something to send.
    pub(crate) fn wake(&self, place: PlaceId) -> Arc<Notify> {
        self.state.lock().place(place).wake.clone()
    }

    /// These are lost: handlers that run them are told, those that wait are dropped, and the jobs are held no more once
    /// nothing runs for them.
    fn lose(
        &self,
        state: &mut State,
        place: PlaceId,
        lost: Vec<(Token, Option<Arc<LeaseSignal>>)>,
        reason: CancelReason,
    ) {
        if lost.is_empty() {
            return;
        }
        let mut waiting = 0;
        state.stats.leases_lost += lost.len() as u64;
        for (token, signal) in lost {
            tracing::debug!(%token, %reason, "lease lost");
            match signal {
                Some(signal) => signal.cancel(reason),
                None => waiting += 1,
            }
        }
        if waiting > 0 {
            let publisher = state.place(place).id;
            state.drop_the_lost();
            self.step(state, Input::Freed { publisher, jobs: waiting });
        }
    }
}

/// The director's side.
impl Desk {
    pub(crate) fn watched(&self, complete: bool, publishers: Vec<PublisherInfo>) {
        let mut state = self.state.lock();
        self.step(&mut state, Input::Watched { complete, publishers });
    }

    /// Time has passed: links are tried again, and leases end whose link is dead.
    pub(crate) fn tick(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        self.step(&mut state, Input::Tick);
        for place in 0..state.places.len() {
            let at = &mut state.places[place];
            if at.sender.is_none() && at.leases.next_due().is_some_and(|due| due <= now) {
                let lost = at.leases.due(now).lost;
                self.lose(&mut state, place as PlaceId, lost, CancelReason::LeaseLost);
            }
        }
    }

    /// When [`Desk::tick`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        let state = self.state.lock();
        let unlinked = state.places.iter().filter(|place| place.sender.is_none());
        let leases = unlinked.filter_map(|place| place.leases.next_due()).min();
        state.durable.next_deadline().into_iter().chain(leases).min()
    }

    /// Publishers to be dialled.
    pub(crate) fn connects(&self) -> Vec<(PlaceId, PublisherInfo)> {
        std::mem::take(&mut self.state.lock().connects)
    }

    /// Begins no more jobs, wants no more, and gives back those that have not begun.
    pub(crate) fn drain(&self) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.stage = state.stage.max(Stage::Draining);
        state.ready.clear();
        state.announced.clear();
        for place in &mut state.places {
            let linked = place.sender.is_some();
            let unbegun = place.leases.iter().filter(|(_, lease)| lease.holder.is_none());
            let unbegun: Vec<Token> = unbegun.map(|(token, _)| token).collect();
            for token in unbegun {
                place.leases.remove(token);
                place.settles.push(token, &NewSettle::Release, linked);
            }
            place.wake.notify_one();
        }
        self.step(state, Input::Drain);
        self.lanes.notify_waiters();
        self.lanes.notify_one();
    }

    /// Tells every running handler to stop.
    pub(crate) fn cancel_all(&self) {
        let state = self.state.lock();
        let leases = state.places.iter().flat_map(|place| place.leases.iter());
        for signal in leases.filter_map(|(_, lease)| lease.holder.as_ref()) {
            signal.cancel(CancelReason::Shutdown);
        }
    }

    /// Gives back whatever still runs; what its handlers return from now on is dropped.
    pub(crate) fn give_back(&self) {
        let mut state = self.state.lock();
        state.stage = Stage::GivenBack;
        for place in &mut state.places {
            let linked = place.sender.is_some();
            for (token, lease) in place.leases.take_all() {
                if let Some(signal) = lease.holder {
                    signal.cancel(CancelReason::Shutdown);
                }
                place.settles.push(token, &NewSettle::Release, linked);
            }
            place.wake.notify_one();
        }
    }

    /// Closes every link, once what is queued was sent.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        for sender in state.places.iter_mut().filter_map(|place| place.sender.take()) {
            sender.close("the worker has stopped");
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.state.lock().running
    }

    /// Ends of jobs that no publisher has answered.
    pub(crate) fn unanswered(&self) -> usize {
        self.state.lock().places.iter().map(|place| place.settles.unanswered()).sum()
    }

    /// The counts at the end: what is still unanswered will not be.
    pub(crate) fn report(&self) -> WorkerStats {
        let unanswered = self.unanswered() as u64;
        let mut stats = self.stats();
        stats.unanswered += unanswered;
        stats
    }

    /// One step of the core, its actions taken to where they are carried out.
    fn step(&self, state: &mut State, input: Input) {
        let mut actions = std::mem::take(&mut state.actions);
        state.durable.step(self.now(), input, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Connect(info) => {
                    let place = state.place_of(info.id);
                    state.connects.push((place, info));
                    self.director.notify_one();
                }
                Action::Grant { publisher, credits } => {
                    let place = state.place_at(publisher);
                    place.grant += credits;
                    place.wake.notify_one();
                }
                Action::Recall { publisher, credits } => {
                    let place = state.place_at(publisher);
                    place.recall += credits;
                    place.wake.notify_one();
                }
                Action::Unsubscribe(publisher) => {
                    let place = state.place_at(publisher);
                    place.unsubscribe = true;
                    place.wake.notify_one();
                }
                Action::Forget(publisher) => tracing::info!(%publisher, "publisher given up"),
            }
        }
        state.actions = actions;
        if state.shown != state.durable.revision() {
            state.shown = state.durable.revision();
            self.publishers.send_replace(state.durable.states());
        }
    }
}

impl State {
    fn place(&mut self, place: PlaceId) -> &mut Place {
        &mut self.places[place as usize]
    }

    fn place_at(&mut self, publisher: PublisherId) -> &mut Place {
        let place = self.place_of(publisher);
        self.place(place)
    }

    fn place_of(&mut self, publisher: PublisherId) -> PlaceId {
        let places = &mut self.places;
        *self.place_ids.entry(publisher).or_insert_with(|| {
            places.push(Place {
                id: publisher,
                leases: Leases::default(),
                settles: Settles::default(),
                sender: None,
                wake: Arc::default(),
                grant: 0,
                recall: 0,
                unsubscribe: false,
            });
            (places.len() - 1) as PlaceId
        })
    }

    /// Takes as many jobs as there are lanes without one, and whom to tell of them.
    fn announce(&mut self) -> Next {
        let free = self.concurrency.saturating_sub(self.running + self.announced.len());
        let mut jobs = Vec::with_capacity(free.min(self.ready.len()));
        let mut told: Vec<(LinkSender, Tokens)> = Vec::new();
        let mut last = None;
        while jobs.len() < free
            && let Some(job) = self.ready.pop_front()
        {
            let place = &mut self.places[job.place as usize];
            let Some(lease) = place.leases.get_mut(job.token) else { continue };
            lease.started = true;
            // Jobs come by the batch, so neighbours are mostly of one publisher.
            match (&mut told[..], &place.sender) {
                ([.., (_, tokens)], _) if last == Some(job.place) => tokens.0.push(job.token),
                (_, Some(sender)) => {
                    told.push((sender.clone(), Tokens(vec![job.token])));
                    last = Some(job.place);
                }
                // It is told when its link is attached again.
                (_, None) => {}
            }
            jobs.push(job);
        }
        if jobs.is_empty() {
            return Next::Nothing;
        }
        self.announcing = true;
        Next::Announce(told, jobs)
    }

    /// Jobs whose leases have gone leave the queue, so that it is never longer than what is held.
    fn drop_the_lost(&mut self) {
        let places = &mut self.places;
        let held = |job: &Waiting| places[job.place as usize].leases.get_mut(job.token).is_some();
        self.ready.retain({
            let mut held = held;
            move |job| held(job)
        });
    }

    fn stats_now(&self) -> WorkerStats {
        let (alive, all) = self.durable.counts();
        let held = |place: &Place| place.leases.len() as u64 + place.settles.held();
        WorkerStats {
            in_hand: self.places.iter().map(held).sum(),
            running: self.running as u64,
            publishers_alive: alive as u64,
            publishers: all as u64,
            ..self.stats.clone()
        }
    }
}

/// Shows a worker's counts and publishers while it runs. Cheap to clone. Before the run everything is 0.
#[derive(Clone, Debug, Default)]
pub struct StatsWatch {
    desk: Arc<OnceLock<Arc<Desk>>>,
}

impl StatsWatch {
    pub(crate) fn show(&self, desk: Arc<Desk>) {
        // A subscription runs once: it is empty before.
        let _ = self.desk.set(desk);
    }

    /// The counts as they are now.
    pub fn now(&self) -> WorkerStats {
        self.desk.get().map(|desk| desk.stats()).unwrap_or_default()
    }

    /// How the subscription stands at each publisher.
    pub fn publishers(&self) -> Vec<PublisherState> {
        self.desk.get().map(|desk| desk.publishers().borrow().clone()).unwrap_or_default()
    }

    /// The same as a watchable value, changed with each publisher's standing. `None` before the run.
    pub fn watch_publishers(&self) -> Option<watch::Receiver<Vec<PublisherState>>> {
        self.desk.get().map(|desk| desk.publishers())
    }
}
