//! One connection whose handshake has ended.

use std::net::SocketAddr;
use std::sync::Arc;

use longshore_protocol::{Handshake, LinkTiming, Welcome};

use crate::budget::LinkBudget;
use crate::frames::{DIALLED_READ_BYTES, FrameReader, READ_BYTES};
use crate::keeper;
use crate::liveness::Beat;
use crate::oldest::OldestCommand;
use crate::pace::Pace;
use crate::places::Place;
use crate::queue::Shared;
use crate::receiver::LinkReceiver;
use crate::sender::LinkSender;
use crate::socket::{Connection, ReadSide, WriteSide, second_net};

/// Who is at the other end.
#[derive(Clone, PartialEq, Debug)]
pub enum Peer {
    /// A dialler, and what it has come for: on the accepting side.
    Client(Handshake),
    /// Who answered: on the dialling side.
    Server(Welcome),
}

/// A connection whose handshake has ended. Heartbeats run from the start; frames flow once it is
/// [`split`](Link::split). Dropped, it closes.
pub struct Link {
    peer: Peer,
    version: u16,
    features: u64,
    hold: Arc<Hold>,
    reads: ReadSide,
    frames: FrameReader,
    budget: Option<LinkBudget>,
}

/// Keeps the link open; the last one to go closes it.
pub(crate) struct Hold {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.close("dropped".into());
    }
}

/// What the handshake has settled.
pub(crate) struct Terms {
    pub(crate) peer: Peer,
    pub(crate) peer_address: SocketAddr,
    pub(crate) version: u16,
    /// The features of both sides.
    pub(crate) features: u64,
    pub(crate) timing: LinkTiming,
    /// On the accepting side: what its links' heartbeats are in time with.
    pub(crate) beat: Option<Beat>,
    /// The longest frame body that this side takes, in bytes.
    pub(crate) own_frame_bytes_max: usize,
    /// The longest frame body that the other side takes, in bytes.
    pub(crate) peer_frame_bytes_max: usize,
    pub(crate) send_queue_bytes_max: usize,
    pub(crate) oldest: OldestCommand,
    /// What received frames are charged to: on the accepting side.
    pub(crate) budget: Option<LinkBudget>,
}

impl Link {
    /// Starts the link's task. `place` is its own among a listener's, given back at its end.
    pub(crate) fn start(connection: Connection, terms: Terms, place: Option<Place>) -> Link {
        let Connection { reads, writes, raw, pulse } = connection;
        if let Err(error) = second_net(&raw, terms.timing) {
            tracing::debug!(%error, peer = %terms.peer_address, "no TCP keepalive; heartbeats have to do");
        }
        let shared =
            Arc::new(Shared::new(raw, pulse, matches!(writes, WriteSide::Plain(_)), &terms));
        tokio::spawn(keeper::keep(shared.clone(), writes, place));
        Link {
            peer: terms.peer,
            version: terms.version,
            features: terms.features,
            hold: Arc::new(Hold { shared }),
            reads,
            frames: FrameReader::new(
                terms.own_frame_bytes_max,
                if terms.budget.is_some() { READ_BYTES } else { DIALLED_READ_BYTES },
            ),
            budget: terms.budget,
        }
    }

    /// Who is at the other end.
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

    /// The other side's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.hold.shared.peer_address
    }

    /// The protocol version spoken.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// What both sides can do beyond the version, a bit each.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The timing that both sides hold to.
    pub fn timing(&self) -> LinkTiming {
        self.hold.shared.timing
    }

    /// The longest frame body that the other side takes, in bytes.
    pub fn peer_frame_bytes_max(&self) -> usize {
        self.hold.shared.peer_frame_bytes_max
    }

    /// The two halves. The link lives until both are dropped, one of them ends it, or the other
    /// side does.
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        let Link { hold, reads, frames, budget, .. } = self;
        let sender = LinkSender { hold: hold.clone() };
        (sender, LinkReceiver { hold, reads, frames, budget, pace: Pace::default() })
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
