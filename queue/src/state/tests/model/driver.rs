//! The state and its model side by side: commands go to both, and all that can be seen of them is
//! compared.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use longshore_protocol::messages::work::{Action, ActionReport, Selection};
use longshore_protocol::{Durability, Epoch, LinkId, PublisherId, Token};

use super::super::scenario::path;
use super::super::snapshots::{naive_parts, parts_of};
use super::comparing::compare_outcomes;
use super::draws::{Draw, Mood};
use super::jobs::Place;
use super::naive::Model;
use crate::Rules;
use crate::command::{Command, Secret, Start};
use crate::log::Snapshot;
use crate::outcome::{Outcomes, Reply};
use crate::state::{Frozen, State};
use crate::time::Now;

/// So many jobs there may be.
pub(super) const IDS: u32 = 20;

/// More than a case can need: every step of the state is a whole one.
pub(super) const STEP_JOBS: u64 = 10_000;

pub(super) struct Harness {
    pub(super) state: State,
    pub(super) model: Model,
    pub(super) limits: Rules,
    pub(super) now: Now,
    pub(super) log: Vec<(u64, Now, Command)>,
    pub(super) mood: Mood,
    /// A number that stays the same for a case.
    pub(super) bias: u8,
    /// All links and tokens that there have been.
    pub(super) links: Vec<LinkId>,
    pub(super) tokens: Vec<Token>,
    /// How many batches of settles each link has sent.
    pub(super) settles: BTreeMap<LinkId, u64>,
    /// The last replacement: it may be sent again.
    pub(super) replaced: Option<Command>,
    /// What is being written beside the commands.
    writing: Option<Writing>,
    /// What has happened at least once, if somebody wants to know.
    pub(super) met: Option<BTreeSet<String>>,
}

/// A frozen state, on its way out.
struct Writing {
    frozen: Frozen,
    /// Its blocks so far, each after its length.
    written: Vec<u8>,
    /// What the state was when it was frozen.
    expected: Vec<u8>,
}

impl Writing {
    /// Writes the next block; false when there is none left.
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
            subscriptions_per_link: 2,
            ended_per_queue: 5,
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
            mood: Mood::of(number),
            bias: number / 8,
            links: Vec::new(),
            tokens: Vec::new(),
            settles: BTreeMap::new(),
            replaced: None,
            writing: None,
            met: None,
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

    pub(super) fn play(&mut self, seed: u64) {
        let mut draw = Draw(seed);
        self.draw_time(&mut draw);
        if draw.one_in(16) {
            let bytes = self.state.snapshot_bytes();
            self.state = State::restore(&bytes).expect("it was written");
            assert!(self.state.snapshot_bytes() == bytes, "restoring changes the bytes");
            self.state.invariant().expect("what was restored holds together");
        }
        self.freeze_or_write(&mut Draw(!seed));
        if let Some(command) = self.draw_command(&mut draw) {
            self.apply(command);
        }
        if draw.one_in(8) {
            let filter = self.draw_filter(&mut draw);
            self.compare_dead(&filter);
            self.compare_checkpoints();
            self.compare_leases();
        }
    }

    /// Freezes the state now and then, and writes what was frozen between the commands that follow.
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
        assert!(written == expected, "what was frozen has changed");
        let restored = State::restore(&written).expect("it was written");
        restored.invariant().expect("what was restored holds together");
        assert!(restored.snapshot_bytes() == expected, "restoring changes the bytes");
    }

    fn epoch(&self) -> u64 {
        self.state.last_start().map_or(0, |start| start.epoch.0)
    }

    /// The log, applied by a state that reports no events and was never restored, gives the same
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
            lost_deliveries: 1,
            answers_kept: 1,
            ..Rules::STANDARD
        });
        let mut out = Outcomes::default();
        for (index, now, command) in &self.log {
            out.clear();
            state.apply(*index, *now, command, &mut out);
            assert!(out.events.is_empty(), "nobody asked for events");
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
            Command::Act { action, selection, pace: None, .. } => {
                Some(self.state.preview(*action, selection))
            }
            _ => None,
        };
        self.state.apply(index, self.now, &command, &mut out);
        self.state.invariant().unwrap_or_else(|broken| panic!("{broken}, after {command:?}"));
        self.tokens.extend(out.handed.iter().map(|handed| handed.token));
        if let (Some(preview), [(_, Reply::Acted { report, .. }), ..]) = (preview, &out.replies[..])
        {
            assert_previewed(&command, &preview, report);
        }
        let expected = self.model.apply(index, self.now, &command, &out);
        compare_outcomes(&self.state, &command, &out, expected);
        self.compare_jobs();
        self.compare_queues();
        self.compare_due(&command);
        if self.met.is_some() {
            self.meet(&out);
        }
        if let Command::Replace { .. } = command {
            self.replaced = Some(command);
        }
    }

    /// Notes what has happened.
    fn meet(&mut self, out: &Outcomes) {
        let Some(met) = &mut self.met else { return };
        for event in &out.events {
            met.insert(format!("{:?} {:?}", event.change, event.state));
        }
        for (_, reply) in &out.replies {
            match reply {
                Reply::Enqueued(answer) => match &answer.outcome {
                    Ok(outcomes) => met.extend(outcomes.iter().map(|o| format!("{o:?}"))),
                    Err(refusal) => drop(met.insert(format!("{refusal:?}"))),
                },
                Reply::Settled(answer) => {
                    met.extend(answer.outcomes.iter().map(|o| format!("Settle {o:?}")));
                }
                Reply::Checkpointed(answer) => {
                    met.insert(format!("Checkpoint {:?}", answer.outcome));
                }
                Reply::Replaced { outcome, .. } => drop(met.insert(format!("Replace {outcome:?}"))),
                Reply::Acted { report, .. } => {
                    met.extend(report.outcomes.iter().map(|o| format!("Act {o:?}")));
                    met.extend(report.more.then(|| "Act more".to_owned()));
                }
                _ => {}
            }
        }
        for job in &self.model.jobs {
            let lists = [("attempts", job.history.len()), ("checkpoints", job.checkpoints.len())];
            met.extend(lists.iter().map(|(what, many)| format!("{many} {what}")));
            if let Place::Dead(reason) = job.place {
                met.insert(format!("Dead {reason:?}"));
            }
        }
    }
}

/// A dry run says how many jobs an act is done to. Names given twice count twice in it; and a job
/// that was confirmed before may be pushed out by one that expires as it is confirmed.
fn assert_previewed(command: &Command, preview: &ActionReport, report: &ActionReport) {
    let Command::Act { action, selection, .. } = command else { return };
    let holds = match selection {
        Selection::Ids(ids) => {
            let is_repeated = ids.iter().collect::<BTreeSet<_>>().len() < ids.len();
            let may_exceed = is_repeated || *action == Action::Confirm;
            report.done == preview.done || may_exceed && report.done < preview.done
        }
        Selection::Matching(_) => report.more || preview == report,
    };
    assert!(holds, "{preview:?} became {report:?}, {command:?}");
}

/// `LONGSHORE_MODEL_TRACE=1` prints the commands of a case that fails.
impl Drop for Harness {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("LONGSHORE_MODEL_TRACE").is_some() {
            self.log.iter().for_each(|(_, now, command)| eprintln!("{now:?} {command:?}"));
        }
    }
}
