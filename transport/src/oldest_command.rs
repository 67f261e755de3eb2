//! The payload of heartbeats: how long the sender's oldest command has waited to become durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use longshore_protocol::messages::HEARTBEAT;
use longshore_protocol::{Messages, Reader};

/// Since when the oldest command has waited: set by the publisher, sent by every link of a
/// listener. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OldestCommand {
    /// The origin of `since`.
    began: Instant,
    /// Milliseconds from `began`, plus 1; 0 when nothing waits.
    since: Arc<AtomicU64>,
}

impl Default for OldestCommand {
    /// Nothing waits.
    fn default() -> OldestCommand {
        OldestCommand { began: Instant::now(), since: Arc::default() }
    }
}

impl OldestCommand {
    /// Sets the arrival of the oldest command; `None` if none waits.
    pub fn waits_since(&self, since: Option<Instant>) {
        let ms = |since: Instant| since.saturating_duration_since(self.began).as_millis() as u64;
        self.since.store(since.map_or(0, |since| ms(since) + 1), Ordering::Relaxed);
    }

    /// Its age in milliseconds; `None` when nothing waits.
    pub(crate) fn age_ms(&self, now: Instant) -> Option<u64> {
        let since = self.since.load(Ordering::Relaxed).checked_sub(1)?;
        let now = now.saturating_duration_since(self.began).as_millis() as u64;
        Some(now.saturating_sub(since))
    }
}

/// Detects a slow disk of the other side from its heartbeats. Pure.
#[derive(Debug, Default)]
pub struct SlowDisk {
    last: Duration,
}

impl SlowDisk {
    /// The age from which users should be informed: a third of the default age at which a publisher
    /// withdraws.
    pub const AFTER: Duration = Duration::from_secs(10);

    /// Reads a frame. Returns the age of the other side's oldest command when it reaches
    /// [`SlowDisk::AFTER`] and had not before.
    pub fn on_frame(&mut self, frame: &Bytes) -> Option<Duration> {
        if frame.first() != Some(&HEARTBEAT) {
            return None;
        }
        let (_, body) = Messages::new(frame.clone()).next()?.ok()?;
        let age = Duration::from_millis(Reader::new(body).u64().ok()?);
        let last = std::mem::replace(&mut self.last, age);
        let is_news = last < SlowDisk::AFTER || age < last;
        (age >= SlowDisk::AFTER && is_news).then_some(age)
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::FrameWriter;

    use super::*;

    fn heartbeat(age: Option<Duration>) -> Bytes {
        let mut out = FrameWriter::new();
        let ms = age.map(|age| age.as_millis() as u64);
        out.message(HEARTBEAT, |out| ms.iter().for_each(|ms| out.u64(*ms)));
        out.into_body()
    }

    #[test]
    fn the_age_grows_until_nothing_waits() {
        let oldest = OldestCommand::default();
        let start = oldest.began;
        assert_eq!(oldest.age_ms(start), None);
        for came in [start, start + Duration::from_secs(7)] {
            oldest.clone().waits_since(Some(came));
            assert_eq!(oldest.age_ms(came), Some(0));
            assert_eq!(oldest.age_ms(came + Duration::from_millis(2_500)), Some(2_500));
        }
        oldest.waits_since(None);
        assert_eq!(oldest.age_ms(start + Duration::from_secs(9)), None);
    }

    #[test]
    fn a_slow_disk_is_reported_once_and_again_when_it_recurs() {
        let mut disk = SlowDisk::default();
        let seconds = |disk: &mut SlowDisk, seconds: u64| {
            disk.on_frame(&heartbeat(Some(Duration::from_millis(seconds * 1_000))))
        };
        assert_eq!(seconds(&mut disk, 9), None);
        assert_eq!(seconds(&mut disk, 10), Some(SlowDisk::AFTER));
        assert_eq!((seconds(&mut disk, 12), seconds(&mut disk, 28)), (None, None));
        assert_eq!(seconds(&mut disk, 11), Some(Duration::from_secs(11)));
        assert_eq!(seconds(&mut disk, 0), None);
        assert_eq!(seconds(&mut disk, 60), Some(Duration::from_secs(60)));
    }

    #[test]
    fn other_frames_report_nothing_about_a_disk() {
        let mut disk = SlowDisk::default();
        let mut other = FrameWriter::new();
        other.message(50, |out| out.u64(99_999));
        let cut = Bytes::from_static(&[HEARTBEAT, 9, 0, 0, 0]);
        for frame in [Bytes::new(), heartbeat(None), other.into_body(), cut] {
            assert_eq!(disk.on_frame(&frame), None);
        }
    }
}
