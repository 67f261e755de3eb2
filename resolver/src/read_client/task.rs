//! The task around the core: it does I/O and timing, and makes no decisions.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{
    List, ListMatching, Resolve, Table, ToReplica, WatchPaths, WatchPublishers,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::read_client::answer::{Answer, ReadError};
use crate::read_client::core::{Action, Event, Question, ReadCore, Subject, WatchUpdate};
use crate::read_client::links::Links;
use crate::read_client::watch::{PublisherSet, SharedView};
use crate::replica_link::{Caller, LinkEvent, now, until};

/// A command of a handle.
#[derive(Debug)]
pub(super) enum Command {
    Ask { batch: u64, question: Question, reply: oneshot::Sender<Result<Answer, ReadError>> },
    Forget { batch: u64 },
    Watch { watch: u32, glob: Glob, update: watch::Sender<Option<PublisherSet>> },
    WatchPaths { watch: u32, globs: Arc<[Glob]>, view: Arc<SharedView> },
    Unwatch { watch: u32 },
}

/// Runs until all handles and watches are gone.
pub(super) async fn run(caller: Caller, mut commands: mpsc::UnboundedReceiver<Command>) {
    let cluster = &caller.cluster;
    let core = ReadCore::new(cluster.timing.clone(), cluster.replicas.clone(), rand::random());
    let mut task = ClientTask {
        core,
        caller,
        links: Links::default(),
        replies: HashMap::new(),
        watches: HashMap::new(),
        events: VecDeque::new(),
    };
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => task.command(command),
                None => return,
            },
            (link, event) = task.links.next() => task.event(link, event),
            () = until(task.core.next_deadline()) => task.events.push_back(Event::Tick),
        }
        task.settle();
    }
}

struct ClientTask {
    caller: Caller,
    core: ReadCore,
    links: Links,
    replies: HashMap<u64, oneshot::Sender<Result<Answer, ReadError>>>,
    watches: HashMap<u32, Watcher>,
    events: VecDeque<Event>,
}

/// The receiver of a watch's updates.
enum Watcher {
    Publishers(watch::Sender<Option<PublisherSet>>),
    Paths(Arc<SharedView>),
}

impl ClientTask {
    fn command(&mut self, command: Command) {
        self.events.push_back(match command {
            Command::Ask { batch, question, reply } => {
                self.replies.insert(batch, reply);
                Event::Ask { batch, question }
            }
            Command::Forget { batch } => {
                self.replies.remove(&batch);
                Event::Forget { batch }
            }
            Command::Watch { watch, glob, update } => {
                self.watches.insert(watch, Watcher::Publishers(update));
                Event::Watch { watch, subject: Subject::Publishers(glob) }
            }
            Command::WatchPaths { watch, globs, view } => {
                self.watches.insert(watch, Watcher::Paths(view));
                Event::Watch { watch, subject: Subject::Paths(globs) }
            }
            Command::Unwatch { watch } => {
                self.watches.remove(&watch);
                Event::Unwatch { watch }
            }
        });
    }

    fn event(&mut self, link: u64, event: LinkEvent) {
        match event {
            LinkEvent::Linked => self.events.push_back(Event::Linked { link }),
            LinkEvent::Unlinked { why } => self.events.push_back(Event::Unlinked { link, why }),
            LinkEvent::Received { messages, damaged } => {
                let received = |message| Event::Received { link, message };
                self.events.extend(messages.into_iter().map(received));
                if let Some(why) = damaged {
                    self.links.close(link);
                    self.events.push_back(Event::Unlinked { link, why });
                }
            }
        }
    }

    /// Steps the core until no event is left.
    fn settle(&mut self) {
        while let Some(event) = self.events.pop_front() {
            for action in self.core.step(now(), event) {
                self.act(action);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dial { link, replica } => {
                let replica = &self.caller.cluster.replicas[replica];
                if let Err(why) = self.links.dial(link, &self.caller, replica) {
                    self.events.push_back(Event::Unlinked { link, why });
                }
            }
            // The core ignores earlier messages of this link that are still queued.
            Action::Close { link } => self.links.close(link),
            Action::Ask { link, request: id, question, range } => self.send(
                link,
                match question {
                    Question::Resolve { paths, .. } => {
                        let paths = paths[range].iter().collect();
                        ToReplica::Resolve(Resolve { id, paths })
                    }
                    Question::List(path) => ToReplica::List(List { id, path }),
                    Question::ListMatching(globs) => {
                        ToReplica::ListMatching(ListMatching { id, globs: globs.to_vec() })
                    }
                    Question::Table(path) => ToReplica::Table(Table { id, path }),
                },
            ),
            Action::Watch { link, request: id, watch, subject } => self.send(
                link,
                match subject {
                    Subject::Publishers(glob) => {
                        ToReplica::WatchPublishers(WatchPublishers { id, watch, glob })
                    }
                    Subject::Paths(globs) => {
                        ToReplica::WatchPaths(WatchPaths { id, watch, globs: globs.to_vec() })
                    }
                },
            ),
            Action::Unwatch { link, request: id, watch } => {
                self.send(link, ToReplica::Unwatch { id, watch });
            }
            Action::Finish { batch, answer } => {
                if let Err(error) = &answer {
                    tracing::warn!(%error, "a resolver batch has failed");
                }
                if let Some(reply) = self.replies.remove(&batch) {
                    let _ = reply.send(answer);
                }
            }
            Action::Update { link, watch, replica, update } => {
                self.deliver(link, watch, replica, update)
            }
        }
    }

    fn deliver(&mut self, link: u64, watch: u32, replica: usize, update: WatchUpdate) {
        let replica = &self.caller.cluster.replicas[replica];
        if let WatchUpdate::Refused(reason) = &update {
            tracing::warn!(%replica, watch, "a resolver replica refuses a watch: {reason}");
        }
        let fits = match (self.watches.get(&watch), update) {
            (Some(Watcher::Publishers(to)), WatchUpdate::Publishers(received)) => {
                to.send_replace(Some(PublisherSet::new(replica, received)));
                true
            }
            (Some(Watcher::Publishers(to)), WatchUpdate::Gone(gone)) => {
                to.send_if_modified(|set| set.as_mut().is_some_and(|set| set.remove(&gone)));
                true
            }
            (Some(Watcher::Paths(view)), WatchUpdate::Snapshot(part)) => {
                view.update(|view| view.snapshot(link, replica, part))
            }
            (Some(Watcher::Paths(view)), WatchUpdate::Changes(changes)) => {
                view.update(|view| view.changes(link, &changes))
            }
            (Some(Watcher::Paths(view)), WatchUpdate::Refused(reason)) => {
                view.update(|view| view.refused(replica, reason));
                true
            }
            // One number is never used for both kinds.
            _ => true,
        };
        if !fits {
            self.watches.remove(&watch);
            self.events.push_back(Event::Unwatch { watch });
        }
    }

    fn send(&mut self, link: u64, message: ToReplica) {
        if let Err(why) = self.links.send(link, &message) {
            self.events.push_back(Event::Unlinked { link, why });
        }
    }
}
