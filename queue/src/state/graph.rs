//! Jobs that wait for the ends of others, their parents.
//!
//! A waiting job has an [`Edge`] to each parent's [`Node`] whose end it still waits for; the first
//! is in its row. A node belongs to a job that others wait for, and outlives it until they know its
//! end. That an end counts is decided, and so durable, in the command of the end itself: it is
//! marked at the node. Every command then works off marked nodes, a bounded number of edges at a
//! time, so a job with a million children delays no other. A child exists only after its parents,
//! and [batches](super::batch) see to it that there are still no cycles.
//!
//! ```text
//! row of a parent ─▶ side row ─▶ node ─┬─ on success:  edge ◀─▶ edge ◀─▶ …
//!                                      ├─ on death:    edge ◀─▶ …
//!                                      └─ on any end:  edge ◀─▶ …
//! row of a child ───────────────────────────────────────┘└─▶ edge to its next parent
//! ```

use longshore_protocol::{
    Decode, Encode, EntryHead, FrameWriter, JobChange, JobId, Parent, ParentEnd, Reader, Refusal,
    WireError,
};

use super::State;
use super::batch::Relative;
use super::row::{NONE, Substate};
use super::rows::{Links, List};
use super::slab::Slab;
use super::snapshot::{index, put_index};
use super::steps;
use crate::outcome::Outcomes;

/// Approximate bytes of an edge, and of a node with its side row.
const EDGE_BYTES: u64 = size_of::<Option<Edge>>() as u64;
const NODE_BYTES: u64 = size_of::<Option<Node>>() as u64;

/// A job waits for an end of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edge {
    /// The row of the job that waits.
    child: u32,
    /// The node of the job that it waits for.
    node: u32,
    when: ParentEnd,
    /// The child's next edge.
    next_of_child: u32,
    prev: u32,
    next: u32,
}

const _: () = assert!(size_of::<Option<Edge>>() <= 24, "the memory of a waiting job is a budget");

/// A job that others wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Node {
    /// Its row; none once it was removed.
    pub(super) parent: u32,
    /// The edges to it, by the code of what they wait for.
    edges: [List; 3],
    /// Its ends that have not reached all edges, a bit each.
    ends: u8,
    /// The next node with such ends.
    next_ended: u32,
}

/// How a parent ended. A dead one may be revived, and end again; otherwise only what comes later
/// here can follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum End {
    /// It is a batch, and a member of it died: a death, but not its end.
    MemberDied = 0,
    Died = 1,
    Completed = 2,
    /// Cancelled or expired.
    Cancelled = 3,
    /// Removed: dropped, or replaced by another job.
    Removed = 4,
}

impl End {
    const ALL: [End; 5] =
        [End::MemberDied, End::Died, End::Completed, End::Cancelled, End::Removed];

    pub(super) fn of(substate: Substate) -> Option<End> {
        match substate {
            Substate::Dead => Some(End::Died),
            Substate::Completed => Some(End::Completed),
            Substate::Cancelled | Substate::Expired => Some(End::Cancelled),
            _ => None,
        }
    }

    fn satisfies(self, when: ParentEnd) -> bool {
        match when {
            ParentEnd::Success => self == End::Completed,
            ParentEnd::Death => matches!(self, End::Died | End::MemberDied),
            ParentEnd::Any => self != End::MemberDied,
        }
    }

    /// True if it decides what an edge of that kind becomes. The death of a parent that may be
    /// revived does not for those that wait for its success.
    fn decides(self, when: ParentEnd) -> bool {
        self.satisfies(when) || !matches!(self, End::Died | End::MemberDied)
    }
}

/// All waiting jobs and their parents.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub(super) edges: Slab<Edge>,
    pub(super) nodes: Slab<Node>,
    /// The first and the last node with ends to work off.
    pub(super) ended: List,
}

impl Graph {
    pub(super) fn bytes(&self) -> u64 {
        self.edges.len() as u64 * EDGE_BYTES + self.nodes.len() as u64 * NODE_BYTES
    }

    /// True if some ends have not reached all edges.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn mark(&mut self, number: u32, end: End) {
        let node = &mut self.nodes[number];
        let is_first = node.ends == 0;
        node.ends |= 1 << end as u8;
        if !is_first {
            return;
        }
        match std::mem::replace(&mut self.ended.tail, number) {
            NONE => self.ended.head = number,
            tail => self.nodes[tail].next_ended = number,
        }
    }

    fn unlink(&mut self, number: u32) -> Option<Edge> {
        let edge = self.edges.remove(number)?;
        let list = &mut self.nodes[edge.node].edges[list_of(edge.when)];
        match edge.prev {
            NONE => list.head = edge.next,
            prev => self.edges[prev].next = edge.next,
        }
        match edge.next {
            NONE => list.tail = edge.prev,
            next => self.edges[next].prev = edge.prev,
        }
        Some(edge)
    }

    /// True if jobs wait for that end of the node's job.
    pub(super) fn is_waited_for(&self, number: u32, when: ParentEnd) -> bool {
        !self.nodes[number].edges[list_of(when)].is_empty()
    }

    fn is_unused(&self, number: u32) -> bool {
        let node = &self.nodes[number];
        node.ends == 0 && node.edges.iter().all(List::is_empty)
    }
}

/// The list of a node that has the edges of that condition.
fn list_of(when: ParentEnd) -> usize {
    usize::from(when.code())
}

impl State {
    /// Whether a job's parents and its batch exist, by `find`, and its edges fit beside `others` of
    /// an atomic batch.
    pub(super) fn admit_relatives(
        &self,
        head: &EntryHead,
        others: u64,
        find: impl Fn(&JobId) -> Option<Relative>,
    ) -> Result<(), Refusal> {
        let Some(keys) = &head.keys else { return Ok(()) };
        self.admit_batch(keys, &find)?;
        if keys.after.is_empty() && keys.batch.is_none() {
            return Ok(());
        }
        let has_time = head
            .options
            .as_ref()
            .is_some_and(|options| options.prepared || options.due != longshore_protocol::Due::Now);
        if has_time {
            return Err(Refusal::BadOptions);
        }
        if !keys.after.iter().all(|parent| find(&parent.job).is_some()) {
            return Err(Refusal::ParentGone);
        }
        let edges = self.graph.edges.len() as u64 + others + keys.after.len() as u64;
        if edges > self.rules.parents { Err(Refusal::KeysFull) } else { Ok(()) }
    }

    /// A new job waits for its parents.
    pub(super) fn enter_waiting(&mut self, slot: u32, parents: &[Parent]) {
        for parent in parents.iter().rev() {
            let known = self.rows.find(&parent.job);
            let node = self.node_of(known.expect("a job's parents are admitted just before"));
            let list = list_of(parent.when);
            let prev = self.graph.nodes[node].edges[list].tail;
            let edge = self.graph.edges.insert(Edge {
                child: slot,
                node,
                when: parent.when,
                next_of_child: self.rows[slot].queue_prev,
                prev,
                next: NONE,
            });
            self.rows[slot].queue_prev = edge;
            let edges = &mut self.graph.nodes[node].edges[list];
            edges.tail = edge;
            match prev {
                NONE => edges.head = edge,
                prev => self.graph.edges[prev].next = edge,
            }
        }
        let row = &mut self.rows[slot];
        row.when = self.now.mono_ms;
        let queue = row.queue;
        self.set_substate(slot, Substate::Waiting);
        self.queues[queue as usize].blocked.push_back(&mut self.rows, Links::Main, slot);
        self.watch_expiry(slot);
    }

    /// The node of a job, which may have ended.
    fn node_of(&mut self, parent: u32) -> u32 {
        let known = self.side(&self.rows[parent]).and_then(|side| side.node);
        let node = known.unwrap_or_else(|| {
            let edges = [List::default(); 3];
            self.graph.nodes.insert(Node { parent, edges, ends: 0, next_ended: NONE })
        });
        self.side_mut(parent).node = Some(node);
        let end = End::of(self.rows[parent].substate);
        if let Some(end) = end.or_else(|| self.had_death(parent).then_some(End::MemberDied)) {
            self.graph.mark(node, end);
        }
        node
    }

    /// The job leaves its wait, whatever follows.
    pub(super) fn leave_waiting(&mut self, slot: u32) {
        let mut next = std::mem::replace(&mut self.rows[slot].queue_prev, NONE);
        while next != NONE {
            let Some(edge) = self.graph.unlink(next) else { break };
            self.remove_unused_node(edge.node);
            next = edge.next_of_child;
        }
        let queue = self.rows[slot].queue;
        self.queues[queue as usize].blocked.unlink(&mut self.rows, Links::Main, slot);
    }

    /// The job has ended: so its batch learns at once, and the jobs that wait for it soon.
    #[inline]
    pub(super) fn propagate_end(&mut self, slot: u32) {
        self.count_ended_member(slot);
        // Most jobs have no side row: this check is all that children cost them.
        if self.rows[slot].side != NONE {
            let end = End::of(self.rows[slot].substate);
            if let Some(batch) = self.batch_of(slot) {
                if end == Some(End::Cancelled) {
                    self.cancel_members(batch);
                }
                if end != Some(End::Died) {
                    self.release_members(batch);
                }
            }
            self.mark_end(slot, end);
        }
    }

    /// The job is about to be removed.
    #[inline]
    pub(super) fn propagate_removal(&mut self, slot: u32) {
        if self.rows[slot].side != NONE {
            self.mark_end(slot, Some(End::Removed));
        }
    }

    #[inline(never)]
    fn mark_end(&mut self, slot: u32, end: Option<End>) {
        let Some(node) = self.side(&self.rows[slot]).and_then(|side| side.node) else { return };
        if let Some(end) = end {
            self.graph.mark(node, end);
        }
        if end == Some(End::Removed) {
            self.graph.nodes[node].parent = NONE;
        }
    }

    /// Takes the node from a job, whose place another will take.
    pub(super) fn take_node(&mut self, slot: u32) -> Option<u32> {
        let node = self.side(&self.rows[slot])?.node?;
        self.side_mut(slot).node = None;
        self.graph.nodes[node].parent = NONE;
        Some(node)
    }

    /// The jobs that waited for another wait for this one, which may have ended at once.
    pub(super) fn pass_node(&mut self, node: Option<u32>, to: &JobId) {
        let Some(node) = node else { return };
        let Some(slot) = self.rows.find(to) else { return self.graph.mark(node, End::Removed) };
        self.graph.nodes[node].parent = slot;
        self.side_mut(slot).node = Some(node);
        self.mark_end(slot, End::of(self.rows[slot].substate));
    }

    /// Works off the ends that jobs wait for: at most 10,000 edges; the rest with the next command.
    #[inline]
    pub(super) fn settle_parents(&mut self, out: &mut Outcomes) {
        if self.graph.has_ended() {
            self.settle_some_parents(out);
        }
    }

    #[inline(never)]
    fn settle_some_parents(&mut self, out: &mut Outcomes) {
        let mut left = self.rules.step_jobs;
        while left > 0 && self.graph.has_ended() {
            left -= 1;
            steps::count(1);
            let number = self.graph.ended.head;
            let node = self.graph.nodes[number];
            let is_set = |end: &End| node.ends & 1 << *end as u8 != 0;
            let Some(end) = End::ALL.into_iter().find(is_set) else { break };
            let mut decided = ParentEnd::ALL.iter().filter(|&&when| end.decides(when));
            match decided.find_map(|&when| {
                let list = &node.edges[list_of(when)];
                (!list.is_empty()).then_some(list)
            }) {
                Some(list) => self.settle_edge(list.head, end, out),
                None => self.end_is_known(number, end),
            }
        }
    }

    fn settle_edge(&mut self, number: u32, end: End, out: &mut Outcomes) {
        let Some(edge) = self.graph.unlink(number) else { return };
        let slot = edge.child;
        self.forget_edge(slot, number, edge.next_of_child);
        if !end.satisfies(edge.when) {
            self.end_job(slot, Substate::Cancelled, JobChange::Cancelled, out);
        } else if self.rows[slot].queue_prev == NONE {
            self.return_job(slot, JobChange::Unblocked, out);
        }
    }

    /// Takes an edge out of its child's.
    fn forget_edge(&mut self, slot: u32, number: u32, next: u32) {
        let mut at = self.rows[slot].queue_prev;
        if at == number {
            self.rows[slot].queue_prev = next;
            return;
        }
        while at != NONE {
            let edge = &mut self.graph.edges[at];
            if edge.next_of_child == number {
                edge.next_of_child = next;
                return;
            }
            at = edge.next_of_child;
        }
    }

    fn end_is_known(&mut self, number: u32, end: End) {
        let node = &mut self.graph.nodes[number];
        node.ends &= !(1 << end as u8);
        if node.ends != 0 {
            return;
        }
        let next = std::mem::replace(&mut node.next_ended, NONE);
        self.graph.ended.head = next;
        if next == NONE {
            self.graph.ended.tail = NONE;
        }
        self.remove_unused_node(number);
    }

    fn remove_unused_node(&mut self, number: u32) {
        if !self.graph.is_unused(number) {
            return;
        }
        if let Some(node) = self.graph.nodes.remove(number)
            && node.parent != NONE
        {
            self.side_mut(node.parent).node = None;
        }
    }

    /// Edges and nodes fit together and to the rows: for snapshots and for the invariant.
    pub(super) fn check_graph(&self) -> Result<(), &'static str> {
        let graph = &self.graph;
        let mut listed = 0;
        for (number, node) in graph.nodes.iter() {
            if graph.is_unused(number) {
                return Err("a node that no job waits for");
            }
            let side = self.rows_side(node.parent);
            if node.parent != NONE && side.is_none_or(|side| side.node != Some(number)) {
                return Err("a node of another job");
            }
            for (which, list) in node.edges.iter().enumerate() {
                let (mut at, mut before) = (list.head, NONE);
                while at != NONE {
                    listed += 1;
                    let is_here = |edge: &&Edge| {
                        let place = (edge.node, list_of(edge.when), edge.prev);
                        place == (number, which, before) && listed <= graph.edges.len()
                    };
                    let edge = graph.edges.get(at).filter(is_here);
                    (before, at) = (at, edge.ok_or("an edge that is not its parent's")?.next);
                }
                if list.tail != before {
                    return Err("the last edge of a parent");
                }
            }
        }
        let mut waiting = 0;
        for slot in 0..self.rows.allocated() {
            let row = &self.rows[slot];
            let node = self.rows_side(slot).and_then(|side| side.node);
            let node = node.map(|node| graph.nodes.get(node).map(|node| node.parent));
            if node.is_some_and(|parent| parent != Some(slot)) {
                return Err("a job with another's node");
            }
            if row.substate != Substate::Waiting {
                continue;
            }
            let mut at = row.queue_prev;
            if (at == NONE) != self.batch_of(slot).is_some() {
                return Err("a job that waits for nothing");
            }
            while at != NONE {
                waiting += 1;
                let is_own = |edge: &&Edge| edge.child == slot && waiting <= graph.edges.len();
                let edge = graph.edges.get(at).filter(is_own);
                at = edge.ok_or("an edge that is not its child's")?.next_of_child;
            }
        }
        if (listed, waiting) != (graph.edges.len(), graph.edges.len()) {
            return Err("edges that nobody has");
        }
        let (mut at, mut before, mut ended) = (graph.ended.head, NONE, 0);
        while at != NONE {
            ended += 1;
            let is_ended = |node: &&Node| node.ends != 0 && ended <= graph.nodes.len();
            let node = graph.nodes.get(at).filter(is_ended);
            (before, at) = (at, node.ok_or("an end of a job that has not ended")?.next_ended);
        }
        let all = graph.nodes.iter().filter(|(_, node)| node.ends != 0).count();
        if (all, graph.ended.tail) != (ended, before) { Err("ends of jobs") } else { Ok(()) }
    }

    fn rows_side(&self, slot: u32) -> Option<&super::transition::SideRow> {
        if slot >= self.rows.allocated() { None } else { self.side(&self.rows[slot]) }
    }

    /// True if a waiting job waits for an end of the node's job. Adds its edges to `examined`.
    pub(super) fn waits_for(&self, slot: u32, node: u32, examined: &mut u32) -> bool {
        let first = self.graph.edges.get(self.rows[slot].queue_prev);
        let next = |edge: &&Edge| self.graph.edges.get(edge.next_of_child);
        let edges = std::iter::successors(first, next).inspect(|_| *examined += 1);
        edges.into_iter().any(|edge| edge.node == node)
    }

    /// The parent that a waiting job waits for first.
    pub(super) fn first_parent(&self, slot: u32) -> Option<u32> {
        let edge = self.graph.edges.get(self.rows[slot].queue_prev)?;
        Some(self.graph.nodes[edge.node].parent).filter(|&parent| parent != NONE)
    }
}

impl Encode for Edge {
    fn encode(&self, out: &mut FrameWriter) {
        for number in [self.child, self.node, self.next_of_child, self.prev, self.next] {
            put_index(out, number);
        }
        self.when.encode(out);
    }
}

impl Decode for Edge {
    fn decode(r: &mut Reader) -> Result<Edge, WireError> {
        let (child, node, next_of_child) = (index(r)?, index(r)?, index(r)?);
        let (prev, next) = (index(r)?, index(r)?);
        Ok(Edge { child, node, when: Decode::decode(r)?, next_of_child, prev, next })
    }
}

impl Encode for Node {
    fn encode(&self, out: &mut FrameWriter) {
        put_index(out, self.parent);
        put_index(out, self.next_ended);
        self.edges.iter().for_each(|list| list.encode(out));
        out.u8(self.ends);
    }
}

impl Decode for Node {
    fn decode(r: &mut Reader) -> Result<Node, WireError> {
        let (parent, next_ended) = (index(r)?, index(r)?);
        let edges = [List::decode(r)?, List::decode(r)?, List::decode(r)?];
        let invalid = r.invalid("ends of a job");
        let ends = r.u8()?;
        if ends >= 1 << End::ALL.len() {
            return Err(invalid);
        }
        Ok(Node { parent, edges, ends, next_ended })
    }
}
