//! What a publisher is told when it starts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use longshore_protocol::{Address, Durability, LinkTiming, Path, Terms};
use longshore_queue::{JUMP_MS_MAX, LeaseTiming, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use longshore_resolver::{Cluster, PublicationTerms, TermsError};
use longshore_transport::{FrameBudget, TlsAcceptor};

use crate::{TestClock, machine_memory};

/// What a publisher is told when it starts.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    /// The directory of its journal; made if it is not there. One process at a time. On a local
    /// disk: what is acknowledged is worth what its `fdatasync` is worth.
    pub data: PathBuf,
    /// What operators call it; 1 to 128 bytes. `publisher` by default; where there are several,
    /// give each a name of its own.
    pub name: String,
    /// Where it listens; port 0 picks one. Port 0 of 127.0.0.1 by default. Other machines need TLS,
    /// or [`insecure`](Self::insecure).
    pub listen: SocketAddr,
    /// Where others dial it, IP addresses or host names; empty for where it listens. It has to be
    /// said where that is all addresses (`0.0.0.0`).
    pub advertise: Vec<Address>,
    /// Queues that it serves by name; at most 100,000. None by default.
    pub paths: Vec<Path>,
    /// Paths at and below which it makes any queue on first use; at most 100,000. The root by
    /// default: every path.
    pub defaults: Vec<Path>,
    /// The names of all publishers among which jobs of these paths that relate to each other find
    /// their home; empty: this one alone. All publishers of a path have to be told the same. At
    /// most 64. Empty by default.
    pub homes: Vec<String>,
    /// Subscribers of a live value try the publishers with the lowest number first; a value may
    /// have its own. 0 by default.
    pub priority: u16,
    /// Among those of one priority, how often this one is chosen, in proportion to the others; 0:
    /// only if there is no other. 100 by default.
    pub weight: u16,
    /// The resolver replicas; none (the default) for a publisher that only those who know its
    /// address use.
    pub cluster: Option<Cluster>,
    /// How durable its acknowledgements are. [`Durability::Fsync`] by default.
    pub durability: Durability,
    /// Allows a non-loopback address without TLS: anyone who reaches it could read, add and take
    /// jobs. False by default.
    pub insecure: bool,
    /// TLS, for every link. None by default.
    pub tls: Option<TlsAcceptor>,
    /// Most links at once; more are told `Busy`. Fewer if the process's limit of open files would
    /// not leave the journal its own. 16,384 by default.
    pub connections_max: usize,
    /// Most of them that follow live values, so that these never keep workers out; none, the
    /// default, for half.
    pub value_connections_max: Option<usize>,
    /// Bytes of a journal segment: 1 MiB to 1 GiB. 64 MiB by default.
    pub segment_bytes: u64,
    /// Starts although acknowledged records are damaged, and writes what it drops to a side file.
    /// False by default: then it does not start. [`Publisher::opened`](crate::Publisher::opened)
    /// says what was dropped.
    pub accept_loss: bool,
    /// How long leases outlive their link, and the publisher's own restart. 5 s and 30 s by
    /// default; the first at least two heartbeats of [`timing`](Self::timing).
    pub leases: LeaseTiming,
    /// Bytes of recent payloads that are kept in memory. 256 MiB by default.
    pub cache_bytes: usize,
    /// Bytes of memory that jobs, queues and sessions may take; from there on new jobs are
    /// `MemoryFull`, and all else goes on. None, the default, for [half of what the process may
    /// have](PublisherOptions::usual_memory_max). A job takes about 105 bytes until it ends, and
    /// for as long as it is kept then; one that has failed, or has checkpoints, more. Payloads are
    /// not counted: they are in the journal, and in the cache.
    pub memory_max: Option<u64>,
    /// What received frames are charged to; services of one process share one. None, the default,
    /// for one of its own: 4/3 of [`cache_bytes`](Self::cache_bytes), which holds slices of frames,
    /// and 256 MiB for what is on its way.
    pub budget: Option<FrameBudget>,
    /// Heartbeats of its work links. 2 s, and 10 s until one counts as hung, by default.
    pub timing: LinkTiming,
    /// Heartbeats of its value links. 5 s, and 100 s until one counts as hung, by default.
    pub value_timing: LinkTiming,
    /// A disk that leaves a command for this long without making it durable hangs: links are
    /// closed, and paths taken back, until it goes on. 30 s by default; at least 1 s.
    pub hang_after: Duration,
    /// A wall clock that goes further than this away from the monotonic one, or is found further
    /// behind at a start, is not believed: nothing that waits for it moves until it is right again
    /// or somebody confirms it (`Queues::confirm_clock`). 30 s by default; at least 1 s.
    pub clock_skew_max: Duration,
    /// Whether it tells its metrics as live values, at `/sys/publishers/NAME`. They are taken while
    /// somebody follows them. True by default.
    pub metrics: bool,
    /// What time it is, for tests; none for the machine's clocks.
    pub clock: Option<TestClock>,
}

impl PublisherOptions {
    /// On which terms it publishes its queues.
    pub(crate) fn terms(&self) -> Result<PublicationTerms, TermsError> {
        PublicationTerms::new(Terms {
            homes: self.homes.clone(),
            priority: self.priority,
            weight: self.weight,
            ..Terms::default()
        })
    }

    /// What received frames are charged to: what is given, or the default.
    pub fn frame_budget(&self) -> FrameBudget {
        let usual = || (self.cache_bytes / 3).saturating_mul(4).saturating_add(FrameBudget::BYTES);
        self.budget.clone().unwrap_or_else(|| FrameBudget::new(usual()))
    }

    /// How many of so many links follow live values at most, unless told otherwise: half, and at
    /// least one.
    pub fn usual_value_connections(connections_max: usize) -> usize {
        connections_max.div_ceil(2)
    }

    /// Bytes that jobs may take by default: half of the memory of the machine, or of the
    /// control group if that has less; the other half is for what a snapshot freezes, the cache and
    /// links. Where the system does not say: 4 GiB.
    pub fn usual_memory_max() -> u64 {
        machine_memory::bytes().map_or(4 << 30, |bytes| bytes / 2).max(Self::MEMORY_MAX_MIN)
    }

    /// The least bytes of memory that jobs may be given.
    pub const MEMORY_MAX_MIN: u64 = 16 * 1024 * 1024;
    /// Most links at once, unless told otherwise.
    pub const CONNECTIONS_MAX: usize = 16_384;
    /// Bytes of a journal segment, unless told otherwise.
    pub const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
    /// The least bytes of a journal segment.
    pub const SEGMENT_BYTES_MIN: u64 = SEGMENT_BYTES_MIN;
    /// The most bytes of a journal segment.
    pub const SEGMENT_BYTES_MAX: u64 = SEGMENT_BYTES_MAX;
    /// Bytes of recent payloads kept in memory, unless told otherwise.
    pub const CACHE_BYTES: usize = 256 * 1024 * 1024;
    /// How long a command may wait to become durable until the disk is said to hang, unless told
    /// otherwise: longer than a disk's own tries to read or write a bad block.
    pub const HANG_AFTER: Duration = Duration::from_secs(30);
    /// The shortest that this may be: a disk that is merely busy takes as long for a sync.
    pub const HANG_AFTER_MIN: Duration = Duration::from_secs(1);
    /// The largest jump of the wall clock that is believed, unless told otherwise.
    pub const CLOCK_SKEW_MAX: Duration = Duration::from_millis(JUMP_MS_MAX);
    /// The least that this may be: what keeps clocks right moves them by less.
    pub const CLOCK_SKEW_MAX_MIN: Duration = Duration::from_secs(1);

    /// A publisher with its journal in `data`, on a free port of the loopback address, with a
    /// default for everything.
    pub fn new(data: impl Into<PathBuf>) -> PublisherOptions {
        PublisherOptions {
            data: data.into(),
            name: "publisher".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: Vec::new(),
            paths: Vec::new(),
            defaults: vec![Path::root()],
            homes: Vec::new(),
            priority: Terms::default().priority,
            weight: Terms::default().weight,
            cluster: None,
            durability: Durability::Fsync,
            insecure: false,
            tls: None,
            connections_max: PublisherOptions::CONNECTIONS_MAX,
            value_connections_max: None,
            segment_bytes: PublisherOptions::SEGMENT_BYTES,
            accept_loss: false,
            leases: LeaseTiming::default(),
            cache_bytes: PublisherOptions::CACHE_BYTES,
            memory_max: None,
            budget: None,
            timing: LinkTiming::WORK,
            value_timing: LinkTiming::VALUES,
            hang_after: PublisherOptions::HANG_AFTER,
            clock_skew_max: PublisherOptions::CLOCK_SKEW_MAX,
            metrics: true,
            clock: None,
        }
    }
}
