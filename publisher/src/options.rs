//! A publisher's options.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use longshore_access::AccessControl;
use longshore_protocol::{
    Address, Durability, Homes, LinkTiming, Path, SocketPath, Terms, TlsName,
};
use longshore_queue::{JUMP_MS_MAX, LeaseTiming, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use longshore_resolver::{CheckedTerms, Cluster, TermsTooLong};
use longshore_transport::{AuditLog, FrameBudget, TlsAcceptor};

use crate::{TestClock, machine_memory};

/// A publisher's options.
#[derive(Clone, Debug)]
pub struct PublisherOptions {
    /// The directory of its journal; created if missing. One process at a time. Use a local disk:
    /// an acknowledgement is as reliable as the disk's `fdatasync`.
    pub data: PathBuf,
    /// Its name for operators; 1 to 128 bytes. `publisher` by default; where there are several,
    /// give each its own name.
    pub name: String,
    /// The address that it listens on; port 0 picks a free one. Port 0 of 127.0.0.1 by default.
    /// Other machines need TLS, or [`insecure`](Self::insecure).
    pub listen: SocketAddr,
    /// A Unix socket beside the address, without TLS: under a policy its clients are known by their
    /// users, unless they have a token. Its owner and its group may connect; only root and this
    /// user may write to its folder. None by default.
    pub listen_unix: Option<SocketPath>,
    /// The addresses that others dial, IP addresses, host names or Unix sockets; empty for those
    /// that it listens on.
    /// Required if it listens on all addresses (`0.0.0.0`).
    pub advertise: Vec<Address>,
    /// The name in its certificate that clients expect, whatever the address that they dial; none
    /// (the default) for the host name or IP address that they dial. Certificates that replace this
    /// one need the name, too.
    pub tls_name: Option<TlsName>,
    /// Queues that it serves by name; at most 100,000. None by default.
    pub paths: Vec<Path>,
    /// Paths at and below which it creates any queue on first use; at most 100,000. The root by
    /// default: every path.
    pub defaults: Vec<Path>,
    /// Which publisher, by its name, is the home of which paths: the only one that gets their jobs
    /// with idempotency keys. All publishers of a path need the same declarations. None by default:
    /// a path with one publisher needs none.
    pub homes: Homes,
    /// Subscribers of a live value try the publishers with the lowest number first; a value may
    /// override it. 0 by default.
    pub priority: u16,
    /// Among those of one priority, how often this one is chosen, in proportion to the others; 0:
    /// only if there is no other. 100 by default.
    pub weight: u16,
    /// The resolver replicas, and the cluster's name, which clients have to name; none (the
    /// default) for a publisher whose clients know its address, in a cluster without a name.
    pub cluster: Option<Cluster>,
    /// How durable its acknowledgements are. [`Durability::Fsync`] by default.
    pub durability: Durability,
    /// Allows a non-loopback address without TLS: anyone who reaches it could read, add and take
    /// jobs. False by default.
    pub insecure: bool,
    /// TLS, for every link. None by default.
    pub tls: Option<TlsAcceptor>,
    /// Who may be a client, and do what. By default every client may do everything.
    pub access_control: AccessControl,
    /// Records acts of tools, refused accesses and changes of the rules; while it cannot be
    /// written, acts are refused. None by default.
    pub audit: AuditLog,
    /// Most links at once; more are refused with `Busy`. Fewer if the process's limit of open files
    /// would leave too few for the journal. 16,384 by default.
    pub connections_max: usize,
    /// Most links that follow live values, so that these never displace workers; none, the default,
    /// for half.
    pub value_connections_max: Option<usize>,
    /// Bytes of a journal segment: 1 MiB to 1 GiB. 64 MiB by default.
    pub segment_bytes: u64,
    /// Starts although acknowledged records are damaged, and writes what it drops to a side file.
    /// False by default: then it does not start. [`Publisher::opened`](crate::Publisher::opened)
    /// reports what was dropped.
    pub accept_loss: bool,
    /// How long leases outlive their link, and the publisher's own restart. 5 s and 30 s by
    /// default; the first at least two heartbeats of [`timing`](Self::timing).
    pub leases: LeaseTiming,
    /// Bytes of recent payloads that are cached. 256 MiB by default.
    pub cache_bytes: usize,
    /// Bytes of memory that jobs, queues and sessions may take. Beyond it new jobs are refused with
    /// `MemoryFull`, and everything else continues. None, the default, for [half of what the
    /// process may use](PublisherOptions::default_memory_max). A job takes about 105 bytes until it
    /// ends, and while it is retained after that; one that has failed, or has checkpoints, takes
    /// more. Payloads do not count: they are in the journal and in the cache.
    pub memory_max: Option<u64>,
    /// The budget of received frames; services of one process share one. None, the default, for its
    /// own budget: 4/3 of [`cache_bytes`](Self::cache_bytes), which holds slices of frames, and 256
    /// MiB for frames in progress. Less is an error. If publishers share one, add up their caches.
    pub budget: Option<FrameBudget>,
    /// Heartbeats of its work links. 2 s, and 10 s until one counts as hung, by default.
    pub timing: LinkTiming,
    /// Heartbeats of its value links. 5 s, and 100 s until one counts as hung, by default.
    pub value_timing: LinkTiming,
    /// A disk that leaves a command for this long without making it durable counts as hanging: the
    /// publisher closes links and withdraws paths until the disk recovers. 30 s by default; at
    /// least 1 s.
    pub hang_after: Duration,
    /// A wall clock that moves further than this from the monotonic one, or after a reboot is
    /// further behind or 30 days ahead, is not trusted: nothing that waits for it proceeds until it
    /// is right again or an operator confirms it (`Queues::confirm_clock`). 30 s by default; at
    /// least 1 s.
    pub clock_skew_max: Duration,
    /// Whether it publishes its metrics as live values, at `/sys/publishers/NAME`. Metrics are
    /// collected only while someone subscribes. True by default.
    pub metrics: bool,
    /// A test's clock; none for the machine's clocks.
    pub clock: Option<TestClock>,
}

impl PublisherOptions {
    /// The terms on which it publishes its queues.
    pub(crate) fn terms(&self) -> Result<CheckedTerms, TermsTooLong> {
        CheckedTerms::new(Terms {
            homes: self.homes.clone(),
            priority: self.priority,
            weight: self.weight,
            ..Terms::default()
        })
    }

    /// The name of the cluster that it belongs to.
    pub(crate) fn cluster_name(&self) -> String {
        self.cluster.as_ref().map(|cluster| cluster.access.cluster.clone()).unwrap_or_default()
    }

    /// The budget of received frames: the configured one, or the default.
    pub fn frame_budget(&self) -> FrameBudget {
        self.budget.clone().unwrap_or_else(|| FrameBudget::new(self.frame_bytes_min()))
    }

    /// What the payload cache may hold of frames, and for frames in progress.
    pub(crate) fn frame_bytes_min(&self) -> usize {
        (self.cache_bytes / 3).saturating_mul(4).saturating_add(FrameBudget::BYTES)
    }

    /// The default limit of links that follow live values: half, and at least one.
    pub fn default_value_connections(connections_max: usize) -> usize {
        connections_max.div_ceil(2)
    }

    /// The default limit of memory for jobs: half of the memory of the machine, or of the control
    /// group if that has less. The other half is for snapshots, the cache and links. 4 GiB where
    /// the system does not report its memory.
    pub fn default_memory_max() -> u64 {
        machine_memory::bytes().map_or(4 << 30, |bytes| bytes / 2).max(Self::MEMORY_MAX_MIN)
    }

    /// The smallest memory limit for jobs, in bytes.
    pub const MEMORY_MAX_MIN: u64 = 16 * 1024 * 1024;
    /// The default of [`connections_max`](Self::connections_max).
    pub const CONNECTIONS_MAX: usize = 16_384;
    /// The default of [`segment_bytes`](Self::segment_bytes).
    pub const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
    /// The least bytes of a journal segment.
    pub const SEGMENT_BYTES_MIN: u64 = SEGMENT_BYTES_MIN;
    /// The most bytes of a journal segment.
    pub const SEGMENT_BYTES_MAX: u64 = SEGMENT_BYTES_MAX;
    /// The default of [`cache_bytes`](Self::cache_bytes).
    pub const CACHE_BYTES: usize = 256 * 1024 * 1024;
    /// The default of [`hang_after`](Self::hang_after): longer than a disk's own retries of a bad
    /// block.
    pub const HANG_AFTER: Duration = Duration::from_secs(30);
    /// The smallest value of it: a disk that is merely busy takes as long for a sync.
    pub const HANG_AFTER_MIN: Duration = Duration::from_secs(1);
    /// The default of [`clock_skew_max`](Self::clock_skew_max).
    pub const CLOCK_SKEW_MAX: Duration = Duration::from_millis(JUMP_MS_MAX);
    /// The smallest value of it: ordinary clock corrections are smaller.
    pub const CLOCK_SKEW_MAX_MIN: Duration = Duration::from_secs(1);

    /// A publisher with its journal in `data`, on a free port of the loopback address, with a
    /// default for every path.
    pub fn new(data: impl Into<PathBuf>) -> PublisherOptions {
        PublisherOptions {
            data: data.into(),
            name: "publisher".to_owned(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            listen_unix: None,
            advertise: Vec::new(),
            tls_name: None,
            paths: Vec::new(),
            defaults: vec![Path::root()],
            homes: Homes::default(),
            priority: Terms::default().priority,
            weight: Terms::default().weight,
            cluster: None,
            durability: Durability::Fsync,
            insecure: false,
            tls: None,
            access_control: AccessControl::default(),
            audit: AuditLog::default(),
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
