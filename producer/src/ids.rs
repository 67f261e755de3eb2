//! Random identifiers, and new jobs.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use longshore_kinds::IntoJob;
use longshore_protocol::{JobId, NewJob, Path, SessionId};
use rand::Rng;

use crate::outcome::EnqueueError;

/// Returns a new job id: a UUIDv7 of the current time with 74 random bits. Unique across machines,
/// except for collisions of the random bits.
pub fn new_id() -> JobId {
    // A clock before 1970 makes ids that sort first; nothing depends on their order.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 10];
    rand::rng().fill_bytes(&mut random);
    JobId::new_v7(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), random)
}

/// Creates a job for `path` with a new id and default options. The payload is anything that
/// converts to `Bytes`, such as a text or a `Vec<u8>`. A worker with a typed handler decodes it
/// from JSON.
pub fn new_job(path: Path, payload: impl Into<Bytes>) -> NewJob {
    NewJob::new(path, new_id(), payload)
}

/// The job of a payload; a [`NewJob`] has its id already.
pub(crate) fn to_job(
    job: impl IntoJob,
    new_id: impl FnOnce() -> JobId,
) -> Result<NewJob, EnqueueError> {
    job.into_job(new_id).map_err(|error| EnqueueError::BadPayload(error.to_string().into()))
}

/// Returns a new session id, by which publishers know a client's run.
pub(crate) fn new_session_id() -> SessionId {
    let mut id = [0; 16];
    rand::rng().fill_bytes(&mut id);
    SessionId(id)
}
