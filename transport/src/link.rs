//! A connection after its handshake.

use std::net::SocketAddr;
use std::sync::Arc;

use longshore_access::{Identity, Rights};
use longshore_protocol::{Handshake, LinkTiming, Welcome};
use tokio::sync::watch;

use crate::authorization::{LinkClient, Registration};
use crate::budget::LinkBudget;
use crate::frames::{DIALLED_READ_BYTES, FrameReader, READ_BYTES};
use crate::link_writer;
use crate::liveness::HeartbeatSchedule;
use crate::oldest_command::OldestCommand;
use crate::pace::Pace;
use crate::quota::LinkRate;
use crate::receiver::LinkReceiver;
use crate::send_queue::Shared;
use crate::sender::LinkSender;
use crate::slots::Slot;
use crate::socket::{Connection, ReadSide, WriteSide, set_keepalive};

/// The other side of a link.
#[derive(Clone, PartialEq, Debug)]
pub enum Peer {
    /// A dialler and its handshake: on the accepting side.
    Client(Handshake),
    /// The server's welcome: on the dialling side.
    Server(Welcome),
}

/// A connection after its handshake. Heartbeats run from the start; frames flow once it is
/// [`split`](Link::split). Dropping it closes it.
pub struct Link {
    peer: Peer,
    version: u16,
    features: u64,
    guard: Arc<LinkGuard>,
    reads: ReadSide,
    frames: FrameReader,
    budget: Option<LinkBudget>,
    client: Option<LinkClient>,
}

/// Keeps the link open; dropping the last one closes it.
pub(crate) struct LinkGuard {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for LinkGuard {
    fn drop(&mut self) {
        self.shared.close("dropped".into());
    }
}

/// The outcome of the handshake.
pub(crate) struct LinkTerms {
    pub(crate) peer: Peer,
    pub(crate) peer_address: SocketAddr,
    pub(crate) version: u16,
    /// Features of both sides.
    pub(crate) features: u64,
    pub(crate) timing: LinkTiming,
    /// On the accepting side: the schedule that all its links' heartbeats share.
    pub(crate) schedule: Option<HeartbeatSchedule>,
    /// The longest frame body that this side accepts, in bytes.
    pub(crate) own_frame_bytes_max: usize,
    /// The longest frame body that the other side accepts, in bytes.
    pub(crate) peer_frame_bytes_max: usize,
    pub(crate) send_queue_bytes_max: usize,
    pub(crate) oldest: OldestCommand,
    /// The budget of received frames: on the accepting side.
    pub(crate) budget: Option<LinkBudget>,
    /// The client: on the accepting side.
    pub(crate) client: Option<LinkClient>,
}

/// What a link occupies at its listener, released at its end.
pub(crate) struct LinkPlace {
    pub(crate) _slot: Slot,
    pub(crate) registration: Registration,
}

impl Link {
    /// Starts the link's writer task. `place` is what the link occupies at the listener, released
    /// at its end.
    pub(crate) fn start(
        connection: Connection,
        terms: LinkTerms,
        place: Option<LinkPlace>,
    ) -> Link {
        let Connection { reads, writes, raw, activity, .. } = connection;
        if let Err(error) = set_keepalive(&raw, terms.timing) {
            tracing::debug!(
                %error, peer = %terms.peer_address,
                "no TCP keepalive; heartbeats have to do"
            );
        }
        let shared =
            Arc::new(Shared::new(raw, activity, matches!(writes, WriteSide::Plain(_)), &terms));
        if let Some(place) = &place {
            place.registration.started(&shared);
        }
        tokio::spawn(link_writer::run(shared.clone(), writes, place));
        Link {
            peer: terms.peer,
            version: terms.version,
            features: terms.features,
            guard: Arc::new(LinkGuard { shared }),
            reads,
            frames: FrameReader::new(
                terms.own_frame_bytes_max,
                if terms.budget.is_some() { READ_BYTES } else { DIALLED_READ_BYTES },
            ),
            budget: terms.budget,
            client: terms.client,
        }
    }

    /// The other side.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The dialler's handshake, on the accepting side.
    pub fn handshake(&self) -> Option<&Handshake> {
        match &self.peer {
            Peer::Client(handshake) => Some(handshake),
            Peer::Server(_) => None,
        }
    }

    /// The accepting side's welcome, on the dialling side.
    pub fn welcome(&self) -> Option<&Welcome> {
        match &self.peer {
            Peer::Client(_) => None,
            Peer::Server(welcome) => Some(welcome),
        }
    }

    /// Who the client is, on the accepting side; none without a certificate and a token.
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.client.as_ref()?.identity.as_ref()
    }

    /// What the client may do, on the accepting side. The rights only grow: a link that has lost a
    /// right is cut. On the dialling side, everything.
    pub fn rights(&self) -> watch::Receiver<Arc<Rights>> {
        match &self.client {
            Some(client) => client.rights.clone(),
            None => watch::channel(Arc::new(Rights::everything())).1,
        }
    }

    /// The other side's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.guard.shared.peer_address
    }

    /// The protocol version spoken.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Features of both sides beyond the version, one bit each.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The timing that both sides use.
    pub fn timing(&self) -> LinkTiming {
        self.guard.shared.timing
    }

    /// The longest frame body that the other side accepts, in bytes.
    pub fn peer_frame_bytes_max(&self) -> usize {
        self.guard.shared.peer_frame_bytes_max
    }

    /// The two halves. The link lives until both are dropped, one of them ends it, or the other
    /// side ends it.
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        let Link { guard, reads, frames, budget, client, .. } = self;
        let rate = client.map(|client| LinkRate::new(client.rate));
        let sender = LinkSender { guard: guard.clone() };
        (sender, LinkReceiver { guard, reads, frames, budget, rate, pace: Pace::default() })
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("peer_address", &self.peer_address())
            .field("timing", &self.timing())
            .finish()
    }
}
