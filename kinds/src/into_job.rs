//! What a producer takes.

use longshore_protocol::{JobId, NewJob};

use crate::codec::{Codec, CodecError};
use crate::kind::JobKind;
use crate::template::ParameterError;

/// What becomes a job: a value of a [`JobKind`], or a [`NewJob`].
pub trait IntoJob {
    /// What its handler returns: [`JobKind::Output`], or bytes.
    type Output;

    /// The job, under a new id unless it has one.
    fn into_job(self, new_id: impl FnOnce() -> JobId) -> Result<NewJob, JobNotMade>;
}

/// Why a payload became no job. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum JobNotMade {
    /// Its kind's codec cannot write the payload.
    #[error("the payload cannot be written: {0}")]
    Payload(#[from] CodecError),
    /// The payload gives no path.
    #[error(transparent)]
    Path(#[from] ParameterError),
}

impl IntoJob for NewJob {
    type Output = bytes::Bytes;

    fn into_job(self, _: impl FnOnce() -> JobId) -> Result<NewJob, JobNotMade> {
        Ok(self)
    }
}

impl<K: JobKind> IntoJob for K {
    type Output = K::Output;

    fn into_job(self, new_id: impl FnOnce() -> JobId) -> Result<NewJob, JobNotMade> {
        let path = self.path()?;
        let payload = <K::Codec as Codec<K>>::encode(&self)?;
        Ok(NewJob { options: K::options(), ..NewJob::new(path, new_id(), payload) })
    }
}
