//! What clients use of their quotas. [`Rate`] is pure.
//!
//! ```text
//! client ── its links ──▶ Usage { links, handshakes, rate } ◀── [[quota]] of the policy
//!                              │                      └ a link over the rate waits for its turn
//!                              └ a further link or handshake is refused
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longshore_access::{Identity, LinksLimit, QUOTA_BYTES_MIN, QUOTA_MESSAGES_MIN, Quota};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// A frame counts as at least this many bytes: small ones cost work, too.
const FRAME_BYTES_COUNTED_MIN: usize = 256;

/// Who has a quota.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Holder {
    /// All links of an identity with the same groups, on which its quota depends.
    Identity(Arc<Identity>, Arc<[String]>),
    /// All links from an address that have no identity.
    Address(IpAddr),
}

impl Holder {
    pub(crate) fn of(identity: Option<&Arc<Identity>>, address: IpAddr) -> Holder {
        match identity {
            Some(identity) => Holder::Identity(identity.clone(), identity.groups.clone()),
            None => Holder::Address(counted_address(address)),
        }
    }
}

/// The address that counts as one: of IPv6 the network of 64 bits, all of which one host may have.
pub(crate) fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// What the clients of a listener use.
#[derive(Debug, Default)]
pub(crate) struct Usages(HashMap<Holder, Usage>);

#[derive(Debug, Default)]
struct Usage {
    links: u32,
    handshakes: Option<Rate>,
    rate: Arc<ClientRate>,
}

impl Usages {
    /// A client has one more link; an error if that is over its quota.
    pub(crate) fn begin(
        &mut self,
        holder: &Holder,
        quota: Quota,
        now: Instant,
    ) -> Result<Arc<ClientRate>, OverQuota> {
        // Doubling lets the sweep cost a constant time for each insertion.
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, usage| !usage.is_over(now));
        }
        let usage = self.0.entry(holder.clone()).or_default();
        let handshakes = quota.handshakes.map(|limit| u64::from(limit.get()));
        Rate::set(&mut usage.handshakes, handshakes, now);
        if let (Some(rate), Some(limit)) = (&mut usage.handshakes, quota.handshakes)
            && !rate.take(now)
        {
            return Err(OverQuota::Handshakes(limit.get()));
        }
        if let Some((most, limit)) = quota.links_max()
            && u64::from(usage.links) >= most
        {
            return Err(OverQuota::Links { links: usage.links, limit });
        }
        usage.links += 1;
        usage.rate.set(quota, now);
        Ok(usage.rate.clone())
    }

    /// True if a client may have no further link.
    pub(crate) fn has_all_links(&self, holder: &Holder, quota: Quota) -> bool {
        quota.links_max().is_some_and(|(most, _)| self.links(holder) as u64 >= most)
    }

    /// The links of a client.
    pub(crate) fn links(&self, holder: &Holder) -> usize {
        self.0.get(holder).map_or(0, |usage| usage.links as usize)
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

impl Usage {
    /// True if nothing of it has to be remembered.
    fn is_over(&self, now: Instant) -> bool {
        self.links == 0
            && self.handshakes.as_ref().is_none_or(|rate| rate.even_at <= now)
            && self.rate.due(now) <= now
    }
}

/// A client has as much as its quota allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum OverQuota {
    #[error("it has {links} links, {}", of_links(*limit))]
    Links { links: u32, limit: LinksLimit },
    #[error(
        "it has made {0} handshakes within a second, its quota in the policy: \
         wait a second and connect less often, or raise `handshakes` of [[quota]]"
    )]
    Handshakes(u32),
}

fn of_links(limit: LinksLimit) -> String {
    let rate = |least: u64, key: &str| {
        format!(
            "all that its quota of {key} a second in the policy serves ({least} for each): \
             close one, or raise `{key}` of [[quota]]"
        )
    };
    match limit {
        LinksLimit::Links => {
            "its quota in the policy: close one, or raise `links` of [[quota]]".to_owned()
        }
        LinksLimit::Bytes => rate(QUOTA_BYTES_MIN, "bytes"),
        LinksLimit::Messages => rate(QUOTA_MESSAGES_MIN, "messages"),
    }
}

/// The rates at which all links of one client are read.
#[derive(Debug, Default)]
pub(crate) struct ClientRate {
    /// There is a quota: without one, a frame costs a load.
    is_limited: AtomicBool,
    rates: Mutex<Rates>,
    /// Grows with every change of the quota: what links wait for is no longer valid.
    changes: AtomicU64,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Rates {
    bytes: Option<Rate>,
    messages: Option<Rate>,
}

impl ClientRate {
    fn set(&self, quota: Quota, now: Instant) {
        let mut rates = self.rates.lock();
        let bytes = Rate::set(&mut rates.bytes, quota.bytes.map(std::num::NonZeroU64::get), now);
        let messages = quota.messages.map(std::num::NonZeroU64::get);
        if !Rate::set(&mut rates.messages, messages, now) && !bytes {
            return;
        }
        self.is_limited.store(quota.bytes.or(quota.messages).is_some(), Ordering::Relaxed);
        self.changes.fetch_add(1, Ordering::Release);
        drop(rates);
        self.changed.notify_waiters();
    }

    /// When a further link may be read.
    fn due(&self, now: Instant) -> Instant {
        self.rates.lock().due().unwrap_or(now)
    }
}

impl Rates {
    /// When what was read so far is within both rates, but for a second's worth.
    fn due(&self) -> Option<Instant> {
        self.bytes.iter().chain(&self.messages).map(Rate::due).max()
    }

    /// These were read by a link, which may read again at the returned time.
    fn spend(&mut self, now: Instant, bytes: usize, messages: usize) -> Option<Instant> {
        if let Some(rate) = &mut self.bytes {
            rate.spend(now, bytes);
        }
        if let Some(rate) = &mut self.messages {
            rate.spend(now, messages);
        }
        self.due()
    }
}

/// The turns of one link at its client's rates. A link waits until the client's rates cover all
/// that its links had read when it read last: so their turns come in the order of their reads, and
/// no link waits for longer than the others.
#[derive(Debug)]
pub(crate) struct LinkRate {
    client: Arc<ClientRate>,
    /// Nothing may be read before; and [`ClientRate::changes`] then.
    due: Option<Instant>,
    changes: u64,
}

impl LinkRate {
    /// A new link's turn comes after those of the client's other links.
    pub(crate) fn new(client: Arc<ClientRate>) -> LinkRate {
        let changes = client.changes.load(Ordering::Acquire);
        let due = client.is_limited.load(Ordering::Relaxed).then(|| client.due(Instant::now()));
        LinkRate { client, due, changes }
    }

    /// True if there is a quota.
    pub(crate) fn is_limited(&self) -> bool {
        self.client.is_limited.load(Ordering::Relaxed)
    }

    /// These bytes were read.
    pub(crate) fn read(&mut self, bytes: usize) {
        if bytes > 0 {
            self.spend(bytes, 0);
        }
    }

    /// A frame of this length was read, of which the bytes have been counted.
    pub(crate) fn read_frame(&mut self, bytes: usize) {
        self.spend(FRAME_BYTES_COUNTED_MIN.saturating_sub(bytes), 1);
    }

    fn spend(&mut self, bytes: usize, messages: usize) {
        if !self.is_limited() {
            return;
        }
        let mut rates = self.client.rates.lock();
        self.changes = self.client.changes.load(Ordering::Acquire);
        self.due = rates.spend(Instant::now(), bytes, messages);
    }

    /// True if nothing may be read at the moment.
    pub(crate) fn is_over(&mut self) -> bool {
        let Some(due) = self.due else { return false };
        let is_over = self.has_quota_of_turn() && Instant::now() < due;
        if !is_over {
            self.due = None;
        }
        is_over
    }

    fn has_quota_of_turn(&self) -> bool {
        self.client.changes.load(Ordering::Acquire) == self.changes
    }

    /// Waits until something may be read. Cancel safe.
    pub(crate) async fn wait(&self) {
        let changed = self.client.changed.notified();
        let Some(due) = self.due.filter(|_| self.has_quota_of_turn()) else { return };
        tokio::select! {
            () = tokio::time::sleep_until(due.into()) => {}
            () = changed => {}
        }
    }
}

/// So many a second, of which one second's worth may come at once. Pure: time is an argument.
#[derive(Debug)]
struct Rate {
    per_s: u64,
    /// When all that came is within the rate. Before `now`, nothing counts.
    even_at: Instant,
}

impl Rate {
    const BURST: Duration = Duration::from_secs(1);

    fn new(per_s: u64, now: Instant) -> Rate {
        Rate { per_s, even_at: now }
    }

    /// Changes the rate; false if it is as before. What came before still counts, but for no longer
    /// than it would have.
    fn set(rate: &mut Option<Rate>, per_s: Option<u64>, now: Instant) -> bool {
        let differs = rate.as_ref().map(|rate| rate.per_s) != per_s;
        if differs {
            let left = |rate: &Rate, per_s| {
                let left = rate.even_at.saturating_duration_since(now).as_nanos();
                let left = left * u128::from(rate.per_s.min(per_s)) / u128::from(per_s);
                Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
            };
            let before = rate.take();
            *rate = per_s.map(|per_s| {
                let left = before.as_ref().map_or(Duration::ZERO, |before| left(before, per_s));
                Rate::new(per_s, now + left)
            });
        }
        differs
    }

    /// Adds what came, even if that is over the rate.
    fn spend(&mut self, now: Instant, count: usize) {
        self.even_at = self.even_at.max(now) + self.time(count);
    }

    /// Adds one, unless that is over the rate.
    fn take(&mut self, now: Instant) -> bool {
        let even_at = self.even_at.max(now) + self.time(1);
        let fits = even_at <= now + Rate::BURST;
        if fits {
            self.even_at = even_at;
        }
        fits
    }

    /// When all that came is within the rate, but for a second's worth.
    fn due(&self) -> Instant {
        self.even_at.checked_sub(Rate::BURST).unwrap_or(self.even_at)
    }

    fn time(&self, count: usize) -> Duration {
        let nanos = count as u128 * 1_000_000_000 / u128::from(self.per_s);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroU64};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_second_comes_at_once_and_the_rest_at_the_rate() {
        let start = Instant::now() + Duration::from_secs(10);
        let ms = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::new(1_000, start);
        rate.spend(start, 1_000);
        assert_eq!(rate.due(), start);
        rate.spend(start, 500);
        assert_eq!(rate.due(), ms(500));
        // An hour without any allows no more than a second's worth.
        rate.spend(ms(3_600_000), 1_001);
        assert_eq!(rate.due(), ms(3_600_001));
    }

    #[test]
    fn a_handshake_over_the_rate_is_not_counted_and_the_next_fits_in_time() {
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::new(4, start);
        assert!((0..4).all(|_| rate.take(start)), "a second's worth");
        assert!((0..100).all(|_| !rate.take(ms(249))));
        assert!(rate.take(ms(250)) && !rate.take(ms(250)));
        assert!((0..4).all(|_| rate.take(ms(60_000))) && !rate.take(ms(60_000)));
        let mut one = Rate::new(1, start);
        assert!(one.take(start) && !one.take(ms(999)) && one.take(ms(1_000)));
    }

    #[test]
    fn a_changed_rate_counts_what_came_before_but_for_no_longer() {
        let start = Instant::now() + Duration::from_secs(10);
        for (per_s, even_at_ms) in [(500, 4_000), (2_000, 2_000), (4_000, 1_000)] {
            let mut rate = Some(Rate::new(1_000, start));
            rate.as_mut().unwrap().spend(start, 4_000);
            assert!(Rate::set(&mut rate, Some(per_s), start));
            let even_at = rate.unwrap().even_at;
            assert_eq!(even_at, start + Duration::from_millis(even_at_ms), "{per_s}");
        }
    }

    /// How often each link is read in a minute at these rates, if every one always has something
    /// to read. The links are served in the order in which their turns come.
    fn reads_in_a_minute(rates: &mut Rates, links: usize, bytes: usize) -> Vec<usize> {
        let start = Instant::now() + Duration::from_secs(10);
        let (mut now, mut due, mut reads) = (start, vec![start; links], vec![0; links]);
        while let Some((link, at)) = due.iter().copied().enumerate().min_by_key(|(_, due)| *due)
            && at < start + Duration::from_secs(60)
        {
            now = now.max(at);
            due[link] = rates.spend(now, bytes, 1).unwrap().max(now);
            reads[link] += 1;
        }
        reads
    }

    #[test]
    fn links_of_one_client_share_its_rates_and_wait_for_equally_long() {
        let now = Instant::now() + Duration::from_secs(10);
        let rate = |per_s| Some(Rate::new(per_s, now));
        let spread = |reads: &[usize]| reads.iter().max().unwrap() - reads.iter().min().unwrap();
        let mut rates = Rates { bytes: rate(163_840), messages: None };
        let reads = reads_in_a_minute(&mut rates, 10, 32 * 1024);
        // 5 reads a second for a minute and the burst, and the first read of each.
        assert!((300..=315).contains(&reads.iter().sum::<usize>()), "{reads:?}");
        assert!(spread(&reads) <= 6, "only the burst may go to one: {reads:?}");
        let mut rates = Rates { bytes: rate(1 << 40), messages: rate(512) };
        let reads = reads_in_a_minute(&mut rates, 2, 100);
        assert!((61 * 512..=61 * 512 + 2).contains(&reads.iter().sum::<usize>()), "{reads:?}");
        assert!(spread(&reads) <= 513, "{reads:?}");
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_two_seconds_worth_and_a_read_of_each_link(
            steps in prop::collection::vec((0u64..2_000, 1usize..400, 0usize..3), 1..200),
        ) {
            let start = Instant::now() + Duration::from_secs(10);
            let mut rates = Rates { bytes: Some(Rate::new(1_000, start)), messages: None };
            let (mut now, mut due, mut read) = (start, [start; 3], Vec::new());
            for (pause, bytes, link) in steps {
                now += Duration::from_millis(pause);
                if now >= due[link] {
                    due[link] = rates.spend(now, bytes, 1).unwrap();
                    read.push((now, bytes));
                }
            }
            for &(from, _) in &read {
                let second = from..from + Duration::from_secs(1);
                let within = read.iter().filter(|(at, _)| second.contains(at));
                prop_assert!(within.map(|(_, bytes)| bytes).sum::<usize>() <= 2_000 + 3 * 400);
            }
        }
    }

    #[test]
    fn each_client_has_its_own_links_and_leaves_nothing_behind() {
        let now = Instant::now();
        let mut usages = Usages::default();
        let quota = Quota { links: NonZeroU32::new(2), ..Quota::default() };
        let holder =
            |name: &str| Holder::of(Some(&Arc::new(name.parse().unwrap())), [127, 0, 0, 1].into());
        let address = |text: &str| Holder::of(None, text.parse().unwrap());
        let stranger = address("::ffff:127.0.0.1");
        assert_eq!(stranger, address("127.0.0.1"));
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1:2:3"), "one host");
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        for who in [&holder("cn:a"), &holder("token:a"), &stranger] {
            assert!(usages.begin(who, quota, now).is_ok());
            assert!(usages.begin(who, quota, now).is_ok());
            let over = usages.begin(who, quota, now).unwrap_err();
            assert_eq!(over, OverQuota::Links { links: 2, limit: LinksLimit::Links });
            usages.end(who);
            assert!(usages.begin(who, quota, now).is_ok());
            assert!(usages.begin(who, Quota::default(), now).is_ok(), "no quota");
        }
        // Who reads too much and reconnects is still over the rate, as is who connects too often.
        let bytes = Quota { bytes: NonZeroU64::new(16_384), ..Quota::default() };
        LinkRate::new(usages.begin(&holder("cn:b"), bytes, now).unwrap()).read(1 << 20);
        usages.end(&holder("cn:b"));
        let handshakes = Quota { handshakes: NonZeroU32::new(1), ..Quota::default() };
        usages.begin(&holder("cn:c"), handshakes, now).unwrap();
        usages.end(&holder("cn:c"));
        for number in 0..1_000 {
            let who = holder(&format!("cn:{number}"));
            usages.begin(&who, quota, now).unwrap();
            usages.end(&who);
        }
        let over = usages.begin(&holder("cn:c"), handshakes, now).unwrap_err();
        assert_eq!(over, OverQuota::Handshakes(1));
        let mut link = LinkRate::new(usages.begin(&holder("cn:b"), bytes, now).unwrap());
        assert!(link.is_over());
        assert!(usages.0.len() < 100);
        // Without a quota it is read again.
        usages.set_all(|_| Quota::default(), now);
        assert!(!link.is_over());
    }

    /// Else a second JWT with other groups would change the quota of the first one's links.
    #[test]
    fn an_identity_has_a_quota_for_each_set_of_groups() {
        let now = Instant::now();
        let holder = |groups: &[&str]| {
            let mut identity: Identity = "jwt:a".parse().unwrap();
            identity.groups = groups.iter().map(ToString::to_string).collect();
            Holder::of(Some(&Arc::new(identity)), [127, 0, 0, 1].into())
        };
        assert_eq!(holder(&["x"]), holder(&["x"]));
        let mut usages = Usages::default();
        let limited = Quota { bytes: NonZeroU64::new(16_384), ..Quota::default() };
        let rate = usages.begin(&holder(&["slow"]), limited, now).unwrap();
        LinkRate::new(rate.clone()).read(1 << 20);
        usages.begin(&holder(&["fast"]), Quota::default(), now).unwrap();
        assert!(LinkRate::new(rate).is_over());
    }

    #[test]
    fn a_rate_serves_as_many_links_as_it_has_shares_for() {
        let now = Instant::now();
        let mut usages = Usages::default();
        let quota = Quota {
            links: NonZeroU32::new(9),
            bytes: NonZeroU64::new(1 << 30),
            messages: NonZeroU64::new(3 * 256 - 1),
            ..Quota::default()
        };
        let who = Holder::of(None, [10, 0, 0, 1].into());
        assert!((0..2).all(|_| usages.begin(&who, quota, now).is_ok()));
        assert_eq!(
            usages.begin(&who, quota, now).unwrap_err().to_string(),
            "it has 2 links, all that its quota of messages a second in the policy serves (256 for \
             each): close one, or raise `messages` of [[quota]]"
        );
        let quota = Quota { messages: None, bytes: NonZeroU64::new(3 * 16_384 - 1), ..quota };
        let over = usages.begin(&who, quota, now).unwrap_err().to_string();
        assert!(over.ends_with("(16384 for each): close one, or raise `bytes` of [[quota]]"));
    }
}
