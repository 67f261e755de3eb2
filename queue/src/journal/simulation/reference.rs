//! What the state has to be: every command that was given to the log, applied in order, up to the
//! last one that is there.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::Glob;
use longshore_protocol::messages::work::{Filter, JobsQuery, QueueStat};
use parking_lot::Mutex;

use super::command_coverage::CommandCoverage;
use super::log::{AllSubmitted, Submitted};
use crate::{Command, Event, JobView, Now, Outcomes, RecordRef, RunningLease, State, Totals};

/// The state beside the journal.
#[derive(Default)]
pub(super) struct Reference {
    state: State,
    outcomes: Outcomes,
    submitted: AllSubmitted,
    /// All commands that are there.
    there: BTreeMap<u64, Submitted>,
    /// What they brought about, as far as nobody has asked for it.
    events: Vec<Event>,
    pub(super) command_coverage: CommandCoverage,
}

impl Reference {
    /// The same, to go its own way.
    pub(super) fn fork(&self) -> Reference {
        Reference {
            state: self.state.clone(),
            outcomes: Outcomes::default(),
            submitted: Arc::new(Mutex::new(self.submitted.lock().clone())),
            there: self.there.clone(),
            events: self.events.clone(),
            command_coverage: CommandCoverage::default(),
        }
    }

    /// Where the log tells what it is given.
    pub(super) fn submitted(&self) -> AllSubmitted {
        Arc::clone(&self.submitted)
    }

    /// The journal's last command is that one: all before it are there, and those after it are
    /// gone.
    pub(super) fn recovered(&mut self, last: u64) {
        if last < self.state.applied() {
            // Even what earlier starts have found is gone.
            self.there.split_off(&(last + 1));
            self.submitted.lock().clear();
            self.events.retain(|event| event.index <= last);
            self.state = State::default();
            let known: Vec<Submitted> = self.there.values().cloned().collect();
            known.iter().for_each(|command| drop(self.apply(command)));
            self.outcomes.clear();
        }
        let submitted: Vec<Submitted> = self.submitted.lock().drain(..).collect();
        for command in submitted.into_iter().take_while(|command| command.index <= last) {
            self.outcomes.wants_events = true;
            let done = self.apply(&command);
            self.command_coverage.note(&done, &self.outcomes);
            self.events.append(&mut self.outcomes.events);
            self.outcomes.clear();
            self.there.insert(command.index, command);
        }
        self.outcomes.wants_events = false;
        assert_eq!(self.state.applied(), last, "commands that nobody has submitted");
    }

    fn apply(&mut self, submitted: &Submitted) -> Command {
        let Submitted { index, now, kind, body } = submitted;
        let command = Command::decode(*kind, body.clone()).expect("it was encoded");
        self.state.apply(*index, *now, &command, &mut self.outcomes);
        command
    }

    /// The state that was read back is the one that was.
    pub(super) fn compare(&self, state: &State, now: Now) {
        // What can be seen of it, too: what writes the bytes may be what is wrong.
        assert_eq!(seen(state, now), seen(&self.state, now));
        assert!(
            state.snapshot_bytes() == self.state.snapshot_bytes(),
            "after command {} the state is not what its commands come to",
            self.state.applied()
        );
    }

    /// What happened to jobs after the command `since`, up to `upto`; nobody will ask for it again.
    pub(super) fn take_events(&mut self, since: u64, upto: u64) -> Vec<Event> {
        let later = self.events.partition_point(|event| event.index <= upto);
        let mut events: Vec<Event> = self.events.drain(..later).collect();
        events.retain(|event| event.index > since);
        events
    }

    /// What stands there in the command, as it was submitted.
    pub(super) fn part(&self, at: RecordRef) -> Bytes {
        let from = at.at as usize;
        self.there[&at.index].body.slice(from..from + at.length as usize)
    }
}

/// What anybody can see of a state.
#[derive(PartialEq, Debug)]
struct Seen {
    totals: Totals,
    running: Vec<RunningLease>,
    queues: Vec<QueueStat>,
    jobs: Vec<JobView>,
}

fn seen(state: &State, now: Now) -> Seen {
    let all: Glob = "/**".parse().expect("a pattern");
    let mut running: Vec<_> = state.running().collect();
    running.sort_unstable_by_key(|lease| lease.token);
    let query = JobsQuery { filter: Filter::of(all.clone()), cursor: 0, limit: 1_000, full: true };
    let (jobs, _) = state.jobs(&query, now);
    Seen { totals: state.totals(), running, queues: state.queue_stats(&all, now), jobs }
}
