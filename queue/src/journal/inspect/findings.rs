//! Damage found in a journal, and its effects.

use std::path::PathBuf;

/// Most listed findings; more are only counted.
const FINDINGS_MAX: usize = 10_000;

/// Damage in a journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How a start would handle it.
    pub effect: Effect,
    /// The file.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// The first affected command, if known.
    pub index: Option<u64>,
    /// What is wrong.
    pub what: &'static str,
}

/// How a start handles damage, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// It refuses: acknowledged commands are lost.
    Refuses,
    /// It continues; a job with its payload there is buried when it is read.
    Buries,
    /// It ignores the file: another replaces it.
    IgnoresFile,
    /// It rewrites the file's header, which the records prove. Nothing is lost.
    Repairs,
    /// It erases the torn tail: the last commit before a power cut, never acknowledged.
    ErasesTail,
}

/// The findings so far.
#[derive(Default, Debug)]
pub(super) struct Findings {
    pub(super) listed: Vec<Finding>,
    /// Findings beyond the limit.
    pub(super) more: u64,
    pub(super) refused: bool,
}

impl Findings {
    pub(super) fn add(
        &mut self,
        effect: Effect,
        file: impl Into<PathBuf>,
        offset: u64,
        index: Option<u64>,
        what: &'static str,
    ) {
        self.refused |= effect == Effect::Refuses;
        if self.listed.len() < FINDINGS_MAX {
            self.listed.push(Finding { effect, file: file.into(), offset, index, what });
        } else {
            self.more += 1;
        }
    }
}
