//! What happens while the disk hangs: links are closed and paths withdrawn, so that clients use
//! other publishers; and what happens when it recovers.

use std::time::{Duration, Instant};

use longshore_protocol::Path;
use longshore_queue::{Command, Now, Poisoned};
use longshore_transport::OldestCommand;
use tracing::{error, info, warn};

use super::Owner;
use crate::event::NewLink;
use crate::hang::{HangChange, HangDetector};
use crate::health::{HealthRequest, PublisherHealth};
use crate::link::send_goodbye;
use crate::link_log;

/// The state of the disk.
pub(crate) struct DiskWatch {
    pub(super) hang: HangDetector,
    /// When it is checked again, if nothing becomes durable before.
    pub(super) check_at: Instant,
    /// The age that heartbeats report.
    oldest: OldestCommand,
}

impl DiskWatch {
    /// The disk hangs once a command has waited for `hang_after`.
    pub(crate) fn new(hang_after: Duration, oldest: OldestCommand) -> DiskWatch {
        DiskWatch { hang: HangDetector::after(hang_after), check_at: Instant::now(), oldest }
    }
}

impl Owner {
    /// Checks whether the disk hangs or has recovered.
    pub(super) fn check_disk(&mut self) -> Result<(), Poisoned> {
        let at = Instant::now();
        let now = self.clock.now();
        let age = |since: u64| Duration::from_millis(now.mono_ms.saturating_sub(since));
        let since = self.store.oldest_uncommitted().and_then(|since| at.checked_sub(age(since)));
        self.disk.oldest.waits_since(since);
        // Between two checks no command can become too old; a recovery shows at once.
        if at < self.disk.check_at && !self.disk.hang.is_hung() {
            return Ok(());
        }
        let oldest = self.oldest(now);
        match self.disk.hang.observe(oldest) {
            Some(HangChange::Hung) => self.withdraw(now, oldest)?,
            Some(HangChange::Recovered) => self.recover(now),
            None => {}
        }
        self.disk.check_at = at + self.disk.hang.next_check_in(oldest);
        Ok(())
    }

    /// Reports whether the disk hangs, to a watchdog.
    pub(super) fn answer_health(&mut self, answer: HealthRequest) {
        let now = self.clock.now();
        let oldest_uncommitted = self.oldest(now);
        let disk_hangs = self.disk.hang.is_hung();
        // The client may have gone.
        let _ = answer.send(PublisherHealth { oldest_uncommitted, disk_hangs });
    }

    fn oldest(&self, now: Now) -> Duration {
        Duration::from_millis(self.store.oldest_uncommitted_ms(now))
    }

    /// Closes every link with the reason and withdraws the paths: new clients go elsewhere.
    fn withdraw(&mut self, now: Now, oldest: Duration) -> Result<(), Poisoned> {
        let reason = HangDetector::reason(oldest);
        let closed = self.router.close_all(&reason);
        error!(links = closed.len(), "{reason}; links are closed, and paths taken back");
        for link in closed {
            self.waiters.link_lost(link);
            self.feeds.link_lost(link);
            self.refusals.link_lost(link);
            self.store.return_unsent(now, link)?;
            self.store.submit(now, Command::LinkLost { link })?;
        }
        self.store.flush();
        if let Some(registry) = &self.registry {
            let (paths, defaults) = self.published();
            registry.unpublish_all(paths, defaults);
        }
        Ok(())
    }

    fn recover(&mut self, now: Now) {
        info!("the disk works again: paths are published, and links accepted");
        // No worker could resume its leases meanwhile, nor settle what it had done.
        self.store.hang_ended(now);
        if let Some(registry) = &self.registry {
            let (paths, defaults) = self.published();
            registry.publish_all(paths, defaults);
        }
        self.idle.reset();
    }

    /// Everything that is published: this start's paths and defaults, and the existing queues.
    fn published(&self) -> (Vec<Path>, Vec<Path>) {
        let state = self.store.state();
        let (mut paths, defaults) = match state.last_start() {
            Some(start) => (start.paths.clone(), start.defaults.clone()),
            None => (Vec::new(), Vec::new()),
        };
        paths.extend(state.queue_paths().cloned());
        (paths, defaults)
    }

    /// Refuses a link that arrives while the disk hangs: it would wait for its first answer as long
    /// as the others.
    pub(super) fn refuse_link(&mut self, now: Now, new_link: &NewLink) {
        let reason = HangDetector::reason(self.oldest(now));
        if let Some(left_out) = link_log::admit() {
            let (link, name) = (new_link.link.0, &new_link.name);
            warn!(link, name, left_out, "link refused: {reason}");
        }
        send_goodbye(&new_link.sender, reason);
    }
}
