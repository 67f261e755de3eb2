//! What a kind of job is.

use longshore_protocol::{Glob, JobKeys, JobOptions, Path};

use crate::codec::Codec;
use crate::template::{self, ParameterError};

/// A kind of job; the type is its payload. `#[derive(JobKind)]` implements it from attributes that
/// are checked at compile time:
///
/// ```ignore
/// #[derive(Serialize, Deserialize, JobKind)]
/// #[job(path = "/tenants/{tenant}/mail", max_attempts = 5, timeout = "30s", output = MessageId)]
/// struct Welcome {
///     tenant: String,
///     to: String,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kind of job",
    note = "a kind has `#[derive(JobKind)]` and `#[job(path = \"/the/queue/of/its/jobs\")]`"
)]
pub trait JobKind: Sized + Send + 'static {
    /// The path of its queue. A segment `{name}` is a parameter, filled from the payload of each
    /// job.
    ///
    /// Each value of a parameter is a queue of its own, and publishers limit the number of queues.
    /// Paths of two kinds must not match the same queue: the jobs of one would reach the handler of
    /// the other. A worker checks its own kinds when it starts
    /// (`RunError::KindsOverlap`); kinds of other programs are yours to keep apart.
    const PATH: &'static str;

    /// The output of its handler, which `Enqueue::result` returns.
    type Output: Send + 'static;

    /// How its payload and its output are encoded.
    type Codec: Codec<Self> + Codec<Self::Output>;

    /// The queue of this job: [`PATH`](JobKind::PATH) with its parameters filled in.
    fn path(&self) -> Result<Path, ParameterError>;

    /// The options of its jobs. Each job can override them when it is enqueued.
    fn options() -> JobOptions {
        JobOptions::default()
    }

    /// What relates this job to others of its queue; nothing by default. A unique key without a
    /// text is that of its payload. Each job can override it when it is enqueued.
    fn keys(&self) -> Option<JobKeys> {
        None
    }

    /// The queues of all jobs of the kind: [`PATH`](JobKind::PATH) with `*` for each parameter.
    fn pattern() -> Result<Glob, ParameterError> {
        template::pattern(Self::PATH)
    }
}

/// A kind of job that may come after one of the kind `K` in a workflow: its handler knows the
/// [`Output`](JobKind::Output) of that one, and reads it with an argument `Parents<K>`.
///
/// ```ignore
/// impl After<Probe> for Encode {}
///
/// async fn encode(Payload(encode): Payload<Encode>, probe: Parents<Probe>) -> anyhow::Result<()> {
///     let probed = probe.output().await?;
///     …
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "a job `{Self}` does not come after a job `{K}`",
    note = "if its handler reads the output of `{K}`, or needs none: \
            `impl After<{K}> for {Self} {{}}`"
)]
pub trait After<K: JobKind>: JobKind {}
