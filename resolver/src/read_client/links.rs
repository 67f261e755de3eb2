//! The links of a read client: the one in use, and one to a replica that may replace it.

use longshore_protocol::messages::resolver::ToReplica;

use crate::read_client::core::LINKS_MAX;
use crate::replica_link::{Caller, LinkEvent, ReplicaLink};

/// As many links as the core has at a time, each with its number.
#[derive(Default)]
pub(super) struct Links {
    links: [NumberedLink; LINKS_MAX],
}

#[derive(Default)]
struct NumberedLink {
    number: u64,
    link: ReplicaLink,
}

impl Links {
    /// Begins to connect. Returns the reason if the limit of links is reached; the core closes one
    /// before it dials another.
    pub(super) fn dial(
        &mut self,
        number: u64,
        caller: &Caller,
        replica: &str,
    ) -> Result<(), String> {
        let free = self.links.iter_mut().find(|link| matches!(link.link, ReplicaLink::None));
        let link = free.ok_or_else(|| format!("there are {LINKS_MAX} links already"))?;
        link.number = number;
        link.link.dial(caller, replica);
        Ok(())
    }

    /// The next event and its link; pending for ever without a link. Cancel safe.
    pub(super) async fn next(&mut self) -> (u64, LinkEvent) {
        let [one, other] = &mut self.links;
        tokio::select! {
            event = one.link.next() => (one.number, event),
            event = other.link.next() => (other.number, event),
        }
    }

    /// Sends one message. Returns the reason if that fails; then the link is closed.
    pub(super) fn send(&mut self, number: u64, message: &ToReplica) -> Result<(), String> {
        self.link(number).map_or(Ok(()), |link| link.send(message))
    }

    /// Closes the link, or stops dialling.
    pub(super) fn close(&mut self, number: u64) {
        if let Some(link) = self.link(number) {
            link.close();
        }
    }

    fn link(&mut self, number: u64) -> Option<&mut ReplicaLink> {
        self.links.iter_mut().find(|link| link.number == number).map(|link| &mut link.link)
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::{Role, SessionId};

    use super::*;
    use crate::Cluster;

    #[test]
    fn an_excess_link_is_refused_without_effect_on_the_others() {
        let (role, session) = (Role::ResolverReader, SessionId([1; 16]));
        let (cluster, name) = (Cluster::new(["a:1"]), String::from("test"));
        let caller = Caller { cluster, role, session, name };
        let mut links = Links::default();
        let dial = |links: &mut Links, number| links.dial(number, &caller, "a:1");
        assert_eq!(dial(&mut links, 1), Ok(()));
        assert_eq!(dial(&mut links, 2), Ok(()));
        assert_eq!(dial(&mut links, 3), Err("there are 2 links already".to_owned()));
        assert!(links.link(1).is_some() && links.link(2).is_some() && links.link(3).is_none());
        links.close(1);
        assert_eq!(dial(&mut links, 4), Ok(()));
    }
}
