//! Commands that read queues and jobs.

use clap::{Args, ValueEnum};
use longshore::protocol::GlobError;
use longshore::{Glob, JobLocator, JobState, Related};

use super::Filters;
use crate::output::shell_word;

#[derive(Args, Debug)]
pub(crate) struct Stat {
    /// The queues [default: '/**']
    #[arg(value_parser = parse_pattern)]
    pub(crate) pattern: Option<Glob>,
}

#[derive(Args, Debug)]
pub(crate) struct Jobs {
    /// The queues [default: '/**']
    #[arg(value_parser = parse_pattern)]
    pub(crate) pattern: Option<Glob>,
    /// Only jobs in this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    #[command(flatten)]
    pub(crate) relation: Relation,
    #[command(flatten)]
    pub(crate) filters: Filters,
    /// At most N jobs; 0 for all [default: 100; all with --json]
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

/// What listed jobs have to do with others.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct Relation {
    /// Only members of this batch
    #[arg(long, value_name = "BATCH", value_parser = parse_job)]
    batch: Option<JobLocator>,
    /// Only jobs that still wait for this one
    #[arg(long, value_name = "JOB", value_parser = parse_job)]
    after: Option<JobLocator>,
    /// Only dead jobs for whose success others wait
    #[arg(long)]
    waited_for: bool,
}

impl Relation {
    pub(crate) fn related(&self) -> Option<Related> {
        let batch = self.batch.as_ref().map(|batch| Related::MembersOf(batch.id));
        let after = self.after.as_ref().map(|job| Related::WaitingFor(job.id));
        batch.or(after).or(self.waited_for.then_some(Related::WaitedFor))
    }
}

/// Job states on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum State {
    Prepared,
    /// Not due yet
    Scheduled,
    /// Waits for the next attempt
    Retrying,
    /// Due, and waiting for other jobs
    Blocked,
    Ready,
    Running,
    Completed,
    Dead,
    Cancelled,
    Expired,
}

impl State {
    /// Whether a scheduled job in this state waits for a retry; none for other states.
    pub(crate) fn retrying(self) -> Option<bool> {
        match self {
            State::Retrying => Some(true),
            State::Scheduled => Some(false),
            _ => None,
        }
    }
}

impl From<State> for JobState {
    fn from(state: State) -> JobState {
        match state {
            State::Prepared => JobState::Prepared,
            State::Scheduled | State::Retrying => JobState::Scheduled,
            State::Blocked => JobState::Blocked,
            State::Ready => JobState::Ready,
            State::Running => JobState::Running,
            State::Completed => JobState::Completed,
            State::Dead => JobState::Dead,
            State::Cancelled => JobState::Cancelled,
            State::Expired => JobState::Expired,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Job {
    /// A receipt, PUBLISHER:UUID, or a bare UUID
    #[arg(value_parser = parse_job)]
    pub(crate) id: JobLocator,
    /// Wait until it has ended; exit 1 unless it completed
    #[arg(long)]
    pub(crate) wait: bool,
    /// Print only the result's bytes
    #[arg(long, conflicts_with = "payload")]
    pub(crate) result: bool,
    /// Print only the payload's bytes
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Tail {
    /// The queues [default: '/**']
    #[arg(value_parser = parse_pattern)]
    pub(crate) pattern: Option<Glob>,
    /// Print the existing jobs first, then transitions
    #[arg(long)]
    pub(crate) snapshot: bool,
    /// End after N transitions
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Print one line and exit as a Nagios plugin: 0 ok, 1 warning, 2 critical, 3 unknown
    #[arg(long)]
    pub(crate) nagios: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    /// Print once and end
    #[arg(long)]
    pub(crate) once: bool,
}

/// Parses the pattern of a command that lists jobs or queues. A job's id is of another command.
pub(super) fn parse_pattern(text: &str) -> Result<Glob, String> {
    text.parse().map_err(|error: GlobError| match text.parse::<JobLocator>() {
        Ok(_) => format!("it is a job's id; to show the job: longshore job {text}"),
        Err(_) => error.to_string(),
    })
}

/// Parses the id of one job. A path is of another command.
pub(super) fn parse_job(text: &str) -> Result<JobLocator, String> {
    text.parse::<JobLocator>().map_err(|error| match text.parse::<Glob>() {
        Ok(_) => {
            format!("it is no job but a path; its jobs: longshore jobs {}", shell_word(text))
        }
        Err(_) => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_and_a_path_in_each_others_place_name_the_command() {
        let id = "01920f3e-5b7a-7c3d-8e4f-a1b2c3d4e5f6";
        for name in [id.to_owned(), format!("3f2a91c0:{id}")] {
            let error = parse_pattern(&name).unwrap_err();
            assert!(error.ends_with(&format!(": longshore job {name}")), "{error}");
            parse_job(&name).unwrap();
        }
        let error = parse_job("/jobs/**").unwrap_err();
        assert!(error.ends_with(": longshore jobs '/jobs/**'"), "{error}");
        assert!(parse_pattern("jobs").unwrap_err().contains("does not begin with '/'"));
        assert!(parse_job("jobs").unwrap_err().contains("looks like"));
    }
}
