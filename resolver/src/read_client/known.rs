//! The publishers that one replica knows, gathered from the parts of its answer.

use longshore_protocol::limits::RESOLVER_PUBLISHERS_MAX;
use longshore_protocol::messages::resolver::{KnownPublisher, PublishersKnown};

/// Most publishers that a replica tells of: as many as it lets be seen, and as many again that are hidden and not swept yet.
const PUBLISHERS_TOLD_MAX: usize = 2 * RESOLVER_PUBLISHERS_MAX;

/// Those told of so far.
#[derive(Default, Debug)]
pub(super) struct Known {
    so_far: Vec<KnownPublisher>,
}

impl Known {
    /// Takes in a part of the answer. All of them, by name, once it was the last; an error, for people, if there are more than there can be.
    pub(super) fn take(
        &mut self,
        part: PublishersKnown,
    ) -> Option<Result<Vec<KnownPublisher>, String>> {
        if self.so_far.len() + part.publishers.len() > PUBLISHERS_TOLD_MAX {
            let why = format!("it tells of more than {PUBLISHERS_TOLD_MAX} publishers");
            return Some(Err(why));
        }
        self.so_far.extend(part.publishers);
        part.last.then(|| {
            self.so_far.sort_unstable_by(|one, other| one.info.name.cmp(&other.info.name));
            Ok(std::mem::take(&mut self.so_far))
        })
    }
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::resolver::Departure;
    use longshore_protocol::{Epoch, PublisherId, PublisherInfo};

    use super::*;

    fn publisher(n: usize) -> KnownPublisher {
        let info = PublisherInfo {
            id: PublisherId((n as u128).to_le_bytes()),
            epoch: Epoch(1),
            name: format!("{n:06}"),
            addresses: Vec::new(),
        };
        let departure = n.is_multiple_of(2).then_some(Departure::Silent);
        KnownPublisher { info, held: 0, silent_ms: 0, departure }
    }

    fn part(publishers: impl Iterator<Item = usize>, last: bool) -> PublishersKnown {
        PublishersKnown { id: 1, last, publishers: publishers.map(publisher).collect() }
    }

    /// A replica holds at most so many of both kinds: see `liveness`, which refuses more.
    #[test]
    fn all_are_taken_that_can_be_seen_and_as_many_that_are_hidden() {
        let mut known = Known::default();
        let half = RESOLVER_PUBLISHERS_MAX;
        assert_eq!(known.take(part((half..2 * half).rev(), false)), None);
        let all = known.take(part((0..half).rev(), true)).unwrap().unwrap();
        assert_eq!(all.len(), 32_768);
        assert!(all.is_sorted_by(|one, other| one.info.name < other.info.name));

        assert_eq!(known.take(part(0..2 * half, false)), None);
        let refused = known.take(part(0..1, true));
        assert_eq!(refused, Some(Err("it tells of more than 32768 publishers".into())));
    }
}
