//! Answers to `resolve`, a slice at a time.

use hashbrown::HashMap;
use longshore_protocol::messages::resolver::{PathAnswer, PathText, Resolved, SetMember};
use longshore_protocol::{Path, Terms};

use crate::directory::{Directory, Slot};

/// Builds one message of answers: each publisher and each set in it once.
#[derive(Default, Debug)]
pub(crate) struct Resolver {
    publishers: Vec<Slot>,
    places: HashMap<Slot, u32>,
    sets: HashMap<Vec<Slot>, u32>,
    answers: Vec<PathAnswer>,
    scratch: Vec<Slot>,
    members: usize,
}

impl Resolver {
    /// Members of all sets so far: what the message's length depends on, beside the number of answers.
    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// Answers the next path.
    pub(crate) fn answer(&mut self, directory: &Directory, text: &PathText) {
        let answer = match text.as_str() {
            Some(path) if self.seen(directory, directory.publishers_at(path)) => {
                PathAnswer::Published { set: self.set() }
            }
            _ => match text.parse() {
                Err(reason) => PathAnswer::Refused { reason },
                Ok(path) if self.seen_above(directory, &path) => {
                    PathAnswer::ByDefault { set: self.set() }
                }
                Ok(_) => PathAnswer::NotFound,
            },
        };
        self.answers.push(answer);
    }

    /// The message, for the request `id`.
    pub(crate) fn finish(self, directory: &Directory, id: u64, last: bool) -> Resolved {
        let mut sets = vec![Vec::new(); self.sets.len()];
        for (slots, place) in self.sets {
            sets[place as usize] = slots
                .iter()
                .map(|slot| SetMember { publisher: self.places[slot], terms: 0 })
                .collect();
        }
        Resolved {
            id,
            last,
            complete: directory.complete,
            tracker: directory.tracker(),
            publishers: self
                .publishers
                .iter()
                .map(|&slot| directory.slots[slot].info.clone())
                .collect(),
            terms: vec![Terms::default()],
            sets,
            answers: self.answers,
        }
    }

    /// Keeps those of `members` that can be seen. False when there is none.
    fn seen(&mut self, directory: &Directory, members: &[Slot]) -> bool {
        self.scratch.clear();
        self.scratch.extend(members.iter().filter(|&&slot| !directory.slots[slot].hidden));
        !self.scratch.is_empty()
    }

    /// Keeps those of the deepest default at or above `path` that can be seen.
    fn seen_above(&mut self, directory: &Directory, path: &Path) -> bool {
        if directory.default_paths.is_empty() {
            return false;
        }
        let mut at = path.as_str();
        loop {
            if self.seen(directory, directory.defaults_at(at)) {
                return true;
            }
            // Cut at slashes, so that `/a` is above `/a/b` and not above `/ab`.
            at = match at.rfind('/') {
                Some(0) if at.len() > 1 => "/",
                Some(end) if end > 0 => &at[..end],
                _ => return false,
            };
        }
    }

    /// The place of the set that was kept last.
    fn set(&mut self) -> u32 {
        if let Some(&place) = self.sets.get(&self.scratch) {
            return place;
        }
        for &slot in &self.scratch {
            if !self.places.contains_key(&slot) {
                self.places.insert(slot, self.publishers.len() as u32);
                self.publishers.push(slot);
            }
        }
        self.members += self.scratch.len();
        let place = self.sets.len() as u32;
        self.sets.insert(self.scratch.clone(), place);
        place
    }
}

impl Directory {
    fn publishers_at(&self, path: &str) -> &[Slot] {
        self.nodes.get(path).map_or(&[], |node| &node.publishers)
    }

    fn defaults_at(&self, path: &str) -> &[Slot] {
        self.nodes.get(path).map_or(&[], |node| &node.defaults)
    }
}
