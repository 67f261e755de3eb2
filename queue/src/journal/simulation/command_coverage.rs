//! The commands that a publisher executed in a run: a simulation proves nothing about a kind of
//! command that never took effect.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{
    Action, ActionReport, Enqueued, ReplaceOutcome, Selection,
};
use longshore_protocol::{EnqueueOutcome, JobChange};

use crate::{Command, Outcomes, Reply};

/// Counts of executed commands and of job events, by kind.
#[derive(Clone, Default)]
pub(super) struct CommandCoverage {
    commands: BTreeMap<&'static str, u64>,
    changes: BTreeMap<JobChange, u64>,
}

/// Every kind of command that a client or time can cause while there is room, by its effect.
pub(super) const COMMANDS: [&str; 41] = [
    "start",
    "link up",
    "link up with leases",
    "link lost",
    "permit",
    "subscribe",
    "unsubscribe",
    "credit",
    "recall",
    "enqueue",
    "enqueue with a known key",
    "settle",
    "expire unstarted",
    "expire started",
    "expire after a restart",
    "expire at its run timeout",
    "checkpoint",
    "confirm by id",
    "close a batch",
    "confirm by filter",
    "cancel by id",
    "cancel by filter",
    "revive by id",
    "revive by filter",
    "revive at a pace",
    "drop by id",
    "drop by filter",
    "replace",
    "pause",
    "resume",
    "configure",
    "reset",
    "damaged",
    "tick",
    "set limit",
    "remove limit",
    "put schedule",
    "remove schedule",
    "pause schedule",
    "run schedule",
    "occur",
];

/// Additional commands on a disk that is short of room.
pub(super) const FULL_DISK_COMMANDS: [&str; 3] = ["refuse", "limited", "unlimited"];

impl CommandCoverage {
    /// Counts a command and its outcomes. An action that changed no job does not count.
    pub(super) fn note(&mut self, command: &Command, outcomes: &Outcomes) {
        for event in &outcomes.events {
            *self.changes.entry(event.change).or_default() += 1;
        }
        let mut count = |name| *self.commands.entry(name).or_default() += 1;
        // A new kind of command needs a name here, in one of the two lists, and a client that
        // causes it.
        match command {
            Command::Start(_) => count("start"),
            Command::LinkUp { resume, .. } if resume.0.is_empty() => count("link up"),
            Command::LinkUp { .. } => count("link up with leases"),
            Command::LinkLost { .. } => count("link lost"),
            Command::Permit { .. } => count("permit"),
            Command::Subscribe { .. } => count("subscribe"),
            Command::Unsubscribe { .. } => count("unsubscribe"),
            Command::Credit { .. } => count("credit"),
            Command::Recall { .. } => count("recall"),
            Command::Enqueue { .. } => {
                count("enqueue");
                let is_known = |reply: &Reply| {
                    let Reply::Enqueued(Enqueued { outcome: Ok(outcomes), .. }) = reply else {
                        return false;
                    };
                    let mut runs = outcomes.runs().iter();
                    runs.any(|(outcome, _)| matches!(outcome, EnqueueOutcome::ExistingKey(_)))
                };
                if outcomes.replies.iter().any(|(_, reply)| is_known(reply)) {
                    count("enqueue with a known key");
                }
            }
            Command::Settle { .. } => count("settle"),
            Command::Expire { leases } => leases.iter().for_each(|lease| {
                count(match lease {
                    lease if lease.uncounted => "expire after a restart",
                    lease if lease.timed_out => "expire at its run timeout",
                    lease if lease.started => "expire started",
                    _ => "expire unstarted",
                });
            }),
            Command::Checkpoint { .. } => count("checkpoint"),
            Command::Act { action, selection, pace, .. } if done(outcomes) > 0 => {
                let by_id = matches!(selection, Selection::Ids(_));
                count(match (action, by_id) {
                    (Action::Confirm, true) => "confirm by id",
                    (Action::Confirm, false) => "confirm by filter",
                    (Action::Cancel, true) => "cancel by id",
                    (Action::Cancel, false) => "cancel by filter",
                    (Action::Revive, true) => "revive by id",
                    (Action::Revive, false) => "revive by filter",
                    (Action::Drop, true) => "drop by id",
                    (Action::Drop, false) => "drop by filter",
                    (Action::CloseBatch, _) => "close a batch",
                });
                if *action == Action::Revive && pace.is_some() {
                    count("revive at a pace");
                }
            }
            Command::Act { .. } => {}
            Command::Replace { .. } => {
                let done = |reply: &Reply| {
                    matches!(reply, Reply::Replaced { outcome: ReplaceOutcome::Replaced, .. })
                };
                if outcomes.replies.iter().any(|(_, reply)| done(reply)) {
                    count("replace");
                }
            }
            Command::Pause { paused: true, .. } => count("pause"),
            Command::Pause { paused: false, .. } => count("resume"),
            Command::SetLimit { .. } => count("set limit"),
            Command::RemoveLimit { .. } => count("remove limit"),
            Command::PutSchedule { .. } => count("put schedule"),
            Command::RemoveSchedule { .. } => count("remove schedule"),
            Command::PauseSchedule { .. } => count("pause schedule"),
            Command::RunSchedule { .. } => count("run schedule"),
            Command::Occur { .. } => count("occur"),
            Command::Drain { .. } => count("drain"),
            Command::Configure { reset: false, .. } => count("configure"),
            Command::Configure { reset: true, .. } => count("reset"),
            Command::Damaged { .. } => count("damaged"),
            Command::Tick => count("tick"),
            Command::Refuse { .. } => count("refuse"),
            Command::DeliveryBudget { budget: u64::MAX } => count("unlimited"),
            Command::DeliveryBudget { .. } => count("limited"),
        }
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, other: &CommandCoverage) {
        for (name, times) in &other.commands {
            *self.commands.entry(name).or_default() += times;
        }
        for (change, times) in &other.changes {
            *self.changes.entry(*change).or_default() += times;
        }
    }

    /// Asserts that each of these was executed at least `least` times.
    pub(super) fn assert_commands(&self, names: &[&'static str], least: u64) {
        for name in names {
            let times = self.commands.get(name).copied().unwrap_or_default();
            assert!(times >= least, "{name}: {times} times: {:?}", self.commands);
        }
    }

    /// Asserts that each kind of job event happened at least `least` times.
    pub(super) fn assert_changes(&self, least: u64) {
        for change in JobChange::ALL {
            let times = self.changes.get(change).copied().unwrap_or_default();
            assert!(times >= least, "{change:?}: {times} times: {:?}", self.changes);
        }
    }
}

fn done(outcomes: &Outcomes) -> u64 {
    let report = |reply: &Reply| match reply {
        Reply::Acted { report: ActionReport { done, .. }, .. } => *done,
        _ => 0,
    };
    outcomes.replies.iter().map(|(_, reply)| report(reply)).sum()
}
