//! Limits that may change while a replica serves. A lower one refuses new requests; it drops
//! nothing that exists.

use longshore_protocol::Role;
use longshore_protocol::limits::RESOLVER_WATCHES_MAX;
use longshore_transport::{ReservedSlots, SlotsHandle};
use tokio::sync::mpsc;

use crate::server::ServerOptions;
use crate::server::server_loop::Event;

/// The limits of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most connections.
    pub connections_max: usize,
    /// Connections among them that are reserved for writers.
    pub writers_reserved: usize,
    /// Connections among them that are reserved for tools.
    pub tools_reserved: usize,
    /// Most watches, over all connections.
    pub watches_max: usize,
    /// Most paths, defaults included.
    pub paths_max: usize,
}

/// One in so many connections is reserved for writers: publishers that cannot connect are hidden
/// after a `writer_ttl`.
const WRITERS_RESERVED_PART: usize = 8;
/// Connections reserved for tools, such as `longshore resolver status`; at most one in eight.
const TOOLS_RESERVED: usize = 8;

impl Limits {
    /// The default number of connections reserved for writers: an eighth.
    pub fn default_writers_reserved(connections_max: usize) -> usize {
        connections_max / WRITERS_RESERVED_PART
    }

    /// The default number of connections reserved for tools: 8, or an eighth if that is less.
    pub fn default_tools_reserved(connections_max: usize) -> usize {
        TOOLS_RESERVED.min(connections_max / WRITERS_RESERVED_PART)
    }

    /// The reserved connections. A reader can ask another replica; a writer needs this one.
    pub(super) fn reserved_slots(&self) -> [ReservedSlots; 2] {
        [
            ReservedSlots { role: Role::ResolverWriter, slots: self.writers_reserved },
            ReservedSlots { role: Role::Tool, slots: self.tools_reserved },
        ]
    }

    /// The highest allowed limit of watches: one message may be for all of them.
    pub const WATCHES_LIMIT_MAX: usize = RESOLVER_WATCHES_MAX;
    /// The highest allowed limit of paths: the tree numbers four times as many nodes.
    pub const PATHS_LIMIT_MAX: usize = 1 << 28;
}

impl From<&ServerOptions> for Limits {
    fn from(options: &ServerOptions) -> Limits {
        let most = options.connections_max;
        let (writers, tools) = (options.writers_reserved, options.tools_reserved);
        Limits {
            connections_max: most,
            writers_reserved: writers.unwrap_or(Limits::default_writers_reserved(most)),
            tools_reserved: tools.unwrap_or(Limits::default_tools_reserved(most)),
            watches_max: options.watches_max,
            paths_max: options.paths_max,
        }
    }
}

/// Changes the limits of a replica that serves. Cheap to clone.
#[derive(Clone, Debug)]
pub struct LimitsHandle {
    pub(super) slots: SlotsHandle,
    pub(super) server_loop: mpsc::WeakSender<Event>,
}

impl LimitsHandle {
    /// Sets all limits. What exceeds a lower one stays until it ends by itself. False if the
    /// replica has stopped. Not cancel safe: a dropped call may have set only some of them.
    pub async fn set(&self, limits: Limits) -> bool {
        let Some(server_loop) = self.server_loop.upgrade() else { return false };
        self.slots.set(limits.connections_max, &limits.reserved_slots());
        server_loop.send(Event::Limits(limits)).await.is_ok()
    }
}
