//! The options of dialling and listening. Every limit has a name, a unit and a default.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_access::AccessControl;
use longshore_protocol::handshake::FEATURES;
use longshore_protocol::limits::FRAME_BYTES_MAX;
use longshore_protocol::{LinkTiming, SocketPath};

use crate::access::Access;
use crate::audit::AuditLog;
use crate::budget::FrameBudget;
use crate::oldest_command::OldestCommand;
use crate::slots::ReservedSlots;
use crate::tls::TlsAcceptor;

/// Most bytes in one link's send queue: three frames of the longest kind and some.
pub const SEND_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most links of one listener.
pub const CONNECTIONS_MAX: usize = 768;
/// Most handshakes in progress at one listener; they do not count as connections yet. As many
/// honest ones may arrive at once: the workers of a publisher that has crashed and restarted.
pub const HANDSHAKES_MAX: usize = 1_024;
/// Most refused diallers of one listener that it waits for at a time, so that they read the reason.
pub const REFUSALS_MAX: usize = 256;
/// Descriptors that a listener leaves to the rest of its process: a publisher's journal keeps 64
/// segments open to read and a handful to write; the rest is for dialled links and the files of the
/// host program.
pub const DESCRIPTORS_RESERVED: usize = 256;

/// About the most that a link takes beside its charged frames, in bytes: its read buffer (32 KiB),
/// one small frame (8 KiB), TLS buffers (16 KiB), its tasks and queues.
pub const LINK_BYTES: usize = 64 * 1024;

/// How producers, workers and subscribers dial. The defaults are for work links.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The longest timing that this side agrees to; the shortest of this, the handshake's and the
    /// other side's applies. By default a heartbeat after 2 s without another message, and 10 s of
    /// silence until the link counts as hung.
    pub timing: LinkTiming,
    /// The longest time to connect to each address, and before it to read the token's file. 3 s by
    /// default.
    pub connect_timeout: Duration,
    /// The longest time for the handshake once connected, the TLS handshake included. 10 s by
    /// default.
    pub handshake_timeout: Duration,
    /// Most bytes in the send queue. An empty queue takes a single frame of any length. 64 MiB by
    /// default.
    pub send_queue_bytes_max: usize,
    /// The cluster to join and TLS. `None`, the default, for those of the client's cluster, or, of
    /// a client without one, for a cluster without a name, without TLS.
    pub access: Option<Access>,
    /// The folders in which Unix sockets of publishers are dialled: nothing proves who listens
    /// there. `None`, the default, for those of the replicas' sockets that the client's cluster
    /// names, or, of a client without one, for every folder.
    pub socket_folders: Option<Arc<[PathBuf]>>,
}

impl Default for LinkOptions {
    /// A work link: 2 s and 10 s, 3 s to connect, 10 s for the handshake, 64 MiB of queue.
    fn default() -> LinkOptions {
        LinkOptions {
            timing: LinkTiming::WORK,
            connect_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(10),
            send_queue_bytes_max: SEND_QUEUE_BYTES_MAX,
            access: None,
            socket_folders: None,
        }
    }
}

impl LinkOptions {
    /// These options, with `access` unless they have their own.
    #[must_use]
    pub fn or_access(mut self, access: &Access) -> LinkOptions {
        self.access.get_or_insert_with(|| access.clone());
        self
    }

    /// Whether a publisher's socket at this path is dialled. With TLS none is.
    pub(crate) fn dials(&self, socket: &SocketPath) -> bool {
        let has_tls = self.access.as_ref().is_some_and(|access| access.tls.is_some());
        let in_folder = |all: &Arc<[PathBuf]>| all.iter().any(|one| one == socket.folder());
        !has_tls && self.socket_folders.as_ref().is_none_or(in_folder)
    }
}

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// The longest timing that this side agrees to; the shorter of both sides' applies.
    pub timing: LinkTiming,
    /// The same for links of the role `Values`: they are idle for longer, and no lease depends on
    /// them.
    pub value_timing: LinkTiming,
    /// The longest time for a handshake, the TLS handshake included.
    pub handshake_timeout: Duration,
    /// Most links at a time; one more is refused with `Busy`. Fewer if the process may not open
    /// that many files.
    pub connections_max: usize,
    /// Slots among them that only links of one role may take; together at most half, above that
    /// each is reduced in proportion.
    pub reserved: Vec<ReservedSlots>,
    /// Most of them for links of the role `Values`; `None` for no separate limit. If the process
    /// cannot open as many links as configured, this limit shrinks in proportion.
    pub value_connections_max: Option<usize>,
    /// Most handshakes in progress at a time. One more displaces the oldest that has sent nothing
    /// or has taken over a second, of the address that has the most handshakes; it is refused with
    /// `Busy`. If there is none, or only of addresses with fewer than its own, the new one is.
    /// With TLS a displaced silent one is closed without an answer: there was no handshake.
    pub handshakes_max: usize,
    /// Most refused diallers that the listener waits for at a time, so that they read the reason.
    /// One more is refused without waiting; with TLS, if there was no room for its handshake
    /// either, it is closed without an answer: one more handshake cannot be afforded.
    pub refusals_max: usize,
    /// Descriptors that are left to the rest of the process. If the limit of open files is too low
    /// for all of these, it is raised as far as the process may; if that does not suffice, there
    /// are fewer links.
    pub descriptors_reserved: usize,
    /// The longest frame body that links accept, in bytes.
    pub frame_bytes_max: usize,
    /// The budget of received frames. A process with several listeners gives them all the same.
    pub budget: FrameBudget,
    /// Most bytes in each link's send queue. An empty queue takes a single frame of any length.
    pub send_queue_bytes_max: usize,
    /// Since when this side's oldest command has waited to become durable: heartbeats carry its
    /// age.
    pub oldest: OldestCommand,
    /// Features of this side beyond the protocol's version, one bit each: [`FEATURES`], except in
    /// tests.
    pub features: u64,
    /// The name of its cluster: diallers that name another are refused with `WrongCluster`. Empty
    /// by default, for diallers that name none.
    pub cluster: String,
    /// TLS, for every link.
    pub tls: Option<TlsAcceptor>,
    /// Who may be a client, and do what. By default every client may do everything.
    pub access_control: AccessControl,
    /// Records refused clients and changes of the rules. None by default.
    pub audit: AuditLog,
    /// Allows an address that other machines can reach, without TLS.
    pub insecure: bool,
    /// A Unix socket beside the address, without TLS: under a policy its clients are known by their
    /// users, unless they have a token. Its owner and its group may connect; only root and this
    /// user may write to its folder. None by default.
    pub unix: Option<SocketPath>,
}

impl Default for ListenerOptions {
    /// Work links, 10 s for the handshake, 768 connections of any role, none reserved, 1,024
    /// handshakes, 256 refusals, 256 descriptors for the rest, 20 MiB frames, an own budget of 256
    /// MiB for them, 64 MiB of queue each, no TLS, loopback only.
    fn default() -> ListenerOptions {
        ListenerOptions {
            timing: LinkTiming::WORK,
            value_timing: LinkTiming::VALUES,
            handshake_timeout: Duration::from_secs(10),
            connections_max: CONNECTIONS_MAX,
            reserved: Vec::new(),
            value_connections_max: None,
            handshakes_max: HANDSHAKES_MAX,
            refusals_max: REFUSALS_MAX,
            descriptors_reserved: DESCRIPTORS_RESERVED,
            frame_bytes_max: FRAME_BYTES_MAX,
            budget: FrameBudget::default(),
            send_queue_bytes_max: SEND_QUEUE_BYTES_MAX,
            oldest: OldestCommand::default(),
            features: FEATURES,
            cluster: String::new(),
            tls: None,
            access_control: AccessControl::default(),
            audit: AuditLog::default(),
            insecure: false,
            unix: None,
        }
    }
}
