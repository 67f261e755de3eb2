//! The task around the core of one replica: moves bytes and time, decides nothing.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::PublisherInfo;
use longshore_protocol::messages::resolver::{Announce, ToReplica, Write};

use crate::replica_link::{Caller, LinkEvent, ReplicaLink, now, until};
use crate::write_client::core::{Action, Input, WriteCore};
use crate::write_client::shared::Shared;

/// Runs until the publisher has stopped, or the task is aborted.
pub(super) async fn run(
    caller: Caller,
    publisher: PublisherInfo,
    replica: usize,
    shared: Arc<Shared>,
) {
    let core = WriteCore::new(now(), caller.cluster.timing.clone(), rand::random());
    let mut shell = Shell {
        address: caller.cluster.replicas[replica].clone(),
        caller,
        publisher,
        shared: shared.clone(),
        core,
        link: ReplicaLink::None,
        inputs: VecDeque::new(),
        done: false,
    };
    while !shell.done {
        tokio::select! {
            () = shared.woken(replica) => shell.inputs.push_back(Input::Tick),
            event = shell.link.next() => shell.event(event),
            () = until(shell.core.next_deadline()) => shell.inputs.push_back(Input::Tick),
        }
        while let Some(input) = shell.inputs.pop_front() {
            for action in shared.step(replica, &mut shell.core, input) {
                shell.act(action);
            }
            // One request a step: between two of them others get at what is wanted.
            if shell.inputs.is_empty() && shell.core.has_more() {
                shell.inputs.push_back(Input::Tick);
            }
        }
    }
}

struct Shell {
    caller: Caller,
    /// The replica's.
    address: String,
    publisher: PublisherInfo,
    shared: Arc<Shared>,
    core: WriteCore,
    link: ReplicaLink,
    inputs: VecDeque<Input>,
    done: bool,
}

impl Shell {
    fn event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Linked => self.inputs.push_back(Input::Linked),
            LinkEvent::Unlinked { why } => self.inputs.push_back(Input::Unlinked { why }),
            LinkEvent::Told { messages, damaged } => {
                self.inputs.extend(messages.into_iter().map(Input::Told));
                if let Some(why) = damaged {
                    self.link.hang_up();
                    self.inputs.push_back(Input::Unlinked { why });
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        let replica = &self.address;
        match action {
            Action::Dial => self.link.dial(&self.caller, replica),
            Action::Hangup => {
                self.link.hang_up();
                // What the link has said is not for the next one.
                self.inputs.retain(|input| {
                    !matches!(input, Input::Told(_) | Input::Linked | Input::Unlinked { .. })
                });
            }
            Action::Announce { request: id, wanted } => {
                let publisher = self.publisher.clone();
                self.send(ToReplica::Announce(Announce { id, publisher, wanted }));
            }
            Action::Write { request: id, groups } => {
                self.send(ToReplica::Write(Write { id, groups }));
            }
            Action::Confirm { request: id } => self.send(ToReplica::Confirm { id }),
            Action::Clear { request: id } => self.send(ToReplica::Clear { id }),
            Action::Failed { why, degraded, again } => {
                let again_in = again.saturating_duration_since(now());
                tracing::warn!(%replica, degraded, ?again_in, "a resolver replica is not reached: {why}");
            }
            Action::PathRefused { path, reason } => {
                if let Some(left_out) = self.shared.admit_refusal_line(now()) {
                    tracing::error!(%replica, %path, left_out, "a resolver replica refuses a path: {reason}");
                }
            }
            Action::Closed => self.done = true,
        }
    }

    fn send(&mut self, message: ToReplica) {
        if let Err(why) = self.link.send(&message) {
            self.inputs.push_back(Input::Unlinked { why });
        }
    }
}
