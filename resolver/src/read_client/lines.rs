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
    /// Begins to connect. The reason if there are as many links as may be; the core hangs up before
    /// it dials another.
    pub(super) fn dial(
        &mut self,
        number: u64,
        caller: &Caller,
        replica: &str,
    ) -> Result<(), String> {
        let free = self.lines.iter_mut().find(|line| matches!(line.link, ReplicaLink::None));
        let line = free.ok_or_else(|| format!("there are {LINKS_MAX} links already"))?;
        line.number = number;
        line.link.dial(caller, replica);
        Ok(())
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

#[cfg(test)]
mod tests {
    use longshore_protocol::{Role, SessionId};

    use super::*;
    use crate::Cluster;

    #[test]
    fn a_link_too_many_is_refused_and_costs_the_others_nothing() {
        let (role, session) = (Role::ResolverReader, SessionId([1; 16]));
        let (cluster, name) = (Cluster::new(["a:1"]), String::from("test"));
        let caller = Caller { cluster, role, session, name };
        let mut lines = Lines::default();
        let dial = |lines: &mut Lines, number| lines.dial(number, &caller, "a:1");
        assert_eq!(dial(&mut lines, 1), Ok(()));
        assert_eq!(dial(&mut lines, 2), Ok(()));
        assert_eq!(dial(&mut lines, 3), Err("there are 2 links already".to_owned()));
        assert!(lines.line(1).is_some() && lines.line(2).is_some() && lines.line(3).is_none());
        lines.hang_up(1);
        assert_eq!(dial(&mut lines, 4), Ok(()));
    }
}
