//! The task around the core: moves bytes and time, decides nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{
    List, ListMatching, Resolve, Table, ToReplica, WatchPaths, WatchPublishers,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::read_client::answer::{Answer, ReadError};
use crate::read_client::core::{Action, Input, News, Question, ReadCore, Subject};
use crate::read_client::lines::Lines;
use crate::read_client::watch::{PublisherSet, SharedView};
use crate::replica_link::{Caller, LinkEvent, now, until};

/// What a handle wants.
#[derive(Debug)]
pub(super) enum Command {
    Ask { batch: u64, question: Question, reply: oneshot::Sender<Result<Answer, ReadError>> },
    Forget { batch: u64 },
    Watch { watch: u32, glob: Glob, news: watch::Sender<Option<PublisherSet>> },
    WatchPaths { watch: u32, globs: Arc<[Glob]>, view: Arc<SharedView> },
    Unwatch { watch: u32 },
}

/// Runs until all handles and watches are gone.
pub(super) async fn run(caller: Caller, mut commands: mpsc::UnboundedReceiver<Command>) {
    let cluster = &caller.cluster;
    let core = ReadCore::new(cluster.timing.clone(), cluster.replicas.clone(), rand::random());
    let mut shell = Shell {
        core,
        caller,
        lines: Lines::default(),
        replies: HashMap::new(),
        watches: HashMap::new(),
        inputs: VecDeque::new(),
    };
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(command) => shell.command(command),
                None => return,
            },
            (link, event) = shell.lines.next() => shell.event(link, event),
            () = until(shell.core.next_deadline()) => shell.inputs.push_back(Input::Tick),
        }
        shell.settle();
    }
}

struct Shell {
    caller: Caller,
    core: ReadCore,
    lines: Lines,
    replies: HashMap<u64, oneshot::Sender<Result<Answer, ReadError>>>,
    watches: HashMap<u32, Watcher>,
    inputs: VecDeque<Input>,
}

/// Who hears of a watch.
enum Watcher {
    Publishers(watch::Sender<Option<PublisherSet>>),
    Paths(Arc<SharedView>),
}

impl Shell {
    fn command(&mut self, command: Command) {
        self.inputs.push_back(match command {
            Command::Ask { batch, question, reply } => {
                self.replies.insert(batch, reply);
                Input::Ask { batch, question }
            }
            Command::Forget { batch } => {
                self.replies.remove(&batch);
                Input::Forget { batch }
            }
            Command::Watch { watch, glob, news } => {
                self.watches.insert(watch, Watcher::Publishers(news));
                Input::Watch { watch, subject: Subject::Publishers(glob) }
            }
            Command::WatchPaths { watch, globs, view } => {
                self.watches.insert(watch, Watcher::Paths(view));
                Input::Watch { watch, subject: Subject::Paths(globs) }
            }
            Command::Unwatch { watch } => {
                self.watches.remove(&watch);
                Input::Unwatch { watch }
            }
        });
    }

    fn event(&mut self, link: u64, event: LinkEvent) {
        match event {
            LinkEvent::Linked => self.inputs.push_back(Input::Linked { link }),
            LinkEvent::Unlinked { why } => self.inputs.push_back(Input::Unlinked { link, why }),
            LinkEvent::Told { messages, damaged } => {
                let told = |message| Input::Told { link, message };
                self.inputs.extend(messages.into_iter().map(told));
                if let Some(why) = damaged {
                    self.lines.hang_up(link);
                    self.inputs.push_back(Input::Unlinked { link, why });
                }
            }
        }
    }

    /// Steps the core until it has nothing more to say.
    fn settle(&mut self) {
        while let Some(input) = self.inputs.pop_front() {
            for action in self.core.step(now(), input) {
                self.act(action);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Dial { link, replica } => {
                let replica = &self.caller.cluster.replicas[replica];
                if let Err(why) = self.lines.dial(link, &self.caller, replica) {
                    self.inputs.push_back(Input::Unlinked { link, why });
                }
            }
            // What it has said and nobody has heard yet, the core passes over.
            Action::Hangup { link } => self.lines.hang_up(link),
            Action::Ask { link, request: id, question, range } => self.send(
                link,
                match question {
                    Question::Resolve(paths) => {
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
            Action::Tell { link, watch, replica, news } => self.tell(link, watch, replica, news),
        }
    }

    fn tell(&mut self, link: u64, watch: u32, replica: usize, news: News) {
        let replica = &self.caller.cluster.replicas[replica];
        if let News::Refused(reason) = &news {
            tracing::warn!(%replica, watch, "a resolver replica refuses a watch: {reason}");
        }
        let fits = match (self.watches.get(&watch), news) {
            (Some(Watcher::Publishers(to)), News::Publishers(told)) => {
                to.send_replace(Some(PublisherSet::new(replica, told)));
                true
            }
            (Some(Watcher::Publishers(to)), News::Gone(gone)) => {
                to.send_if_modified(|set| set.as_mut().is_some_and(|set| set.remove(&gone)));
                true
            }
            (Some(Watcher::Paths(view)), News::Snapshot(part)) => {
                view.tell(|view| view.snapshot(link, replica, part))
            }
            (Some(Watcher::Paths(view)), News::Changes(changes)) => {
                view.tell(|view| view.changes(link, &changes))
            }
            (Some(Watcher::Paths(view)), News::Refused(reason)) => {
                view.tell(|view| view.refused(replica, reason));
                true
            }
            // One number is never used for both kinds.
            _ => true,
        };
        if !fits {
            self.watches.remove(&watch);
            self.inputs.push_back(Input::Unwatch { watch });
        }
    }

    fn send(&mut self, link: u64, message: ToReplica) {
        if let Err(why) = self.lines.send(link, &message) {
            self.inputs.push_back(Input::Unlinked { link, why });
        }
    }
}
