//! Counts acknowledgements, and collects the lines that were not acknowledged. No side effects.

use std::collections::BTreeMap;

use longshore::{BatchReceipt, EnqueueError, JobRef, Receipt};

use super::ranges::Ranges;

/// The most distinct reasons; further ones are counted together.
const REASONS_MAX: usize = 16;

/// A reason why lines were refused or not answered.
pub(crate) struct Reason {
    pub(crate) why: String,
    /// The number of lines.
    pub(crate) count: u64,
    /// The lines.
    pub(crate) lines: Ranges,
}

/// The outcome of all lines.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) created: u64,
    pub(crate) existing: u64,
    /// Lines that were certainly not enqueued and can be repeated.
    pub(crate) missing: Ranges,
    /// Lines that may be enqueued: check before repeating them.
    pub(crate) unknown: Ranges,
    /// A line failed for another reason than that there was no answer in time.
    refused: bool,
    /// The reasons, in order of occurrence.
    reasons: Vec<Reason>,
    /// The first receipt.
    pub(crate) first: Option<Receipt>,
    /// Acknowledged jobs by line, if they are to be waited for: receipts arrive in the order of the
    /// publishers' answers.
    pub(crate) jobs: Option<BTreeMap<u64, JobRef>>,
    lines: LineNumbers,
    /// The lines that are to be sent, unless all are.
    only: Option<Ranges>,
}

impl Tally {
    /// Creates a tally of these lines, or of all, with or without a list of acknowledged jobs.
    pub(crate) fn new(remember_jobs: bool, only: Option<Ranges>) -> Tally {
        Tally { jobs: remember_jobs.then(BTreeMap::new), only, ..Tally::default() }
    }

    /// Records that a line was sent under this index. Both numbers rise.
    pub(crate) fn sent(&mut self, index: u64, line: u64) {
        self.lines.add(index, line);
    }

    /// Records that a line makes no job.
    pub(crate) fn not_sent(&mut self, line: u64, why: String) {
        self.refused = true;
        self.missing.add(line);
        self.reason(line, why);
    }

    /// Records the error of a line. Returns false if further jobs would fail too.
    pub(crate) fn failed(&mut self, line: u64, error: &EnqueueError) -> bool {
        self.refused |= !is_without_answer(error);
        let lines = if error.is_unknown() { &mut self.unknown } else { &mut self.missing };
        lines.add(line);
        self.reason(line, error.to_string());
        is_about_one_job(error)
    }

    /// Records that no line from this one on was read.
    pub(crate) fn not_read_from(&mut self, line: u64) {
        self.missing.add_from(line, self.only.as_ref());
    }

    /// Records the outcome of a batch. Returns false if further jobs would fail too.
    pub(crate) fn answered(&mut self, receipts: &BatchReceipt) -> bool {
        let mut can_continue = true;
        for receipt in receipts.iter() {
            let line = self.lines.line_of(receipt.index);
            match receipt.outcome {
                Ok(accepted) => {
                    self.first.get_or_insert(accepted);
                    if accepted.existing {
                        self.existing += 1
                    } else {
                        self.created += 1
                    }
                    if let Some(jobs) = &mut self.jobs {
                        jobs.insert(line, accepted.job);
                    }
                }
                Err(error) => can_continue &= self.failed(line, &error),
            }
        }
        can_continue
    }

    /// The number of acknowledged jobs.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.created + self.existing
    }

    /// True if every job is acknowledged.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }

    /// True if lines are not acknowledged, all of them because no answer came in time.
    pub(crate) fn is_unanswered(&self) -> bool {
        !self.is_complete() && !self.refused
    }

    /// The reasons, ordered by their first lines.
    pub(crate) fn reasons(&self) -> Vec<&Reason> {
        let mut reasons: Vec<&Reason> = self.reasons.iter().collect();
        reasons.sort_by_key(|reason| reason.lines.first());
        reasons
    }

    fn reason(&mut self, line: u64, why: String) {
        let mut why = in_whole_seconds(&why);
        if self.reasons.len() >= REASONS_MAX && self.reasons.iter().all(|one| one.why != why) {
            why = "other reasons".to_owned();
        }
        match self.reasons.iter_mut().find(|one| one.why == why) {
            Some(one) => {
                one.count += 1;
                one.lines.add(line);
            }
            None => {
                let mut lines = Ranges::default();
                lines.add(line);
                self.reasons.push(Reason { why, count: 1, lines });
            }
        }
    }
}

/// Replaces each `30.038281618s` by `30s`, so that reasons which differ only in fractions count as
/// one.
fn in_whole_seconds(why: &str) -> String {
    let mut out = String::with_capacity(why.len());
    let mut rest = why;
    while let Some((before, after)) = rest.split_once('.') {
        out.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let is_fraction = before.ends_with(|c: char| c.is_ascii_digit())
            && digits > 0
            && after[digits..].starts_with('s');
        rest = if is_fraction {
            &after[digits..]
        } else {
            out.push('.');
            after
        };
    }
    out + rest
}

/// True if neither the resolver nor a publisher answered in time.
fn is_without_answer(error: &EnqueueError) -> bool {
    matches!(
        error,
        EnqueueError::Resolver { .. }
            | EnqueueError::NotSent { .. }
            | EnqueueError::HomeAway { .. }
            | EnqueueError::Unknown { .. }
    )
}

/// True for an error that affects only this job.
fn is_about_one_job(error: &EnqueueError) -> bool {
    matches!(
        error,
        EnqueueError::TooLarge { .. }
            | EnqueueError::BadOption(_)
            | EnqueueError::Invalid(_)
            | EnqueueError::Refused { .. }
    )
}

/// Maps indices to lines. Both rise, mostly in step; only the points where they diverge are stored.
#[derive(Default)]
struct LineNumbers(Vec<(u64, u64)>);

impl LineNumbers {
    fn add(&mut self, index: u64, line: u64) {
        let follows = self.0.last().is_some_and(|&(t, l)| line - l == index - t);
        if !follows {
            self.0.push((index, line));
        }
    }

    fn line_of(&self, index: u64) -> u64 {
        let after = self.0.partition_point(|&(first, _)| first <= index);
        // An index is recorded before its answer arrives.
        after.checked_sub(1).map_or(0, |at| self.0[at].1 + (index - self.0[at].0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_that_differ_in_fractions_of_seconds_are_one() {
        for (why, shown) in [
            (
                "no answer within 30.038281618s; 127.0.0.1:4780",
                "no answer within 30s; 127.0.0.1:4780",
            ),
            ("a.s 1.5 2.s 3.4ms.", "a.s 1.5 2.s 3.4ms."),
            ("1.25s", "1s"),
        ] {
            assert_eq!(in_whole_seconds(why), shown);
        }
    }

    #[test]
    fn reasons_list_their_lines_in_input_order() {
        let mut tally = Tally::new(false, None);
        for (line, why) in [(7, "late"), (2, "early"), (9, "late"), (3, "early")] {
            tally.not_sent(line, why.to_owned());
        }
        let reasons: Vec<_> = tally
            .reasons()
            .into_iter()
            .map(|one| (one.why.clone(), one.count, one.lines.to_string()))
            .collect();
        assert_eq!(
            reasons,
            [("early".into(), 2, "2-3".into()), ("late".into(), 2, "7,9".to_owned())]
        );
        (10..60).for_each(|line| tally.not_sent(line, line.to_string()));
        let reasons = tally.reasons();
        assert_eq!(
            (reasons.len(), &*reasons[16].why, reasons[16].count),
            (17, "other reasons", 36)
        );
    }

    /// The others were acknowledged before: to repeat them would enqueue them twice.
    #[test]
    fn unread_lines_are_among_those_that_were_to_be_sent() {
        for (only, from, missing) in [
            (None, 4, "4-"),
            (Some("3-4"), 3, "3-4"),
            (Some("1-2,5-8,20-"), 6, "6-8,20-"),
            (Some("1-2,5-8"), 9, ""),
        ] {
            let only = only.map(|lines| lines.parse().unwrap());
            let mut tally = Tally::new(false, only);
            tally.not_read_from(from);
            assert_eq!(tally.missing.to_string(), missing);
        }
    }

    #[test]
    fn lines_are_unanswered_unless_one_was_refused() {
        let mut tally = Tally::new(false, None);
        assert!(!tally.is_unanswered(), "all is acknowledged");
        let late = EnqueueError::NotSent { waited: std::time::Duration::ZERO, why: "".into() };
        let unknown = EnqueueError::Unknown {
            publisher: longshore::PublisherId([1; 16]),
            ids: [].into(),
            why: "".into(),
        };
        for (line, error) in [(1, &late), (2, &unknown)] {
            assert!(!tally.failed(line, error) && tally.is_unanswered(), "{error}");
        }
        tally.failed(3, &EnqueueError::NoPublisher { path: longshore::Path::root() });
        assert!(!tally.is_unanswered());
    }

    #[test]
    fn indices_map_back_to_their_lines() {
        let mut numbers = LineNumbers::default();
        let lines: Vec<u64> = (5..9).chain(20..23).chain([40, 42]).collect();
        for (index, line) in (0..).zip(&lines) {
            numbers.add(index, *line);
        }
        for (index, line) in (0..).zip(&lines) {
            assert_eq!(numbers.line_of(index), *line);
        }
        assert_eq!(numbers.0.len(), 4);
    }
}
