//! The subscriptions of a worker on each link: one that its sources without a cap share, and one of
//! its own for each capped source. A capped source has no more credits than its cap, so its jobs
//! wait in their queues, where any worker can take them, and not here, leased and in the way of
//! others. (All sources in subscriptions of their own would divide the credits into many small
//! parts, which move with nearly every job, and would lose the publishers' order over all sources.)

use longshore_protocol::limits::HANDLERS_MAX;
use longshore_protocol::messages::work::{Source, Sources, Subscribe};

use super::credits::SubscriptionBound;
use super::ready_jobs::SourceLimits;

/// The bounds of the subscriptions, by index: 0 is the shared one. Without limits it is alone.
pub(crate) fn bounds(bound: u32, limits: &[SourceLimits]) -> Vec<SubscriptionBound> {
    let shared = limits.iter().filter(|limits| limits.cap.is_none());
    let weight = shared.fold(0, |sum, limits| sum + limits.weight);
    let most = if weight > 0 || limits.is_empty() { bound } else { 0 };
    let own = |limits: &SourceLimits| {
        let most = u32::try_from(limits.cap?).unwrap_or(u32::MAX).min(bound);
        Some(SubscriptionBound { most, weight: limits.weight })
    };
    let shared = SubscriptionBound { most, weight: weight.max(1) };
    [shared].into_iter().chain(limits.iter().filter_map(own)).collect()
}

/// The number of a subscription on the wire.
pub(crate) fn number_of(index: u32) -> u32 {
    index.wrapping_add(1)
}

/// The index of a subscription. One that no worker makes has no account of credits.
pub(crate) fn index_of(number: u32) -> u32 {
    number.wrapping_sub(1)
}

/// The messages that subscribe on a link, for a worker with that many handlers. `limits` has one
/// for each source, or none. The shared subscription excludes the capped sources, which a later
/// pattern may match, too.
pub(crate) fn subscribes(
    sources: &Sources,
    limits: &[SourceLimits],
    handlers: usize,
) -> Vec<Subscribe> {
    let handlers = u32::try_from(handlers).unwrap_or(HANDLERS_MAX).min(HANDLERS_MAX);
    let mut shared = sources.clone();
    let mut own = Vec::new();
    for (source, _) in shared.patterns.iter_mut().zip(limits).filter(|(_, l)| l.cap.is_some()) {
        own.push(Sources::one(source.pattern.clone()));
        source.weight = 0;
    }
    let is_used = |source: &Source| source.weight > 0;
    let shared = Some(shared).filter(|shared| shared.patterns.iter().any(is_used));
    let all = (0..).zip([shared].into_iter().chain(own.into_iter().map(Some)));
    all.filter_map(|(index, sources)| {
        Some(Subscribe { subscription: number_of(index), sources: sources?, handlers })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use longshore_protocol::messages::work::Order;

    use super::*;

    fn limits(cap: Option<usize>, weight: u32) -> SourceLimits {
        SourceLimits { cap, weight }
    }

    fn sources(weights: &[u16]) -> Sources {
        let source = |(n, weight): (usize, &u16)| Source {
            pattern: format!("/{n}").parse().unwrap(),
            weight: *weight,
        };
        let patterns = weights.iter().enumerate().map(source).collect();
        Sources { order: Order::Weighted, patterns }
    }

    #[test]
    fn capped_sources_have_subscriptions_of_their_own() {
        let all = sources(&[3, 5, 1]);
        let mixed = [limits(None, 3), limits(Some(4), 5), limits(None, 1)];
        let shared = Subscribe { subscription: 1, sources: sources(&[3, 0, 1]), handlers: 7 };
        let own = Sources::one("/1".parse().unwrap());
        let own = Subscribe { subscription: 2, sources: own, handlers: 7 };
        assert_eq!(subscribes(&all, &mixed, 7), [shared, own]);
        let bound = |most, weight| SubscriptionBound { most, weight };
        assert_eq!(bounds(9, &mixed), [bound(9, 4), bound(4, 5)]);

        let none = [limits(None, 3), limits(None, 5), limits(None, 1)];
        for limits in [&none[..], &[]] {
            let one = Subscribe { subscription: 1, sources: all.clone(), handlers: 7 };
            assert_eq!(subscribes(&all, limits, 7), [one], "as before");
        }
        assert_eq!((bounds(9, &[]), bounds(9, &none)), (vec![bound(9, 1)], vec![bound(9, 9)]));

        let capped = [limits(Some(1), 1), limits(Some(20), 2)];
        let numbers = subscribes(&sources(&[1, 2]), &capped, 7).into_iter().map(|s| s.subscription);
        assert_eq!(numbers.collect::<Vec<_>>(), [2, 3]);
        assert_eq!(bounds(9, &capped), [bound(0, 1), bound(1, 1), bound(9, 2)]);
    }
}
