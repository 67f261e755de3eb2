//! What a producer accepts as a job.

use longshore_protocol::{JobId, NewJob};

use crate::codec::{Codec, CodecError};
use crate::kind::JobKind;
use crate::template::ParameterError;

/// A job to enqueue: a value of a [`JobKind`], or a [`NewJob`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a job",
    note = "a job is a value of a type with `#[derive(JobKind)]`, or a `NewJob` of `new_job`"
)]
pub trait IntoJob {
    /// Makes the job, with a new id unless it has one.
    fn into_job(self, new_id: impl FnOnce() -> JobId) -> Result<NewJob, BadPayload>;
}

/// Why a payload makes no job.
#[derive(Debug, thiserror::Error)]
pub enum BadPayload {
    /// Its kind's codec cannot encode it.
    #[error("it cannot be encoded: {0}")]
    Codec(#[from] CodecError),
    /// Its kind's path cannot be filled from it.
    #[error(transparent)]
    Path(#[from] ParameterError),
}

impl IntoJob for NewJob {
    fn into_job(self, _: impl FnOnce() -> JobId) -> Result<NewJob, BadPayload> {
        Ok(self)
    }
}

impl<K: JobKind> IntoJob for K {
    fn into_job(self, new_id: impl FnOnce() -> JobId) -> Result<NewJob, BadPayload> {
        let path = self.path()?;
        let payload = <K::Codec as Codec<K>>::encode(&self)?;
        let mut job = NewJob { options: K::options(), ..NewJob::new(path, new_id(), payload) };
        if let Some(mut keys) = self.keys() {
            let unique = keys.unique.take();
            job.keys = Some(Box::new(keys));
            if let Some(unique) = unique {
                job = job.unique(unique);
            }
        }
        Ok(job)
    }
}
