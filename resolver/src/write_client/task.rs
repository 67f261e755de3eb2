//! The task around the core of one replica: it does I/O and timing, and makes no decisions.

use std::collections::VecDeque;
use std::sync::Arc;

use longshore_protocol::PublisherInfo;
use longshore_protocol::messages::resolver::{Announce, ToReplica, Write};

use crate::replica_link::{Caller, LinkEvent, ReplicaLink, now, until};
use crate::write_client::core::{Action, Event, WriteCore};
use crate::write_client::shared::Shared;

/// Runs until the publisher has stopped, or the task is aborted.
pub(super) async fn run(
    caller: Caller,
    publisher: PublisherInfo,
    replica: usize,
    shared: Arc<Shared>,
) {
    let core = WriteCore::new(now(), caller.cluster.timing.clone(), rand::random());
    let mut task = ClientTask {
        address: caller.cluster.replicas[replica].clone(),
        caller,
        publisher,
        shared: shared.clone(),
        core,
        link: ReplicaLink::None,
        events: VecDeque::new(),
        done: false,
    };
    while !task.done {
        tokio::select! {
            () = shared.woken(replica) => task.events.push_back(Event::Tick),
            event = task.link.next() => task.event(event),
            () = until(task.core.next_deadline()) => task.events.push_back(Event::Tick),
        }
        while let Some(event) = task.events.pop_front() {
            for action in shared.step(replica, &mut task.core, event) {
                task.act(action);
            }
            // One request a step: between two steps others can lock the desired state.
            if task.events.is_empty() && task.core.has_more() {
                task.events.push_back(Event::Tick);
            }
        }
    }
}

struct ClientTask {
    caller: Caller,
    /// The replica's address.
    address: String,
    publisher: PublisherInfo,
    shared: Arc<Shared>,
    core: WriteCore,
    link: ReplicaLink,
    events: VecDeque<Event>,
    done: bool,
}

impl ClientTask {
    fn event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Linked => self.events.push_back(Event::Linked),
            LinkEvent::Unlinked { why } => self.events.push_back(Event::Unlinked { why }),
            LinkEvent::Received { messages, damaged } => {
                self.events.extend(messages.into_iter().map(Event::Received));
                if let Some(why) = damaged {
                    self.link.close();
                    self.events.push_back(Event::Unlinked { why });
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        let replica = &self.address;
        match action {
            Action::Dial => self.link.dial(&self.caller, replica),
            Action::Close => {
                self.link.close();
                // Queued messages of this link do not concern the next one.
                self.events.retain(|event| {
                    !matches!(event, Event::Received(_) | Event::Linked | Event::Unlinked { .. })
                });
            }
            Action::Announce { request: id, desired } => {
                let publisher = self.publisher.clone();
                self.send(ToReplica::Announce(Announce { id, publisher, desired }));
            }
            Action::Write { request: id, groups } => {
                self.send(ToReplica::Write(Write { id, groups }));
            }
            Action::Confirm { request: id } => self.send(ToReplica::Confirm { id }),
            Action::Clear { request: id } => self.send(ToReplica::Clear { id }),
            Action::Failed { why, refused, degraded, again } => {
                let again_in = again.saturating_duration_since(now());
                let what = if refused { "refuses this publisher" } else { "is not reached" };
                tracing::warn!(
                    %replica, degraded, ?again_in,
                    "a resolver replica {what}: {why}"
                );
            }
            Action::PathRefused { path, reason } => {
                if let Some(left_out) = self.shared.admit_refusal_line(now()) {
                    tracing::error!(
                        %replica, %path, left_out,
                        "a resolver replica refuses a path: {reason}"
                    );
                }
            }
            Action::Closed => self.done = true,
        }
    }

    fn send(&mut self, message: ToReplica) {
        if let Err(why) = self.link.send(&message) {
            self.events.push_back(Event::Unlinked { why });
        }
    }
}
