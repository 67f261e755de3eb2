//! Limits and intervals of the state machine.

use std::time::Duration;

/// Most batches that a publisher has not answered: it recognises the last 64 when they are sent
/// again, and no more.
pub(super) const UNANSWERED_BATCHES_MAX: usize = 64;
/// Bytes without an answer above which a publisher gets no further batch: well below a link's send
/// queue.
pub(super) const UNANSWERED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Most publishers of one route that links are kept to.
pub(super) const LINKS_PER_ROUTE: usize = 8;
/// Most links of one producer.
pub(super) const LINKS_MAX: usize = 256;
/// Most paths whose publishers are remembered.
pub(super) const PATHS_MAX: usize = 65_536;
/// Most paths in one question.
pub(super) const RESOLVE_PATHS_MAX: usize = 10_000;
/// Most paths that one lost link asks about.
pub(super) const LOST_LINK_PATHS_MAX: usize = 64;
/// How long one publisher gets all batches of a route, so that they stay large.
pub(super) const STICKY_FOR: Duration = Duration::from_millis(250);
/// A publisher that failed this recently is linked to last.
pub(super) const FAILED_RECENTLY: Duration = Duration::from_secs(60);
/// A route that got no job for this long needs no links.
pub(super) const ROUTE_IDLE: Duration = Duration::from_secs(60);
/// A link that nothing needed for this long is closed.
pub(super) const LINK_IDLE: Duration = Duration::from_secs(300);
/// A publisher that said it stops, or is drained, is left alone for so long; then it is tried anew.
pub(super) const STOPPING_RETRY: Duration = Duration::from_secs(10);
/// How often the slow chores are done.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// The age at which a path in use is asked about again.
pub(super) const PATH_REFRESH_AGE: Duration = Duration::from_secs(30);
/// The least time between two questions about a path.
pub(super) const RESOLVE_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// How soon a warming replica's "no" is asked again.
pub(super) const WARMING_RETRY: Duration = Duration::from_millis(500);
/// How often a batch may be told that one before it is missing.
pub(super) const GAPS_MAX: u32 = 3;
/// What a batch's bytes add to the time for its answer: 1 µs each, as at 1 MB/s.
pub(super) const ANSWER_TIME_PER_BYTE: Duration = Duration::from_micros(1);
