//! Numbers of credits or jobs by subscription.

/// Numbers by the index of a subscription. The first, which most workers have alone, needs no
/// allocation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct SubscriptionCounts {
    first: u32,
    others: Vec<(u32, u32)>,
}

impl SubscriptionCounts {
    pub(crate) fn add(&mut self, subscription: u32, count: u32) {
        let known = self.others.iter_mut().find(|(one, _)| *one == subscription);
        match (subscription, known) {
            (0, _) => self.first = self.first.saturating_add(count),
            (_, Some((_, known))) => *known = known.saturating_add(count),
            (_, None) => self.others.push((subscription, count)),
        }
    }

    pub(crate) fn add_all(&mut self, counts: SubscriptionCounts) {
        counts.iter().for_each(|(subscription, count)| self.add(subscription, count));
    }

    /// The counts above 0, by subscription.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        let all = [(0, self.first)].into_iter().chain(self.others.iter().copied());
        all.filter(|(_, count)| *count > 0)
    }

    pub(crate) fn total(&self) -> u64 {
        self.iter().map(|(_, count)| u64::from(count)).sum()
    }
}
