//! The times of a schedule's occurrences, in milliseconds since 1970.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use croner::Cron;
use croner::parser::{CronParser, Year};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};
use longshore_protocol::limits::RUN_AT_MS_MAX;
use longshore_protocol::messages::work::NextOccurrence;
use longshore_protocol::{Schedule, Timing};

use super::zoned::Zoned;

/// Why a schedule has no times.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidTiming {
    #[error(
        "'{expression}' is no cron expression ({why}): five fields, minute hour day month \
         weekday, or six with seconds first, like '30 3 * * MON-FRI'"
    )]
    Cron { expression: String, why: String },
    #[error(
        "'{0}' is no time zone of this publisher's database: use a name like Europe/Berlin, or UTC"
    )]
    Zone(String),
    #[error("it never comes due: correct its times, its start or its end")]
    Never,
}

/// When a schedule comes due.
#[derive(Debug)]
pub(crate) struct Times<'a> {
    schedule: &'a Schedule,
    rhythm: Rhythm,
}

#[derive(Debug)]
enum Rhythm {
    Cron {
        cron: Box<Cron>,
        zone: TimeZone,
        /// Its times of the day are single ones, lists or ranges: no `*`, and no steps.
        is_fixed: bool,
    },
    /// At this distance, from that occurrence on.
    Every { ms: u64, first: u64 },
}

impl Times<'_> {
    /// The times of a schedule that was added at `created_at`.
    pub(crate) fn of(schedule: &Schedule, created_at: u64) -> Result<Times<'_>, InvalidTiming> {
        let rhythm = match &schedule.timing {
            Timing::Cron { expression, zone } => {
                let parser = CronParser::builder().year(Year::Disallowed).build();
                let cron = parser.parse(expression).map_err(|why| {
                    let (expression, why) = (expression.clone(), why.to_string());
                    InvalidTiming::Cron { expression, why }
                })?;
                let zone = TimeZone::get(zone).map_err(|_| InvalidTiming::Zone(zone.clone()))?;
                let is_fixed = has_fixed_times(expression);
                Rhythm::Cron { cron: Box::new(cron), zone, is_fixed }
            }
            &Timing::Every { ms } => {
                let first = schedule.starts_at.unwrap_or(created_at.saturating_add(ms));
                Rhythm::Every { ms: ms.max(1), first }
            }
        };
        Ok(Times { schedule, rhythm })
    }

    /// The first occurrence after that time.
    pub(crate) fn after(&self, at: u64) -> Option<u64> {
        let start = self.schedule.starts_at.and_then(|start| start.checked_sub(1));
        let at = at.max(start.unwrap_or(0));
        let due_at = match &self.rhythm {
            &Rhythm::Every { first, .. } if at < first => first,
            &Rhythm::Every { ms, first } => {
                first.checked_add(((at - first) / ms).checked_add(1)?.checked_mul(ms)?)?
            }
            Rhythm::Cron { cron, zone, is_fixed } => {
                let at = Timestamp::from_millisecond(i64::try_from(at).ok()?).ok()?;
                let next = match is_fixed {
                    true => next_fixed(cron, zone, at)?,
                    false => cron.find_next_occurrence(&Zoned { at, zone }, false).ok()?.at,
                };
                u64::try_from(next.as_millisecond()).ok()?
            }
        };
        let end = self.schedule.ends_at.unwrap_or(u64::MAX).min(RUN_AT_MS_MAX);
        (due_at <= end).then_some(due_at)
    }

    /// The same with its jitter.
    pub(crate) fn next_after(&self, at: u64) -> Option<NextOccurrence> {
        self.after(at).map(|due_at| self.with_jitter(due_at))
    }

    /// An occurrence with its jitter: it fires before the one after it is due, and not after the
    /// end.
    pub(super) fn with_jitter(&self, due_at: u64) -> NextOccurrence {
        let jitter_ms = self.schedule.jitter_ms;
        if jitter_ms == 0 {
            return NextOccurrence { due_at, fires_at: due_at };
        }
        let until_end = || self.schedule.ends_at.unwrap_or(u64::MAX).saturating_sub(due_at);
        let room = self.after(due_at).map_or_else(until_end, |following| following - due_at - 1);
        // Logged with the occurrence, so that no other version has to compute it again.
        let mut hasher = DefaultHasher::new();
        (&self.schedule.name, due_at).hash(&mut hasher);
        let wait_ms = hasher.finish() % (jitter_ms.min(room) + 1);
        NextOccurrence { due_at, fires_at: due_at.saturating_add(wait_ms) }
    }

    /// The last occurrence until `now`, from `due_at` on, and how many are before it. Exact up to
    /// `count_max`; then the count is that, and the last is sought in the hour before `now`.
    pub(super) fn last_until(&self, due_at: u64, now: u64, count_max: u64) -> (u64, u64) {
        if let &Rhythm::Every { ms, .. } = &self.rhythm {
            let until = now.min(self.schedule.ends_at.unwrap_or(u64::MAX));
            let count = until.saturating_sub(due_at) / ms;
            return (due_at + count * ms, count.min(count_max));
        }
        let (mut last, mut count) = (due_at, 0);
        while let Some(next) = self.after(last).filter(|&next| next <= now) {
            if count == count_max {
                return (self.last_of_hour(last, now), count);
            }
            (last, count) = (next, count + 1);
        }
        (last, count)
    }

    /// The last occurrence in the hour before `now`; `known` if there is none.
    fn last_of_hour(&self, known: u64, now: u64) -> u64 {
        // One with a short distance is found in the first few seconds.
        for ms in [10_000, 600_000, 3_600_000] {
            let (mut last, from) = (None, known.max(now.saturating_sub(ms)));
            let mut at = from;
            while let Some(next) = self.after(at).filter(|&next| next <= now) {
                (last, at) = (Some(next), next);
            }
            if let Some(last) = last {
                return last;
            }
        }
        known
    }
}

/// Whether the hours, minutes and seconds of an expression are fixed times.
fn has_fixed_times(expression: &str) -> bool {
    let fields: Vec<&str> = expression.split_whitespace().collect();
    // Day, month and weekday come last.
    let times = fields.len().checked_sub(3).and_then(|count| fields.get(..count));
    times.is_some_and(|times| !times.is_empty() && !times.iter().any(|t| t.contains(['*', '/'])))
}

/// The next of the fixed times of an expression: one in a gap is at its end, and one that is
/// repeated is the first. croner does so for single times, not for lists and ranges, and not in a
/// gap that ends at midnight. So it finds the times of a clock that is never changed.
fn next_fixed(cron: &Cron, zone: &TimeZone, at: Timestamp) -> Option<Timestamp> {
    let (from, is_new) = first_shown_after(zone, at)?;
    let unchanged = Zoned { at: TimeZone::UTC.to_timestamp(from).ok()?, zone: &TimeZone::UTC };
    let next = cron.find_next_occurrence(&unchanged, is_new).ok()?.at;
    instant_of(zone, TimeZone::UTC.to_datetime(next))
}

/// The time that the zone's clock shows. While it shows times again, the one at which it will show
/// new ones, and true: that one is new.
fn first_shown_after(zone: &TimeZone, at: Timestamp) -> Option<(DateTime, bool)> {
    let shown = zone.to_datetime(at);
    match zone.to_ambiguous_timestamp(shown).offset() {
        AmbiguousOffset::Fold { before, after } if zone.to_offset(at) == after => {
            let change = zone.preceding(at.checked_add(ONE_NS).ok()?).next()?;
            Some((before.to_datetime(change.timestamp()), true))
        }
        _ => Some((shown, false)),
    }
}

/// When the zone's clock first shows that time, or passes it.
fn instant_of(zone: &TimeZone, time: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(time).ok()
        }
        AmbiguousOffset::Gap { before, .. } => {
            // By the clock before its change, it is at or after the change.
            let after = before.to_timestamp(time).ok()?.checked_add(ONE_NS).ok()?;
            zone.preceding(after).next().map(|change| change.timestamp())
        }
    }
}

const ONE_NS: SignedDuration = SignedDuration::from_nanos(1);
