//! Who acknowledged what: counts, and the lines that nobody acknowledged. Pure.

use std::collections::BTreeMap;

use longshore::{BatchReceipt, EnqueueError, JobRef, Receipt};

use super::ranges::Ranges;

/// Different reasons that are remembered; more are counted under the last.
const REASONS_MAX: usize = 16;

/// Why some lines were refused or not answered.
pub(crate) struct Reason {
    pub(crate) why: String,
    /// How many lines.
    pub(crate) count: u64,
    /// Which.
    pub(crate) lines: Ranges,
}

/// What became of everything that was read.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) created: u64,
    pub(crate) existing: u64,
    /// Lines that are nowhere: to be enqueued again.
    pub(crate) missing: Ranges,
    /// Lines that may be somewhere: to be looked for first.
    pub(crate) unknown: Ranges,
    /// Why lines were refused or not answered, in the order in which that became known.
    reasons: Vec<Reason>,
    /// The first receipt.
    pub(crate) first: Option<Receipt>,
    /// Every job that a publisher holds, by its line, if they are to be waited for. Receipts come
    /// in the order in which publishers answer.
    pub(crate) jobs: Option<BTreeMap<u64, JobRef>>,
    lines: LineNumbers,
}

impl Tally {
    /// A tally that remembers the jobs, or does not.
    pub(crate) fn new(remember_jobs: bool) -> Tally {
        Tally { jobs: remember_jobs.then(BTreeMap::new), ..Tally::default() }
    }

    /// The line went out under this ticket. Tickets and lines rise.
    pub(crate) fn sent(&mut self, ticket: u64, line: u64) {
        self.lines.add(ticket, line);
    }

    /// The line did not go out.
    pub(crate) fn not_sent(&mut self, line: u64, why: String) {
        self.missing.add(line);
        self.reason(line, why);
    }

    /// From this line on nothing was read.
    pub(crate) fn not_read_from(&mut self, line: u64) {
        self.missing.add_from(line);
    }

    /// A batch was answered, or was not. False when it is wise to stop sending.
    pub(crate) fn answered(&mut self, receipts: &BatchReceipt) -> bool {
        let mut go_on = true;
        for receipt in receipts.iter() {
            let line = self.lines.line_of(receipt.ticket.0);
            match receipt.outcome {
                Ok(held) => {
                    self.first.get_or_insert(held);
                    if held.existing {
                        self.existing += 1
                    } else {
                        self.created += 1
                    }
                    if let Some(jobs) = &mut self.jobs {
                        jobs.insert(line, held.job);
                    }
                }
                Err(error) => {
                    let lines =
                        if error.is_unknown() { &mut self.unknown } else { &mut self.missing };
                    lines.add(line);
                    go_on &= is_about_one_job(&error);
                    self.reason(line, error.to_string());
                }
            }
        }
        go_on
    }

    /// Jobs that a publisher holds.
    pub(crate) fn held(&self) -> u64 {
        self.created + self.existing
    }

    /// True when every job that was read is held.
    pub(crate) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }

    /// The reasons in the order of their first lines, however late an answer came.
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

/// The same with `30s` for each `30.038281618s`: what differs in nothing else is one reason.
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

/// True of what another job would not run into.
pub(crate) fn is_about_one_job(error: &EnqueueError) -> bool {
    matches!(
        error,
        EnqueueError::TooLarge { .. } | EnqueueError::Invalid(_) | EnqueueError::Refused { .. }
    )
}

/// Which line a ticket stands for. Both rise, mostly side by side: only where they part is anything
/// kept.
#[derive(Default)]
struct LineNumbers(Vec<(u64, u64)>);

impl LineNumbers {
    fn add(&mut self, ticket: u64, line: u64) {
        let follows = self.0.last().is_some_and(|&(t, l)| line - l == ticket - t);
        if !follows {
            self.0.push((ticket, line));
        }
    }

    fn line_of(&self, ticket: u64) -> u64 {
        let after = self.0.partition_point(|&(first, _)| first <= ticket);
        // A ticket is known before it is answered.
        after.checked_sub(1).map_or(0, |at| self.0[at].1 + (ticket - self.0[at].0))
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
    fn reasons_come_with_their_lines_and_in_their_order() {
        let mut tally = Tally::new(false);
        for (line, why) in [(7, "late"), (2, "early"), (9, "late"), (3, "early")] {
            tally.not_sent(line, why.to_owned());
        }
        let told: Vec<_> = tally
            .reasons()
            .into_iter()
            .map(|one| (one.why.clone(), one.count, one.lines.to_string()))
            .collect();
        assert_eq!(told, [("early".into(), 2, "2-3".into()), ("late".into(), 2, "7,9".to_owned())]);
        (10..60).for_each(|line| tally.not_sent(line, line.to_string()));
        let told = tally.reasons();
        assert_eq!((told.len(), &*told[16].why, told[16].count), (17, "other reasons", 36));
    }

    #[test]
    fn tickets_lead_back_to_their_lines() {
        let mut numbers = LineNumbers::default();
        let lines: Vec<u64> = (5..9).chain(20..23).chain([40, 42]).collect();
        for (ticket, line) in (0..).zip(&lines) {
            numbers.add(ticket, *line);
        }
        for (ticket, line) in (0..).zip(&lines) {
            assert_eq!(numbers.line_of(ticket), *line);
        }
        assert_eq!(numbers.0.len(), 4);
    }
}
