//! What a kind of job is.

use longshore_protocol::{Glob, JobOptions, Path};

use crate::codec::Codec;
use crate::template::{self, ParameterError};

/// A kind of job: its type is the payload. `#[derive(JobKind)]` implements it from attributes that
/// are checked when the program is compiled:
///
/// ```ignore
/// #[derive(Serialize, Deserialize, JobKind)]
/// #[job(path = "/tenants/{tenant}/mail", max_attempts = 5, timeout = "30s", output = MessageId)]
/// struct Welcome {
///     tenant: String,
///     to: String,
/// }
/// ```
pub trait JobKind: Sized + Send + 'static {
    /// The path of its queue. A segment `{name}` is a parameter, which each job fills from its
    /// payload: jobs of one kind may lie in many queues.
    const PATH: &'static str;

    /// What its handler returns, and a waiter receives.
    type Output: Send + 'static;

    /// How its payload and its output are written.
    type Codec: Codec<Self> + Codec<Self::Output>;

    /// The queue of this job: [`PATH`](JobKind::PATH), its parameters filled in.
    fn path(&self) -> Result<Path, ParameterError>;

    /// The options of its jobs, unless a job changes them.
    fn options() -> JobOptions {
        JobOptions::default()
    }

    /// The queues of all jobs of the kind: [`PATH`](JobKind::PATH) with `*` for each parameter.
    fn pattern() -> Result<Glob, ParameterError> {
        template::pattern(Self::PATH)
    }
}
