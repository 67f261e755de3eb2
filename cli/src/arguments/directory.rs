//! Commands that read the resolver's directory.

use clap::{Args, Subcommand};
use longshore::{Glob, Path};

#[derive(Args, Debug)]
pub(crate) struct Directory {
    #[command(subcommand)]
    pub(crate) action: DirectoryAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DirectoryAction {
    /// List the children of PATH, or all paths that match a pattern
    Ls(Ls),
    /// Show the directory below PATH as a tree
    Tree(Tree),
    /// Show a path's publishers and their terms
    Resolve(Resolve),
    /// Print the matching paths, then stream paths that are added, changed or removed
    Watch(Watch),
    /// Show two levels below PATH as rows and columns
    Table(PathTable),
}

#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// A path, or a pattern like '/jobs/**' [default: /]
    pub(crate) pattern: Option<Glob>,
}

#[derive(Args, Debug)]
pub(crate) struct Resolve {
    /// The paths
    #[arg(required = true)]
    pub(crate) paths: Vec<Path>,
}

#[derive(Args, Debug)]
pub(crate) struct Tree {
    /// The root of the tree [default: /]
    pub(crate) path: Option<Path>,
    /// At most this many levels below it, 1 to 32 [default: all]
    #[arg(long, value_name = "LEVELS", value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) depth: Option<u8>,
}

#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// Patterns like '/jobs/**'; at most 256
    #[arg(required = true)]
    pub(crate) patterns: Vec<Glob>,
    /// End after N changes, counting the paths that exist at the start
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct PathTable {
    /// Its children are the rows, their children the columns
    pub(crate) path: Path,
}
