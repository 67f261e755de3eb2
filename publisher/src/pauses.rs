//! The durable pauses, closings and drain state. A status request does not wait for a disk, and
//! must not report what a power cut could undo.

use longshore_protocol::Glob;
use longshore_queue::State;

/// Pure: its inputs are the submitted changes and those that have become durable.
#[derive(Debug)]
pub(crate) struct DurablePauses {
    paused: Vec<Glob>,
    closed: Vec<Glob>,
    draining: bool,
    /// Changes that are submitted and not yet durable.
    uncommitted: usize,
}

impl DurablePauses {
    /// The state after a start: all of it is durable.
    pub(crate) fn from_durable(state: &State) -> DurablePauses {
        let (paused, closed) =
            (state.pauses().cloned().collect(), state.closings().cloned().collect());
        DurablePauses { paused, closed, draining: state.is_draining(), uncommitted: 0 }
    }

    /// A change was submitted.
    pub(crate) fn submitted(&mut self) {
        self.uncommitted += 1;
    }

    /// A change has become durable. With the last of them, the applied state is durable too.
    pub(crate) fn released(&mut self, applied: &State) {
        self.uncommitted = self.uncommitted.saturating_sub(1);
        if self.uncommitted == 0 {
            *self = DurablePauses::from_durable(applied);
        }
    }

    /// The patterns that are paused.
    pub(crate) fn paused(&self) -> &[Glob] {
        &self.paused
    }

    /// The patterns that are closed to new jobs.
    pub(crate) fn closed(&self) -> &[Glob] {
        &self.closed
    }

    /// Whether no new jobs are accepted at all.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{Gate, LinkId};
    use longshore_queue::{Command, Now, Outcomes};

    use super::*;

    #[test]
    fn pauses_and_closings_are_reported_only_once_durable() {
        let [a, b, c] = ["/a/**", "/b", "/c"].map(|text| Glob::new(text).unwrap());
        let mut state = State::new();
        let mut index = 0;
        let mut stop = |state: &mut State, gate, pattern: &Glob| {
            index += 1;
            let (link, request, pattern) = (LinkId(1), 1, pattern.clone());
            let command = Command::Pause { link, request, gate, pattern, paused: true };
            state.apply(index, Now::default(), &command, &mut Outcomes::default());
        };
        stop(&mut state, Gate::Delivery, &a);
        let mut pauses = DurablePauses::from_durable(&state);
        assert_eq!(pauses.paused(), std::slice::from_ref(&a));
        pauses.submitted();
        pauses.submitted();
        stop(&mut state, Gate::Delivery, &b);
        stop(&mut state, Gate::Enqueue, &c);
        // The first is durable; the state already contains the second.
        pauses.released(&state);
        assert_eq!((pauses.paused(), pauses.closed()), (std::slice::from_ref(&a), &[][..]));
        pauses.released(&state);
        assert_eq!((pauses.paused(), pauses.closed()), (&[a, b][..], &[c][..]));
    }
}
