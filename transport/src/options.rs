//! What can be set about dialling and listening. Every limit has a name, a unit and a default.

use std::time::Duration;

use longshore_protocol::LinkTiming;
use longshore_protocol::limits::FRAME_BYTES_MAX;

use crate::oldest::OldestCommand;
use crate::tls::{TlsAcceptor, TlsDialer};

/// Most bytes that wait in one link's send queue: three frames of the longest kind and some.
pub const SEND_QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most links of one listener.
pub const CONNECTIONS_MAX: usize = 768;
/// Most hellos that are under way at one listener; they do not count as connections yet.
pub const HELLOS_MAX: usize = 256;

/// How to dial.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The longest timing that this side agrees to; the shorter of this, the hello's and the other side's holds.
    pub timing: LinkTiming,
    /// The longest that connecting may take.
    pub connect_timeout: Duration,
    /// The longest that the hello may take once connected, the TLS handshake included.
    pub hello_timeout: Duration,
    /// Most bytes in the send queue. A single frame is taken by an empty queue whatever its length.
    pub send_queue_bytes_max: usize,
    /// TLS, if the other side wants it.
    pub tls: Option<TlsDialer>,
}

impl Default for LinkOptions {
    /// A work link: 2 s and 10 s, 3 s to connect, 10 s for the hello, 64 MiB of queue, no TLS.
    fn default() -> LinkOptions {
        LinkOptions {
            timing: LinkTiming::WORK,
            connect_timeout: Duration::from_secs(3),
            hello_timeout: Duration::from_secs(10),
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
    /// The longest that a hello may take, the TLS handshake included.
    pub hello_timeout: Duration,
    /// Most links at a time; one more is told `Busy`.
    pub connections_max: usize,
    /// Most hellos under way at a time; one more is told `Busy`.
    pub hellos_max: usize,
    /// The longest frame body that links take, in bytes.
    pub frame_bytes_max: usize,
    /// Most bytes in each link's send queue. A single frame is taken by an empty queue whatever its length.
    pub send_queue_bytes_max: usize,
    /// Since when this side's oldest command waits to become durable: heartbeats tell its age.
    pub oldest: OldestCommand,
    /// TLS, for every link.
    pub tls: Option<TlsAcceptor>,
    /// Allows an address that other machines can reach, without TLS.
    pub insecure: bool,
}

impl Default for ListenerOptions {
    /// Work links, 10 s for the hello, 768 connections, 256 hellos, 20 MiB frames, 64 MiB of queue each, no TLS, loopback only.
    fn default() -> ListenerOptions {
        ListenerOptions {
            timing: LinkTiming::WORK,
            hello_timeout: Duration::from_secs(10),
            connections_max: CONNECTIONS_MAX,
            hellos_max: HELLOS_MAX,
            frame_bytes_max: FRAME_BYTES_MAX,
            send_queue_bytes_max: SEND_QUEUE_BYTES_MAX,
            oldest: OldestCommand::default(),
            tls: None,
            insecure: false,
        }
    }
}
