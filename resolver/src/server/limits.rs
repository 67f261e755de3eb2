//! Limits that may change while a replica serves. A lower one refuses what is new; it throws nobody
//! out.

use longshore_protocol::Role;
use longshore_protocol::limits::RESOLVER_WATCHES_MAX;
use longshore_transport::{ReservedSlots, SlotsHandle};
use tokio::sync::mpsc;

use crate::server::ServerOptions;
use crate::server::desk::Said;

/// What a replica takes on, at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections_max: usize,
    /// Connections among them that only writers may have.
    pub writers_kept: usize,
    /// Connections among them that only tools may have.
    pub tools_kept: usize,
    /// Most watches, over all connections.
    pub watches_max: usize,
    /// Most paths, defaults included.
    pub paths_max: usize,
}

/// Of all connections one in so many is kept for writers: publishers that cannot connect are hidden
/// after a `writer_ttl`.
const WRITERS_KEPT_PART: usize = 8;
/// Connections that are kept for tools, such as `longshore resolver status`; at most one in eight.
const TOOLS_KEPT: usize = 8;

impl Limits {
    /// How many of so many connections are kept for writers, unless told otherwise: an eighth.
    pub fn usual_writers_kept(connections_max: usize) -> usize {
        connections_max / WRITERS_KEPT_PART
    }

    /// How many of so many connections are kept for tools, unless told otherwise: 8, or an eighth
    /// if that is less.
    pub fn usual_tools_kept(connections_max: usize) -> usize {
        TOOLS_KEPT.min(connections_max / WRITERS_KEPT_PART)
    }

    /// For whom connections are kept. Readers ask another replica; a writer needs this one.
    pub(super) fn kept(&self) -> [ReservedSlots; 2] {
        [
            ReservedSlots { role: Role::ResolverWriter, slots: self.writers_kept },
            ReservedSlots { role: Role::Tool, slots: self.tools_kept },
        ]
    }

    /// The most watches that there may be: one message may be for all of them.
    pub const WATCHES_MOST: usize = RESOLVER_WATCHES_MAX;
    /// The most paths that there may be: the tree numbers four times as many nodes.
    pub const PATHS_MOST: usize = 1 << 28;
}

impl From<&ServerOptions> for Limits {
    fn from(options: &ServerOptions) -> Limits {
        let most = options.connections_max;
        let (writers, tools) = (options.writers_kept, options.tools_kept);
        Limits {
            connections_max: most,
            writers_kept: writers.unwrap_or(Limits::usual_writers_kept(most)),
            tools_kept: tools.unwrap_or(Limits::usual_tools_kept(most)),
            watches_max: options.watches_max,
            paths_max: options.paths_max,
        }
    }
}

/// Changes the limits of a replica that serves. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LimitsHandle {
    pub(super) places: SlotsHandle,
    pub(super) desk: mpsc::WeakSender<Said>,
}

impl LimitsHandle {
    /// Sets them all. What the replica holds beyond a lower one stays until it goes by itself.
    /// False if it serves no more. Not cancel safe: of a call that was dropped, some of them may
    /// hold.
    pub async fn set(&self, limits: Limits) -> bool {
        let Some(desk) = self.desk.upgrade() else { return false };
        self.places.set(limits.connections_max, &limits.kept());
        desk.send(Said::Limits(limits)).await.is_ok()
    }
}
