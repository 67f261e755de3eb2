//! The attackers' share of a core. All attackers of an attack are tasks of one thread. One more
//! task reads that thread's processor time (`CLOCK_THREAD_CPUTIME_ID`, system calls included) every
//! few milliseconds, and blocks the thread for as long as it has used more than its share.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The time between two checks.
const TICK: Duration = Duration::from_millis(2);
/// The most unused processor time that is saved for later.
const BURST: Duration = Duration::from_millis(20);

/// Limits the processor time of its thread.
pub(super) struct Governor {
    share: Option<f64>,
    began: Instant,
    processor_at_begin: Duration,
}

/// What attackers used.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    /// Time on the clock.
    pub time: Duration,
    /// Processor time.
    pub processor: Duration,
}

impl Spent {
    /// The part of a core that was used.
    pub fn core_share(&self) -> f64 {
        self.processor.as_secs_f64() / self.time.as_secs_f64().max(1e-6)
    }
}

impl Governor {
    /// For the calling thread.
    pub(super) fn start(share: Option<f64>) -> Governor {
        Governor { share, began: Instant::now(), processor_at_begin: processor_time() }
    }

    /// What was used since the start.
    pub(super) fn spent(&self) -> Spent {
        let processor = processor_time().saturating_sub(self.processor_at_begin);
        Spent { time: self.began.elapsed(), processor }
    }

    /// Keeps the thread within its share for as long as it is polled.
    pub(super) async fn limit(&self) -> Infallible {
        let Some(share) = self.share else { return std::future::pending().await };
        let mut saved = BURST.as_secs_f64();
        let mut before = self.spent();
        loop {
            tokio::time::sleep(TICK).await;
            let now = self.spent();
            let earned = share * (now.time - before.time).as_secs_f64();
            let used = (now.processor - before.processor).as_secs_f64();
            saved = (saved + earned - used).min(BURST.as_secs_f64());
            before = now;
            if saved < 0.0 {
                // Blocks all attackers; the wait is earned at the next check.
                std::thread::sleep(Duration::from_secs_f64(-saved / share));
            }
        }
    }
}

/// The processor time of the calling thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}
