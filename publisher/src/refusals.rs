//! Batches of jobs that disk or memory have no room for, until they are answered.
//!
//! Each refusal is a command of some 60 bytes, out of the room that is kept for settles. A producer
//! that tries again as fast as it is answered would use that up, so the answers are held back: the
//! first goes at once, the next after a wait that doubles from refusal to refusal. A link in that
//! state costs about a commit a second, however hard it tries. Pure: time is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use longshore_protocol::{LinkId, Refusal};

/// The wait after the first refusal of a link.
const WAIT_MIN: Duration = Duration::from_millis(50);
/// The longest wait; so long after there is room again, a producer may still be told that there was
/// none.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// A link that was refused nothing for this long is answered at once again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// Most batches of a link that wait. A producer has at most 64 under way; one that sends more is
/// answered at once.
const BATCHES_MAX: usize = 256;

/// A batch that will be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub(crate) link: LinkId,
    pub(crate) sequence: u64,
    pub(crate) jobs: u32,
    pub(crate) refusal: Refusal,
}

/// All that wait for their refusal.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    links: BTreeMap<LinkId, OfLink>,
}

#[derive(Debug)]
struct OfLink {
    /// In their order.
    batches: Vec<Refused>,
    /// The next answer goes no sooner.
    not_before: Instant,
    /// The wait after that.
    wait: Duration,
}

impl Refusals {
    /// Why the last of the link's batches that wait is refused. Those behind it have to wait, too,
    /// and are refused with it: they would come out of turn.
    pub(crate) fn last(&self, link: LinkId) -> Option<Refusal> {
        Some(self.links.get(&link)?.batches.last()?.refusal)
    }

    /// There is no room for that batch.
    pub(crate) fn put(&mut self, now: Instant, batch: Refused) {
        let fresh = || OfLink { batches: Vec::new(), not_before: now, wait: WAIT_MIN };
        let of_link = self.links.entry(batch.link).or_insert_with(fresh);
        if of_link.batches.is_empty() && now >= of_link.not_before + FORGOTTEN_AFTER {
            *of_link = fresh();
        }
        of_link.batches.push(batch);
    }

    /// The link is gone: nobody is to be told.
    pub(crate) fn link_lost(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// Takes what is to be refused by now.
    pub(crate) fn due(&mut self, now: Instant, out: &mut Vec<Refused>) {
        for of_link in self.links.values_mut() {
            let is_due = now >= of_link.not_before || of_link.batches.len() >= BATCHES_MAX;
            if of_link.batches.is_empty() || !is_due {
                continue;
            }
            out.append(&mut of_link.batches);
            of_link.not_before = now + of_link.wait;
            of_link.wait = (of_link.wait * 2).min(WAIT_MAX);
        }
    }

    /// Takes everything, whenever it is due.
    pub(crate) fn take_all(&mut self, out: &mut Vec<Refused>) {
        let links = std::mem::take(&mut self.links);
        out.extend(links.into_values().flat_map(|of_link| of_link.batches));
    }

    /// When something is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        let waiting = self.links.values().filter(|of_link| !of_link.batches.is_empty());
        waiting.map(|of_link| of_link.not_before).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(7);
    const OTHER: LinkId = LinkId(8);

    fn batch(link: LinkId, sequence: u64) -> Refused {
        Refused { link, sequence, jobs: 3, refusal: Refusal::NoSpace }
    }

    fn due(refusals: &mut Refusals, now: Instant) -> Vec<Refused> {
        let mut out = Vec::new();
        refusals.due(now, &mut out);
        out
    }

    #[test]
    fn the_first_is_answered_at_once_and_the_next_after_waits_that_double_to_a_second() {
        let mut refusals = Refusals::default();
        let mut now = Instant::now();
        assert_eq!(refusals.next(), None);
        refusals.put(now, batch(LINK, 1));
        assert_eq!(refusals.last(LINK), Some(Refusal::NoSpace));
        assert_eq!(refusals.last(OTHER), None);
        assert_eq!(due(&mut refusals, now), [batch(LINK, 1)]);
        for (sequence, wait) in (2..).zip([50, 100, 200, 400, 800, 1_000, 1_000]) {
            assert_eq!(refusals.next(), None);
            // A producer that tries again at once.
            refusals.put(now, batch(LINK, sequence));
            let answered = now + Duration::from_millis(wait);
            assert_eq!(refusals.next(), Some(answered));
            assert!(due(&mut refusals, answered - Duration::from_nanos(1)).is_empty());
            assert_eq!(due(&mut refusals, answered), [batch(LINK, sequence)]);
            now = answered;
        }
        refusals.put(now, batch(OTHER, 1));
        assert_eq!(due(&mut refusals, now), [batch(OTHER, 1)], "another link is not to blame");
        now += Duration::from_secs(11);
        refusals.put(now, batch(LINK, 20));
        assert_eq!(due(&mut refusals, now), [batch(LINK, 20)], "that was a while ago");
        refusals.put(now, batch(LINK, 21));
        assert_eq!(refusals.next(), Some(now + WAIT_MIN));
    }

    #[test]
    fn what_waits_goes_in_its_order_and_together() {
        let mut refusals = Refusals::default();
        let now = Instant::now();
        refusals.put(now, batch(LINK, 1));
        due(&mut refusals, now);
        for sequence in 2..=5 {
            refusals.put(now, batch(LINK, sequence));
        }
        let all: Vec<Refused> = (2..=5).map(|sequence| batch(LINK, sequence)).collect();
        assert_eq!(due(&mut refusals, now + WAIT_MIN), all);
        assert_eq!(refusals.last(LINK), None);
    }

    #[test]
    fn a_link_that_is_gone_or_sends_too_much_keeps_nothing_here() {
        let mut refusals = Refusals::default();
        let now = Instant::now();
        refusals.put(now, batch(LINK, 1));
        refusals.link_lost(LINK);
        assert!(due(&mut refusals, now).is_empty());
        refusals.put(now, batch(OTHER, 1));
        due(&mut refusals, now);
        for sequence in 0..BATCHES_MAX as u64 {
            assert!(due(&mut refusals, now).is_empty());
            refusals.put(now, batch(OTHER, 2 + sequence));
        }
        assert_eq!(due(&mut refusals, now).len(), BATCHES_MAX);
    }

    #[test]
    fn at_the_end_everything_goes() {
        let mut refusals = Refusals::default();
        let now = Instant::now();
        refusals.put(now, batch(LINK, 1));
        due(&mut refusals, now);
        refusals.put(now, batch(LINK, 2));
        let mut out = Vec::new();
        refusals.take_all(&mut out);
        assert_eq!(out, [batch(LINK, 2)]);
        assert_eq!(refusals.next(), None);
    }
}
