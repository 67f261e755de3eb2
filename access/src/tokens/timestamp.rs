//! Times of a token file: TOML's datetimes in UTC, as milliseconds since 1970.

use std::fmt;

use toml::value::{Datetime, Offset};

/// The last millisecond of the year 9999, after which a datetime has no text.
pub const TIME_UNIX_MS_MAX: u64 = 253_402_300_799_999;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A time of a token file, as milliseconds since 1970; its text is RFC 3339 in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timestamp(pub(crate) u64);

impl Timestamp {
    /// Reads a datetime; none if it is not in UTC, or before 1970. A fraction of a millisecond is
    /// cut.
    pub(super) fn of(datetime: &Datetime) -> Option<Timestamp> {
        let Datetime { date: Some(date), time: Some(time), offset: Some(offset) } = datetime else {
            return None;
        };
        let is_utc = match offset {
            Offset::Z => true,
            Offset::Custom { minutes } => *minutes == 0,
        };
        let days = days_since_1970(date.year.into(), date.month.into(), date.day.into())?;
        let minutes = u64::from(time.hour) * 60 + u64::from(time.minute);
        let seconds = minutes * 60 + u64::from(time.second.unwrap_or(0));
        let fraction = u64::from(time.nanosecond.unwrap_or(0)) / 1_000_000;
        is_utc.then_some(Timestamp(days * DAY_MS + seconds * 1_000 + fraction))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, ms) = (self.0 / DAY_MS, self.0 % DAY_MS);
        let (year, month, day) = date_of(days);
        let (seconds, fraction) = (ms / 1_000, ms % 1_000);
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if fraction > 0 {
            write!(f, ".{fraction:03}")?;
        }
        f.write_str("Z")
    }
}

// Both count in years that begin in March, so that a leap day is the last of its year, and in eras
// of 400 years, which have 146,097 days; 1970 begins 719,468 days after March of the year 0.

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    (era * 146_097 + day_of_era).checked_sub(719_468)
}

fn date_of(days_since_1970: u64) -> (u64, u64, u64) {
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let leap_days = day_of_era / 1_460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<u64> {
        Timestamp::of(&text.parse().unwrap()).map(|time| time.0)
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        // By GNU date: date -u -d TEXT +%s%3N.
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1972-02-29T12:00:00Z", 68_212_800_000),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2000-03-01T00:00:00Z", 951_868_800_000),
            ("2026-11-25T01:40:00Z", 1_795_570_800_000),
            ("2100-02-28T00:00:00Z", 4_107_456_000_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
            ("9999-12-31T23:59:59.999Z", TIME_UNIX_MS_MAX),
        ] {
            assert_eq!(of(text), Some(ms), "{text}");
            assert_eq!(Timestamp(ms).to_string(), text);
        }
        assert_eq!(of("1970-01-01T00:00:00.0019+00:00"), Some(1));
        for other in [
            "1969-12-31T23:59:59Z",
            "2026-11-25T01:40:00+01:00",
            "2026-11-25T01:40:00",
            "2026-11-25",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn each_day_has_one_date_and_follows_the_day_before() {
        for day in 0..=TIME_UNIX_MS_MAX / DAY_MS {
            let (year, month, date) = date_of(day);
            assert_eq!(days_since_1970(year, month, date), Some(day));
        }
    }
}
