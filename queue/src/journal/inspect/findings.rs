//! What is not as it was written, and what that comes to.

use std::path::PathBuf;

/// Findings that are kept; more are counted.
const FINDINGS_MAX: usize = 10_000;

/// Something in a journal that is not as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What a start would make of it.
    pub effect: Effect,
    /// The file.
    pub file: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// The first command that it concerns, if any is known.
    pub index: Option<u64>,
    /// What is wrong.
    pub what: &'static str,
}

/// What a start makes of something that is not as it was written, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// It refuses: something acknowledged is lost.
    Refuses,
    /// It goes on; a job whose payload lies there is buried when it is read, and the rest goes on.
    Buries,
    /// It does without the file: another takes its place.
    DoesWithout,
    /// It writes the file's header again, as the records behind it prove that it was. Nothing is
    /// lost.
    Repairs,
    /// It cuts it off: the last commit before a power cut. Nobody was told that it was durable.
    CutsOff,
}

/// What was found so far.
#[derive(Default, Debug)]
pub(super) struct Findings {
    pub(super) listed: Vec<Finding>,
    /// How many more there were.
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
