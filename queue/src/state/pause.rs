//! Paused queues hand out no jobs, closed ones accept none; everything else goes on.
//!
//! What is paused, and what is closed, is a set of patterns. A queue is paused while one of them
//! matches it, whenever it was made; each queue counts how many do, so that nothing is matched when
//! a job comes or goes. The same for closed ones.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{PauseReport, RequestError};
use longshore_protocol::{Gate, Glob, Path};

use super::State;

/// The patterns that stop one gate, by their text.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns {
    by_text: BTreeMap<String, Glob>,
}

impl Patterns {
    /// The patterns that match, in the order of their texts.
    pub(super) fn of<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Glob> {
        self.by_text.values().filter(|pattern| pattern.matches(path))
    }

    /// All of them, in the order of their texts: for snapshots.
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.by_text.values()
    }

    /// False when it is there already.
    pub(super) fn insert(&mut self, pattern: Glob) -> bool {
        self.by_text.insert(pattern.as_str().to_owned(), pattern).is_none()
    }
}

impl State {
    /// The patterns that are paused, in the order of their texts.
    pub fn pauses(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.pauses.all()
    }

    /// The patterns that are closed to new jobs, in the order of their texts.
    pub fn closings(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.closings.all()
    }

    /// Stops the gate of the queues that match, those that come later too; or opens it again for
    /// just this pattern.
    pub(super) fn change_stops(
        &mut self,
        gate: Gate,
        pattern: &Glob,
        stopped: bool,
    ) -> Result<PauseReport, RequestError> {
        let most = self.rules.pauses as usize;
        let patterns = self.stops_mut(gate);
        let known = patterns.by_text.contains_key(pattern.as_str());
        let changed = known != stopped;
        if changed && stopped && patterns.by_text.len() >= most {
            return Err(RequestError::TooManyPauses);
        }
        if stopped {
            patterns.insert(pattern.clone());
        } else {
            patterns.by_text.remove(pattern.as_str());
        }
        let queues = self.queues_matching(pattern);
        if changed {
            for &queue in &queues {
                let stops = self.queues[queue as usize].stops_mut(gate);
                *stops = if stopped { *stops + 1 } else { *stops - 1 };
                if gate == Gate::Delivery {
                    self.touch(queue);
                }
            }
        }
        let still_by = self.other_stops(gate, pattern, stopped, &queues);
        Ok(PauseReport { queues: queues.len() as u64, changed, still_by })
    }

    /// Which other patterns stop some of the queues that match this one. Looks only at queues that
    /// another does stop, and for more only at those that the ones found so far do not account for.
    fn other_stops(&self, gate: Gate, pattern: &Glob, stopped: bool, queues: &[u32]) -> Vec<Glob> {
        let others = self.stops(gate).all().filter(|other| *other != pattern);
        let mut left: Vec<&Glob> = others.collect();
        if let (Some(path), true) = (pattern.literal(), queues.is_empty()) {
            // A queue that is not there yet is stopped all the same.
            left.retain(|other| other.matches(&path));
            return left.into_iter().cloned().collect();
        }
        let mut found = Vec::new();
        for &queue in queues {
            if left.is_empty() {
                break;
            }
            let q = &self.queues[queue as usize];
            let others = usize::from(q.stops(gate) - u16::from(stopped));
            let known = found.iter().filter(|other: &&Glob| other.matches(&q.path)).take(others);
            if known.count() < others {
                let stopping = left.extract_if(.., |other| other.matches(&q.path));
                found.extend(stopping.cloned());
            }
        }
        found.sort_by(|a: &Glob, b: &Glob| a.as_str().cmp(b.as_str()));
        found
    }

    fn stops(&self, gate: Gate) -> &Patterns {
        match gate {
            Gate::Delivery => &self.pauses,
            Gate::Enqueue => &self.closings,
        }
    }

    fn stops_mut(&mut self, gate: Gate) -> &mut Patterns {
        match gate {
            Gate::Delivery => &mut self.pauses,
            Gate::Enqueue => &mut self.closings,
        }
    }
}
