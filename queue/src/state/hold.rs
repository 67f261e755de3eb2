//! Nothing is handed out while the disk has room for little more than the ends of what runs.
//!
//! It is as if every queue were [paused](super::pause): those who bring jobs are
//! refused one by one, with a `Refuse` each. So a hold needs no rules of its own. It lasts over a restart, until it is lifted.

use super::State;

impl State {
    /// Whether nothing is handed out.
    pub fn is_held(&self) -> bool {
        self.held
    }

    pub(super) fn hold(&mut self, on: bool) {
        if self.held == on {
            return;
        }
        self.held = on;
        // Groups learn of it as they learn of a pause.
        for queue in 0..self.queues.len() as u32 {
            self.touch(queue);
        }
    }
}
