//! Requests of a tool that are not yet answered.

use longshore_protocol::messages::work::Action;
use longshore_protocol::{Glob, JobId, Path};

/// One request.
#[derive(Clone)]
pub(super) enum ToolRequest {
    Act(Action, Vec<JobId>),
    /// A dead job, and its replacement.
    Replace(JobId, JobId),
    Pause(Glob, bool),
    Configure(Path),
    Show(JobId),
}
