//! The paths that match globs, a slice at a time: a walk down the tree that goes only where
//! something can match still.
//!
//! All alternatives of all globs lie one after the other in one list of pieces. What is alive at a
//! path is a set of places in that list: those that the path's segments have led to. A child is
//! gone into if its name leads on from one of them; where only names without wildcards lead on,
//! those children are looked up, and the others not even looked at.

use std::cmp::Ordering;

use longshore_protocol::limits::RESOLVER_GLOB_SEGMENTS_MAX;
use longshore_protocol::messages::resolver::PathListed;
use longshore_protocol::{Glob, GlobPart};

use crate::directory::Directory;
use crate::directory::tree::{NodeId, ROOT, Tree};
use crate::directory::walks::{Step, Walk};

/// Most pieces in the globs of one listing: what is alive at each depth takes 4 bytes for each, at
/// most 8 MiB in all.
const PIECES_MAX: usize = RESOLVER_GLOB_SEGMENTS_MAX;
/// Characters compared that count as one step.
const STEP_CHARACTERS: usize = 512;

/// The globs of a listing stand for too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the globs stand for {0} segments, over the limit of {PIECES_MAX}; ask for fewer at a time"
)]
pub(crate) struct TooManyPieces(usize);

/// Goes over the paths that match at least one of some globs.
#[derive(Debug)]
pub(crate) struct Matching {
    pieces: Vec<Piece>,
    walk: Option<Walk>,
    /// What is alive at each node on the way to the one that the walk stands at.
    levels: Vec<Level>,
    /// A node that is being compared, and how far that has come.
    trying: Option<Trying>,
    over: bool,
}

#[derive(Debug)]
enum Piece {
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
    /// Places in the list of pieces, ascending.
    alive: Vec<u32>,
    row: Row,
}

/// Which children are looked at.
#[derive(Debug)]
enum Row {
    All,
    /// Those with the names of these pieces, which differ; `next` is the next one to look up, `at`
    /// the child found last.
    Named {
        names: Vec<u32>,
        next: usize,
        at: Option<NodeId>,
    },
}

#[derive(Debug)]
struct Trying {
    node: NodeId,
    /// How many of those alive above it have been compared.
    tried: usize,
    reached: Vec<u32>,
}

impl Matching {
    /// The pieces that the globs stand for, unless there are too many.
    pub(crate) fn check(globs: &[Glob]) -> Result<usize, TooManyPieces> {
        let alternatives = globs.iter().flat_map(Glob::alternatives);
        let count = alternatives.map(|parts| parts.len() + 1).sum();
        if count > PIECES_MAX { Err(TooManyPieces(count)) } else { Ok(count) }
    }

    pub(crate) fn new(globs: &[Glob]) -> Result<Matching, TooManyPieces> {
        let count = Matching::check(globs)?;
        let (mut pieces, mut alive) = (Vec::with_capacity(count), Vec::new());
        let mut starts = Vec::new();
        for parts in globs.iter().flat_map(Glob::alternatives) {
            starts.push(pieces.len() as u32);
            pieces.extend(parts.iter().map(Piece::of));
            pieces.push(Piece::End);
        }
        starts.into_iter().for_each(|start| reach(&pieces, start, &mut alive));
        let root = Level::new(&pieces, alive);
        Ok(Matching { pieces, walk: None, levels: vec![root], trying: None, over: false })
    }

    /// Adds matching paths to `out`, in no more than about `budget` steps. True when there are no
    /// more.
    pub(crate) fn take(
        &mut self,
        directory: &mut Directory,
        budget: usize,
        out: &mut Vec<PathListed>,
    ) -> bool {
        self.visit(directory, budget, &mut |directory, node, matches| {
            if matches {
                directory.list(node, out);
            }
        })
    }

    /// Goes on, in no more than about `budget` steps. Each node at or below which something could
    /// match is visited once, and whether it matches itself. True when there are no more.
    pub(super) fn visit(
        &mut self,
        directory: &mut Directory,
        budget: usize,
        visit: &mut impl FnMut(&Directory, NodeId, bool),
    ) -> bool {
        if self.over {
            return true;
        }
        let mut step = match &self.walk {
            None => {
                visit(directory, ROOT, self.levels[0].matches(&self.pieces));
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
            match self.look(directory, step, &mut left, visit) {
                Some(next) => step = next,
                None => {
                    (self.over, self.walk) = (true, None);
                    return true;
                }
            }
        }
        let walks = &mut directory.paths.tree.walks;
        match &self.walk {
            Some(walk) => walks.rest(walk, step),
            None => self.walk = Some(walks.begin(step)),
        }
        false
    }

    /// Whether the walk has visited a node of the tree, or will not come to it any more. Asked only
    /// of nodes at or below which something could match.
    pub(super) fn has_passed(&self, tree: &Tree, node: NodeId) -> bool {
        let Some(step) = self.walk.as_ref().and_then(|walk| tree.walks.step(walk)) else {
            return self.over;
        };
        // As `look` does: one that was looked up and has gone left the walk at a neighbour, which
        // it does not enter from here.
        let step = match step {
            Step::Enter(at) => match self.levels.get(tree.depth(at).wrapping_sub(1)) {
                Some(Level { row: Row::Named { at: Some(wanted), .. }, .. }) if *wanted != at => {
                    match tree.above(at) {
                        Some(above) => Step::Leave(above),
                        None => return self.over,
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
            Some(Row::Named { names, next, .. }) => {
                let segment = tree.segment(towards);
                let place = names.binary_search_by(|&name| match &self.pieces[name as usize] {
                    Piece::Name(name) => name.as_str().cmp(segment),
                    _ => Ordering::Less,
                });
                place.is_ok_and(|place| place < *next)
            }
            _ => at.is_none_or(|at| tree.is_before(towards, at)),
        }
    }

    /// Takes one step. None when all has been walked through.
    fn look(
        &mut self,
        directory: &Directory,
        step: Step,
        left: &mut usize,
        visit: &mut impl FnMut(&Directory, NodeId, bool),
    ) -> Option<Step> {
        let tree = &directory.paths.tree;
        // Of use at the very next step only: later the number may be that of another node.
        let trying = self.trying.take();
        match step {
            Step::Enter(node) => {
                // A node that the walk stood at may have gone: what is alive below it is of no use
                // then.
                self.levels.truncate(tree.depth(node));
                let Row::Named { at, .. } = &self.levels.last()?.row else {
                    return self.enter(directory, node, trying, left, visit);
                };
                // One that was looked up and has gone: the walk was moved to its neighbour, whose
                // name is another.
                if *at != Some(node) {
                    return tree.above(node).map(Step::Leave);
                }
                self.enter(directory, node, trying, left, visit)
            }
            Step::Leave(node) => {
                self.levels.truncate(tree.depth(node) + 1);
                if self.levels.len() == tree.depth(node) + 1
                    && let Some(level) = self.levels.last_mut()
                    && let Row::Named { names, next, at } = &mut level.row
                    && let Some(&name) = names.get(*next)
                {
                    *next += 1;
                    *at = match &self.pieces[name as usize] {
                        Piece::Name(name) => tree.child(node, name),
                        _ => None,
                    };
                    return Some(at.map_or(Step::Leave(node), Step::Enter));
                }
                self.levels.truncate(tree.depth(node));
                self.after(directory, node)
            }
        }
    }

    /// Where the walk goes that is done with a node and all below it.
    fn after(&self, directory: &Directory, node: NodeId) -> Option<Step> {
        match self.levels.last()?.row {
            Row::All => Some(directory.paths.tree.after(node)),
            Row::Named { .. } => directory.paths.tree.above(node).map(Step::Leave),
        }
    }

    /// Compares a node with what is alive above it.
    fn enter(
        &mut self,
        directory: &Directory,
        node: NodeId,
        trying: Option<Trying>,
        left: &mut usize,
        visit: &mut impl FnMut(&Directory, NodeId, bool),
    ) -> Option<Step> {
        let segment = directory.paths.tree.segment(node);
        let above = &self.levels.last()?.alive;
        let mut trying = trying.filter(|trying| trying.node == node).unwrap_or_else(|| Trying {
            node,
            tried: 0,
            reached: Vec::new(),
        });
        while let Some(&place) = above.get(trying.tried) {
            trying.tried += 1;
            let (leads_to, cost) = self.pieces[place as usize].leads_to(place, segment);
            *left = left.saturating_sub(cost);
            if let Some(place) = leads_to {
                reach(&self.pieces, place, &mut trying.reached);
            }
            if *left == 0 && trying.tried < above.len() {
                self.trying = Some(trying);
                return Some(Step::Enter(node));
            }
        }
        let level = Level::new(&self.pieces, trying.reached);
        if !level.alive.is_empty() {
            visit(directory, node, level.matches(&self.pieces));
        }
        if !level.leads_on(&self.pieces) || !directory.paths.tree.is_inner(node) {
            return self.after(directory, node);
        }
        let step = level.first_step(directory, node);
        self.levels.push(level);
        Some(step)
    }
}

/// Adds a place, and the one after it too where it is satisfied by no segment at all.
fn reach(pieces: &[Piece], place: u32, reached: &mut Vec<u32>) {
    // Places lead to themselves or the next: one that is there already is among the last three.
    if !reached.iter().rev().take(3).any(|&other| other == place) {
        reached.push(place);
    }
    if let Piece::Deep = pieces[place as usize] {
        reach(pieces, place + 1, reached);
    }
}

impl Piece {
    fn of(part: &GlobPart) -> Piece {
        match part {
            GlobPart::Deep => Piece::Deep,
            GlobPart::Segment(text) if text.contains(['*', '?']) => Piece::Pattern(part.clone()),
            GlobPart::Segment(text) => Piece::Name(text.clone()),
        }
    }

    /// Where the segment leads from here, at `place`; and what it costs to tell, in steps.
    fn leads_to(&self, place: u32, segment: &str) -> (Option<u32>, usize) {
        match self {
            Piece::End => (None, 0),
            Piece::Deep => (Some(place), 1),
            Piece::Name(name) => ((name == segment).then_some(place + 1), 1),
            Piece::Pattern(part) => {
                let cost = 1 + length(part) * segment.len() / STEP_CHARACTERS;
                (part.matches(segment).then_some(place + 1), cost)
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
    fn new(pieces: &[Piece], alive: Vec<u32>) -> Level {
        let name = |&place: &u32| match &pieces[place as usize] {
            Piece::Name(name) => Some(name.as_str()),
            _ => None,
        };
        let any = |place: &u32| matches!(pieces[*place as usize], Piece::Deep | Piece::Pattern(_));
        let row = if alive.iter().any(any) {
            Row::All
        } else {
            let mut names: Vec<u32> =
                alive.iter().copied().filter(|place| name(place).is_some()).collect();
            names.sort_by_key(name);
            names.dedup_by_key(|place| name(place));
            Row::Named { names, next: 0, at: None }
        };
        Level { alive, row }
    }

    fn matches(&self, pieces: &[Piece]) -> bool {
        self.alive.iter().any(|&place| matches!(pieces[place as usize], Piece::End))
    }

    /// Something below could match.
    fn leads_on(&self, pieces: &[Piece]) -> bool {
        self.alive.iter().any(|&place| !matches!(pieces[place as usize], Piece::End))
    }

    fn first_step(&self, directory: &Directory, node: NodeId) -> Step {
        match self.row {
            Row::All => directory.paths.tree.down(node),
            Row::Named { .. } => Step::Leave(node),
        }
    }
}

impl Directory {
    /// Lists a path, if anybody can be seen who holds it.
    fn list(&self, node: NodeId, out: &mut Vec<PathListed>) {
        let seen = self.seen_at(node);
        if seen.any()
            && let Some(path) = self.paths.path(node)
        {
            out.push(seen.listed(path));
        }
    }
}
