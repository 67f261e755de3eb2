//! Paused queues deliver no jobs, closed ones accept none; everything else continues.
//!
//! The paused and the closed queues are two sets of patterns. A queue is paused while one of them
//! matches it, whenever it was created; each queue counts its matches, so that jobs need no
//! matching. The same for closed ones.

use std::collections::BTreeMap;

use longshore_protocol::messages::work::{PauseReport, RequestError};
use longshore_protocol::{Gate, Glob, Path};

use super::State;

/// The patterns that close one gate, by their text.
#[derive(Clone, Debug, Default)]
pub(super) struct Patterns {
    by_text: BTreeMap<String, Glob>,
}

impl Patterns {
    /// The patterns that match, sorted by text.
    pub(super) fn of<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Glob> {
        self.by_text.values().filter(|pattern| pattern.matches(path))
    }

    /// All patterns, sorted by text: for snapshots.
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.by_text.values()
    }

    /// False if it is there already.
    pub(super) fn insert(&mut self, pattern: Glob) -> bool {
        self.by_text.insert(pattern.as_str().to_owned(), pattern).is_none()
    }
}

impl State {
    /// The paused patterns, sorted by text.
    pub fn pauses(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.pauses.all()
    }

    /// The patterns that are closed to new jobs, sorted by text.
    pub fn closings(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.closings.all()
    }

    /// Closes the gate of the matching queues, future ones included; or opens it again for this
    /// pattern.
    pub(super) fn set_gate(
        &mut self,
        gate: Gate,
        pattern: &Glob,
        closed: bool,
    ) -> Result<PauseReport, RequestError> {
        let most = self.rules.pauses as usize;
        let patterns = self.patterns_mut(gate);
        let known = patterns.by_text.contains_key(pattern.as_str());
        let changed = known != closed;
        if changed && closed && patterns.by_text.len() >= most {
            return Err(RequestError::TooManyPauses);
        }
        if closed {
            patterns.insert(pattern.clone());
        } else {
            patterns.by_text.remove(pattern.as_str());
        }
        let queues = self.queues_matching(pattern);
        if changed {
            for &queue in &queues {
                let patterns = self.queues[queue as usize].patterns_mut(gate);
                *patterns = if closed { *patterns + 1 } else { *patterns - 1 };
                if gate == Gate::Delivery {
                    self.mark_changed(queue);
                }
            }
        }
        let still_by = self.other_patterns(gate, pattern, closed, &queues);
        Ok(PauseReport { queues: queues.len() as u64, changed, still_by })
    }

    /// The other patterns that close the gate for some of the matching queues. Examines only queues
    /// with another pattern, and only those that the patterns found so far do not explain.
    fn other_patterns(
        &self,
        gate: Gate,
        pattern: &Glob,
        closed: bool,
        queues: &[u32],
    ) -> Vec<Glob> {
        let others = self.patterns(gate).all().filter(|other| *other != pattern);
        let mut left: Vec<&Glob> = others.collect();
        if let (Some(path), true) = (pattern.literal(), queues.is_empty()) {
            // A queue that does not exist yet is paused all the same.
            left.retain(|other| other.matches(&path));
            return left.into_iter().cloned().collect();
        }
        let mut found = Vec::new();
        for &queue in queues {
            if left.is_empty() {
                break;
            }
            let q = &self.queues[queue as usize];
            let others = usize::from(q.patterns(gate) - u16::from(closed));
            let known = found.iter().filter(|other: &&Glob| other.matches(&q.path)).take(others);
            if known.count() < others {
                let matching = left.extract_if(.., |other| other.matches(&q.path));
                found.extend(matching.cloned());
            }
        }
        found.sort_by(|a: &Glob, b: &Glob| a.as_str().cmp(b.as_str()));
        found
    }

    fn patterns(&self, gate: Gate) -> &Patterns {
        match gate {
            Gate::Delivery => &self.pauses,
            Gate::Enqueue => &self.closings,
        }
    }

    fn patterns_mut(&mut self, gate: Gate) -> &mut Patterns {
        match gate {
            Gate::Delivery => &mut self.pauses,
            Gate::Enqueue => &mut self.closings,
        }
    }
}
