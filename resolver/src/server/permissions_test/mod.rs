//! What a policy allows at a replica: every request, by every right.

mod log;
mod publishing;
mod reading;
mod requests;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_access::{Action, Identity, Policy};
use longshore_protocol::frame::{FrameWriter, Messages};
use longshore_protocol::limits::EPOCH_MAX;
use longshore_protocol::messages::resolver::{
    Announce, Change, Digest, FromReplica, Group, KeyHash, KnownPublisher, List, ListMatching,
    PathAnswer, PathListed, RequestRefusal, Resolve, Resolved, Table, ToReplica, WatchPaths,
    WatchPublishers, Write,
};
use longshore_protocol::{
    Epoch, Glob, Incarnation, Path, PublicationKind, PublisherId, PublisherInfo, Terms,
};
use tokio::sync::Semaphore;

use crate::directory::{Client, Directory, Push, Rules};
use crate::server::access::{AccessLog, ClientAccess};
use crate::server::request::{Context, GLOB_SEGMENTS_MAX, Progress, Request};
use crate::server::server_loop::StatusContext;

const QUEUE: PublicationKind = PublicationKind::Queue;
const VALUE: PublicationKind = PublicationKind::Value;
const TTL: Duration = Duration::from_secs(120);
const ME: Client = Client(2);
/// The publisher that the policies of these tests bind to the identity `me`.
const MINE: PublisherId = PublisherId([2; 16]);

fn path(text: &str) -> Path {
    Path::new(text).unwrap()
}

fn paths<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Path> {
    texts.into_iter().map(path).collect()
}

fn info(number: u8, epoch: u64) -> PublisherInfo {
    let (id, name) = (PublisherId([number; 16]), format!("publisher-{number}"));
    PublisherInfo::new(id, Epoch(epoch), name, [([127, 0, 0, 1], 4000 + u16::from(number))])
}

fn terms(kind: PublicationKind) -> Terms {
    Terms { kind, ..Terms::default() }
}

/// The access of an identity under a policy, which binds [`MINE`] to `me`.
fn access(name: &str, rules: &str) -> ClientAccess {
    let policy = format!("publishers.\"{MINE}\" = [\"token:me\"]\n{rules}");
    let identity: Identity = format!("token:{name}").parse().unwrap();
    let rights = Policy::parse(&policy).unwrap().rights(Some(&identity));
    ClientAccess::new(Some(identity.into()), ([127, 0, 0, 1], 4000).into(), rights.into())
}

fn allow(actions: &[&str], paths: &[&str]) -> String {
    format!("[[allow]]\nwho = [\"*\"]\ndo = {actions:?}\npaths = {paths:?}\n")
}

fn deny(actions: &[&str], paths: &[&str]) -> String {
    allow(actions, paths).replace("allow", "deny")
}

/// A directory with publisher 1, which was registered without a policy, and publisher 3, which had
/// a queue and is missing.
struct Replica {
    now: Instant,
    directory: Directory,
    log: AccessLog,
    registered_as: HashMap<Client, Option<PublisherId>>,
    /// The quota of every client.
    paths_max: Option<u32>,
}

impl Replica {
    fn new() -> Replica {
        let now = Instant::now();
        let directory = Directory::new(now, Incarnation([1; 16]), Rules::small(TTL));
        let mut replica = Replica {
            now,
            directory,
            log: AccessLog::new(),
            registered_as: HashMap::new(),
            paths_max: None,
        };
        replica.publish(Client(3), &info(3, 1), &[("/gone/q", PublicationKind::Queue, false)]);
        replica.directory.clear(Client(3)).unwrap();
        while replica.directory.sweep(100) {}
        let all = [
            ("/q/mail", PublicationKind::Queue, false),
            ("/v/load", PublicationKind::Value, false),
            ("/d", PublicationKind::Queue, true),
        ];
        replica.publish(Client(1), &info(1, 1), &all);
        replica
    }

    fn publish(
        &mut self,
        client: Client,
        info: &PublisherInfo,
        all: &[(&str, PublicationKind, bool)],
    ) {
        self.directory.announce(self.now, client, info, &[]).unwrap();
        let slot = self.directory.writer(client).unwrap();
        for &(text, kind, default) in all {
            let change = if default { Change::PublishDefault } else { Change::Publish };
            let path = path(text);
            self.directory.write_text(slot, change, &terms(kind), (&path).into()).unwrap();
        }
    }

    /// The answers to a request, whose every slice is as short as possible.
    fn ask(
        &mut self,
        client: Client,
        access: &ClientAccess,
        request: ToReplica,
    ) -> Vec<FromReplica> {
        let mut out = FrameWriter::new();
        request.encode(&mut out);
        let message = Messages::new(out.into_body()).next().unwrap();
        let mut job = Request::next(message, &Cell::default()).unwrap();
        let status = StatusContext {
            name: "left",
            connections: 0,
            uptime: TTL,
            slice_max: TTL,
            requests: &Cell::default(),
            slots: None,
        };
        let status = |directory: &Directory| status.status(directory);
        let mut context = Context {
            directory: &mut self.directory,
            client,
            writes: true,
            access,
            access_log: &mut self.log,
            status: &status,
            writer_ttl: TTL,
            glob_segments: &Arc::new(Semaphore::new(GLOB_SEGMENTS_MAX)),
            registered_as: self.registered_as.entry(client).or_default(),
            paths_max: self.paths_max,
            until: Instant::now(),
        };
        let mut answers = Vec::new();
        loop {
            match job.slice(&mut context) {
                Progress::More(answer) => answers.extend(answer),
                Progress::Done(answer) => {
                    answers.extend(answer);
                    return answers;
                }
            }
        }
    }

    fn announce(
        &mut self,
        client: Client,
        access: &ClientAccess,
        publisher: PublisherInfo,
        desired: Vec<Digest>,
    ) -> Result<Vec<Digest>, (RequestRefusal, String)> {
        let announce = Announce { id: 1, publisher, desired };
        let mut answers = self.ask(client, access, ToReplica::Announce(announce));
        match answers.pop() {
            Some(FromReplica::Announced(answer)) => Ok(answer.stored),
            Some(FromReplica::Refused { code, reason, .. }) => Err((code, reason)),
            other => panic!("{other:?}"),
        }
    }

    /// Publishes; returns the reasons of what is refused, by place.
    fn write(
        &mut self,
        client: Client,
        access: &ClientAccess,
        change: Change,
        kind: PublicationKind,
        texts: &[&str],
    ) -> BTreeMap<u32, String> {
        let paths = paths(texts.iter().copied());
        let group = Group { change, terms: terms(kind), paths: paths.iter().collect() };
        let write = Write { id: 1, groups: vec![group] };
        let mut refused = BTreeMap::new();
        for answer in self.ask(client, access, ToReplica::Write(write)) {
            let FromReplica::Written(written) = answer else { panic!("{answer:?}") };
            refused.extend(written.refused.into_iter().map(|one| (one.place, one.reason)));
        }
        refused
    }

    /// Everything that is pushed to a client.
    fn pushes(&mut self, client: Client) -> Vec<FromReplica> {
        let mut pushes = Vec::new();
        loop {
            match self.directory.push(client) {
                Push::Send(message) => pushes.push(message),
                Push::Working => {}
                Push::Done => return pushes,
            }
        }
    }

    fn resolve(&mut self, access: &ClientAccess, texts: &[&str]) -> Resolved {
        let paths = paths(texts.iter().copied()).iter().collect();
        let mut answers = self.ask(ME, access, ToReplica::Resolve(Resolve { id: 1, paths }));
        let Some(FromReplica::Resolved(resolved)) = answers.pop() else { panic!("{answers:?}") };
        assert!(answers.is_empty());
        resolved
    }

    fn list(&mut self, access: &ClientAccess, request: ToReplica) -> BTreeSet<PathListed> {
        let mut paths = Vec::new();
        for answer in self.ask(ME, access, request) {
            let FromReplica::Listed(listed) = answer else { panic!("{answer:?}") };
            paths.extend(listed.paths);
        }
        let all: BTreeSet<PathListed> = paths.iter().cloned().collect();
        assert_eq!(all.len(), paths.len(), "listed twice");
        all
    }

    fn publishers(&mut self, access: &ClientAccess) -> Vec<KnownPublisher> {
        let mut publishers = Vec::new();
        for answer in self.ask(ME, access, ToReplica::ListPublishers { id: 1 }) {
            let FromReplica::PublishersKnown(part) = answer else { panic!("{answer:?}") };
            publishers.extend(part.publishers);
        }
        publishers
    }
}

fn all_paths() -> ToReplica {
    ToReplica::ListMatching(ListMatching { id: 1, globs: vec![Glob::everything()] })
}
