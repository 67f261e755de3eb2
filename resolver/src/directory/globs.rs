//! The paths that match globs, a slice at a time: a walk down the tree that enters only nodes at or
//! below which something can still match.
//!
//! All alternatives of all globs are concatenated in one list of segments. The state of the walk at
//! a path is a set of positions in that list: those that the path's segments have led to. A child
//! is entered if its name leads on from one of them; where only names without wildcards lead on,
//! those children are looked up, and the others are skipped.

use std::cmp::Ordering;

use longshore_protocol::limits::RESOLVER_GLOB_SEGMENTS_MAX;
use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::{Glob, GlobPart};

use crate::directory::Directory;
use crate::directory::scope::Scope;
use crate::directory::tree::{NodeId, ROOT, Tree};
use crate::directory::walks::{Step, Walk};

/// Most segments in the globs of one listing: the state at each depth takes 4 bytes for each, at
/// most 8 MiB in all.
const SEGMENTS_MAX: usize = RESOLVER_GLOB_SEGMENTS_MAX;
/// Characters compared that count as one step.
const STEP_CHARACTERS: usize = 512;

/// The globs of a listing expand to too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the globs stand for {0} segments, over the limit of {SEGMENTS_MAX}; ask for fewer at a time"
)]
pub(crate) struct TooManySegments(usize);

/// Iterates over the paths that match at least one of some globs.
#[derive(Debug)]
pub(crate) struct GlobWalk {
    segments: Vec<GlobSegment>,
    walk: Option<Walk>,
    /// The state at each node on the way to the walk's position.
    levels: Vec<Level>,
    /// A node whose comparison is incomplete.
    comparison: Option<Comparison>,
    done: bool,
}

#[derive(Debug)]
enum GlobSegment {
    /// Any number of segments.
    Deep,
    /// This segment.
    Name(String),
    /// A segment with wildcards.
    Pattern(GlobPart),
    /// The alternative matches.
    End,
}

#[derive(Debug)]
struct Level {
    /// Positions in the list of segments, ascending.
    positions: Vec<u32>,
    row: ChildSelection,
}

/// The children to visit.
#[derive(Debug)]
enum ChildSelection {
    All,
    /// Those with the names of these segments, all different; `next` is the next one to look up,
    /// `at` the child found last.
    Named {
        names: Vec<u32>,
        next: usize,
        at: Option<NodeId>,
    },
}

#[derive(Debug)]
struct Comparison {
    node: NodeId,
    /// How many positions of the parent's state have been compared.
    compared: usize,
    reached: Vec<u32>,
}

impl GlobWalk {
    /// The number of segments that the globs expand to, unless there are too many.
    pub(crate) fn check(globs: &[Glob]) -> Result<usize, TooManySegments> {
        let alternatives = globs.iter().flat_map(Glob::alternatives);
        let count = alternatives.map(|parts| parts.len() + 1).sum();
        if count > SEGMENTS_MAX { Err(TooManySegments(count)) } else { Ok(count) }
    }

    pub(crate) fn new(globs: &[Glob]) -> Result<GlobWalk, TooManySegments> {
        let count = GlobWalk::check(globs)?;
        let (mut segments, mut positions) = (Vec::with_capacity(count), Vec::new());
        let mut starts = Vec::new();
        for parts in globs.iter().flat_map(Glob::alternatives) {
            starts.push(segments.len() as u32);
            segments.extend(parts.iter().map(GlobSegment::of));
            segments.push(GlobSegment::End);
        }
        starts.into_iter().for_each(|start| reach(&segments, start, &mut positions));
        let root = Level::new(&segments, positions);
        Ok(GlobWalk { segments, walk: None, levels: vec![root], comparison: None, done: false })
    }

    /// Adds matching paths that a client sees to `out`, in about `budget` steps. True when there
    /// are no more.
    pub(crate) fn take(
        &mut self,
        directory: &mut Directory,
        scope: &Scope,
        budget: usize,
        out: &mut Vec<PathListed>,
    ) -> bool {
        self.visit(directory, scope.paths_in(budget), &mut |directory, node, matches| {
            if matches {
                directory.list(scope, node, out);
            }
        })
    }

    /// Continues the walk, for about `budget` steps. It visits each node at or below which
    /// something could match once, with whether the node itself matches. True when there are no
    /// more.
    pub(super) fn visit(
        &mut self,
        directory: &mut Directory,
        budget: usize,
        visit: &mut impl FnMut(&Directory, NodeId, bool),
    ) -> bool {
        if self.done {
            return true;
        }
        let mut step = match &self.walk {
            None => {
                visit(directory, ROOT, self.levels[0].matches(&self.segments));
                self.levels[0].first_step(directory, ROOT)
            }
            Some(walk) => match directory.paths.tree.walks.step(walk) {
                Some(step) => step,
                None => return true,
            },
        };
        let mut left = budget;
        while left > 0 {
            left -= 1;
            match self.advance(directory, step, &mut left, visit) {
                Some(next) => step = next,
                None => {
                    (self.done, self.walk) = (true, None);
                    return true;
                }
            }
        }
        let walks = &mut directory.paths.tree.walks;
        match &self.walk {
            Some(walk) => walks.suspend(walk, step),
            None => self.walk = Some(walks.begin(step)),
        }
        false
    }

    /// Whether the walk has visited a node of the tree, or will never reach it. Only for nodes at
    /// or below which something could match.
    pub(super) fn has_passed(&self, tree: &Tree, node: NodeId) -> bool {
        let Some(step) = self.walk.as_ref().and_then(|walk| tree.walks.step(walk)) else {
            return self.done;
        };
        // As in `advance`: if the child looked up has been removed, the walk was moved to its
        // neighbour, which it does not enter from here.
        let step = match step {
            Step::Enter(at) => match self.levels.get(tree.depth(at).wrapping_sub(1)) {
                Some(Level { row: ChildSelection::Named { at: Some(child), .. }, .. })
                    if *child != at =>
                {
                    match tree.above(at) {
                        Some(above) => Step::Leave(above),
                        None => return self.done,
                    }
                }
                _ => step,
            },
            leave => leave,
        };
        let entering = matches!(step, Step::Enter(_));
        let (fork, towards, at) = tree.fork(node, step.node());
        let Some(towards) = towards else {
            // The walk is at the node, or below it.
            return at.is_some() || !entering;
        };
        if at.is_none() && entering {
            return false;
        }
        match self.levels.get(tree.depth(fork)).map(|level| &level.row) {
            Some(ChildSelection::Named { names, next, .. }) => {
                let segment = tree.segment(towards);
                let position =
                    names.binary_search_by(|&name| match &self.segments[name as usize] {
                        GlobSegment::Name(name) => name.as_str().cmp(segment),
                        _ => Ordering::Less,
                    });
                position.is_ok_and(|position| position < *next)
            }
            _ => at.is_none_or(|at| tree.is_before(towards, at)),
        }
    }

    /// Takes one step. `None` at the end of the walk.
    fn advance(
        &mut self,
        directory: &Directory,
        step: Step,
        left: &mut usize,
        visit: &mut impl FnMut(&Directory, NodeId, bool),
    ) -> Option<Step> {
        let tree = &directory.paths.tree;
        // Valid at the very next step only: later another node may have the number.
        let comparison = self.comparison.take();
        match step {
            Step::Enter(node) => {
                // The node of the walk's position may have been removed: the state below it is
                // useless then.
                self.levels.truncate(tree.depth(node));
                let ChildSelection::Named { at, .. } = &self.levels.last()?.row else {
                    return self.enter(directory, node, comparison, left, visit);
                };
                // The child looked up was removed and the walk moved to its neighbour, whose name
                // is another.
                if *at != Some(node) {
                    return tree.above(node).map(Step::Leave);
                }
                self.enter(directory, node, comparison, left, visit)
            }
            Step::Leave(node) => {
                self.levels.truncate(tree.depth(node) + 1);
                if self.levels.len() == tree.depth(node) + 1
                    && let Some(level) = self.levels.last_mut()
                    && let ChildSelection::Named { names, next, at } = &mut level.row
                    && let Some(&name) = names.get(*next)
                {
                    *next += 1;
                    *at = match &self.segments[name as usize] {
                        GlobSegment::Name(name) => tree.child(node, name),
                        _ => None,
                    };
                    return Some(at.map_or(Step::Leave(node), Step::Enter));
                }
                self.levels.truncate(tree.depth(node));
                self.after(directory, node)
            }
        }
    }

    /// The next step after a node and all below it.
    fn after(&self, directory: &Directory, node: NodeId) -> Option<Step> {
        match self.levels.last()?.row {
            ChildSelection::All => Some(directory.paths.tree.after(node)),
            ChildSelection::Named { .. } => directory.paths.tree.above(node).map(Step::Leave),
        }
    }

    /// Compares a node with the state of its parent.
    fn enter(
        &mut self,
        directory: &Directory,
        node: NodeId,
        comparison: Option<Comparison>,
        left: &mut usize,
        visit: &mut impl FnMut(&Directory, NodeId, bool),
    ) -> Option<Step> {
        let segment = directory.paths.tree.segment(node);
        let above = &self.levels.last()?.positions;
        let mut comparison = comparison
            .filter(|comparison| comparison.node == node)
            .unwrap_or_else(|| Comparison { node, compared: 0, reached: Vec::new() });
        while let Some(&position) = above.get(comparison.compared) {
            comparison.compared += 1;
            let (leads_to, cost) = self.segments[position as usize].leads_to(position, segment);
            *left = left.saturating_sub(cost);
            if let Some(position) = leads_to {
                reach(&self.segments, position, &mut comparison.reached);
            }
            if *left == 0 && comparison.compared < above.len() {
                self.comparison = Some(comparison);
                return Some(Step::Enter(node));
            }
        }
        let level = Level::new(&self.segments, comparison.reached);
        if !level.positions.is_empty() {
            visit(directory, node, level.matches(&self.segments));
        }
        if !level.leads_on(&self.segments) || !directory.paths.tree.is_inner(node) {
            return self.after(directory, node);
        }
        let step = level.first_step(directory, node);
        self.levels.push(level);
        Some(step)
    }
}

/// Adds a position, and the next one too where it matches zero segments.
fn reach(segments: &[GlobSegment], position: u32, reached: &mut Vec<u32>) {
    // Positions lead to themselves or the next: a duplicate is among the last three.
    if !reached.iter().rev().take(3).any(|&other| other == position) {
        reached.push(position);
    }
    if let GlobSegment::Deep = segments[position as usize] {
        reach(segments, position + 1, reached);
    }
}

impl GlobSegment {
    fn of(part: &GlobPart) -> GlobSegment {
        match part {
            GlobPart::Deep => GlobSegment::Deep,
            GlobPart::Segment(text) if text.contains(['*', '?']) => {
                GlobSegment::Pattern(part.clone())
            }
            GlobPart::Segment(text) => GlobSegment::Name(text.clone()),
        }
    }

    /// The position that the segment leads to from `position`, and the cost of the comparison in
    /// steps.
    fn leads_to(&self, position: u32, segment: &str) -> (Option<u32>, usize) {
        match self {
            GlobSegment::End => (None, 0),
            GlobSegment::Deep => (Some(position), 1),
            GlobSegment::Name(name) => ((name == segment).then_some(position + 1), 1),
            GlobSegment::Pattern(part) => {
                let cost = 1 + length(part) * segment.len() / STEP_CHARACTERS;
                (part.matches(segment).then_some(position + 1), cost)
            }
        }
    }
}

fn length(part: &GlobPart) -> usize {
    match part {
        GlobPart::Deep => 0,
        GlobPart::Segment(text) => text.len(),
    }
}

impl Level {
    fn new(segments: &[GlobSegment], positions: Vec<u32>) -> Level {
        let name = |&position: &u32| match &segments[position as usize] {
            GlobSegment::Name(name) => Some(name.as_str()),
            _ => None,
        };
        let any = |position: &u32| {
            matches!(segments[*position as usize], GlobSegment::Deep | GlobSegment::Pattern(_))
        };
        let row = if positions.iter().any(any) {
            ChildSelection::All
        } else {
            let mut names: Vec<u32> =
                positions.iter().copied().filter(|position| name(position).is_some()).collect();
            names.sort_by_key(name);
            names.dedup_by_key(|position| name(position));
            ChildSelection::Named { names, next: 0, at: None }
        };
        Level { positions, row }
    }

    fn matches(&self, segments: &[GlobSegment]) -> bool {
        self.positions
            .iter()
            .any(|&position| matches!(segments[position as usize], GlobSegment::End))
    }

    /// Something below could match.
    fn leads_on(&self, segments: &[GlobSegment]) -> bool {
        self.positions
            .iter()
            .any(|&position| !matches!(segments[position as usize], GlobSegment::End))
    }

    fn first_step(&self, directory: &Directory, node: NodeId) -> Step {
        match self.row {
            ChildSelection::All => directory.paths.tree.down(node),
            ChildSelection::Named { .. } => Step::Leave(node),
        }
    }
}

impl Directory {
    /// Lists a path, if it has a visible publisher and a client may see it.
    fn list(&self, scope: &Scope, node: NodeId, out: &mut Vec<PathListed>) {
        let seen = self.visible_at(node);
        if seen.any()
            && let Some(path) = self.paths.path(node)
            && scope.contains(path.as_str())
        {
            out.push(seen.listed(path));
        }
    }
}
