//! Every limit of the protocol. Each is checked before memory is allocated for the data.

/// Longest frame body before the handshake has ended, in bytes.
pub const HANDSHAKE_FRAME_BYTES_MAX: usize = 4 * 1024;
/// Longest frame body afterwards, in bytes, unless a handshake negotiates less.
pub const FRAME_BYTES_MAX: usize = 20 * 1024 * 1024;
/// Most messages in one frame.
pub const FRAME_MESSAGES_MAX: usize = 65_536;
/// Longest path, in bytes.
pub const PATH_BYTES_MAX: usize = 1_024;
/// Longest segment of a path, in bytes.
pub const PATH_SEGMENT_BYTES_MAX: usize = 255;
/// Most segments of a path.
pub const PATH_DEPTH_MAX: usize = 32;
/// Longest glob, in bytes.
pub const GLOB_BYTES_MAX: usize = 1_024;
/// Most alternatives to which the braces of one glob may expand.
pub const GLOB_ALTERNATIVES_MAX: usize = 256;
/// Most pairs of braces in one glob.
pub const GLOB_BRACES_MAX: usize = 32;
/// Longest total text of the alternatives of one glob, in bytes.
pub const GLOB_EXPANDED_BYTES_MAX: usize = 16 * 1024;
/// Largest payload of one job, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest headers of one job, keys and values together, in bytes.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;
/// Most headers of one job.
pub const HEADERS_MAX: usize = 1_024;
/// Longest key that relates a job to others (idempotency, order, unique), in bytes.
pub const KEY_BYTES_MAX: usize = 80;
/// Highest weight of a fair key.
pub const FAIR_WEIGHT_MAX: u16 = 1_000;
/// Longest time that an idempotency key lasts, in milliseconds (30 days).
pub const IDEMPOTENCY_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;
/// Longest period of a unique key that has one, in milliseconds (30 days).
pub const UNIQUE_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1_000;
/// Highest cost of a job, in units of its limits.
pub const LIMIT_COST_MAX: u16 = 1_000;
/// Most limits of jobs at one publisher.
pub const LIMITS_MAX: usize = 256;
/// Longest name of a limit, in bytes.
pub const LIMIT_NAME_BYTES_MAX: usize = 80;
/// Most units of a limit: of its concurrency, of its rate, of its burst.
pub const LIMIT_UNITS_MAX: u32 = 1_000_000;
/// Longest period of a limit's rate, in milliseconds (31 days).
pub const LIMIT_PERIOD_MS_MAX: u64 = 31 * 24 * 60 * 60 * 1_000;
/// Longest time in which a limit's rate fills its burst again, in milliseconds (366 days).
pub const LIMIT_REFILL_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1_000;
/// Longest time for which a handler may let a limit key rest, in milliseconds (7 days).
pub const THROTTLE_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
/// Most parents of one job.
pub const PARENTS_MAX: usize = 100;
/// Most batches that enclose a job, one within the other.
pub const BATCH_DEPTH_MAX: usize = 8;
/// Most jobs on a page of a job's parents.
pub const PAGE_PARENTS_MAX: usize = 100;
/// Most schedules at one publisher.
pub const SCHEDULES_MAX: usize = 20_000;
/// Longest name of a schedule, in bytes.
pub const SCHEDULE_NAME_BYTES_MAX: usize = 80;
/// Longest cron expression, in bytes.
pub const CRON_BYTES_MAX: usize = 256;
/// Longest name of a time zone, in bytes.
pub const ZONE_BYTES_MAX: usize = 64;
/// Shortest distance of a schedule with a fixed one, in milliseconds.
pub const PERIOD_MS_MIN: u64 = 1_000;
/// Longest jitter of a schedule, in milliseconds (a day).
pub const JITTER_MS_MAX: u64 = 24 * 60 * 60 * 1_000;
/// Most schedules on one page.
pub const PAGE_SCHEDULES_MAX: usize = 1_000;
/// Most occurrences of a preview.
pub const OCCURRENCES_MAX: usize = 100;
/// Largest result of one job, in bytes.
pub const RESULT_BYTES_MAX: usize = 1024 * 1024;
/// Longest error message of one attempt, in bytes; the worker cuts longer ones.
pub const ERROR_BYTES_MAX: usize = 8 * 1024;
/// Most jobs in one enqueue batch.
pub const BATCH_JOBS_MAX: usize = 10_000;
/// Largest sum of payloads in one enqueue batch, in bytes.
pub const BATCH_PAYLOAD_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Largest encoded enqueue batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 18 * 1024 * 1024;
/// Most settles in one batch.
pub const SETTLES_MAX: usize = 10_000;
/// Most bytes of a result, an error, a checkpoint or a replacement that a publisher accepts while
/// its disk space is low; it reserves space for results of this size.
pub const SMALL_BYTES_MAX: usize = 4096;
/// Most queues that one answer may describe.
pub const QUEUES_MAX: usize = 100_000;
/// Most tokens that one link may list or own.
pub const TOKENS_MAX: usize = 65_536;
/// Longest name of a process (publisher, worker), in bytes.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest human-readable reason on the wire, in bytes.
pub const REASON_BYTES_MAX: usize = 1_024;
/// Most patterns of all subscriptions to queues on one link.
pub const LINK_PATTERNS_MAX: usize = 1_024;
/// Most credits that one subscription may have at one publisher.
pub const CREDITS_MAX: u32 = 65_536;
/// Most handlers of one worker.
pub const HANDLERS_MAX: u32 = 65_536;
/// Most paths in one resolver request; the client splits larger ones.
pub const RESOLVER_BATCH_PATHS_MAX: usize = 100_000;
/// Most text of paths in one request of a resolver client, in bytes; it splits larger batches.
pub const RESOLVER_BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Longest text that a replica parses as a path, in bytes; paths over [`PATH_BYTES_MAX`] are
/// refused individually.
pub const PATH_TEXT_BYTES_MAX: usize = 64 * 1024;
/// Most globs in one listing.
pub const RESOLVER_GLOBS_MAX: usize = 256;
/// Most segments to which the globs of one listing or watch may expand.
pub const RESOLVER_GLOB_SEGMENTS_MAX: usize = 65_536;
/// Most groups of changes in one write.
pub const RESOLVER_GROUPS_MAX: usize = 65_536;
/// Most buckets of digests in one announce: one for about 256 paths, for some millions of paths.
pub const RESOLVER_BUCKETS_MAX: usize = 16_384;
/// Most publishers that a replica stores, and that one of its messages may list.
pub const RESOLVER_PUBLISHERS_MAX: usize = 16_384;
/// Most defaults, and most queues below none of them, that a replica stores of one publisher.
pub const DECLARED_MAX: usize = 64;
/// Most publishers of one path.
pub const PUBLISHERS_PER_PATH_MAX: usize = 1_024;
/// The highest epoch of a publisher: it counts starts, and a replica refuses a higher one.
pub const EPOCH_MAX: u64 = 4_294_967_295;
/// Most publishers that one declaration of homes may name.
pub const HOMES_MAX: usize = 64;
/// Most declarations of homes of one publisher.
pub const HOME_PATTERNS_MAX: usize = 64;
/// Most different terms that a replica stores, and that one of its messages may list.
pub const TERMS_MAX: usize = 65_536;
/// Most watches of one replica, and most watches that one of its messages may address.
pub const RESOLVER_WATCHES_MAX: usize = 16_384;
/// Longest host name of an address, in bytes.
pub const HOST_BYTES_MAX: usize = 253;
/// Longest path of a Unix socket, in bytes: the address of the system has 108 with its end.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Longest address, in bytes without its kind: a host name and a port.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Most bytes of unknown fields at the end of terms or of a publisher; they are stored and relayed
/// unchanged.
pub const LATER_BYTES_MAX: usize = 1_024;
/// Longest name of a cluster, in bytes.
pub const CLUSTER_BYTES_MAX: usize = 64;
/// Longest credential of a handshake, in bytes.
pub const CREDENTIAL_BYTES_MAX: usize = 3_072;
/// Most addresses of one publisher.
pub const ADDRESSES_MAX: usize = 16;
/// Longest record of a publisher, in bytes: its names, its addresses and unknown fields together.
pub const PUBLISHER_BYTES_MAX: usize = 1_152;
/// Longest record of terms, in bytes: their homes and unknown fields together.
pub const TERMS_BYTES_MAX: usize = 6 * 1024;
/// Most requests of one link that wait for their answers.
pub const REQUESTS_OPEN_MAX: usize = 64;
/// Most jobs in one page of a listing.
pub const PAGE_JOBS_MAX: usize = 1_000;
/// Most queues in one page of a listing.
pub const PAGE_QUEUES_MAX: usize = 5_000;
/// Most bytes in one page of a listing; a page with one larger job holds just that job.
pub const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Shortest lease of a delivery, in milliseconds.
pub const LEASE_MS_MIN: u32 = 1_000;
/// Longest lease of a delivery, in milliseconds (12 hours).
pub const LEASE_MS_MAX: u32 = 12 * 60 * 60 * 1_000;
/// Longest delay, snooze or wait between attempts, in milliseconds (100 years of 365 days).
pub const WAIT_MS_MAX: u64 = 100 * 365 * 24 * 60 * 60 * 1_000;
/// Latest due time of a job on the wall clock, in milliseconds since 1970 (the end of the year
/// 9999).
pub const RUN_AT_MS_MAX: u64 = 253_402_300_799_999;
/// Most ended jobs that a queue may be configured to retain.
pub const KEEP_JOBS_MAX: u64 = 10_000_000;
/// Largest checkpoint, in bytes.
pub const CHECKPOINT_BYTES_MAX: usize = 64 * 1024;
/// Most stored checkpoints of one job: the newest.
pub const CHECKPOINTS_MAX: usize = 64;
/// Most bytes of the stored checkpoints of one job, of the newest.
pub const CHECKPOINTS_BYTES_MAX: usize = 1024 * 1024;
/// Most stored attempts of one job: the newest.
pub const ATTEMPTS_MAX: usize = 32;
/// Longest message of a job's progress, in bytes; the worker cuts longer ones.
pub const PROGRESS_BYTES_MAX: usize = 256;
/// Most jobs whose progress one message may report.
pub const PROGRESSES_MAX: usize = 1_024;
/// Most patterns of one subscription.
pub const SOURCES_MAX: usize = 64;
/// Most feeds on one link.
pub const FEEDS_MAX: usize = 16;
/// Most events in one message of a feed.
pub const FEED_EVENTS_MAX: usize = 10_000;
/// Most jobs whose end one link may wait for.
pub const COMPLETION_WAITS_MAX: usize = 10_000;
/// Most groups of dead letters in one answer.
pub const DEAD_GROUPS_MAX: usize = 1_000;
/// Most paused patterns, and most closed patterns, at one publisher.
pub const PAUSES_MAX: usize = 1_024;
/// Most patterns of workers that one request may name.
pub const WORKER_PATTERNS_MAX: usize = 64;
/// Most workers that one request may quiet or resume.
pub const QUIETED_WORKERS_MAX: usize = 10_000;
/// Shortest heartbeat interval that a handshake may ask for, in milliseconds: each heartbeat
/// costs a system call on both sides.
pub const HEARTBEAT_MS_MIN: u32 = 10;
/// Largest encoded value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Deepest nesting of lists and maps in a value.
pub const VALUE_DEPTH_MAX: usize = 16;
/// Most elements of lists and entries of maps in one value, all levels together.
pub const VALUE_ITEMS_MAX: usize = 65_536;
/// Most subscriptions of one value link; subscription numbers are below this.
pub const VALUE_SUBSCRIPTIONS_MAX: usize = 1_048_576;
/// Most subscriptions that one message of a value link may list.
pub const VALUE_BATCH_MAX: usize = 65_536;
/// Most writes of one value link that wait for their answers.
pub const VALUE_WRITES_OPEN_MAX: usize = 1_024;
/// Smallest frame limit that a subscriber of values may set in its handshake, in bytes: the
/// publisher encodes a frame of updates once for all links.
pub const VALUE_FRAME_BYTES_MIN: usize = 2 * 1024 * 1024;

// A limit must not make another unreachable: the largest content must fit into its container.
const _: () = {
    assert!(BATCH_PAYLOAD_BYTES_MAX >= PAYLOAD_BYTES_MAX);
    assert!(BATCH_BYTES_MAX > BATCH_PAYLOAD_BYTES_MAX + HEADERS_BYTES_MAX + 4 * HEADERS_MAX);
    assert!(FRAME_BYTES_MAX > BATCH_BYTES_MAX + 64 * 1024);
    assert!(FRAME_BYTES_MAX > PAYLOAD_BYTES_MAX + RESULT_BYTES_MAX + HEADERS_BYTES_MAX);
    assert!(BATCH_BYTES_MAX > PAGE_BYTES_MAX);
    assert!(PAGE_BYTES_MAX > CHECKPOINTS_BYTES_MAX + CHECKPOINT_BYTES_MAX);
    assert!(u32::MAX as usize > FRAME_BYTES_MAX);
    assert!(VALUE_FRAME_BYTES_MIN > VALUE_BYTES_MAX + 64 * 1024 + PATH_BYTES_MAX);
    assert!(FRAME_BYTES_MAX > VALUE_FRAME_BYTES_MIN);
    // One message must fit a set of a watch, or the publishers of one path and of its default.
    let publisher = PUBLISHER_BYTES_MAX + 4;
    assert!(FRAME_BYTES_MAX > RESOLVER_PUBLISHERS_MAX * publisher + 64 * 1024);
    let member = publisher + TERMS_BYTES_MAX + 4;
    assert!(FRAME_BYTES_MAX > 2 * PUBLISHERS_PER_PATH_MAX * member + 3 * 1024 * 1024);
};
