//! Log messages for operators, each once per change.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use longshore_access::{Action, Identity};
use longshore_protocol::{Gate, Glob, JobLimit, Path, QueueSettings, Schedule};
use longshore_queue::ClockAlarm;
use longshore_transport::{AuditClient, AuditLog, AuditedAct, LogLimit, NotAudited};
use tracing::{info, warn};

use crate::deaths::{DeathReporter, NewDeaths};
use crate::schedules::times::InvalidTiming;

/// What has been logged.
#[derive(Debug)]
pub(crate) struct OperatorLog {
    clock_held: bool,
    deaths: DeathReporter,
    denied: LogLimit,
    over_quota: LogLimit,
    schedule_waits: LogLimit,
    /// The publisher's name.
    server: String,
    audit: AuditLog,
}

/// Most log lines about what clients may not do, and as many about quotas and about schedules that
/// wait, in each period.
const DENIED_LINES_MAX: u32 = 10;
const DENIED_PERIOD: Duration = Duration::from_secs(10);

impl OperatorLog {
    /// A log beside the audit log of a publisher with this name.
    pub(crate) fn new(server: String, audit: AuditLog) -> OperatorLog {
        OperatorLog {
            server,
            audit,
            clock_held: false,
            deaths: DeathReporter::default(),
            denied: LogLimit::new(DENIED_LINES_MAX, DENIED_PERIOD),
            over_quota: LogLimit::new(DENIED_LINES_MAX, DENIED_PERIOD),
            schedule_waits: LogLimit::new(DENIED_LINES_MAX, DENIED_PERIOD),
        }
    }

    /// Records an act of a tool that begins now; an error if it must not.
    pub(crate) fn audit_act(
        &self,
        (identity, address): (Option<&Identity>, SocketAddr),
        act: impl FnOnce() -> AuditedAct,
    ) -> Result<(), NotAudited> {
        self.audit.allow(AuditClient { server: &self.server, identity, address }, act)
    }

    /// Logs when the wall clock's alarm begins or ends.
    pub(crate) fn clock(&mut self, alarm: Option<ClockAlarm>) {
        let was_held = std::mem::replace(&mut self.clock_held, alarm.is_some());
        match alarm {
            Some(alarm) if !was_held => warn!(
                "{alarm}; timers continue once the clock is right again, \
                 or after `longshore resume --clock`"
            ),
            None if was_held => info!("the wall clock is valid again: timers continue"),
            _ => {}
        }
    }

    /// Logs, at a bounded rate, what the policy does not allow to a client.
    pub(crate) fn denied(
        &mut self,
        identity: Option<&Identity>,
        address: SocketAddr,
        action: Action,
        what: &str,
        target: impl FnOnce() -> String,
    ) {
        let client = AuditClient { server: &self.server, identity, address };
        self.audit.refuse(client, action.name(), || (target(), what.to_owned()));
        if let Some(left_out) = self.denied.admit(Instant::now()) {
            let identity = identity.map_or_else(String::new, Identity::to_string);
            warn!(identity, %address, %action, what, left_out, "the policy denies this to a client");
        }
    }

    /// Logs, at a bounded rate, that a client has used up a quota of queues. That is daily life,
    /// and not for the audit log.
    pub(crate) fn over_quota(
        &mut self,
        identity: Option<&Identity>,
        address: SocketAddr,
        path: &Path,
        why: &str,
    ) {
        if let Some(left_out) = self.over_quota.admit(Instant::now()) {
            let identity = identity.map_or_else(String::new, Identity::to_string);
            warn!(identity, %address, %path, %why, left_out, "a client is over its quota");
        }
    }

    /// A tool confirmed the wall clock.
    pub(crate) fn clock_confirmed(&self) {
        info!("the wall clock was confirmed by a tool");
    }

    /// Logs deaths since the last report; returns when to check again. See [`DeathReporter::poll`].
    pub(crate) fn deaths<'a>(
        &mut self,
        now: Instant,
        index: u64,
        deaths: impl Iterator<Item = (&'a Path, u64)>,
    ) -> Option<Instant> {
        let NewDeaths { named, others, next_check } = self.deaths.poll(now, index, deaths);
        for (path, jobs) in named {
            info!(queue = %path, jobs, "jobs have died; see: longshore dead groups {path}");
        }
        if others > 0 {
            info!(
                jobs = others,
                "jobs have died in other queues; see: longshore dead groups '/**'"
            );
        }
        next_check
    }

    /// A tool pauses, resumes, closes or opens queues; its answer reports the result.
    pub(crate) fn pause(&self, gate: Gate, pattern: &Glob, paused: bool) {
        let pattern = pattern.as_str();
        match (gate, paused) {
            (Gate::Delivery, true) => info!(pattern, "pause of queues requested"),
            (Gate::Delivery, false) => info!(pattern, "resume of queues requested"),
            (Gate::Enqueue, true) => info!(pattern, "closing of queues requested"),
            (Gate::Enqueue, false) => info!(pattern, "opening of queues requested"),
        }
    }

    /// A tool sets a limit of jobs; its answer reports the result.
    pub(crate) fn limit(&self, limit: &JobLimit) {
        info!(?limit, "limit of jobs requested");
    }

    /// A tool removes one.
    pub(crate) fn limit_removed(&self, name: &str) {
        info!(name, "removal of a limit of jobs requested");
    }

    /// A tool adds or changes a schedule; its answer reports the result.
    pub(crate) fn schedule(&self, schedule: &Schedule) {
        info!(?schedule, "schedule requested");
    }

    /// A tool removes one.
    pub(crate) fn schedule_removed(&self, name: &str) {
        info!(name, "removal of a schedule requested");
    }

    /// A tool pauses or resumes one.
    pub(crate) fn schedule_paused(&self, name: &str, paused: bool) {
        match paused {
            true => info!(name, "pause of a schedule requested"),
            false => info!(name, "resume of a schedule requested"),
        }
    }

    /// A tool runs one at once.
    pub(crate) fn schedule_run(&self, name: &str) {
        info!(name, "run of a schedule requested");
    }

    /// Logs, at a bounded rate, that the times of a schedule cannot be read.
    pub(crate) fn schedule_waits(&mut self, name: &str, why: &InvalidTiming) {
        if let Some(left_out) = self.schedule_waits.admit(Instant::now()) {
            warn!(name, %why, left_out, "a schedule waits for its times: trying again in a minute");
        }
    }

    /// A tool starts or ends a drain.
    pub(crate) fn drain(&self, draining: bool) {
        match draining {
            true => info!("drain requested: new jobs are refused"),
            false => info!("end of drain requested: new jobs are accepted"),
        }
    }

    /// A tool makes workers quiet, or ends that; its answer reports the result.
    pub(crate) fn quiet(&self, workers: usize, quiet: bool) {
        match quiet {
            true => info!(workers, "quieting of workers requested"),
            false => info!(workers, "resume of quiet workers requested"),
        }
    }

    /// A tool changes a queue's settings; its answer reports the result.
    pub(crate) fn settings(&self, path: &Path, changes: &QueueSettings, reset: bool) {
        info!(%path, ?changes, reset, "change of queue settings requested");
    }
}
