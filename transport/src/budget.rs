//! The memory of a process for the frames that its accepted links receive.
//!
//! A frame is charged with its length as soon as its header has arrived, before its body is
//! allocated, and until the last slice of it is dropped. A link is not read while it waits for a
//! charge.
//!
//! ```text
//! a frame ──▶ its client's share ──▶ the budget
//!             each: the unreserved part, unless it is of a worker or of a publisher at a resolver,
//!                   and all of it
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use longshore_protocol::Role;
use longshore_protocol::limits::FRAME_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::quota::Holder;

/// Each link may hold one frame of at most this many bytes without a charge: heartbeats and small
/// requests never wait.
pub(crate) const SMALL_FRAME_BYTES_MAX: usize = 8 * 1024;
/// The smallest charge for a frame, in bytes: it covers the bookkeeping of a short one.
const CHARGE_MIN: usize = 1024;
/// Bytes of a budget, at most a quarter of it, that are reserved for the links of workers, and of
/// publishers at a resolver; and as many again that no client takes alone.
const RESERVED_BYTES: usize = 64 * 1024 * 1024;

const fn reserved(bytes: usize) -> usize {
    if bytes / 4 < RESERVED_BYTES { bytes / 4 } else { RESERVED_BYTES }
}

/// The most bytes of received frames that a process holds, partial ones included. Clones share one
/// budget: give all listeners of a process the same. Links that this process dials are exempt: the
/// dialler chooses whom to trust, and a worker that stopped reading the answers its handlers wait
/// for would deadlock.
#[derive(Clone, Debug)]
pub struct FrameBudget {
    bytes: usize,
    parts: Arc<Parts>,
    /// The parts of each client: those without a link and a frame are gone.
    clients: Arc<Mutex<HashMap<Holder, Weak<Parts>>>>,
}

#[derive(Debug)]
struct Parts {
    all: Arc<Semaphore>,
    /// The unreserved part. Other roles are charged to both, so that readers and producers never
    /// keep out workers that settle and publishers that register.
    unreserved: Arc<Semaphore>,
}

impl FrameBudget {
    /// The default: 256 MiB.
    pub const BYTES: usize = 256 * 1024 * 1024;
    /// The least bytes of a budget: the longest frame fits into the unreserved part.
    pub const BYTES_MIN: usize = 32 * 1024 * 1024;

    /// A budget of `bytes`, at least [`BYTES_MIN`](FrameBudget::BYTES_MIN).
    pub fn new(bytes: usize) -> FrameBudget {
        let bytes = bytes.clamp(FrameBudget::BYTES_MIN, Semaphore::MAX_PERMITS);
        let parts = Arc::new(Parts::new(bytes, bytes - reserved(bytes)));
        FrameBudget { bytes, parts, clients: Arc::default() }
    }

    /// The total bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The most bytes that all links of one client may charge, but for those of workers: all but
    /// 128 MiB; half of a budget under 256 MiB, but 20 MiB at least. A client is an identity with
    /// its groups, or an address without one.
    fn client_bytes(&self) -> usize {
        (self.bytes - 2 * reserved(self.bytes)).max(FRAME_BYTES_MAX)
    }

    /// The parts of one client, at all listeners of the budget: as much is left to others as is
    /// reserved.
    fn parts_of(&self, client: &Holder) -> Arc<Parts> {
        let mut clients = self.clients.lock();
        // Doubling lets the sweep cost a constant time for each insertion.
        if clients.len() == clients.capacity() {
            clients.retain(|_, parts| parts.strong_count() > 0);
        }
        if let Some(parts) = clients.get(client).and_then(Weak::upgrade) {
            return parts;
        }
        let all = self.bytes - reserved(self.bytes);
        let parts = Arc::new(Parts::new(all, self.client_bytes()));
        clients.insert(client.clone(), Arc::downgrade(&parts));
        parts
    }

    /// Bytes charged now.
    pub fn charged(&self) -> usize {
        self.bytes - self.parts.all.available_permits()
    }
}

impl Default for FrameBudget {
    fn default() -> FrameBudget {
        FrameBudget::new(FrameBudget::BYTES)
    }
}

const _: () = {
    let unreserved = FrameBudget::BYTES_MIN - reserved(FrameBudget::BYTES_MIN);
    assert!(unreserved >= FRAME_BYTES_MAX && SMALL_FRAME_BYTES_MAX >= CHARGE_MIN);
};

impl Parts {
    fn new(all: usize, unreserved: usize) -> Parts {
        let [all, unreserved] = [all, unreserved].map(|bytes| Arc::new(Semaphore::new(bytes)));
        Parts { all, unreserved }
    }

    async fn take(self: &Arc<Self>, bytes: u32, reserved: bool) -> Held {
        // `acquire` fails only on a closed semaphore, and these are never closed.
        let of = async |semaphore: &Arc<Semaphore>| {
            semaphore.clone().acquire_many_owned(bytes).await.ok()
        };
        let unreserved = if reserved { None } else { of(&self.unreserved).await };
        Held { _unreserved: unreserved, _all: of(&self.all).await, _parts: self.clone() }
    }
}

/// One link's access to the budget.
#[derive(Debug)]
pub(crate) struct LinkBudget {
    budget: Arc<Parts>,
    /// The most that all links of the client may hold: one client with partial frames does not keep
    /// out others, and its producers do not keep out its workers.
    client: Arc<Parts>,
    /// Whether the link's role may use the reserved part.
    reserved: bool,
    /// Cloned by the uncharged small frame, while there is one.
    small: Arc<()>,
}

impl LinkBudget {
    pub(crate) fn new(budget: &FrameBudget, client: &Holder, role: Role) -> LinkBudget {
        LinkBudget {
            budget: budget.parts.clone(),
            client: budget.parts_of(client),
            reserved: matches!(role, Role::Worker | Role::ResolverWriter),
            small: Arc::new(()),
        }
    }

    /// Waits until a frame of `length` may be held. Waiters are served in order. Cancel safe.
    pub(crate) async fn charge(&self, length: usize) -> Charge {
        if length <= SMALL_FRAME_BYTES_MAX && Arc::strong_count(&self.small) == 1 {
            return Charge { small: Some(self.small.clone()), ..Charge::default() };
        }
        // The protocol has no longer frames, and a longer charge might never fit.
        let bytes = length.clamp(CHARGE_MIN, FRAME_BYTES_MAX) as u32;
        // First: what waits for its own client holds nothing that others wait for.
        let of_client = self.client.take(bytes, self.reserved).await;
        let of_all = self.budget.take(bytes, self.reserved).await;
        Charge { small: None, held: Some([of_client, of_all]) }
    }
}

/// A frame's charge to the budget: none if its link was dialled. Dropping it releases it.
#[derive(Debug, Default)]
pub(crate) struct Charge {
    small: Option<Arc<()>>,
    /// Of the client's share, and of the budget.
    held: Option<[Held; 2]>,
}

#[derive(Debug)]
struct Held {
    _unreserved: Option<OwnedSemaphorePermit>,
    _all: Option<OwnedSemaphorePermit>,
    /// So that a client's later links find them.
    _parts: Arc<Parts>,
}

impl Charge {
    /// The frame, which owns the charge until its last slice is dropped.
    pub(crate) fn into_bytes(self, body: Vec<u8>) -> Bytes {
        match self {
            Charge { small: None, held: None } => Bytes::from(body),
            charge => Bytes::from_owner(Charged { body, _charge: charge }),
        }
    }
}

struct Charged {
    body: Vec<u8>,
    _charge: Charge,
}

impl AsRef<[u8]> for Charged {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    const MIB: usize = 1 << 20;

    fn client(number: u8) -> Holder {
        Holder::of(None, [10, 0, 0, number].into())
    }

    /// A link of many clients.
    fn link(budget: &FrameBudget, role: Role) -> LinkBudget {
        let client = Arc::new(Parts::new(budget.bytes(), budget.bytes()));
        LinkBudget { client, ..LinkBudget::new(budget, &self::client(0), role) }
    }

    /// The charge, if it is granted without waiting.
    fn now(link: &LinkBudget, length: usize) -> Option<Charge> {
        link.charge(length).now_or_never()
    }

    #[test]
    fn a_frame_is_charged_until_its_last_slice_is_dropped() {
        let budget = FrameBudget::new(64 * MIB);
        let producer = link(&budget, Role::Producer);
        let body = now(&producer, 10 * MIB).unwrap().into_bytes(vec![7; 10 * MIB]);
        assert_eq!(budget.charged(), 10 * MIB);
        let slice = body.slice(1_000..1_001);
        drop(body);
        assert_eq!((budget.charged(), slice[0]), (10 * MIB, 7));
        drop(slice);
        assert_eq!(budget.charged(), 0);
    }

    #[test]
    fn one_small_frame_of_each_link_is_not_charged() {
        let budget = FrameBudget::new(0);
        assert_eq!(budget.bytes(), FrameBudget::BYTES_MIN);
        let (one, other) = (link(&budget, Role::Worker), link(&budget, Role::Worker));
        let all = [20 * MIB, 12 * MIB].map(|bytes| now(&one, bytes).unwrap());
        let small = now(&one, SMALL_FRAME_BYTES_MAX).unwrap().into_bytes(vec![1]);
        assert!(now(&one, 1).is_none(), "a second one is charged, and waits");
        assert!(now(&other, 1).is_some(), "each link has its own");
        assert!(now(&other, SMALL_FRAME_BYTES_MAX + 1).is_none());
        drop(small);
        assert!(now(&one, 1).is_some());
        drop(all);
        let (_small, _charged) = (now(&one, 1).unwrap(), now(&one, 1).unwrap());
        assert_eq!(budget.charged(), CHARGE_MIN);
    }

    #[test]
    fn a_quarter_is_reserved_for_workers_and_writers() {
        let budget = FrameBudget::new(40 * MIB);
        let reader = link(&budget, Role::ResolverReader);
        let readers = now(&reader, 20 * MIB).unwrap();
        let _more = now(&reader, 10 * MIB).unwrap();
        assert!(now(&reader, 10_000).is_none());
        for role in [Role::Worker, Role::ResolverWriter] {
            assert!(now(&link(&budget, role), 10 * MIB).is_some());
        }
        drop(readers);
        assert!(now(&reader, 20 * MIB).is_some());
    }

    #[test]
    fn a_cancelled_waiter_holds_no_charge() {
        let budget = FrameBudget::new(40 * MIB);
        let (producer, worker) = (link(&budget, Role::Producer), link(&budget, Role::Worker));
        let all = [20 * MIB; 2].map(|bytes| now(&worker, bytes).unwrap());
        assert!(now(&producer, 10 * MIB).is_none());
        drop(all);
        assert_eq!(budget.charged(), 0);
        assert!(now(&producer, 20 * MIB).is_some() && now(&worker, 20 * MIB).is_some());
    }

    #[test]
    fn one_client_leaves_room_for_others_and_for_its_workers() {
        let budget = FrameBudget::new(256 * MIB);
        let of = |number, role| LinkBudget::new(&budget, &client(number), role);
        let producer = of(1, Role::Producer);
        let held = [16 * MIB; 8].map(|bytes| now(&producer, bytes).unwrap());
        // It waits in its client's line, not in that of all.
        let mut waiting = std::pin::pin!(producer.charge(10_000));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(now(&of(1, Role::Tool), 10_000).is_none(), "the client has its share");
        let worker = of(1, Role::Worker);
        let results = [16 * MIB; 4].map(|bytes| now(&worker, bytes).unwrap());
        assert!(now(&worker, 10_000).is_none());
        for role in [Role::Producer, Role::Worker] {
            let other = of(2, role);
            let others = [16 * MIB; 4].map(|bytes| now(&other, bytes).unwrap());
            assert_eq!(budget.charged(), budget.bytes());
            drop(others);
        }
        drop((held, results));
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn frames_count_for_their_client_after_its_links_and_at_every_listener() {
        let budget = FrameBudget::new(256 * MIB);
        let link = LinkBudget::new(&budget, &client(1), Role::Worker);
        let frames = [16 * MIB; 12].map(|bytes| now(&link, bytes).unwrap());
        drop(link);
        (2..200).for_each(|n| drop(LinkBudget::new(&budget, &client(n), Role::Tool)));
        assert!(budget.clients.lock().len() < 100);
        let again = LinkBudget::new(&budget.clone(), &client(1), Role::Producer);
        assert!(now(&again, 10_000).is_none());
        drop(frames);
        assert!(now(&again, 10_000).is_some());
    }

    #[test]
    fn a_small_budget_has_room_for_the_longest_frame_of_a_client() {
        let budget = FrameBudget::new(0);
        let link = LinkBudget::new(&budget, &client(1), Role::Producer);
        assert!(now(&link, FRAME_BYTES_MAX).is_some());
    }
}
