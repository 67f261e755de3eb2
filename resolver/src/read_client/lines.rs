//! The links that a read client has: that in use, and one to a replica that may take its place.

use longshore_protocol::messages::resolver::ToReplica;

use crate::read_client::core::LINKS_MAX;
use crate::replica_link::{Caller, LinkEvent, ReplicaLink};

/// As many links as the core has at a time, each under its number.
#[derive(Default)]
pub(super) struct Lines {
    lines: [Line; LINKS_MAX],
}

#[derive(Default)]
struct Line {
    number: u64,
    link: ReplicaLink,
}

impl Lines {
    /// Begins to connect.
    pub(super) fn dial(&mut self, number: u64, caller: &Caller, replica: &str) {
        let free = self.lines.iter_mut().find(|line| matches!(line.link, ReplicaLink::None));
        let line = free.expect("the core hangs up before it dials a third");
        line.number = number;
        line.link.dial(caller, replica);
    }

    /// What happens next, to which of them; for ever nothing while there is none. Cancel safe.
    pub(super) async fn next(&mut self) -> (u64, LinkEvent) {
        let [one, other] = &mut self.lines;
        tokio::select! {
            event = one.link.next() => (one.number, event),
            event = other.link.next() => (other.number, event),
        }
    }

    /// Sends one message. The reason if it cannot be; then there is no such link any more.
    pub(super) fn send(&mut self, number: u64, message: &ToReplica) -> Result<(), String> {
        self.line(number).map_or(Ok(()), |link| link.send(message))
    }

    /// Closes the link, or stops dialling.
    pub(super) fn hang_up(&mut self, number: u64) {
        if let Some(link) = self.line(number) {
            link.hang_up();
        }
    }

    fn line(&mut self, number: u64) -> Option<&mut ReplicaLink> {
        self.lines.iter_mut().find(|line| line.number == number).map(|line| &mut line.link)
    }
}
