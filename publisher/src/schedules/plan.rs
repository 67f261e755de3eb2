//! What becomes of an occurrence that has come due.

use longshore_protocol::Missed;
use longshore_protocol::messages::work::NextOccurrence;

use super::times::Times;

/// How late the latest missed occurrence may be and still get a job, in milliseconds.
const CATCH_UP_MS: u64 = 60 * 60 * 1_000;
/// How late an occurrence is that was missed, for a schedule that catches up with none, in
/// milliseconds. A publisher that was busy, or restarted, has not missed one.
const LATE_MS: u64 = 10_000;
/// How long to wait for a time zone that is not in the database, in milliseconds.
const TRY_AGAIN_MS: u64 = 60_000;
/// Missed occurrences that are counted, of each interruption.
const MISSED_COUNTED_MAX: u64 = 1_000;

/// What becomes of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// The occurrence that gets a job, if any.
    pub(crate) run: Option<u64>,
    /// How many occurrences get none.
    pub(crate) missed: u64,
    /// The next one.
    pub(crate) next: Option<NextOccurrence>,
}

impl Plan {
    /// The plan for the occurrence of `due_at`, which fires at `now` or has fired before.
    pub(crate) fn of(times: &Times<'_>, missed: Missed, due_at: u64, now: u64) -> Plan {
        // Not from when it fires by the state: while a zone could not be read, that was moved.
        let late_ms = |due_at| now.saturating_sub(times.with_jitter(due_at).fires_at);
        let following = times.after(due_at);
        if missed == Missed::All || following.is_none_or(|following| following > now) {
            let is_late = late_ms(due_at) > most_late_ms(missed);
            let run = (!is_late).then_some(due_at);
            let next = following.map(|following| times.with_jitter(following));
            return Plan { run, missed: u64::from(is_late), next };
        }
        let (last, before) = times.last_until(due_at, now, MISSED_COUNTED_MAX);
        let latest = times.with_jitter(last);
        if latest.fires_at > now {
            // The latest one is still to come: it is the one that catches up. That before it is not
            // missed if it has just fired.
            let run = (before == 1 && late_ms(due_at) <= LATE_MS).then_some(due_at);
            return Plan { run, missed: before - run.iter().len() as u64, next: Some(latest) };
        }
        let is_late = late_ms(last) > most_late_ms(missed);
        let run = (!is_late).then_some(last);
        Plan { run, missed: before + u64::from(is_late), next: times.next_after(now) }
    }

    /// The plan while the times cannot be read: the occurrence stays the next one, and is tried
    /// again a minute later.
    pub(crate) fn try_again(due_at: u64, now: u64) -> Plan {
        let fires_at = now.saturating_add(TRY_AGAIN_MS);
        Plan { run: None, missed: 0, next: Some(NextOccurrence { due_at, fires_at }) }
    }
}

fn most_late_ms(missed: Missed) -> u64 {
    match missed {
        Missed::Latest => CATCH_UP_MS,
        Missed::All => u64::MAX,
        Missed::None => LATE_MS,
    }
}
