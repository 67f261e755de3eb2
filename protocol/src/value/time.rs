//! Points and spans of time: as numbers, and as text.

use std::fmt::{Display, Formatter, Result};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: i64 = 86_400;

/// Prints a point in time as RFC 3339 in UTC: `2026-11-20T21:30:00.5Z`. A precision fixes the
/// digits after the second (`{:.3}`); without one, there are as many as needed. Years beyond four
/// digits have a sign and six.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rfc3339(pub SystemTime);

/// Prints a span of time as seconds: `1.5s`.
pub(super) struct Seconds(pub(super) Duration);

/// Seconds since 1970, rounded down, and the nanoseconds to add.
pub(super) fn since_1970(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (after.as_secs() as i64, after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = (before.as_secs() as i64).wrapping_neg();
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanos => (seconds - 1, 1_000_000_000 - nanos),
            }
        }
    }
}

/// The inverse of [`since_1970`]; none if the platform cannot represent the time.
pub(super) fn from_1970(seconds: i64, nanos: u32) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = match seconds {
        0.. => UNIX_EPOCH.checked_add(whole),
        _ => UNIX_EPOCH.checked_sub(whole),
    };
    time?.checked_add(Duration::from_nanos(nanos.into()))
}

impl Display for Rfc3339 {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (seconds, nanos) = since_1970(self.0);
        let (year, month, day) = date(seconds.div_euclid(DAY));
        let in_day = seconds.rem_euclid(DAY);
        let (hour, minute, second) = (in_day / 3_600, in_day / 60 % 60, in_day % 60);
        match year {
            0..=9_999 => write!(f, "{year:04}")?,
            _ => write!(f, "{year:+07}")?,
        }
        write!(f, "-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        fraction(nanos, f)?;
        f.write_str("Z")
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}", self.0.as_secs())?;
        fraction(self.0.subsec_nanos(), f)?;
        f.write_str("s")
    }
}

fn fraction(nanos: u32, f: &mut Formatter<'_>) -> Result {
    let digits = format!("{nanos:09}");
    let digits = match f.precision() {
        Some(precision) => &digits[..precision.min(digits.len())],
        None => digits.trim_end_matches('0'),
    };
    if digits.is_empty() { Ok(()) } else { write!(f, ".{digits}") }
}

/// The date of a day, counted from 1970-01-01: year, month, day. Counts years from March, so that
/// the leap day comes last.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_rfc_3339() {
        for (seconds, nanos, text) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_825_600, 0, "2000-02-29T12:00:00Z"),
            (1_795_210_200, 500_000_000, "2026-11-20T21:30:00.5Z"),
            (-1, 1, "1969-12-31T23:59:59.000000001Z"),
            (253_402_300_800, 0, "+010000-01-01T00:00:00Z"),
            (-62_167_219_201, 0, "-000001-12-31T23:59:59Z"),
        ] {
            let time = from_1970(seconds, nanos).expect("this platform represents it");
            assert_eq!(Rfc3339(time).to_string(), text);
            assert_eq!(since_1970(time), (seconds, nanos));
        }
        assert_eq!(format!("{:.3}", Rfc3339(UNIX_EPOCH)), "1970-01-01T00:00:00.000Z");
        assert_eq!(Seconds(Duration::from_millis(1_500)).to_string(), "1.5s");
        assert_eq!(Seconds(Duration::from_secs(2)).to_string(), "2s");
    }

    #[test]
    fn the_earliest_and_latest_times_round_trip() {
        for seconds in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX] {
            for nanos in [0, 1, 999_999_999] {
                if let Some(time) = from_1970(seconds, nanos) {
                    assert_eq!(since_1970(time), (seconds, nanos));
                    assert!(Rfc3339(time).to_string().ends_with('Z'));
                }
            }
        }
    }
}
