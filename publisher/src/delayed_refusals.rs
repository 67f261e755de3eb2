//! Batches of jobs that disk or memory have no room for, until they are refused.
//!
//! Each refusal is a command of some 60 bytes, out of the room that is reserved for settles. A
//! producer that retries as fast as it is answered would use that up, so answers are delayed. The
//! first is sent at once; the next waits for a time that doubles with each refusal. Such a link
//! costs about a commit a second, however fast it retries. Pure: the time is an argument.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use longshore_protocol::{LinkId, Refusal};

/// The wait after a link's first refusal.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait: for so long after there is room again, a producer may still be refused.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// A link without a refusal for this long is answered at once again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);
/// Most waiting batches of a link. A producer has at most 64 in flight; one that sends more is
/// answered at once.
const BATCHES_MAX: usize = 256;

/// A batch that will be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RefusedBatch {
    pub(crate) link: LinkId,
    pub(crate) sequence: u64,
    pub(crate) jobs: u32,
    pub(crate) refusal: Refusal,
}

/// All batches that wait for their refusal.
#[derive(Debug, Default)]
pub(crate) struct DelayedRefusals {
    links: BTreeMap<LinkId, LinkRefusals>,
}

#[derive(Debug)]
struct LinkRefusals {
    /// In the order of their arrival.
    batches: Vec<RefusedBatch>,
    /// The earliest time of the next answer.
    not_before: Instant,
    /// The wait after that.
    wait: Duration,
}

impl LinkRefusals {
    fn is_over(&self, now: Instant) -> bool {
        self.batches.is_empty() && now >= self.not_before + FORGOTTEN_AFTER
    }
}

impl DelayedRefusals {
    /// The refusal of the link's last waiting batch. Batches behind it have to wait too, and get
    /// the same refusal: they would be out of order.
    pub(crate) fn last(&self, link: LinkId) -> Option<Refusal> {
        Some(self.links.get(&link)?.batches.last()?.refusal)
    }

    /// Adds a batch to refuse.
    pub(crate) fn push(&mut self, now: Instant, batch: RefusedBatch) {
        let fresh = || LinkRefusals { batches: Vec::new(), not_before: now, wait: FIRST_WAIT };
        let link_refusals = self.links.entry(batch.link).or_insert_with(fresh);
        if link_refusals.is_over(now) {
            *link_refusals = fresh();
        }
        link_refusals.batches.push(batch);
    }

    /// The link has ended: its batches need no answer.
    pub(crate) fn link_lost(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    /// Moves the batches to refuse by now into `out`.
    pub(crate) fn take_due(&mut self, now: Instant, out: &mut Vec<RefusedBatch>) {
        // Each round of the owner looks at all that are left.
        self.links.retain(|_, link_refusals| !link_refusals.is_over(now));
        for link_refusals in self.links.values_mut() {
            let is_time =
                now >= link_refusals.not_before || link_refusals.batches.len() >= BATCHES_MAX;
            if link_refusals.batches.is_empty() || !is_time {
                continue;
            }
            out.append(&mut link_refusals.batches);
            link_refusals.not_before = now + link_refusals.wait;
            link_refusals.wait = (link_refusals.wait * 2).min(LONGEST_WAIT);
        }
    }

    /// Moves all batches into `out`.
    pub(crate) fn take_all(&mut self, out: &mut Vec<RefusedBatch>) {
        let links = std::mem::take(&mut self.links);
        out.extend(links.into_values().flat_map(|link_refusals| link_refusals.batches));
    }

    /// The time of the next answer.
    pub(crate) fn next(&self) -> Option<Instant> {
        let waiting = self.links.values().filter(|link_refusals| !link_refusals.batches.is_empty());
        waiting.map(|link_refusals| link_refusals.not_before).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(7);
    const OTHER: LinkId = LinkId(8);

    fn batch(link: LinkId, sequence: u64) -> RefusedBatch {
        RefusedBatch { link, sequence, jobs: 3, refusal: Refusal::NoSpace }
    }

    fn take_due(refusals: &mut DelayedRefusals, now: Instant) -> Vec<RefusedBatch> {
        let mut out = Vec::new();
        refusals.take_due(now, &mut out);
        out
    }

    #[test]
    fn first_refusal_is_immediate_and_waits_double_to_a_second() {
        let mut refusals = DelayedRefusals::default();
        let mut now = Instant::now();
        assert_eq!(refusals.next(), None);
        refusals.push(now, batch(LINK, 1));
        assert_eq!(refusals.last(LINK), Some(Refusal::NoSpace));
        assert_eq!(refusals.last(OTHER), None);
        assert_eq!(take_due(&mut refusals, now), [batch(LINK, 1)]);
        for (sequence, wait) in (2..).zip([50, 100, 200, 400, 800, 1_000, 1_000]) {
            assert_eq!(refusals.next(), None);
            // A producer that retries at once.
            refusals.push(now, batch(LINK, sequence));
            let answered = now + Duration::from_millis(wait);
            assert_eq!(refusals.next(), Some(answered));
            assert!(take_due(&mut refusals, answered - Duration::from_nanos(1)).is_empty());
            assert_eq!(take_due(&mut refusals, answered), [batch(LINK, sequence)]);
            now = answered;
        }
        refusals.push(now, batch(OTHER, 1));
        assert_eq!(take_due(&mut refusals, now), [batch(OTHER, 1)], "another link is not to blame");
        now += Duration::from_secs(11);
        refusals.push(now, batch(LINK, 20));
        assert_eq!(take_due(&mut refusals, now), [batch(LINK, 20)], "that was a while ago");
        refusals.push(now, batch(LINK, 21));
        assert_eq!(refusals.next(), Some(now + FIRST_WAIT));
        take_due(&mut refusals, now + FIRST_WAIT);
        take_due(&mut refusals, now + Duration::from_secs(11));
        assert!(refusals.links.is_empty(), "a link costs nothing once it is forgotten");
    }

    #[test]
    fn waiting_refusals_are_sent_together_in_order() {
        let mut refusals = DelayedRefusals::default();
        let now = Instant::now();
        refusals.push(now, batch(LINK, 1));
        take_due(&mut refusals, now);
        for sequence in 2..=5 {
            refusals.push(now, batch(LINK, sequence));
        }
        let all: Vec<RefusedBatch> = (2..=5).map(|sequence| batch(LINK, sequence)).collect();
        assert_eq!(take_due(&mut refusals, now + FIRST_WAIT), all);
        assert_eq!(refusals.last(LINK), None);
    }

    #[test]
    fn lost_link_and_full_link_leave_no_waiting_batches() {
        let mut refusals = DelayedRefusals::default();
        let now = Instant::now();
        refusals.push(now, batch(LINK, 1));
        refusals.link_lost(LINK);
        assert!(take_due(&mut refusals, now).is_empty());
        refusals.push(now, batch(OTHER, 1));
        take_due(&mut refusals, now);
        for sequence in 0..BATCHES_MAX as u64 {
            assert!(take_due(&mut refusals, now).is_empty());
            refusals.push(now, batch(OTHER, 2 + sequence));
        }
        assert_eq!(take_due(&mut refusals, now).len(), BATCHES_MAX);
    }

    #[test]
    fn take_all_returns_every_waiting_batch() {
        let mut refusals = DelayedRefusals::default();
        let now = Instant::now();
        refusals.push(now, batch(LINK, 1));
        take_due(&mut refusals, now);
        refusals.push(now, batch(LINK, 2));
        let mut out = Vec::new();
        refusals.take_all(&mut out);
        assert_eq!(out, [batch(LINK, 2)]);
        assert_eq!(refusals.next(), None);
    }
}
