//! What can be set about dialling and listening. Every limit has a name, a unit and a default.

use std::time::Duration;

use longshore_protocol::LinkTiming;
use longshore_protocol::handshake::FEATURES;
use longshore_protocol::limits::FRAME_BYTES_MAX;

use crate::budget::FrameBudget;
use crate::oldest::OldestCommand;
use crate::places::Kept;
use crate::tls::{TlsAcceptor, TlsDialer};

/// Most bytes that wait in one link's send queue: three frames of the longest kind and some.
pub const SEND_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most links of one listener.
pub const CONNECTIONS_MAX: usize = 768;
/// Most handshakes that are under way at one listener; they do not count as connections yet. So
/// many may come at once, all honest: the workers of a publisher that has crashed and is back.
pub const HANDSHAKES_MAX: usize = 1_024;
/// Most diallers of one listener that are waited for at a time so that they hear why they are
/// refused.
pub const REFUSALS_MAX: usize = 256;
/// Descriptors that a listener leaves to everything else in its process: a publisher's journal
/// keeps 64 segments open to read and a handful to write; the rest is for links that are dialled
/// and for what the host program has open.
pub const DESCRIPTORS_KEPT: usize = 256;

/// About what a link takes at most beside the frames that it is charged for, in bytes: its read
/// buffer (32 KiB), one small frame (8 KiB), what TLS buffers (16 KiB), its tasks and queues.
pub const LINK_BYTES: usize = 64 * 1024;

/// How to dial: what producers, workers and subscribers are told of their links. The defaults are
/// for work links.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The longest timing that this side agrees to; the shorter of this, the handshake's and the
    /// other side's holds. By default a heartbeat after 2 s without another message, and 10 s of
    /// silence until the link counts as hung.
    pub timing: LinkTiming,
    /// The longest that connecting may take, at each address. 3 s by default.
    pub connect_timeout: Duration,
    /// The longest that the handshake may take once connected, the TLS handshake included. 10 s by
    /// default.
    pub handshake_timeout: Duration,
    /// Most bytes in the send queue. A single frame is taken by an empty queue whatever its length.
    /// 64 MiB by default.
    pub send_queue_bytes_max: usize,
    /// TLS, if the other side wants it. None by default.
    pub tls: Option<TlsDialer>,
}

impl Default for LinkOptions {
    /// A work link: 2 s and 10 s, 3 s to connect, 10 s for the handshake, 64 MiB of queue, no TLS.
    fn default() -> LinkOptions {
        LinkOptions {
            timing: LinkTiming::WORK,
            connect_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(10),
            send_queue_bytes_max: SEND_QUEUE_BYTES_MAX,
            tls: None,
        }
    }
}

/// How to listen.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// The longest timing that this side agrees to; the shorter of both sides' holds.
    pub timing: LinkTiming,
    /// The same for links of the role `Values`: they are idle for longer, and nobody's lease hangs
    /// on them.
    pub value_timing: LinkTiming,
    /// The longest that a handshake may take, the TLS handshake included.
    pub handshake_timeout: Duration,
    /// Most links at a time; one more is told `Busy`. Fewer if the process may not open that many
    /// files.
    pub connections_max: usize,
    /// Places among them that only links of one role take; together at most half, what is over is
    /// cut in proportion.
    pub kept: Vec<Kept>,
    /// Most of them that links of the role `Values` take; none for as many as there are. Where
    /// there are fewer places than wanted these are fewer in proportion.
    pub value_connections_max: Option<usize>,
    /// Most handshakes under way at a time. One more takes the turn of the oldest that has said
    /// nothing or has taken over a second; that one is told `Busy`, as is the one more if there is
    /// none. With TLS the silent one is closed without a word: there was no handshake.
    pub handshakes_max: usize,
    /// Most refused diallers that are waited for at a time, so that they hear why. One more is told
    /// without waiting; with TLS, if there was no room for its handshake either, it is closed
    /// without a word: one more handshake cannot be afforded.
    pub refusals_max: usize,
    /// Descriptors that are left to everything else in the process. The limit of open files is
    /// raised as far as the process may, if it is too low for all of these; if that does not do,
    /// there are fewer links.
    pub descriptors_kept: usize,
    /// The longest frame body that links take, in bytes.
    pub frame_bytes_max: usize,
    /// What received frames are charged to. A process with several listeners gives them all the
    /// same.
    pub budget: FrameBudget,
    /// Most bytes in each link's send queue. A single frame is taken by an empty queue whatever its
    /// length.
    pub send_queue_bytes_max: usize,
    /// Since when this side's oldest command waits to become durable: heartbeats tell its age.
    pub oldest: OldestCommand,
    /// What this side can do beyond the protocol's version, a bit each: [`FEATURES`], unless a test
    /// says otherwise.
    pub features: u64,
    /// TLS, for every link.
    pub tls: Option<TlsAcceptor>,
    /// Allows an address that other machines can reach, without TLS.
    pub insecure: bool,
}

impl Default for ListenerOptions {
    /// Work links, 10 s for the handshake, 768 connections of whatever role, none kept, 1,024
    /// handshakes, 256 refusals, 256 descriptors for the rest, 20 MiB frames, a budget of 256 MiB
    /// for them of its own, 64 MiB of queue each, no TLS, loopback only.
    fn default() -> ListenerOptions {
        ListenerOptions {
            timing: LinkTiming::WORK,
            value_timing: LinkTiming::VALUES,
            handshake_timeout: Duration::from_secs(10),
            connections_max: CONNECTIONS_MAX,
            kept: Vec::new(),
            value_connections_max: None,
            handshakes_max: HANDSHAKES_MAX,
            refusals_max: REFUSALS_MAX,
            descriptors_kept: DESCRIPTORS_KEPT,
            frame_bytes_max: FRAME_BYTES_MAX,
            budget: FrameBudget::default(),
            send_queue_bytes_max: SEND_QUEUE_BYTES_MAX,
            oldest: OldestCommand::default(),
            features: FEATURES,
            tls: None,
            insecure: false,
        }
    }
}
