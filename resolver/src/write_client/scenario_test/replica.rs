//! The replica of a scenario: a real directory without a socket, or a small model that follows the
//! protocol with any number of buckets.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::Instant;

use longshore_protocol::messages::resolver::{
    Change, Digest, Group, KeyHash, RefusedPath, RequestRefusal,
};
use longshore_protocol::{Epoch, Incarnation, PublisherId, PublisherInfo};

use super::HALF_TTL;
use crate::directory::{Client, ConfirmProgress, Directory, Rules};
use crate::write_client::buckets::POSITIONS;
use crate::write_client::desired_state::DesiredState;

/// The most paths of a directory that is checked whole at every step.
const CHECKED_AT_EVERY_STEP_MAX: usize = 200;

/// The kind of replica in a scenario.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReplicaKind {
    Directory,
    /// The model, with so many buckets at most.
    Model(usize),
}

thread_local! {
    /// The kind of the next replica.
    static REPLICA_KIND: Cell<ReplicaKind> = const { Cell::new(ReplicaKind::Directory) };
}

/// Runs a scenario with every kind of replica.
pub(super) fn with_each(scenario: impl Fn()) {
    for kind in [
        ReplicaKind::Directory,
        ReplicaKind::Model(1),
        ReplicaKind::Model(4),
        ReplicaKind::Model(16_384),
    ] {
        with(kind, &scenario);
    }
}

/// Runs a scenario with replicas of that kind.
pub(super) fn with(kind: ReplicaKind, scenario: impl FnOnce()) {
    REPLICA_KIND.set(kind);
    scenario();
    REPLICA_KIND.set(ReplicaKind::Directory);
}

pub(super) enum Replica {
    Directory(Box<Directory>),
    Model(Model),
}

impl Replica {
    pub(super) fn new(now: Instant) -> Replica {
        match REPLICA_KIND.get() {
            ReplicaKind::Directory => {
                let rules = Rules { paths_max: 2_000_000, ..Rules::small(2 * HALF_TTL) };
                Replica::Directory(Box::new(Directory::new(now, Incarnation([1; 16]), rules)))
            }
            ReplicaKind::Model(buckets) => {
                Replica::Model(Model { buckets, refuses: |_| false, publisher: None })
            }
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        match self {
            Replica::Directory(directory) => {
                directory.tick(now);
                while directory.sweep(100) {}
            }
            Replica::Model(model) => {
                model.publisher.take_if(|one| one.deadline <= now);
            }
        }
    }

    pub(super) fn record_activity(&mut self, link: Client, now: Instant) {
        match self {
            Replica::Directory(directory) => directory.record_activity(link, now),
            Replica::Model(model) => {
                if let Ok(publisher) = model.writer(link) {
                    publisher.deadline = now + 2 * HALF_TTL;
                }
            }
        }
    }

    pub(super) fn link_gone(&mut self, link: Client) {
        if let Replica::Directory(directory) = self {
            directory.client_gone(link);
        }
    }

    pub(super) fn announce(
        &mut self,
        now: Instant,
        link: Client,
        epoch: u64,
        desired: &[Digest],
    ) -> Result<Vec<Digest>, RequestRefusal> {
        match self {
            Replica::Directory(directory) => {
                let info = PublisherInfo::new(
                    PublisherId([1; 16]),
                    Epoch(epoch),
                    "left",
                    [([127, 0, 0, 1], 4000)],
                );
                directory.announce(now, link, &info, desired)
            }
            Replica::Model(model) => model.announce(now, link, epoch, desired),
        }
    }

    /// Returns the indexes of the paths that it refuses.
    pub(super) fn write(
        &mut self,
        link: Client,
        groups: &[Group],
    ) -> Result<Vec<RefusedPath>, RequestRefusal> {
        let mut refused = Vec::new();
        let mut position = 0;
        for group in groups {
            for text in group.paths.iter() {
                let path = text.parse().expect("the client sends paths");
                let done = match self {
                    Replica::Directory(directory) => {
                        let slot = directory.writer(link)?;
                        directory.write_text(slot, group.change, &group.terms, text)
                    }
                    Replica::Model(model) => {
                        model.change(link, group.change, group.terms.digest(), path.as_str())?
                    }
                };
                refused.extend(done.err().map(|reason| RefusedPath { place: position, reason }));
                position += 1;
            }
        }
        Ok(refused)
    }

    pub(super) fn confirm(&mut self, link: Client) -> Result<(), RequestRefusal> {
        match self {
            Replica::Directory(directory) => {
                let slot = directory.writer(link)?;
                let mut progress = ConfirmProgress::default();
                while !directory.confirm(slot, &mut progress, 3) {}
            }
            Replica::Model(model) => model.writer(link)?.confirm(),
        }
        Ok(())
    }

    pub(super) fn clear(&mut self, link: Client) -> Result<(), RequestRefusal> {
        match self {
            Replica::Directory(directory) => directory.clear(link),
            Replica::Model(model) => {
                model.writer(link)?;
                model.publisher = None;
                Ok(())
            }
        }
    }

    /// The digest of all its registrations.
    pub(super) fn registered(&self) -> Digest {
        match self {
            Replica::Directory(directory) => {
                // After every step only a small one; a large one by `Scenario::is_in_sync`.
                if directory.published_len() <= CHECKED_AT_EVERY_STEP_MAX {
                    directory.invariant();
                }
                directory.digest_of(PublisherId([1; 16]))
            }
            Replica::Model(model) => {
                model.publisher.as_ref().map_or(Digest::default(), |one| one.digests(1)[0])
            }
        }
    }

    pub(super) fn invariant(&self) {
        if let Replica::Directory(directory) = self {
            directory.invariant();
        }
    }

    /// A desired key that it lacks or has on other terms, except for refused ones. A directory is
    /// checked by digests only: while it has stale keys as well, by their number.
    pub(super) fn first_pending(
        &self,
        desired: &DesiredState,
        refused: impl Fn(KeyHash) -> bool,
    ) -> Option<String> {
        let mut at = 0;
        let mut all = Digest::default();
        while at < POSITIONS {
            let (keys, next) = desired.keys().keys_at(at);
            for (_, entry) in keys.filter(|(_, entry)| !refused(entry.hash)) {
                all.add(entry.hash, entry.terms.digest());
                if let Replica::Model(model) = self {
                    let registered =
                        model.publisher.as_ref().and_then(|one| one.registered.get(&entry.hash));
                    if registered.map(|(terms, _)| *terms) != Some(entry.terms.digest()) {
                        return Some(format!("{} as it is desired", entry.path));
                    }
                }
            }
            at = next;
        }
        let registered = self.registered();
        let less =
            registered.count < all.count || registered.count == all.count && registered != all;
        let is_directory = matches!(self, Replica::Directory(_));
        (is_directory && less).then(|| format!("{all:?}, but {registered:?}"))
    }

    /// Makes a model refuse some keys.
    pub(super) fn refuse(&mut self, refuses: fn(KeyHash) -> bool) {
        let Replica::Model(model) = self else { panic!("a directory decides by itself") };
        model.refuses = refuses;
    }
}

/// The protocol's rules of a replica, for one publisher.
pub(super) struct Model {
    buckets: usize,
    refuses: fn(KeyHash) -> bool,
    publisher: Option<Publisher>,
}

struct Publisher {
    epoch: u64,
    link: Client,
    deadline: Instant,
    /// With the terms, and whether it was written since the last announce.
    registered: HashMap<KeyHash, (u64, bool)>,
    /// Whether each bucket differed at the last announce.
    differ: Vec<bool>,
}

impl Model {
    fn writer(&mut self, link: Client) -> Result<&mut Publisher, RequestRefusal> {
        let Some(publisher) = &mut self.publisher else { return Err(RequestRefusal::NotAnnounced) };
        match publisher.link.cmp(&link) {
            Ordering::Equal => Ok(publisher),
            // Links are numbered in order.
            Ordering::Greater => Err(RequestRefusal::Superseded),
            Ordering::Less => Err(RequestRefusal::NotAnnounced),
        }
    }

    fn announce(
        &mut self,
        now: Instant,
        link: Client,
        epoch: u64,
        desired: &[Digest],
    ) -> Result<Vec<Digest>, RequestRefusal> {
        if self.publisher.as_ref().is_some_and(|one| one.epoch > epoch) {
            return Err(RequestRefusal::Superseded);
        }
        let publisher = self.publisher.get_or_insert_with(|| Publisher {
            epoch,
            link,
            deadline: now,
            registered: HashMap::new(),
            differ: Vec::new(),
        });
        (publisher.epoch, publisher.link) = (epoch, link);
        publisher.deadline = now + 2 * HALF_TTL;
        let buckets = desired.len().min(self.buckets);
        let registered = publisher.digests(buckets);
        let pairs = registered.iter().zip(Digest::fold(desired, buckets));
        publisher.differ = pairs.map(|(registered, desired)| *registered != desired).collect();
        publisher.registered.values_mut().for_each(|(_, written)| *written = false);
        Ok(registered)
    }

    fn change(
        &mut self,
        link: Client,
        change: Change,
        terms: u64,
        path: &str,
    ) -> Result<Result<(), String>, RequestRefusal> {
        let default = matches!(change, Change::PublishDefault | Change::UnpublishDefault);
        let hash = KeyHash::of(path, default);
        let refuses = self.refuses;
        let publisher = self.writer(link)?;
        if !change.publishes() {
            publisher.registered.remove(&hash);
        } else if refuses(hash) || path == "/" && !default {
            return Ok(Err("not this one".into()));
        } else {
            publisher.registered.insert(hash, (terms, true));
        }
        Ok(Ok(()))
    }
}

impl Publisher {
    fn digests(&self, buckets: usize) -> Vec<Digest> {
        let mut digests = vec![Digest::default(); buckets];
        for (hash, (terms, _)) in &self.registered {
            digests[hash.bucket(buckets)].add(*hash, *terms);
        }
        digests
    }

    fn confirm(&mut self) {
        let differ = std::mem::take(&mut self.differ);
        self.registered.retain(|hash, (_, written)| *written || !differ[hash.bucket(differ.len())]);
        self.differ = vec![false; differ.len()];
    }
}
