//! The expected state: every appended command applied in order, up to the last recovered one.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use longshore_protocol::Glob;
use longshore_protocol::messages::work::{Filter, JobsQuery, QueueStat};
use parking_lot::Mutex;

use super::command_coverage::CommandCoverage;
use super::log::{AllSubmitted, Submitted};
use crate::{Command, Event, JobView, Now, Outcomes, RecordRef, RunningLease, State, Totals};

/// The expected state, kept outside the journal.
#[derive(Default)]
pub(super) struct Reference {
    state: State,
    outcomes: Outcomes,
    submitted: AllSubmitted,
    /// All recovered commands.
    recovered: BTreeMap<u64, Submitted>,
    /// Their events that were not yet taken.
    events: Vec<Event>,
    pub(super) command_coverage: CommandCoverage,
}

impl Reference {
    /// An independent copy.
    pub(super) fn fork(&self) -> Reference {
        Reference {
            state: self.state.clone(),
            outcomes: Outcomes::default(),
            submitted: Arc::new(Mutex::new(self.submitted.lock().clone())),
            recovered: self.recovered.clone(),
            events: self.events.clone(),
            command_coverage: CommandCoverage::default(),
        }
    }

    /// The list to which the log adds appended commands.
    pub(super) fn submitted(&self) -> AllSubmitted {
        Arc::clone(&self.submitted)
    }

    /// The journal's last command is `last`: all earlier ones are recovered, later ones are lost.
    pub(super) fn recovered(&mut self, last: u64) {
        if last < self.state.applied() {
            // Even commands that earlier starts recovered are lost.
            self.recovered.split_off(&(last + 1));
            self.submitted.lock().clear();
            self.events.retain(|event| event.index <= last);
            self.state = State::default();
            let known: Vec<Submitted> = self.recovered.values().cloned().collect();
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
            self.recovered.insert(command.index, command);
        }
        self.outcomes.wants_events = false;
        assert_eq!(self.state.applied(), last, "commands that were never submitted");
    }

    fn apply(&mut self, submitted: &Submitted) -> Command {
        let Submitted { index, now, kind, body } = submitted;
        let command = Command::decode(*kind, body.clone()).expect("it was encoded");
        self.state.apply(*index, *now, &command, &mut self.outcomes);
        command
    }

    /// Compares a recovered state with this one.
    pub(super) fn compare(&self, state: &State, now: Now) {
        // Compare views as well as bytes: the encoder may be wrong.
        assert_eq!(view_of(state, now), view_of(&self.state, now));
        assert!(
            state.snapshot_bytes() == self.state.snapshot_bytes(),
            "after command {} the state is not what its commands come to",
            self.state.applied()
        );
    }

    /// Takes the events of commands after `since`, up to `upto`.
    pub(super) fn take_events(&mut self, since: u64, upto: u64) -> Vec<Event> {
        let later = self.events.partition_point(|event| event.index <= upto);
        let mut events: Vec<Event> = self.events.drain(..later).collect();
        events.retain(|event| event.index > since);
        events
    }

    /// That part of the command, as it was appended.
    pub(super) fn part(&self, at: RecordRef) -> Bytes {
        let from = at.at as usize;
        self.recovered[&at.index].body.slice(from..from + at.length as usize)
    }
}

/// The visible parts of a state.
#[derive(PartialEq, Debug)]
struct StateView {
    totals: Totals,
    running: Vec<RunningLease>,
    queues: Vec<QueueStat>,
    jobs: Vec<JobView>,
}

fn view_of(state: &State, now: Now) -> StateView {
    let all: Glob = "/**".parse().expect("a pattern");
    let mut running: Vec<_> = state.running().collect();
    running.sort_unstable_by_key(|lease| lease.token);
    let query = JobsQuery { full: true, ..JobsQuery::of(Filter::of(all.clone())) };
    let (jobs, _) = state.jobs(&query, None, now);
    StateView { totals: state.totals(), running, queues: state.all_queue_stats(&all, now), jobs }
}
