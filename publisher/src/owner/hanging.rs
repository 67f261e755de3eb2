//! What is done while the disk hangs: nobody is served, so that clients go where they can be; and
//! when it goes on.

use std::time::{Duration, Instant};

use longshore_protocol::Path;
use longshore_queue::{Command, Now, Poisoned};
use longshore_transport::OldestCommand;
use tracing::{error, info, warn};

use super::Owner;
use crate::hang::{Hang, Turned};
use crate::input::Up;
use crate::link::say_goodbye;

/// What is known of the disk.
pub(crate) struct WatchedDisk {
    pub(super) hang: Hang,
    /// When it is looked at again, if it has not said anything before.
    pub(super) look_at: Instant,
    /// What heartbeats tell of it.
    oldest: OldestCommand,
}

impl WatchedDisk {
    /// It hangs once a command has waited for so long.
    pub(crate) fn new(hang_after: Duration, oldest: OldestCommand) -> WatchedDisk {
        WatchedDisk { hang: Hang::after(hang_after), look_at: Instant::now(), oldest }
    }
}

impl Owner {
    /// Sees whether the disk hangs, or goes on; says when to look again.
    pub(super) fn look_at_the_disk(&mut self) -> Result<(), Poisoned> {
        let at = Instant::now();
        let now = self.clock.now();
        let age = |since: u64| Duration::from_millis(now.mono_ms.saturating_sub(since));
        let since = self.store.oldest_uncommitted().and_then(|since| at.checked_sub(age(since)));
        self.disk.oldest.waits_since(since);
        // Between two looks nothing can have become too old. That it goes on shows at once.
        if at < self.disk.look_at && !self.disk.hang.is_on() {
            return Ok(());
        }
        let oldest = self.oldest(now);
        match self.disk.hang.look(oldest) {
            Some(Turned::Hangs) => self.withdraw(now, oldest)?,
            Some(Turned::GoesOn) => self.come_back(),
            None => {}
        }
        self.disk.look_at = at + self.disk.hang.look_in(oldest);
        Ok(())
    }

    fn oldest(&self, now: Now) -> Duration {
        Duration::from_millis(self.store.oldest_uncommitted_ms(now))
    }

    /// Every link is told and closed, and the paths are taken back: new clients are sent elsewhere.
    fn withdraw(&mut self, now: Now, oldest: Duration) -> Result<(), Poisoned> {
        let reason = Hang::reason(oldest);
        let closed = self.router.close_all(&reason);
        error!(links = closed.len(), "{reason}; links are closed, and paths taken back");
        for link in closed {
            self.awaits.link_lost(link);
            self.feeds.link_lost(link);
            self.refusals.link_lost(link);
            self.store.submit(now, Command::LinkLost { link })?;
        }
        self.store.flush();
        if let Some(registry) = &self.registry {
            let (paths, defaults) = self.published();
            registry.unpublish_all(paths, defaults);
        }
        Ok(())
    }

    fn come_back(&mut self) {
        info!("the disk goes on: paths are published, and links taken again");
        if let Some(registry) = &self.registry {
            let (paths, defaults) = self.published();
            registry.publish_all(paths, defaults);
        }
        self.idle.all_published();
    }

    /// All that is published: what this start was told, and the queues that there are.
    fn published(&self) -> (Vec<Path>, Vec<Path>) {
        let state = self.store.state();
        let (mut paths, defaults) = match state.last_start() {
            Some(start) => (start.paths.clone(), start.defaults.clone()),
            None => (Vec::new(), Vec::new()),
        };
        paths.extend(state.queue_paths().cloned());
        (paths, defaults)
    }

    /// A link that comes while the disk hangs would wait for its first answer as long as the
    /// others.
    pub(super) fn refuse_link(&mut self, now: Now, up: &Up) {
        let reason = Hang::reason(self.oldest(now));
        warn!(link = up.link.0, name = up.name, "link refused: {reason}");
        say_goodbye(&up.sender, reason);
    }
}
