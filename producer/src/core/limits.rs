//! Limits and intervals of the state machine.

use std::time::Duration;

/// Most unanswered batches at a publisher: it recognises the last 64 when they are sent again.
pub(super) const UNANSWERED_BATCHES_MAX: usize = 64;
/// Unanswered bytes above which a publisher gets no further batch: well below a link's send queue.
pub(super) const UNANSWERED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most publishers of one route with links.
pub(super) const LINKS_PER_ROUTE: usize = 8;
/// Most links of one producer.
pub(super) const LINKS_MAX: usize = 256;
/// Most paths with a cached route.
pub(super) const PATHS_MAX: usize = 65_536;
/// Most paths in one resolve request.
pub(super) const RESOLVE_PATHS_MAX: usize = 10_000;
/// Most paths that one lost link resolves again.
pub(super) const LOST_LINK_PATHS_MAX: usize = 64;
/// How long one publisher gets all batches of a route, so that they stay large.
pub(super) const STICKY_FOR: Duration = Duration::from_millis(250);
/// A publisher with a failure this recent is linked last.
pub(super) const FAILED_RECENTLY: Duration = Duration::from_secs(60);
/// A route without a job for this long needs no links.
pub(super) const ROUTE_IDLE: Duration = Duration::from_secs(60);
/// A link that is unused for this long is closed.
pub(super) const LINK_IDLE: Duration = Duration::from_secs(300);
/// How long a publisher that reported that it stops or drains is left alone.
pub(super) const STOPPING_RETRY: Duration = Duration::from_secs(10);
/// How often idle state is swept.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// The age at which a path in use is resolved again.
pub(super) const PATH_REFRESH_AGE: Duration = Duration::from_secs(30);
/// The least time between two resolve requests for a path.
pub(super) const RESOLVE_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// How often a batch is sent again after a publisher that is not the home of its paths refused it.
pub(super) const NOT_HOME_MAX: u32 = 3;
/// How soon a negative answer of a warming replica is retried.
pub(super) const WARMING_RETRY: Duration = Duration::from_millis(500);
/// The least time from the end of a resolve request for all publishers to the next one. While all
/// replicas are warming, each makes a link to each replica.
pub(super) const ALL_PUBLISHERS_INTERVAL: Duration = Duration::from_secs(5);
/// How often a batch may be refused because an earlier one is missing.
pub(super) const GAPS_MAX: u32 = 3;
/// The time that a batch's bytes add to its timeout: 1 µs each, as at 1 MB/s.
pub(super) const ANSWER_TIME_PER_BYTE: Duration = Duration::from_micros(1);
