//! Timing rules that several crates share. Durations only: nothing here reads a clock.

use std::time::Duration;

/// The timing of resolver clients and servers. The rules and the defaults are those of the chapter
/// on fault tolerance of netidx's book. Clients and replicas of one cluster should use the same
/// values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResolverTiming {
    /// A read connection is closed after this long without traffic. 60 s by default.
    pub reader_ttl: Duration,
    /// A publisher is hidden after this long without traffic; half of it is the heartbeat. 120 s by
    /// default.
    pub writer_ttl: Duration,
    /// The longest duration of a handshake. 10 s by default.
    pub handshake_timeout: Duration,
    /// The longest duration of a connect, at each address. 3 s by default.
    pub connect_timeout: Duration,
    /// The shortest wait between tries. 1 s by default.
    pub retry_wait_min: Duration,
    /// The longest wait between tries; each is random between the two. 12 s by default.
    pub retry_wait_max: Duration,
    /// Tries for each batch: rounds over all replicas when reading, tries at each replica when
    /// writing. 3 by default.
    pub tries: u32,
    /// Added to the request timeout for each simple read. 50 µs by default.
    pub read_op_timeout: Duration,
    /// Added to the request timeout for each simple write. 100 µs by default.
    pub write_op_timeout: Duration,
    /// The shortest request timeout, for small batches. 15 s by default.
    pub request_timeout_min: Duration,
}

impl Default for ResolverTiming {
    fn default() -> ResolverTiming {
        ResolverTiming {
            reader_ttl: Duration::from_secs(60),
            writer_ttl: Duration::from_secs(120),
            handshake_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(3),
            retry_wait_min: Duration::from_secs(1),
            retry_wait_max: Duration::from_secs(12),
            tries: 3,
            read_op_timeout: Duration::from_micros(50),
            write_op_timeout: Duration::from_micros(100),
            request_timeout_min: Duration::from_secs(15),
        }
    }
}

impl ResolverTiming {
    /// How long to wait for *an* answer to a batch of `operations` simple reads: `max(15 s, 50 µs ×
    /// n)`.
    pub fn read_timeout(&self, operations: u64) -> Duration {
        self.request_timeout_min.max(times(self.read_op_timeout, operations))
    }

    /// How long to wait for *an* answer to a batch of `operations` simple writes: `max(15 s, 100 µs
    /// × n)`.
    pub fn write_timeout(&self, operations: u64) -> Duration {
        self.request_timeout_min.max(times(self.write_op_timeout, operations))
    }

    /// The interval at which a writer sends a heartbeat, and retries a degraded replica: half of
    /// `writer_ttl`.
    pub fn heartbeat(&self) -> Duration {
        self.writer_ttl / 2
    }

    /// A random wait between tries, uniform between the bounds. `random` is uniform over the whole
    /// range of u64.
    pub fn retry_wait(&self, random: u64) -> Duration {
        let span = self.retry_wait_max.saturating_sub(self.retry_wait_min);
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let nanos = u128::from(random) * u128::from(span) / u128::from(u64::MAX);
        // The quotient is at most `span`.
        self.retry_wait_min.saturating_add(Duration::from_nanos(nanos as u64))
    }
}

fn times(each: Duration, n: u64) -> Duration {
    Duration::from_nanos(
        u64::try_from(each.as_nanos().saturating_mul(u128::from(n))).unwrap_or(u64::MAX),
    )
}

/// The timing of one link: when to send a heartbeat, and when to treat the other side as hung. Both
/// sides propose theirs, and use the shorter of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkTiming {
    /// A side that has sent nothing for this long sends a heartbeat; at least 10 ms.
    pub heartbeat: Duration,
    /// A side that has received no byte for this long disconnects.
    pub hang: Duration,
}

impl LinkTiming {
    /// Work links: 2 s and 10 s. Shorter, because leases depend on them.
    pub const WORK: LinkTiming =
        LinkTiming { heartbeat: Duration::from_secs(2), hang: Duration::from_secs(10) };
    /// Value links: 5 s and 100 s, as in netidx's chapter on fault tolerance.
    pub const VALUES: LinkTiming =
        LinkTiming { heartbeat: Duration::from_secs(5), hang: Duration::from_secs(100) };

    /// The timing that both sides use: the shorter of each.
    pub fn agreed(self, other: LinkTiming) -> LinkTiming {
        LinkTiming {
            heartbeat: self.heartbeat.min(other.heartbeat),
            hang: self.hang.min(other.hang),
        }
    }
}
