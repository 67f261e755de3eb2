//! Paused queues take no jobs and hand none out; everything else goes on.
//!
//! What is paused is a set of patterns. A queue is paused while one of them matches it, whenever it was made; each queue
//! counts how many do, so that nothing is matched when a job comes or goes.

use std::collections::BTreeMap;

use longshore_protocol::limits::PAUSES_MAX;
use longshore_protocol::messages::work::{PauseReport, RequestError};
use longshore_protocol::{Glob, LinkId, Path};

use super::State;
use crate::outcome::{Outcomes, Reply};

/// The paused patterns, by their text.
#[derive(Clone, Debug, Default)]
pub(super) struct Pauses {
    patterns: BTreeMap<String, Glob>,
}

impl Pauses {
    /// The patterns that match, in the order of their texts.
    pub(super) fn of<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Glob> {
        self.patterns.values().filter(|pattern| pattern.matches(path))
    }

    /// All of them, in the order of their texts: for snapshots.
    pub(super) fn patterns(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.patterns.values()
    }

    /// False when it is there already.
    pub(super) fn insert(&mut self, pattern: Glob) -> bool {
        self.patterns.insert(pattern.as_str().to_owned(), pattern).is_none()
    }
}

impl State {
    /// The patterns that are paused, in the order of their texts.
    pub fn pauses(&self) -> impl ExactSizeIterator<Item = &Glob> {
        self.pauses.patterns()
    }

    /// Pauses the queues that match, those that come later too; or takes just this pattern's pause away.
    pub(super) fn pause(
        &mut self,
        link: LinkId,
        request: u64,
        pattern: &Glob,
        paused: bool,
        out: &mut Outcomes,
    ) {
        let report = self.change_pauses(pattern, paused);
        out.replies.push((link, Reply::Paused { request, report }));
    }

    fn change_pauses(&mut self, pattern: &Glob, paused: bool) -> Result<PauseReport, RequestError> {
        let known = self.pauses.patterns.contains_key(pattern.as_str());
        let changed = known != paused;
        if changed && paused && self.pauses.patterns.len() >= PAUSES_MAX {
            return Err(RequestError::TooManyPauses);
        }
        if paused {
            self.pauses.insert(pattern.clone());
        } else {
            self.pauses.patterns.remove(pattern.as_str());
        }
        let queues = self.queues_matching(pattern);
        if changed {
            for &queue in &queues {
                let q = &mut self.queues[queue as usize];
                if paused {
                    q.pauses += 1;
                } else {
                    q.pauses -= 1;
                }
                self.touch(queue);
            }
        }
        let still_paused_by = self.other_pauses(pattern, paused, &queues);
        Ok(PauseReport { queues: queues.len() as u64, changed, still_paused_by })
    }

    /// Which other patterns pause some of the queues that match this one. Looks only at queues that another does pause, and
    /// for more only at those that the ones found so far do not account for.
    fn other_pauses(&self, pattern: &Glob, paused: bool, queues: &[u32]) -> Vec<Glob> {
        let others = self.pauses.patterns.values().filter(|other| *other != pattern);
        let mut left: Vec<&Glob> = others.collect();
        if let (Some(path), true) = (pattern.literal(), queues.is_empty()) {
            // A queue that is not there yet is paused all the same.
            left.retain(|other| other.matches(&path));
            return left.into_iter().cloned().collect();
        }
        let mut found = Vec::new();
        for &queue in queues {
            if left.is_empty() {
                break;
            }
            let q = &self.queues[queue as usize];
            let others = usize::from(q.pauses - u16::from(paused));
            let known = found.iter().filter(|other: &&Glob| other.matches(&q.path)).take(others);
            if known.count() < others {
                let pausing = left.extract_if(.., |other| other.matches(&q.path));
                found.extend(pausing.cloned());
            }
        }
        found.sort_by(|a: &Glob, b: &Glob| a.as_str().cmp(b.as_str()));
        found
    }
}
