//! The rate of log lines about links that clients cause: refused, or closed for what they sent.

use std::time::{Duration, Instant};

use longshore_transport::LogLimit;
use parking_lot::Mutex;

/// Most lines in each [`PERIOD`], of all publishers of the process.
const LINES_MAX: u32 = 10;
const PERIOD: Duration = Duration::from_secs(10);

static LIMIT: Mutex<LogLimit> = Mutex::new(LogLimit::new(LINES_MAX, PERIOD));

/// Whether one more line may be written: the number of those left out since the last one.
pub(crate) fn admit() -> Option<u64> {
    LIMIT.lock().admit(Instant::now())
}
