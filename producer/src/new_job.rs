//! Making jobs: ids from the wall clock and the thread's random numbers.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use longshore_protocol::{JobId, NewJob, Path};
use rand::Rng;

/// A new job id: a UUIDv7 of now. Two never are the same, also over machines, as far as 74 random
/// bits can tell.
pub fn new_id() -> JobId {
    // A clock before 1970 makes ids that sort first; nothing depends on their order.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut random = [0; 10];
    rand::rng().fill_bytes(&mut random);
    JobId::new_v7(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), random)
}

/// A job for `path` with a new id and default options. The payload is anything that becomes
/// `Bytes`: a text, a `Vec<u8>`, what serde made; a worker with a typed handler reads it as JSON.
pub fn new_job(path: Path, payload: impl Into<Bytes>) -> NewJob {
    NewJob::new(path, new_id(), payload)
}
