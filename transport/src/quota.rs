//! What clients use of their quotas. [`ReadRate`] is pure.
//!
//! ```text
//! client ── its links ──▶ Usage { links, rate } ◀── [[quota]] of the policy
//!                              │        └ a link of a client that is over its rate is not read
//!                              └ a further link is refused
//! ```

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use longshore_access::{Identity, Quota};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A frame counts as at least this many bytes: small ones cost work, too.
pub(crate) const FRAME_BYTES_COUNTED_MIN: usize = 256;

/// Who has a quota.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Holder {
    /// All links of an identity.
    Identity(Arc<Identity>),
    /// All links from an address that have no identity.
    Address(IpAddr),
}

impl Holder {
    pub(crate) fn of(identity: Option<&Arc<Identity>>, address: IpAddr) -> Holder {
        match identity {
            Some(identity) => Holder::Identity(identity.clone()),
            None => Holder::Address(address.to_canonical()),
        }
    }
}

/// What the clients of a listener use.
#[derive(Debug, Default)]
pub(crate) struct Usages(HashMap<Holder, Usage>);

#[derive(Debug, Default)]
struct Usage {
    links: u32,
    rate: Arc<LinkRate>,
}

impl Usages {
    /// A client has one more link; an error if that is over its quota.
    pub(crate) fn begin(
        &mut self,
        holder: &Holder,
        quota: Quota,
        now: Instant,
    ) -> Result<Arc<LinkRate>, OverQuota> {
        // Doubling lets the sweep cost a constant time for each insertion.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, usage| usage.links > 0 || usage.rate.is_behind(now));
        }
        let usage = self.0.entry(holder.clone()).or_default();
        if let Some(limit) = quota.links
            && usage.links >= limit.get()
        {
            return Err(OverQuota { links: limit.get() });
        }
        usage.links += 1;
        usage.rate.set(quota, now);
        Ok(usage.rate.clone())
    }

    /// A link has ended. What its client has read too much remains counted.
    pub(crate) fn end(&mut self, holder: &Holder) {
        if let Some(usage) = self.0.get_mut(holder) {
            usage.links = usage.links.saturating_sub(1);
        }
    }

    /// The policy has changed.
    pub(crate) fn set_all(&self, quota: impl Fn(&Holder) -> Quota, now: Instant) {
        for (holder, usage) in &self.0 {
            usage.rate.set(quota(holder), now);
        }
    }
}

/// A client has as many links as its quota allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it has {links} links, its quota in the policy: close one, or raise `links` of [[quota]]")]
pub(crate) struct OverQuota {
    links: u32,
}

/// The rate at which the links of one client are read.
#[derive(Debug, Default)]
pub(crate) struct LinkRate {
    /// There is a quota: without one, a frame costs a load.
    is_limited: AtomicBool,
    rate: Mutex<Option<ReadRate>>,
    changed: Notify,
}

impl LinkRate {
    fn set(&self, quota: Quota, now: Instant) {
        let mut rate = self.rate.lock();
        let bytes_per_s = quota.bytes.map(std::num::NonZeroU64::get);
        if rate.as_ref().map(|rate| rate.bytes_per_s) == bytes_per_s {
            return;
        }
        *rate = bytes_per_s.map(|bytes| ReadRate::new(bytes, now));
        self.is_limited.store(rate.is_some(), Ordering::Relaxed);
        drop(rate);
        self.changed.notify_waiters();
    }

    /// True if there is a quota.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// These bytes were read.
    pub(crate) fn read(&self, bytes: usize) {
        if bytes > 0
            && self.is_limited()
            && let Some(rate) = &mut *self.rate.lock()
        {
            rate.spend(Instant::now(), bytes);
        }
    }

    /// True if nothing may be read at the moment.
    pub(crate) fn is_over(&self) -> bool {
        self.is_limited() && self.is_behind(Instant::now())
    }

    /// Waits until something may be read. Cancel safe.
    pub(crate) async fn wait(&self) {
        loop {
            let changed = self.changed.notified();
            let wait = match &mut *self.rate.lock() {
                Some(rate) => rate.wait(Instant::now()),
                None => Duration::ZERO,
            };
            if wait.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = changed => {}
            }
        }
    }

    fn is_behind(&self, now: Instant) -> bool {
        self.rate.lock().as_mut().is_some_and(|rate| !rate.wait(now).is_zero())
    }
}

/// A rate of bytes, of which one second's worth may come at once. What is over it has to be waited
/// for.
#[derive(Debug)]
struct ReadRate {
    bytes_per_s: u64,
    /// When all that was read is within the rate. Before `now` minus a second, nothing counts.
    even_at: Instant,
}

impl ReadRate {
    const BURST: Duration = Duration::from_secs(1);

    fn new(bytes_per_s: u64, now: Instant) -> ReadRate {
        ReadRate { bytes_per_s, even_at: now }
    }

    fn spend(&mut self, now: Instant, bytes: usize) {
        let nanos = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
        let time = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.even_at = self.even_at.max(now) + time;
    }

    /// The time until something may be read again.
    fn wait(&self, now: Instant) -> Duration {
        self.even_at.saturating_duration_since(now).saturating_sub(ReadRate::BURST)
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_second_comes_at_once_and_the_rest_at_the_rate() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut rate = ReadRate::new(1_000, start);
        rate.spend(start, 1_000);
        assert_eq!(rate.wait(start), Duration::ZERO);
        rate.spend(start, 500);
        assert_eq!(rate.wait(start), Duration::from_millis(500));
        assert_eq!(rate.wait(ms(499)), Duration::from_millis(1));
        assert_eq!(rate.wait(ms(500)), Duration::ZERO);
        // An hour without frames allows no more than a second's worth.
        rate.spend(ms(3_600_000), 1_001);
        assert_eq!(rate.wait(ms(3_600_000)), Duration::from_millis(1));
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_two_seconds_worth(
            steps in prop::collection::vec((0u64..2_000, 1usize..400), 1..200),
        ) {
            let start = Instant::now();
            let (mut now, mut rate, mut read) = (0, ReadRate::new(1_000, start), Vec::new());
            for (pause, bytes) in steps {
                now += pause;
                let at = |now| start + Duration::from_millis(now);
                // As a link does: first the wait, then a frame.
                now += u64::try_from(rate.wait(at(now)).as_millis()).unwrap();
                if rate.wait(at(now)).is_zero() {
                    rate.spend(at(now), bytes);
                    read.push((now, bytes));
                }
            }
            for &(from, _) in &read {
                let within = read.iter().filter(|(at, _)| (from..from + 1_000).contains(at));
                prop_assert!(within.map(|(_, bytes)| bytes).sum::<usize>() <= 2_000 + 400);
            }
        }
    }

    #[test]
    fn each_client_has_its_own_links_and_leaves_nothing_behind() {
        let now = Instant::now();
        let mut usages = Usages::default();
        let quota = Quota { links: NonZeroU32::new(2), bytes: None };
        let holder =
            |name: &str| Holder::of(Some(&Arc::new(name.parse().unwrap())), [127, 0, 0, 1].into());
        let stranger = Holder::of(None, "::ffff:127.0.0.1".parse().unwrap());
        assert_eq!(stranger, Holder::of(None, "127.0.0.1".parse().unwrap()));
        for who in [&holder("cn:a"), &holder("token:a"), &stranger] {
            assert!(usages.begin(who, quota, now).is_ok());
            assert!(usages.begin(who, quota, now).is_ok());
            assert_eq!(usages.begin(who, quota, now).unwrap_err(), OverQuota { links: 2 });
            usages.end(who);
            assert!(usages.begin(who, quota, now).is_ok());
            assert!(usages.begin(who, Quota::default(), now).is_ok(), "no quota");
        }
        // Who reads too much and reconnects is still over the rate.
        let bytes = Quota { links: None, bytes: NonZeroU64::new(16_384) };
        let rate = usages.begin(&holder("cn:b"), bytes, now).unwrap();
        rate.read(1 << 20);
        usages.end(&holder("cn:b"));
        for number in 0..1_000 {
            let who = holder(&format!("cn:{number}"));
            usages.begin(&who, quota, now).unwrap();
            usages.end(&who);
        }
        assert!(usages.begin(&holder("cn:b"), bytes, now).unwrap().is_over());
        assert!(usages.0.len() < 100);
        // Without a quota it is read again.
        usages.set_all(|_| Quota::default(), now);
        assert!(!rate.is_over());
    }
}
