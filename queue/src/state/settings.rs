//! A queue's settings change.

use longshore_protocol::{LinkId, Path, QueueSettings, Refusal};

use super::State;
use super::enqueue::Lane;
use crate::outcome::{Outcomes, Reply};

/// What a `Configure` says.
pub(super) struct Change<'a> {
    pub(super) path: &'a Path,
    pub(super) changes: &'a QueueSettings,
    /// Whether what does not change goes back to its default.
    pub(super) reset: bool,
}

impl State {
    /// Changes a queue's settings, of a new queue too, and answers with what is set now. What was
    /// taken before is looked at with them from now on.
    pub(super) fn configure(
        &mut self,
        link: LinkId,
        request: u64,
        change: &Change<'_>,
        out: &mut Outcomes,
    ) {
        let result = self.queue_to_configure(change.path, out).map(|queue| {
            let q = &mut self.queues[queue as usize];
            if change.reset {
                q.settings = QueueSettings::default();
            }
            q.settings.change(change.changes);
            let settings = q.settings.clone();
            if q.ended_jobs() > 0 || q.counts.dead > 0 {
                // Jobs that have ended may have to go now: the next `Tick` looks.
                self.collect_by(queue, self.now.mono_ms);
            }
            settings
        });
        out.replies.push((link, Reply::Configured { request, result }));
    }

    fn queue_to_configure(&mut self, path: &Path, out: &mut Outcomes) -> Result<u32, Refusal> {
        match self.lane_if_open(path) {
            Lane::Queue(queue) => Ok(queue),
            Lane::Closed(refusal) => Err(refusal),
            Lane::New if self.queues.len() as u64 >= self.rules.queues => {
                Err(Refusal::TooManyQueues)
            }
            Lane::New => Ok(self.make_queue(path, out)),
        }
    }
}
