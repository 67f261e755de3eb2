//! A publisher, its clients and its disk in virtual time, all driven by one seed, so that a run is
//! reproducible.

use bytes::Bytes;
use longshore_protocol::{Durability, Epoch, LinkId, Role, Token};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::simulated_disk::SimulatedDisk;
use super::super::{JournalOpenError, JournalOptions, Recovered};
use super::client_model::ClientModel;
use super::command_coverage::CommandCoverage;
use super::feed_reader::FeedReader;
use super::log::{ManualBackground, SteppedLog};
use super::reference::Reference;
use super::schedules::KnownOccurrences;
use super::session::ClientSession;
use crate::clock::{ClockCore, Reading};
use crate::log::LogReadError;
use crate::store::{StoreOptions, epoch_floor};
use crate::{Now, Poisoned, Replay, Store};

/// Everything that survives a run of the publisher.
pub(super) struct SimulationHarness {
    pub(super) disk: SimulatedDisk,
    pub(super) random: StdRng,
    pub(super) model: ClientModel,
    pub(super) options: JournalOptions,
    pub(super) now: Now,
    pub(super) reference: Reference,
    pub(super) sessions: Vec<ClientSession>,
    next_session: u64,
    /// A client that follows the feed.
    pub(super) feed_reader: FeedReader,
    /// Deliveries with an unreadable entry: link, subscription and token.
    pub(super) unreadable: Vec<(LinkId, u32, Token)>,
    pub(super) occurrences: KnownOccurrences,
    /// Most bytes of a payload.
    pub(super) payload_max: usize,
    /// Workers keep up, and most ended jobs are deleted at once: segments die, except for a few
    /// live parts.
    pub(super) workers_keep_up: bool,
    /// Jobs have order and fair keys.
    pub(super) relates_jobs: bool,
    /// Whether snapshots are taken.
    pub(super) takes_snapshots: bool,
    /// A power cut may have lost acknowledged commands, because they were not synced.
    pub(super) may_lose_unsynced: bool,
    /// Acknowledged commands that were lost.
    pub(super) lost: u64,
    /// The highest epoch of any start.
    epoch: Epoch,
    /// Whether other programs use and free disk space.
    pub(super) shares_disk: bool,
    /// Settles accepted while the disk was short of room.
    pub(super) settled_short: u64,
    /// When the disk is measured next.
    measure_at: u64,
    pub(super) next_job: u64,
    pub(super) next_link: u64,
    pub(super) next_request: u64,
}

/// One run of the publisher.
pub(super) struct PublisherRun {
    pub(super) store: Store<SteppedLog>,
    pub(super) background: ManualBackground,
    pub(super) recovered: Recovered,
    /// Parts reported as damaged when everything was read.
    pub(super) damaged: u64,
}

impl SimulationHarness {
    /// The state before the publisher's first start, with a random payload limit.
    pub(super) fn new(seed: u64, options: JournalOptions) -> SimulationHarness {
        let mut random = StdRng::seed_from_u64(seed);
        let payload_max = [100, 2_000, 20_000, 100_000][random.random_range(0..4)];
        SimulationHarness { random, ..SimulationHarness::with_payloads(seed, options, payload_max) }
    }

    /// The same, with payloads up to `payload_max`.
    pub(super) fn with_payloads(
        seed: u64,
        options: JournalOptions,
        payload_max: usize,
    ) -> SimulationHarness {
        let random = StdRng::seed_from_u64(seed);
        let roles = [Role::Producer, Role::Producer, Role::Worker, Role::Worker, Role::Tool];
        let sessions: Vec<ClientSession> =
            (1..).zip(roles).map(|(number, role)| ClientSession::new(number, role)).collect();
        SimulationHarness {
            disk: SimulatedDisk::default(),
            random,
            model: ClientModel::default(),
            options,
            now: Now { mono_ms: 1_000, wall_ms: 1_700_000_000_000 },
            reference: Reference::default(),
            next_session: sessions.len() as u64,
            sessions,
            feed_reader: FeedReader::default(),
            unreadable: Vec::new(),
            occurrences: KnownOccurrences::default(),
            payload_max,
            workers_keep_up: seed.is_multiple_of(2),
            relates_jobs: seed % 4 >= 2,
            takes_snapshots: true,
            may_lose_unsynced: false,
            lost: 0,
            epoch: Epoch(0),
            shares_disk: false,
            settled_short: 0,
            measure_at: 0,
            next_job: 0,
            next_link: 0,
            next_request: 0,
        }
    }

    /// The same clients and model, with another disk.
    pub(super) fn fork(&self, disk: SimulatedDisk) -> SimulationHarness {
        SimulationHarness {
            disk,
            random: StdRng::seed_from_u64(0),
            model: self.model.clone(),
            options: self.options.clone(),
            now: self.now,
            reference: self.reference.fork(),
            next_session: self.next_session,
            sessions: self.sessions.clone(),
            feed_reader: self.feed_reader.clone(),
            unreadable: Vec::new(),
            occurrences: self.occurrences.clone(),
            payload_max: self.payload_max,
            workers_keep_up: self.workers_keep_up,
            relates_jobs: self.relates_jobs,
            takes_snapshots: self.takes_snapshots,
            may_lose_unsynced: self.may_lose_unsynced,
            lost: 0,
            epoch: self.epoch,
            shares_disk: self.shares_disk,
            settled_short: 0,
            measure_at: self.measure_at,
            next_job: self.next_job,
            next_link: self.next_link,
            next_request: self.next_request,
        }
    }

    /// Starts the publisher on the disk, and compares its state with the model.
    pub(super) fn open(&mut self) -> Result<PublisherRun, JournalOpenError> {
        let mut replay = Replay::new();
        let submitted = self.reference.submitted();
        let (log, background, recovered) =
            SteppedLog::open(&self.disk, self.options.clone(), &mut replay, submitted)?;
        let (reported, last) = (self.model.index, recovered.last_index);
        if self.options.accept_loss {
            self.model.accept_loss();
            self.occurrences.forget();
            self.renew_clients();
        } else if last < reported && self.may_lose_unsynced {
            self.model.roll_back_to_sync();
            self.occurrences.forget();
            self.renew_clients();
        }
        self.lost += reported.saturating_sub(last);
        let reported = self.model.index;
        assert!(last >= reported, "{reported} was acknowledged, and the journal ends with {last}");
        self.reference.recovered(last);
        self.reference.compare(replay.state(), self.now);
        let (since, upto, seen) = self.feed_reader.take(last);
        let happened = self.reference.take_events(since, upto);
        assert!(seen == happened, "after {since} up to {upto}: {seen:?}\n{happened:?}");
        // What a start has recovered is certain, acknowledged or not.
        self.model.index = last;
        let checked =
            self.model.check(replay.state(), self.now, &background.reader(), &self.reference);
        let damaged = checked.map_err(|why| match why {
            LogReadError::Io { file, error } => {
                let error = std::io::Error::new(error.kind(), error);
                JournalOpenError::Io { what: "reading", file, error }
            }
            why => panic!("{why}"),
        })?;
        self.now.mono_ms += 1;
        let reading = Reading { boot_ms: self.now.mono_ms, wall_ms: self.now.wall_ms };
        let stamp = ClockCore::start([1; 8], reading, None).stamp();
        let secret = crate::Secret([0x5e; 16]);
        let options = StoreOptions { secret, cache_bytes: 1 << 20, ..StoreOptions::default() };
        let options = StoreOptions { durability: self.options.durability, ..options };
        let publisher = recovered.publisher;
        let floor = epoch_floor(recovered.losses);
        let store = Store::start_above(floor, log, replay, publisher, self.now, stamp, options)?;
        let epoch = store.identity().1;
        assert!(epoch > self.epoch, "{epoch:?} after {:?}", self.epoch);
        self.epoch = epoch;
        self.model.index = store.committed();
        if self.options.durability == Durability::None {
            self.model.note_synced();
            self.may_lose_unsynced = false;
        }
        self.feed_reader.resume(store.tail(), recovered.snapshot.map(|snapshot| snapshot.index));
        self.unreadable.clear();
        self.next_link = store.state().next_link().0;
        Ok(PublisherRun { store, background, recovered, damaged })
    }

    /// Connects the clients and runs `steps` steps, or until the publisher fails.
    pub(super) fn run_clients(
        &mut self,
        run: &mut PublisherRun,
        steps: u32,
    ) -> Result<(), Poisoned> {
        for position in 0..self.sessions.len() {
            // Some workers are offline when the publisher starts.
            let is_away = self.sessions[position].role == Role::Worker && self.once_in(6);
            match is_away {
                true => self.sessions[position].link = None,
                false => self.attach(run, position)?,
            }
        }
        self.steps(run, steps)
    }

    /// Runs `steps` steps without connecting clients.
    pub(super) fn steps(&mut self, run: &mut PublisherRun, steps: u32) -> Result<(), Poisoned> {
        for _ in 0..steps {
            self.step(run)?;
        }
        self.release(run)
    }

    /// Takes a snapshot of everything, with no steps meanwhile.
    pub(super) fn snapshot(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        run.background.request_snapshot();
        run.store.advance(self.now)?;
        self.release(run)?;
        run.background.cycle(&mut || {})
    }

    fn step(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        if run.background.is_cycle_ready() && self.random.random_bool(0.5) {
            self.cycle(run)?;
        }
        if self.takes_snapshots && self.random.random_bool(0.05) {
            run.background.request_snapshot();
        }
        self.small_step(run)
    }

    /// Writes a snapshot, while other steps run.
    pub(super) fn cycle(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        let background = run.background.clone();
        let mut met = Ok(());
        let cycled = background.cycle(&mut || {
            for _ in 0..self.random.random_range(0..3) {
                if met.is_ok() {
                    met = self.small_step(run);
                }
            }
        });
        cycled.and(met)
    }

    /// One step without a snapshot.
    fn small_step(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        self.bury_unreadable(run)?;
        if self.shares_disk && self.once_in(12) {
            let free = self.one_of(&[0, 0, 0, 100_000, 3 << 20, 8 << 20, 64 << 20]);
            self.disk.leave_free(free);
        }
        self.measure_disk(run);
        match self.random.random_range(0..112) {
            0..28 => self.enqueue(run)?,
            28..38 => self.credit(run)?,
            38..64 => self.settle(run)?,
            64..69 => self.checkpoint(run)?,
            69..77 => self.act(run)?,
            77..80 => self.replace(run)?,
            80..82 => self.configure(run)?,
            82..84 if self.relates_jobs && self.once_in(2) => self.change_limit(run)?,
            82..84 => self.pause(run)?,
            84 => self.change_schedule(run)?,
            85 => self.show(run),
            86..91 => self.report(run),
            91..98 => self.pass(run)?,
            98..102 => self.relink(run)?,
            102..104 => self.change_sources(run)?,
            104 | 105 => self.recall(run)?,
            106..109 => self.sync_watermark(run)?,
            109 => run.background.make_segment()?,
            _ => run.background.ballast().measure(),
        }
        self.occur(run)?;
        run.store.advance(self.now)?;
        // Otherwise the next step joins the same commit.
        match self.random.random_bool(0.6) {
            true => self.release(run),
            false => Ok(()),
        }
    }

    fn sync_watermark(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        run.background.sync_watermark()?;
        if self.options.durability == Durability::None {
            self.model.note_synced();
        }
        Ok(())
    }

    /// Replaces all clients: they know things that are no longer true.
    fn renew_clients(&mut self) {
        let mut renewed = Vec::new();
        for session in &self.sessions {
            self.next_session += 1;
            renewed.push(ClientSession::new(self.next_session, session.role));
        }
        self.sessions = renewed;
    }

    /// Background work of once a second.
    pub(super) fn measure_disk(&mut self, run: &mut PublisherRun) {
        if self.now.mono_ms < self.measure_at {
            return;
        }
        self.measure_at = self.now.mono_ms + 1_000;
        run.background.ballast().measure_and_grow();
        if run.store.space().level.is_short() {
            run.background.request_snapshot();
        }
    }

    /// Advances time.
    pub(super) fn pass_ms(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += ms;
    }

    /// Advances time: at once, as if the publisher was paused, or with turns in between. An hour is
    /// rare: it is the limit of prepared jobs, and a part of the retention of the others.
    fn pass(&mut self, run: &mut PublisherRun) -> Result<(), Poisoned> {
        // A session without a link would be forgotten.
        let all_linked = self.sessions.iter().all(|session| session.link.is_some());
        if all_linked && self.once_in(40) {
            self.pass_ms(61 * 60 * 1_000);
            return Ok(());
        }
        let ms = self.one_of(&[10, 500, 3_000, 6_000, 40_000]);
        let at_once = if self.once_in(3) { ms } else { ms.min(1_000) };
        for _ in 0..ms / at_once {
            self.pass_ms(at_once);
            run.store.advance(self.now)?;
        }
        Ok(())
    }

    /// A random link with that role.
    pub(super) fn link_of(&mut self, role: Role) -> Option<(usize, LinkId)> {
        let with_role = self.sessions.iter().enumerate().filter(|(_, found)| found.role == role);
        let linked = with_role.filter_map(|(position, found)| Some((position, found.link?)));
        let linked: Vec<_> = linked.collect();
        (!linked.is_empty()).then(|| linked[self.random.random_range(0..linked.len())])
    }

    /// A random element.
    pub(super) fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.random.random_range(0..choices.len())].clone()
    }

    /// True once in `times` calls, on average.
    pub(super) fn once_in(&mut self, times: u32) -> bool {
        self.random.random_range(0..times) == 0
    }

    pub(super) fn bytes(&mut self, most: usize) -> Bytes {
        let length = match self.random.random_range(0..3) {
            0 => self.random.random_range(0..=most),
            _ => self.random.random_range(0..=most.min(300)),
        };
        let mut bytes = vec![0; length];
        self.random.fill(&mut bytes[..]);
        bytes.into()
    }

    /// Takes the counts of executed commands.
    pub(super) fn command_coverage(&mut self) -> CommandCoverage {
        std::mem::take(&mut self.reference.command_coverage)
    }
}
