//! What operators read in the log. Each thing once, when it changes.

use std::time::Instant;

use longshore_protocol::{Gate, Glob, Path, QueueSettings};
use longshore_queue::ClockAlarm;
use tracing::{info, warn};

use crate::deaths::{Deaths, Died};

/// What was told.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    clock_held: bool,
    deaths: Deaths,
}

impl Notices {
    /// The wall clock's alarm, looked at.
    pub(crate) fn clock(&mut self, alarm: Option<ClockAlarm>) {
        let was_held = std::mem::replace(&mut self.clock_held, alarm.is_some());
        match alarm {
            Some(alarm) if !was_held => warn!(
                "{alarm}; it goes on once the jump goes away, or after `longshore resume --clock`"
            ),
            None if was_held => info!("the wall clock is believed again: nothing is held back"),
            _ => {}
        }
    }

    /// Somebody says that the wall clock is right.
    pub(crate) fn clock_confirmed(&self) {
        info!("the wall clock was confirmed by a tool");
    }

    /// Tells what has died since the last look, if that was a while ago; says when to look again.
    /// See [`Deaths::look`].
    pub(crate) fn deaths<'a>(
        &mut self,
        now: Instant,
        index: u64,
        deaths: impl Iterator<Item = (&'a Path, u64)>,
    ) -> Option<Instant> {
        let Died { named, others, again } = self.deaths.look(now, index, deaths);
        for (path, jobs) in named {
            info!(queue = %path, jobs, "jobs have died; see: longshore dead groups {path}");
        }
        if others > 0 {
            info!(
                jobs = others,
                "jobs have died in other queues; see: longshore dead groups '/**'"
            );
        }
        again
    }

    /// A tool asks to stop deliveries or enqueues, or to let them go on; its answer reports what
    /// came of it.
    pub(crate) fn pause(&self, gate: Gate, pattern: &Glob, paused: bool) {
        let pattern = pattern.as_str();
        match (gate, paused) {
            (Gate::Delivery, true) => info!(pattern, "asked to pause queues"),
            (Gate::Delivery, false) => info!(pattern, "asked to resume queues"),
            (Gate::Enqueue, true) => info!(pattern, "asked to close queues"),
            (Gate::Enqueue, false) => info!(pattern, "asked to open queues"),
        }
    }

    /// A tool asks the publisher to take no new jobs, or to take them again.
    pub(crate) fn drain(&self, draining: bool) {
        match draining {
            true => info!("asked to drain: no new jobs are taken"),
            false => info!("asked to end the drain: new jobs are taken"),
        }
    }

    /// A tool asks workers to begin no job, or to go on; its answer says what came of it.
    pub(crate) fn quiet(&self, workers: usize, quiet: bool) {
        match quiet {
            true => info!(workers, "asked to let workers begin no job"),
            false => info!(workers, "asked to let quiet workers go on"),
        }
    }

    /// A tool asks to change a queue's settings; its answer says what came of it.
    pub(crate) fn settings(&self, path: &Path, changes: &QueueSettings, reset: bool) {
        info!(%path, ?changes, reset, "asked to change a queue's settings");
    }
}
