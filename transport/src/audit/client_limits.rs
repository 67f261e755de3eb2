//! Limits of records for each client, so that none hides what others do. Pure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use longshore_access::Identity;

use crate::log_limit::LogLimit;

/// Identities with a limit of their own in one period; further ones share the last one. What was
/// left out of it, and of those that made room, is reported with the first record of the next one.
const CLIENTS_MAX: usize = 64;

/// At most so many records in each period of each identity, and of all clients without one.
pub(super) struct ClientLimits {
    lines_max: u32,
    period: Duration,
    clients: HashMap<Identity, (LogLimit, Instant)>,
    anonymous: LogLimit,
    others: LogLimit,
}

impl ClientLimits {
    pub(super) fn new(lines_max: u32, period: Duration) -> ClientLimits {
        let limit = || LogLimit::new(lines_max, period);
        let (anonymous, others) = (limit(), limit());
        ClientLimits { lines_max, period, clients: HashMap::new(), anonymous, others }
    }

    /// As [`LogLimit::admit`], for one client.
    pub(super) fn admit(&mut self, client: Option<&Identity>, now: Instant) -> Option<u64> {
        let Some(client) = client else { return self.anonymous.admit(now) };
        if let Some((limit, used)) = self.clients.get_mut(client) {
            *used = now;
            return limit.admit(now);
        }
        if self.clients.len() >= CLIENTS_MAX {
            let (period, others) = (self.period, &mut self.others);
            self.clients.retain(|_, (limit, used)| {
                let stays = now.saturating_duration_since(*used) < period;
                if !stays {
                    others.take_over(limit);
                }
                stays
            });
        }
        if self.clients.len() >= CLIENTS_MAX {
            return self.others.admit(now);
        }
        let mut limit = LogLimit::new(self.lines_max, self.period);
        limit.take_over(&mut self.others);
        let admitted = limit.admit(now);
        self.clients.insert(client.clone(), (limit, now));
        admitted
    }
}

#[cfg(test)]
mod tests {
    use longshore_access::NameKind;

    use super::*;

    #[test]
    fn no_client_uses_up_the_records_of_another() {
        let (start, period) = (Instant::now(), Duration::from_secs(10));
        let mut limits = ClientLimits::new(2, period);
        let client = |n: usize| Identity::new(NameKind::Token, n.to_string());
        let mut admit = |n: Option<usize>, now| limits.admit(n.map(client).as_ref(), now);
        for _ in 0..2 {
            assert_eq!(admit(Some(0), start), Some(0));
        }
        assert_eq!(admit(Some(0), start), None);
        assert_eq!((admit(None, start), admit(Some(1), start)), (Some(0), Some(0)));
        // The table is bounded; who has no place in it shares one limit.
        (2..CLIENTS_MAX).for_each(|n| assert_eq!(admit(Some(n), start), Some(0)));
        let shared: Vec<_> = (100..103).map(|n| admit(Some(n), start)).collect();
        assert_eq!(shared, [Some(0), Some(0), None]);
        assert_eq!(admit(Some(0), start + period), Some(1), "the one that was left out");
        assert_eq!(admit(Some(200), start + 2 * period), Some(1), "old ones make room");
        // What was left out of an identity that makes room is reported all the same.
        let later = start + 10 * period;
        let of_one: Vec<_> = (0..5).map(|_| admit(Some(0), later)).collect();
        assert_eq!(of_one, [Some(0), Some(0), None, None, None]);
        let after = later + period;
        let reported: Vec<_> = (300..300 + CLIENTS_MAX).map(|n| admit(Some(n), after)).collect();
        assert!(reported.iter().all(Option::is_some));
        assert_eq!(reported.into_iter().flatten().sum::<u64>(), 3);
    }
}
