//! The paused and closed patterns, and whether the publisher is drained, as far as they are
//! durable: a status does not wait for a disk, and reports nothing that a power cut could take
//! back.

use longshore_protocol::Glob;
use longshore_queue::State;

/// Pure: it is told of each change that is submitted and of each that has become durable.
#[derive(Debug)]
pub(crate) struct Pauses {
    paused: Vec<Glob>,
    closed: Vec<Glob>,
    draining: bool,
    /// Changes that are submitted and not yet durable.
    under_way: usize,
}

impl Pauses {
    /// Those that a publisher starts with: all of them durable.
    pub(crate) fn started(state: &State) -> Pauses {
        let (paused, closed) =
            (state.pauses().cloned().collect(), state.closings().cloned().collect());
        Pauses { paused, closed, draining: state.is_draining(), under_way: 0 }
    }

    /// A change was submitted.
    pub(crate) fn submitted(&mut self) {
        self.under_way += 1;
    }

    /// One has become durable. With the last of them, what is applied is durable, too.
    pub(crate) fn released(&mut self, applied: &State) {
        self.under_way = self.under_way.saturating_sub(1);
        if self.under_way == 0 {
            *self = Pauses::started(applied);
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

    /// Whether no new jobs are taken at all.
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
    fn a_pause_and_a_closing_are_reported_once_they_are_durable_and_not_before() {
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
        let mut pauses = Pauses::started(&state);
        assert_eq!(pauses.paused(), std::slice::from_ref(&a));
        pauses.submitted();
        pauses.submitted();
        stop(&mut state, Gate::Delivery, &b);
        stop(&mut state, Gate::Enqueue, &c);
        // The first is durable; the state holds the second already.
        pauses.released(&state);
        assert_eq!((pauses.paused(), pauses.closed()), (std::slice::from_ref(&a), &[][..]));
        pauses.released(&state);
        assert_eq!((pauses.paused(), pauses.closed()), (&[a, b][..], &[c][..]));
    }
}
