//! Changes a queue's settings.

use longshore_protocol::{LinkId, Path, QueueSettings, Refusal};

use super::State;
use super::enqueue::Destination;
use crate::outcome::{Outcomes, Reply};

/// The parameters of a `Configure`.
pub(super) struct Change<'a> {
    pub(super) path: &'a Path,
    pub(super) changes: &'a QueueSettings,
    /// Whether all other settings return to their defaults.
    pub(super) reset: bool,
}

impl State {
    /// Changes a queue's settings, creating the queue if missing, and answers with the result. The
    /// new settings apply to existing jobs, too.
    pub(super) fn configure(
        &mut self,
        link: LinkId,
        request: u64,
        change: &Change<'_>,
        out: &mut Outcomes,
    ) {
        let result = self.queue_to_configure(change.path, out).map(|queue| {
            let blocked = self.dead_blocks_order(queue);
            let q = &mut self.queues[queue as usize];
            if change.reset {
                q.settings = QueueSettings::default();
            }
            q.settings.change(change.changes);
            let settings = q.settings.clone();
            if q.ended_jobs() > 0 || q.counts.dead > 0 {
                // Ended jobs may have to be removed now: the next `Tick` checks.
                self.schedule_cleanup(queue, self.now.mono_ms);
            }
            if blocked && !self.dead_blocks_order(queue) {
                self.return_turns_of_dead(queue);
            }
            settings
        });
        out.replies.push((link, Reply::Configured { request, result }));
    }

    fn queue_to_configure(&mut self, path: &Path, out: &mut Outcomes) -> Result<u32, Refusal> {
        match self.destination_if_open(path) {
            Destination::Queue(queue) => Ok(queue),
            Destination::Closed(refusal) => Err(refusal),
            Destination::New if self.queues.len() as u64 >= self.rules.queues => {
                Err(Refusal::TooManyQueues)
            }
            Destination::New => Ok(self.create_queue(path, out)),
        }
    }
}
