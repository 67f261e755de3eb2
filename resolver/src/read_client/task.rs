//! The task around the core: moves bytes and time, decides nothing.

use std::collections::VecDeque;

use hashbrown::HashMap;
use longshore_protocol::Glob;
use longshore_protocol::messages::resolver::{
    List, ListMatching, Resolve, ToReplica, WatchPublishers,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::read_client::answer::{Answer, ReadError};
use crate::read_client::core::{Action, Input, Question, ReadCore};
use crate::read_client::lines::Lines;
use crate::read_client::watch::PublisherSet;
use crate::replica_link::{Caller, LinkEvent, now, until};

/// What a handle wants.
#[derive(Debug)]
pub(super) enum Command {
    Ask { batch: u64, question: Question, reply: oneshot::Sender<Result<Answer, ReadError>> },
    Forget { batch: u64 },
    Watch { watch: u32, glob: Glob, news: watch::Sender<Option<PublisherSet>> },
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
    watches: HashMap<u32, watch::Sender<Option<PublisherSet>>>,
    inputs: VecDeque<Input>,
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
                self.watches.insert(watch, news);
                Input::Watch { watch, glob }
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
                self.lines.dial(link, &self.caller, &self.caller.cluster.replicas[replica]);
            }
            // What it has said and nobody has heard yet, the core passes over.
            Action::Hangup { link } => self.lines.hang_up(link),
            Action::Ask { link, request: id, question, range } => self.send(
                link,
                match question {
                    Question::Resolve(paths) => {
                        let paths = paths[range].iter().map(Into::into).collect();
                        ToReplica::Resolve(Resolve { id, paths })
                    }
                    Question::List(path) => ToReplica::List(List { id, path }),
                    Question::ListMatching(globs) => {
                        ToReplica::ListMatching(ListMatching { id, globs: globs.to_vec() })
                    }
                },
            ),
            Action::Watch { link, watch, glob } => {
                self.send(link, ToReplica::WatchPublishers(WatchPublishers { watch, glob }));
            }
            Action::Unwatch { link, watch } => self.send(link, ToReplica::Unwatch { watch }),
            Action::Finish { batch, answer } => {
                if let Err(error) = &answer {
                    tracing::warn!(%error, "a resolver batch has failed");
                }
                if let Some(reply) = self.replies.remove(&batch) {
                    let _ = reply.send(answer);
                }
            }
            Action::WatchRefused { watch, replica, reason } => {
                let replica = &self.caller.cluster.replicas[replica];
                tracing::warn!(%replica, watch, "a resolver replica refuses a watch: {reason}");
            }
            Action::Tell { watch, replica, publishers } => {
                if let Some(news) = self.watches.get(&watch) {
                    news.send_replace(Some(PublisherSet {
                        replica: self.caller.cluster.replicas[replica].clone(),
                        incarnation: publishers.tracker.incarnation,
                        revision: publishers.tracker.revision,
                        complete: publishers.complete,
                        publishers: publishers.publishers,
                    }));
                }
            }
        }
    }

    fn send(&mut self, link: u64, message: ToReplica) {
        if let Err(why) = self.lines.send(link, &message) {
            self.inputs.push_back(Input::Unlinked { link, why });
        }
    }
}
