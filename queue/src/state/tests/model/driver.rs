//! Applies commands to the state and to its model, and compares all visible results.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use longshore_protocol::messages::work::{ActOutcome, Action, ActionReport, BlockedBy, Selection};
use longshore_protocol::{Durability, Epoch, JobId, JobState, LinkId, PublisherId, Token};

use super::super::scenario::{glob, id, path};
use super::super::snapshots::{naive_parts, parts_of};
use super::compare::compare_outcomes;
use super::draw_commands::{Draw, Focus};
use super::jobs::Phase;
use super::naive::Model;
use crate::Rules;
use crate::command::{Command, Secret, Start};
use crate::log::Snapshot;
use crate::outcome::{Outcomes, Reply};
use crate::state::{Frozen, State};
use crate::time::Now;

/// The number of different job ids.
pub(super) const IDS: u32 = 20;

/// More than a case can need: one step of the state handles everything.
pub(super) const STEP_JOBS: u64 = 10_000;

pub(super) struct Harness {
    pub(super) state: State,
    pub(super) model: Model,
    pub(super) limits: Rules,
    pub(super) now: Now,
    pub(super) log: Vec<(u64, Now, Command)>,
    pub(super) focus: Focus,
    /// A number that is constant within a case.
    pub(super) bias: u8,
    /// All links and tokens so far.
    pub(super) links: Vec<LinkId>,
    pub(super) tokens: Vec<Token>,
    /// How many batches of settles each link has sent.
    pub(super) settles: BTreeMap<LinkId, u64>,
    /// The last replacement, which may be repeated.
    pub(super) replaced: Option<Command>,
    /// A snapshot that is written between the commands.
    writing: Option<Writing>,
    /// Everything that has occurred at least once, if coverage is measured.
    pub(super) coverage: Option<BTreeSet<String>>,
    /// The state of each job at its last event, if coverage is measured.
    states: BTreeMap<JobId, JobState>,
}

/// A frozen state that is being written.
struct Writing {
    frozen: Frozen,
    /// Its blocks so far, each after its length.
    written: Vec<u8>,
    /// The snapshot of a copy at the time of the freeze.
    expected: Vec<u8>,
}

impl Writing {
    /// Writes the next block; false if none is left.
    fn write(&mut self) -> bool {
        let mut block = Vec::new();
        let was_written = self.frozen.next_block(&mut block);
        if was_written {
            self.written.extend((block.len() as u32).to_le_bytes());
            self.written.extend(block);
        }
        was_written
    }
}

impl Harness {
    pub(super) fn begin(number: u8) -> Harness {
        let limits = Rules {
            jobs_per_queue: 4,
            jobs: 15,
            queues: 4,
            patterns_per_link: 4,
            ended_per_queue: 5,
            key_bytes: 4 * 160 + 159,
            order_keys: 3,
            fair_keys: 4,
            limits: 3,
            schedules: 2,
            step_jobs: if number.is_multiple_of(5) { 5 } else { STEP_JOBS },
            ..Rules::STANDARD
        };
        let mut harness = Harness {
            state: State::with_rules(limits.clone()),
            model: Model::new(limits.clone()),
            limits: limits.clone(),
            // Some cases run over the wrap of the clock's low half.
            now: Now {
                mono_ms: if number.is_multiple_of(3) { (3 << 32) - 60_000 } else { 1_000 },
                wall_ms: 1_700_000_000_000,
            },
            log: Vec::new(),
            focus: Focus::of(number),
            bias: number / 8,
            links: Vec::new(),
            tokens: Vec::new(),
            settles: BTreeMap::new(),
            replaced: None,
            writing: None,
            coverage: None,
            states: BTreeMap::new(),
        };
        harness.apply(Command::Start(Start {
            publisher: PublisherId([7; 16]),
            epoch: Epoch(1),
            boot: [1; 16],
            secret: Secret([0x5e; 16]),
            rules: Box::new(limits.clone()),
            durability: Durability::Fsync,
            paths: Vec::new(),
            defaults: vec![path("/jobs")],
        }));
        harness
    }

    pub(super) fn run_seed(&mut self, seed: u64) {
        let mut draw = Draw(seed);
        self.draw_time(&mut draw);
        if draw.one_in(16) {
            let bytes = self.state.snapshot_bytes();
            self.state = State::restore(&bytes).expect("it was written");
            assert!(self.state.snapshot_bytes() == bytes, "restoring changes the bytes");
            self.state.invariant().expect("a restored state is consistent");
        }
        self.freeze_or_write(&mut Draw(!seed));
        if let Some(command) = self.draw_command(&mut draw) {
            self.apply(command);
        }
        if draw.one_in(8) {
            let filter = self.draw_filter(&mut draw);
            let within = draw.path_set();
            self.compare_dead(&filter, &within);
            self.compare_checkpoints();
            self.compare_leases();
        }
    }

    /// Sometimes freezes the state, and writes the frozen blocks between the following commands.
    fn freeze_or_write(&mut self, draw: &mut Draw) {
        if draw.one_in(16) {
            self.finish_writing();
            let copy = self.state.clone();
            let frozen = self.state.freeze();
            assert_eq!((frozen.index(), frozen.epoch()), (self.log.len() as u64, self.epoch()));
            assert_eq!(parts_of(&frozen), naive_parts(&copy), "parts of the log");
            let expected = copy.snapshot_bytes();
            self.writing = Some(Writing { frozen, written: Vec::new(), expected });
        } else if let Some(writing) = &mut self.writing {
            let blocks = draw.below(4);
            (0..blocks).take_while(|_| writing.write()).for_each(|_| ());
        }
    }

    fn finish_writing(&mut self) {
        let Some(mut writing) = self.writing.take() else { return };
        while writing.write() {}
        let Writing { written, expected, .. } = writing;
        assert!(written == expected, "the frozen state has changed");
        let restored = State::restore(&written).expect("it was written");
        restored.invariant().expect("a restored state is consistent");
        assert!(restored.snapshot_bytes() == expected, "restoring changes the bytes");
    }

    fn epoch(&self) -> u64 {
        self.state.last_start().map_or(0, |start| start.epoch.0)
    }

    /// The log, applied by a state that emits no events and was never restored, gives the same
    /// bytes, whatever rules the state begins with.
    pub(super) fn end(&mut self) {
        self.finish_writing();
        let mut state = State::with_rules(Rules {
            jobs_per_queue: 1,
            queues: 1,
            sessions: 1,
            step_jobs: 1,
            max_attempts: 1,
            keep_ms: 5,
            keep_dead_ms: 5,
            worker_losses: 1,
            unstarted_deliveries_max: 1,
            answers_retained: 1,
            key_bytes: 0,
            order_keys: 0,
            fair_keys: 0,
            limit_keys: 0,
            limits: 0,
            schedules: 0,
            idempotency_ms: 1,
            ..Rules::STANDARD
        });
        let mut out = Outcomes::default();
        for (index, now, command) in &self.log {
            out.clear();
            state.apply(*index, *now, command, &mut out);
            assert!(out.events.is_empty(), "events are off");
        }
        assert!(state.snapshot_bytes() == self.state.snapshot_bytes(), "replay differs");
    }

    fn apply(&mut self, command: Command) {
        let (head, raw) = command.encode();
        let body = Bytes::from([head, raw].concat());
        let command = Command::decode(command.kind(), body).expect("what was encoded decodes");
        let index = self.log.len() as u64 + 1;
        self.log.push((index, self.now, command.clone()));
        let mut out = Outcomes { wants_events: true, ..Outcomes::default() };
        let preview = match &command {
            Command::Act { action, selection, pace: None, within, .. } => {
                Some(self.state.preview(*action, selection, within.as_ref()))
            }
            _ => None,
        };
        let entries = self.state.schedules.table.iter();
        let names = entries.map(|(number, entry)| (number, entry.schedule.name.clone())).collect();
        self.state.apply(index, self.now, &command, &mut out);
        self.state.invariant().unwrap_or_else(|broken| panic!("{broken}, after {command:?}"));
        self.tokens.extend(out.assignments.iter().map(|delivered| delivered.token));
        if let (Some(preview), [(_, Reply::Acted { report, .. }), ..]) = (preview, &out.replies[..])
        {
            assert_previewed(&command, &preview, report);
        }
        let stats = self.state.all_queue_stats(&glob("/**"), self.now);
        let limited = stats.into_iter().filter(|stat| stat.limited_by.is_some());
        self.model.limited = limited.map(|stat| stat.path).collect();
        let held = self.state.queues.iter().filter(|queue| queue.held.is_some());
        self.model.held = held.map(|queue| queue.path.clone()).collect();
        self.model.schedule_names = names;
        let expected = self.model.apply(index, self.now, &command, &out);
        compare_outcomes(&self.state, &command, &out, expected);
        self.compare_jobs();
        self.compare_queues();
        self.compare_schedules();
        self.compare_timers(&command);
        self.compare_keys();
        self.compare_uniques();
        if self.coverage.is_some() {
            self.record_coverage(&out);
        }
        if let Command::Replace { .. } = command {
            self.replaced = Some(command);
        }
    }

    /// Records what has occurred.
    fn record_coverage(&mut self, out: &Outcomes) {
        let Some(coverage) = &mut self.coverage else { return };
        for event in &out.events {
            coverage.insert(format!("{:?} {:?}", event.change, event.state));
            let before = match event.state {
                Some(state) => self.states.insert(event.job, state),
                None => self.states.remove(&event.job),
            };
            let (before, after) = (name_in_diagram(before), name_in_diagram(event.state));
            coverage.insert(format!("Move {before} --> {after}"));
        }
        for (_, reply) in &out.replies {
            match reply {
                Reply::Enqueued(answer) => match &answer.outcome {
                    Ok(outcomes) => coverage.extend(outcomes.iter().map(|o| format!("{o:?}"))),
                    Err(refusal) => drop(coverage.insert(format!("{refusal:?}"))),
                },
                Reply::LimitSet { result: Err(error), .. }
                | Reply::ScheduleSet { result: Err(error), .. } => {
                    coverage.insert(format!("{error:?}"));
                }
                Reply::ScheduleSet { result: Ok(outcome), .. } => {
                    coverage.insert(format!("Schedule {outcome:?}"));
                }
                Reply::ScheduleRun { result: Ok(outcome), .. } => {
                    coverage.insert(format!("Run {outcome:?}"));
                }
                Reply::Settled(answer) => {
                    coverage.extend(answer.outcomes.iter().map(|o| format!("Settle {o:?}")));
                }
                Reply::Checkpointed(answer) => {
                    coverage.insert(format!("Checkpoint {:?}", answer.outcome));
                }
                Reply::Replaced { outcome, .. } => {
                    coverage.insert(format!("Replace {outcome:?}"));
                }
                Reply::Acted { report, .. } => {
                    coverage.extend(report.outcomes.iter().map(|o| format!("Act {o:?}")));
                    coverage.extend(report.more.then(|| "Act more".to_owned()));
                    if report.outcomes.is_empty() && report.refused > 0 {
                        coverage.insert("Act by filter NotUnique".to_owned());
                    }
                }
                _ => {}
            }
        }
        for number in 0..IDS {
            match self.state.job(&id(number), self.now).and_then(|view| view.info.blocked) {
                Some(BlockedBy::Limit { by, .. }) => {
                    let limits = &self.model.job_limits;
                    let mut limits = limits.iter().filter(|l| l.limit.name == by.limit);
                    let scope = limits.next().map(|limit| limit.limit.scope);
                    coverage.extend(scope.map(|scope| format!("Limit {scope:?}")));
                }
                Some(BlockedBy::Throttled { .. }) => _ = coverage.insert("Throttled".to_owned()),
                _ => {}
            }
        }
        for known in self.model.sorted_schedules() {
            let overlap = known.schedule.overlap;
            coverage.extend(known.last_at.map(|_| "Occurred".to_owned()));
            coverage.extend(known.last_refusal.map(|_| "Occurrence refused".to_owned()));
            coverage.extend((known.overlapped > 0).then(|| format!("Overlapped {overlap:?}")));
        }
        for job in &self.model.jobs {
            let lists = [("attempts", job.history.len()), ("checkpoints", job.checkpoints.len())];
            coverage.extend(lists.iter().map(|(what, count)| format!("{count} {what}")));
            if let Phase::Dead(reason) = job.phase {
                coverage.insert(format!("Dead {reason:?}"));
            }
        }
    }
}

/// A job's state as a Mermaid diagram names it.
fn name_in_diagram(state: Option<JobState>) -> String {
    state.map_or_else(|| "[*]".to_owned(), |state| format!("{state:?}").to_lowercase())
}

/// A dry run predicts how many jobs an act applies to. Names given twice count twice in it, and so
/// do dead jobs with one unique key, of which one is revived; and a job that was confirmed before
/// may be removed for one that expires on confirmation.
fn assert_previewed(command: &Command, preview: &ActionReport, report: &ActionReport) {
    let Command::Act { action, selection, .. } = command else { return };
    let is_expected = match selection {
        Selection::Ids(ids) => {
            let is_repeated = ids.iter().collect::<BTreeSet<_>>().len() < ids.len();
            let not_unique = |report: &ActionReport| {
                let outcomes = report.outcomes.iter();
                outcomes.filter(|outcome| matches!(outcome, ActOutcome::NotUnique(_))).count()
                    as u64
            };
            let rivals = not_unique(report).saturating_sub(not_unique(preview));
            let may_exceed =
                is_repeated || *action == Action::Confirm || preview.done == report.done + rivals;
            // A unique key may have been held for a period that has just passed.
            let may_be_free = preview.refused > 0 && report.done <= preview.done + preview.refused;
            report.done == preview.done
                || may_exceed && report.done < preview.done
                || may_be_free && report.done > preview.done
        }
        // Jobs whose unique key another has match, and are not revived.
        Selection::Matching(_) => report.more || preview.done == report.done + report.refused,
    };
    assert!(is_expected, "{preview:?} became {report:?}, {command:?}");
}

/// `LONGSHORE_MODEL_TRACE=1` prints the commands of a failing case.
impl Drop for Harness {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("LONGSHORE_MODEL_TRACE").is_some() {
            self.log.iter().for_each(|(_, now, command)| eprintln!("{now:?} {command:?}"));
        }
    }
}
