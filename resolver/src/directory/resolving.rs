//! Answers to `resolve`, a slice at a time.

use hashbrown::HashMap;
use longshore_protocol::messages::resolver::{PathAnswer, PathText, Resolved, SetMember};
use longshore_protocol::{Address, PublisherInfo, Terms};

use crate::directory::registrations::Registration;
use crate::directory::sets::{EMPTY_SET, Member, SetId};
use crate::directory::terms::TermsId;
use crate::directory::tree::NodeId;
use crate::directory::{Directory, PathHashes, Slot};

/// Builds one message of answers: with each publisher and each set once.
#[derive(Default, Debug)]
pub(crate) struct AnswerBuilder {
    publishers: Vec<Slot>,
    publisher_indexes: HashMap<Slot, u32>,
    terms: Vec<TermsId>,
    terms_indexes: HashMap<TermsId, u32>,
    /// The index in the message of each set, reduced to visible members; `None` if there are none.
    known_sets: HashMap<SetId, Option<u32>>,
    /// The last set: most paths have the same.
    last: Option<(SetId, Option<u32>)>,
    /// The default above the children of a node, the last one: most paths have the same parent.
    last_default: Option<(NodeId, Option<u32>)>,
    sets: Vec<Vec<Member>>,
    by_members: HashMap<Vec<Member>, u32>,
    answers: Vec<PathAnswer>,
    members: usize,
    bytes: usize,
}

impl AnswerBuilder {
    /// Members of all sets so far: the message's length depends on them, beside the number of
    /// answers.
    pub(crate) fn members(&self) -> usize {
        self.members
    }

    /// The approximate size of publishers, terms and refusals in the message, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Answers the next path, which has these hashes.
    pub(crate) fn answer(&mut self, directory: &Directory, text: PathText<'_>, hashes: PathHashes) {
        let node = directory.paths.tree.find_by(hashes, text.as_bytes());
        let set = node.map_or(EMPTY_SET, |node| directory.paths.tree.set(node));
        let answer = match (node, self.seen(directory, set)) {
            (Some(node), Some(set)) => {
                PathAnswer::Published { set, default: self.default_for(directory, node) }
            }
            _ => self.answer_unpublished(directory, text),
        };
        if let PathAnswer::Refused { reason } = &answer {
            self.bytes += reason.len();
        }
        self.answers.push(answer);
    }

    /// Answers the next path as one that nobody publishes.
    pub(crate) fn answer_not_found(&mut self) {
        self.answers.push(PathAnswer::NotFound);
    }

    /// [`AnswerBuilder::answer`] for a text that is not hashed yet.
    #[cfg(test)]
    pub(crate) fn answer_text(&mut self, directory: &Directory, text: PathText<'_>) {
        let [hashes, ..] = directory.prefetch(std::iter::once(text));
        self.answer(directory, text, hashes);
    }

    /// Answers a path that is not published, or is invalid.
    fn answer_unpublished(&mut self, directory: &Directory, text: PathText<'_>) -> PathAnswer {
        let path = match text.check() {
            Ok(path) => path,
            Err(reason) => return PathAnswer::Refused { reason },
        };
        let set = directory.paths.default_above(path, |set| self.seen(directory, set).is_some());
        match set.and_then(|set| self.seen(directory, set)) {
            Some(set) => PathAnswer::ByDefault { set },
            None => PathAnswer::NotFound,
        }
    }

    /// The set of the nearest default at or above a node.
    fn default_for(&mut self, directory: &Directory, node: NodeId) -> Option<u32> {
        if directory.paths.defaults_len() == 0 {
            return None;
        }
        if let Some(set) = self.default_at(directory, node) {
            return Some(set);
        }
        let parent = directory.paths.tree.above(node)?;
        if let Some((last, set)) = self.last_default
            && last == parent
        {
            return set;
        }
        let mut at = Some(parent);
        let set = loop {
            let Some(node) = at else { break None };
            if let Some(set) = self.default_at(directory, node) {
                break Some(set);
            }
            at = directory.paths.tree.above(node);
        };
        self.last_default = Some((parent, set));
        set
    }

    fn default_at(&mut self, directory: &Directory, node: NodeId) -> Option<u32> {
        self.seen(directory, directory.paths.set(Registration { node, default: true }))
    }

    /// The message, for the request `id`.
    pub(crate) fn finish(self, directory: &Directory, id: u64, last: bool) -> Resolved {
        let member = |member: &Member| SetMember {
            publisher: self.publisher_indexes[&member.slot],
            terms: self.terms_indexes[&member.terms],
        };
        let terms = |&terms: &TermsId| directory.paths.sets.terms_table.get(terms).clone();
        let info = |&slot: &Slot| directory.publishers[slot].info.clone();
        Resolved {
            id,
            last,
            complete: directory.complete,
            tracker: directory.tracker(),
            publishers: self.publishers.iter().map(info).collect(),
            terms: self.terms.iter().map(terms).collect(),
            sets: self.sets.iter().map(|set| set.iter().map(member).collect()).collect(),
            answers: self.answers,
        }
    }

    /// The index of a set, reduced to its visible members. `None` if there are none.
    fn seen(&mut self, directory: &Directory, set: SetId) -> Option<u32> {
        if set == EMPTY_SET {
            return None;
        }
        if let Some((last, index)) = self.last
            && last == set
        {
            return index;
        }
        let index = match self.known_sets.get(&set) {
            Some(&index) => index,
            None => {
                let index = self.add_set(directory, set);
                self.known_sets.insert(set, index);
                index
            }
        };
        self.last = Some((set, index));
        index
    }

    fn add_set(&mut self, directory: &Directory, set: SetId) -> Option<u32> {
        let members = directory.paths.sets.members(set).iter().copied();
        let seen: Vec<Member> =
            members.filter(|member| !directory.publishers[member.slot].is_hidden()).collect();
        if seen.is_empty() {
            return None;
        }
        if let Some(&index) = self.by_members.get(&seen) {
            return Some(index);
        }
        for member in &seen {
            self.publisher_indexes.entry(member.slot).or_insert_with(|| {
                self.publishers.push(member.slot);
                self.bytes += publisher_bytes(&directory.publishers[member.slot].info);
                (self.publishers.len() - 1) as u32
            });
            self.terms_indexes.entry(member.terms).or_insert_with(|| {
                self.terms.push(member.terms);
                self.bytes += terms_bytes(directory.paths.sets.terms_table.get(member.terms));
                (self.terms.len() - 1) as u32
            });
        }
        self.members += seen.len();
        let index = self.sets.len() as u32;
        self.by_members.insert(seen.clone(), index);
        self.sets.push(seen);
        Some(index)
    }
}

/// The most bytes of a fixed-length field, or of the length of a variable one.
const FIELD_BYTES: usize = 16;

/// An upper estimate of a publisher's size in a message, in bytes.
fn publisher_bytes(info: &PublisherInfo) -> usize {
    let addresses: usize = info.addresses.iter().map(Address::encoded_bytes_max).sum();
    let tls_name = info.tls_name.as_ref().map_or(0, |name| name.as_str().len());
    let names = info.name.len() + tls_name;
    let later = info.later.as_bytes().len();
    5 * FIELD_BYTES + names + addresses + later
}

/// An upper estimate of the size of terms in a message, in bytes.
fn terms_bytes(terms: &Terms) -> usize {
    let homes = FIELD_BYTES * terms.homes.texts() + terms.homes.text_bytes();
    5 * FIELD_BYTES + homes + terms.later.as_bytes().len()
}
