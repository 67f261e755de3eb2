//! The calendar of a time zone, for cron expressions.

use std::cmp::Ordering;

use croner::errors::CronError;
use croner::{CivilDate, CivilDateTime, CivilTime, CronDateTime, Resolution, Weekday};
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

/// A time in a zone.
#[derive(Clone, Debug)]
pub(super) struct Zoned<'a> {
    pub(super) at: Timestamp,
    pub(super) zone: &'a TimeZone,
}

impl Zoned<'_> {
    fn datetime(&self) -> DateTime {
        self.zone.to_datetime(self.at)
    }
}

impl CronDateTime for Zoned<'_> {
    fn to_civil(&self) -> CivilDateTime {
        let at = self.datetime();
        // jiff keeps every part in its range, and none is negative but the year.
        let small = |part: i8| u32::from(part.unsigned_abs());
        CivilDateTime::new(
            CivilDate::from_parts_unchecked(at.year().into(), small(at.month()), small(at.day())),
            CivilTime::from_parts_unchecked(
                small(at.hour()),
                small(at.minute()),
                small(at.second()),
            ),
        )
    }

    fn civil_weekday(&self) -> Weekday {
        let day = self.datetime().weekday().to_sunday_zero_offset();
        Weekday::from_days_from_sunday(u32::from(day.unsigned_abs()))
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let small = |part: u32| i8::try_from(part).map_err(|_| CronError::InvalidDate);
        let year = i16::try_from(civil.year()).map_err(|_| CronError::InvalidDate)?;
        let datetime = DateTime::new(
            year,
            small(civil.month())?,
            small(civil.day())?,
            small(civil.hour())?,
            small(civil.minute())?,
            small(civil.second())?,
            0,
        )
        .map_err(|_| CronError::InvalidDate)?;
        let ambiguous = self.zone.to_ambiguous_timestamp(datetime);
        let zoned = |at: Result<Timestamp, jiff::Error>| {
            let at = at.map_err(|_| CronError::InvalidTime)?;
            Ok(Zoned { at, zone: self.zone })
        };
        Ok(match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } => {
                Resolution::Single(zoned(ambiguous.unambiguous())?)
            }
            AmbiguousOffset::Fold { .. } => {
                let (earlier, later) = (ambiguous.earlier(), ambiguous.later());
                Resolution::Ambiguous(zoned(earlier)?, zoned(later)?)
            }
            AmbiguousOffset::Gap { .. } => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        let at = self.at.checked_add(SignedDuration::from_secs(seconds)).ok()?;
        Some(Zoned { at, zone: self.zone })
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.at.cmp(&other.at)
    }
}
