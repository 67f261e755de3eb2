//! All paths as a tree of segments. A path costs its last segment and a node of 32 bytes; its
//! ancestors are nodes too, registered or not, so that the children of a path form a row of nodes
//! to walk along.
//!
//! ```text
//! hash of the whole path ──▶ node { above, first below, row, last segment, set of publishers }
//! ```

use longshore_protocol::limits::PATH_DEPTH_MAX;

use crate::directory::index::{Index, PathHash, PathHasher, PathHashes};
use crate::directory::node_numbers::NodeNumbers;
use crate::directory::slab::{Entry, NONE, Slab};
use crate::directory::text::Text;
use crate::directory::walks::{Step, Walk, Walks};

/// The number of a node. Reused once the node is gone.
pub(super) type NodeId = u32;

/// The root, which always exists.
pub(super) const ROOT: NodeId = 0;
/// Most nodes: registrations store in the two bits above the number which kind they are, and
/// whether they were written again.
pub(super) const NODES_MAX: usize = 1 << 30;

/// Paths that are looked up together.
pub(crate) const PREFETCH_PATHS: usize = 16;

/// One path.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The parent.
    above: NodeId,
    /// The first of the row of its children.
    below: NodeId,
    /// The row that it is in itself. In a free node, the next free one.
    next: NodeId,
    before: NodeId,
    text: u32,
    hash: u32,
    /// The set of its publishers.
    set: u32,
    text_len: u8,
    /// In its highest bit: whether a default is declared here.
    depth: u8,
}

const _: () = assert!(size_of::<Node>() == 32);
const HAS_DEFAULT: u8 = 1 << 7;
const _: () = assert!(PATH_DEPTH_MAX < HAS_DEFAULT as usize);

impl Default for Node {
    fn default() -> Node {
        Node {
            above: NONE,
            below: NONE,
            next: NONE,
            before: NONE,
            text: 0,
            hash: 0,
            set: 0,
            text_len: 0,
            depth: 0,
        }
    }
}

impl Entry for Node {
    fn next_free(&self) -> u32 {
        self.next
    }
    fn set_next_free(&mut self, next: u32) {
        self.next = next;
    }
}

impl Node {
    /// Registered, or not yet swept.
    fn is_registered(&self) -> bool {
        self.set != 0 || self.has_default()
    }

    fn has_default(&self) -> bool {
        self.depth & HAS_DEFAULT != 0
    }
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Slab<Node>,
    text: Text,
    index: Index,
    hasher: PathHasher,
    pub(super) walks: Walks,
    /// Nodes with a registration.
    registration: usize,
    /// The birth of the latest node: greater than all earlier ones.
    last_birth: u64,
    /// The births of nodes whose number was used before. Those of all others follow from their
    /// numbers.
    births: NodeNumbers,
}

impl Tree {
    /// An empty tree. Only this replica knows the `secret`: see [`PathHasher`].
    pub(super) fn new(secret: [u8; 16]) -> Tree {
        let hasher = PathHasher::new(secret);
        let mut tree = Tree {
            nodes: Slab::new(),
            text: Text::new(),
            index: Index::new(),
            hasher,
            walks: Walks::default(),
            registration: 0,
            last_birth: 0,
            births: NodeNumbers::default(),
        };
        let hash = hasher.root().short();
        let root = tree.nodes.insert(Node { hash, ..Node::default() });
        tree.index.insert(hash, root, |_| hash);
        tree
    }

    /// Nodes, the root and unregistered ones included.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes with a registration.
    pub(super) fn registered_len(&self) -> usize {
        self.registration
    }

    /// There is no room for the texts of more paths.
    pub(super) fn is_full(&self) -> bool {
        self.text.is_full()
    }

    /// Makes it full.
    #[cfg(test)]
    pub(super) fn fill(&mut self) {
        self.text.fill();
    }

    /// Every number of a node is below this one.
    #[cfg(test)]
    pub(super) fn end(&self) -> NodeId {
        self.nodes.end()
    }

    /// The node of a path.
    pub(super) fn find(&self, path: &str) -> Option<NodeId> {
        self.find_by(self.hashes(path.as_bytes()), path.as_bytes())
    }

    /// The same, for a text that is hashed already. It need not be a path.
    pub(super) fn find_by(&self, hashes: PathHashes, text: &[u8]) -> Option<NodeId> {
        self.look_up(hashes.own, text)
    }

    /// The hashes of a path.
    pub(super) fn hashes(&self, path: &[u8]) -> PathHashes {
        self.hasher.path(path)
    }

    /// Hashes these paths, and touches all memory that looking them up will touch. A lookup waits
    /// for memory four times, each depending on the one before; lookups of different paths can wait
    /// together.
    pub(super) fn prefetch<'a>(
        &self,
        paths: impl Iterator<Item = &'a [u8]>,
    ) -> [PathHashes; PREFETCH_PATHS] {
        let mut all = [PathHashes::default(); PREFETCH_PATHS];
        let mut nodes = [NONE; PREFETCH_PATHS];
        let mut count = 0;
        for (hashes, path) in all.iter_mut().zip(paths) {
            *hashes = self.hashes(path);
            count += 1;
        }
        for (node, hashes) in nodes.iter_mut().zip(&all[..count]) {
            // Sometimes the wrong node, which is harmless.
            *node = self.index.find(hashes.own.short(), |_| true).unwrap_or(NONE);
        }
        let found = nodes.iter().filter(|&&node| node != NONE && node != ROOT);
        let texts = found.clone().fold(0, |sum, &node| sum ^ self.nodes[node].text);
        let first = |&node: &u32| self.text.get(self.nodes[node].text, 1)[0];
        // Otherwise the compiler would remove the unused reads.
        std::hint::black_box((texts, found.fold(0, |sum, node| sum ^ first(node))));
        all
    }

    /// The child of that name.
    pub(super) fn child(&self, at: NodeId, name: &str) -> Option<NodeId> {
        let mut path = String::new();
        self.spell(at, &mut path);
        if at != ROOT {
            path.push('/');
        }
        path.push_str(name);
        self.find(&path)
    }

    /// The hash of a path in the index.
    #[cfg(test)]
    pub(super) fn short_hash(&self, path: &str) -> u32 {
        self.hashes(path.as_bytes()).own.short()
    }

    /// The node of a path, or of its nearest ancestor that has one.
    pub(super) fn nearest(&self, path: &str) -> NodeId {
        let above = Ancestors::of(&self.hasher, path);
        let found = (0..=above.depth).rev().find_map(|depth| {
            let (hash, end) = above.at[depth];
            self.look_up(hash, &path.as_bytes()[..end])
        });
        found.unwrap_or(ROOT)
    }

    fn look_up(&self, hash: PathHash, path: &[u8]) -> Option<NodeId> {
        let hash = hash.short();
        self.index.find(hash, |node| self.nodes[node].hash == hash && self.spells(node, path))
    }

    /// Whether the node is that of the path: compared from the end, where paths differ.
    fn spells(&self, mut at: NodeId, path: &[u8]) -> bool {
        let mut rest = path;
        loop {
            let node = &self.nodes[at];
            if at == ROOT {
                return matches!(rest, b"" | b"/");
            }
            let segment = self.text.get(node.text, usize::from(node.text_len));
            let Some(above) = rest.strip_suffix(segment) else { return false };
            let Some(above) = above.strip_suffix(b"/") else { return false };
            (at, rest) = (node.above, above);
        }
    }

    /// The node of a path with these hashes; creates it and its ancestors where missing. The caller
    /// puts something there, or calls [`Tree::prune`].
    pub(super) fn make(&mut self, path: &str, hashes: PathHashes) -> NodeId {
        if hashes.name == 0 {
            return ROOT;
        }
        let text = path.as_bytes();
        if let Some(node) = self.look_up(hashes.own, text) {
            return node;
        }
        // Most paths have siblings.
        let (above, name) = (&text[..hashes.name - 1], &text[hashes.name..]);
        match self.look_up(hashes.above, above) {
            Some(at) => self.make_below(at, name, self.depth(at) + 1, hashes.own.short()),
            None => self.make_all(path),
        }
    }

    fn make_all(&mut self, path: &str) -> NodeId {
        let above = Ancestors::of(&self.hasher, path);
        let (mut depth, mut at) = (above.depth, None);
        while at.is_none() && depth > 0 {
            let (hash, end) = above.at[depth];
            at = self.look_up(hash, &path.as_bytes()[..end]);
            depth -= usize::from(at.is_none());
        }
        let mut at = at.unwrap_or(ROOT);
        for depth in depth + 1..=above.depth {
            let (hash, end) = above.at[depth];
            let start = above.at[depth - 1].1;
            let segment = &path.as_bytes()[start + 1..end];
            at = self.make_below(at, segment, depth, hash.short());
        }
        at
    }

    fn make_below(&mut self, above: NodeId, segment: &[u8], depth: usize, hash: u32) -> NodeId {
        let (next, end) = (self.nodes[above].below, self.nodes.end());
        let node = self.nodes.insert(Node {
            above,
            next,
            text: self.text.insert(segment),
            // A segment has at most 255 bytes, a path at most 32 segments.
            text_len: segment.len() as u8,
            depth: depth as u8,
            hash,
            ..Node::default()
        });
        if next != NONE {
            self.nodes[next].before = node;
        }
        self.nodes[above].below = node;
        if node == end && birth_of(node) > self.last_birth {
            self.last_birth = birth_of(node);
        } else {
            self.last_birth += 1;
            self.births.put(node, self.last_birth);
        }
        let nodes = &self.nodes;
        self.index.insert(hash, node, |node| nodes[node].hash);
        node
    }

    /// Removes the node if nothing is registered at or below it, and then its ancestors likewise.
    pub(super) fn prune(&mut self, mut at: NodeId) {
        while at != ROOT {
            let node = self.nodes[at].clone();
            if node.is_registered() || node.below != NONE {
                return;
            }
            self.walks.leave(at, self.after(at));
            match node.before {
                NONE => self.nodes[node.above].below = node.next,
                before => self.nodes[before].next = node.next,
            }
            if node.next != NONE {
                self.nodes[node.next].before = node.before;
            }
            self.index.remove(node.hash, at);
            self.text.remove(node.text, usize::from(node.text_len));
            self.nodes.remove(at);
            at = node.above;
        }
    }

    /// The next step of a walk after a node and all below it.
    pub(super) fn after(&self, at: NodeId) -> Step {
        match self.nodes[at].next {
            NONE => Step::Leave(self.nodes[at].above),
            next => Step::Enter(next),
        }
    }

    /// A walk through everything below a path, and the path's depth. `None` if there is no such
    /// path.
    pub(super) fn begin_below(&mut self, path: &str) -> Option<(usize, Walk)> {
        let node = self.find(path)?;
        let (depth, first) = (self.depth(node), self.down(node));
        Some((depth, self.walks.begin(first)))
    }

    /// The step into the children of a node.
    pub(super) fn down(&self, at: NodeId) -> Step {
        match self.nodes[at].below {
            NONE => Step::Leave(at),
            below => Step::Enter(below),
        }
    }

    /// The set of publishers of the path.
    pub(super) fn set(&self, at: NodeId) -> u32 {
        self.nodes[at].set
    }

    /// Sets it; 0 is the empty set.
    pub(super) fn put_set(&mut self, at: NodeId, set: u32) {
        self.put(at, |node| node.set = set);
    }

    /// Whether a default is declared at the path.
    pub(super) fn has_default(&self, at: NodeId) -> bool {
        self.nodes[at].has_default()
    }

    pub(super) fn put_default(&mut self, at: NodeId, has_default: bool) {
        self.put(at, |node| match has_default {
            true => node.depth |= HAS_DEFAULT,
            false => node.depth &= !HAS_DEFAULT,
        });
    }

    fn put(&mut self, at: NodeId, change: impl FnOnce(&mut Node)) {
        let node = &mut self.nodes[at];
        self.registration -= usize::from(node.is_registered());
        change(node);
        self.registration += usize::from(node.is_registered());
    }

    /// Whether anything is registered at the path.
    pub(super) fn is_registered(&self, at: NodeId) -> bool {
        self.nodes[at].is_registered()
    }

    /// The parent; `None` for the root.
    pub(super) fn above(&self, at: NodeId) -> Option<NodeId> {
        Some(self.nodes[at].above).filter(|&above| above != NONE)
    }

    /// Whether the path has children.
    pub(super) fn is_inner(&self, at: NodeId) -> bool {
        self.nodes[at].below != NONE
    }

    /// The number of segments of the path.
    pub(super) fn depth(&self, at: NodeId) -> usize {
        usize::from(self.nodes[at].depth & !HAS_DEFAULT)
    }

    /// Whether a walk along their row visits `at` before `other`.
    pub(super) fn is_before(&self, at: NodeId, other: NodeId) -> bool {
        self.birth(at) > self.birth(other)
    }

    fn birth(&self, at: NodeId) -> u64 {
        match self.births.get(at) {
            0 => birth_of(at),
            birth => birth,
        }
    }

    /// The nearest common ancestor, and its child on the way to each: `None` for one that is the
    /// ancestor itself.
    pub(super) fn fork(
        &self,
        mut at: NodeId,
        mut other: NodeId,
    ) -> (NodeId, Option<NodeId>, Option<NodeId>) {
        let (mut below, mut other_below) = (None, None);
        while at != other {
            if self.depth(at) >= self.depth(other) {
                below = Some(at);
                at = self.nodes[at].above;
            } else {
                other_below = Some(other);
                other = self.nodes[other].above;
            }
        }
        (at, below, other_below)
    }

    /// Whether the number is that of a node at present.
    #[cfg(test)]
    pub(super) fn in_use(&self, at: NodeId) -> bool {
        at == ROOT || self.nodes[at].above != NONE
    }

    /// The last segment of the path.
    pub(super) fn segment(&self, at: NodeId) -> &str {
        let node = &self.nodes[at];
        let bytes = self.text.get(node.text, usize::from(node.text_len));
        std::str::from_utf8(bytes).expect("segments are cut from texts at slashes")
    }

    /// Writes the text of the path into `out`, replacing its content.
    pub(super) fn spell(&self, at: NodeId, out: &mut String) {
        let (mut line, mut depth) = ([ROOT; PATH_DEPTH_MAX], 0);
        let mut next = at;
        while next != ROOT {
            line[depth] = next;
            depth += 1;
            next = self.nodes[next].above;
        }
        out.clear();
        for &node in line[..depth].iter().rev() {
            out.push('/');
            out.push_str(self.segment(node));
        }
        if depth == 0 {
            out.push('/');
        }
    }
}

/// The birth of a node with a number that was never used: greater than that of any lower number.
/// Between the two there is room for those of 2³² nodes with used numbers. Only if there are more,
/// further nodes with new numbers store theirs too.
fn birth_of(node: NodeId) -> u64 {
    u64::from(node) << 32
}

fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty())
}

/// A path and its ancestors, from the root on: the hash of each, and the end of its text.
struct Ancestors {
    at: [(PathHash, usize); PATH_DEPTH_MAX + 1],
    depth: usize,
}

impl Ancestors {
    fn of(hasher: &PathHasher, path: &str) -> Ancestors {
        let mut above = Ancestors { at: [(hasher.root(), 0); PATH_DEPTH_MAX + 1], depth: 0 };
        for segment in segments(path.as_bytes()) {
            let (hash, end) = above.at[above.depth];
            above.depth += 1;
            above.at[above.depth] = (hasher.below(hash, segment), end + 1 + segment.len());
        }
        above
    }
}

#[cfg(test)]
impl Tree {
    /// Panics where the tree is inconsistent. It checks everything.
    pub(super) fn invariant(&self) {
        let (mut seen, mut registration, mut text) = (0, 0, String::new());
        let mut stack = vec![ROOT];
        while let Some(at) = stack.pop() {
            let node = &self.nodes[at];
            assert!(self.in_use(at), "node {at} is linked and free");
            seen += 1;
            registration += usize::from(node.is_registered());
            self.spell(at, &mut text);
            assert_eq!(self.find(&text), Some(at), "the node of {text}");
            assert!(at == ROOT || node.is_registered() || node.below != NONE, "{text} is unused");
            let (mut below, mut before) = (node.below, NONE);
            while below != NONE {
                let child = &self.nodes[below];
                assert_eq!((child.above, child.before), (at, before), "in the row below {text}");
                assert_eq!(self.depth(below), self.depth(at) + 1, "the depth below {text}");
                assert!(before == NONE || self.is_before(before, below), "a row's order");
                stack.push(below);
                (before, below) = (below, child.next);
            }
        }
        assert_eq!(seen, self.nodes.len(), "unreachable nodes");
        assert_eq!(self.index.iter().count(), self.nodes.len(), "nodes in the index");
        assert_eq!((0..self.end()).filter(|&at| self.in_use(at)).count(), self.nodes.len());
        assert_eq!(registration, self.registration, "registered nodes");
    }
}

#[cfg(test)]
#[path = "tree_test.rs"]
mod tree_test;
