//! Text forms of durations and timestamps: `90s`, `1h30m`, `2026-11-20T21:30:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore::protocol::Rfc3339;

const UNITS_MS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Parses `250ms`, `30s`, `5m`, `2h`, `1d`, or a combination such as `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration; write it like 250ms, 30s, 5m or 1h30m");
    let mut rest = text.trim();
    let mut total_ms = 0u64;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let unit = &rest[..letters];
        let (_, ms) = UNITS_MS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total_ms = number
            .checked_mul(*ms)
            .and_then(|more| total_ms.checked_add(more))
            .ok_or_else(wrong)?;
        rest = &rest[letters..];
    }
    Ok(Duration::from_millis(total_ms))
}

/// Parses a timestamp, or a duration from now, as milliseconds since 1970.
pub(crate) fn parse_deadline(text: &str) -> Result<u64, String> {
    if let Ok(duration) = parse_duration(text) {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        return Ok(wall_ms().saturating_add(ms));
    }
    parse_timestamp(text).map_err(|_| {
        format!("'{text}' is neither a duration, like 10m, nor a time, like 2026-11-20T21:30:00Z")
    })
}

/// Formats a duration in its two largest units: `1h30m`, `2m5s`, `1.25s`, `340ms`.
pub(crate) fn show_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        1_000..60_000 => {
            let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
            format!("{}s", text.trim_end_matches('0'))
        }
        60_000..3_600_000 => two_units(ms / 60_000, "m", ms / 1_000 % 60, "s"),
        3_600_000..86_400_000 => two_units(ms / 3_600_000, "h", ms / 60_000 % 60, "m"),
        _ => two_units(ms / 86_400_000, "d", ms / 3_600_000 % 24, "h"),
    }
}

fn two_units(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

/// The wall clock, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Parses an RFC 3339 timestamp, `2026-11-20T21:30:00Z` or `2026-11-20 21:30:00+01:00`, as
/// milliseconds since 1970.
pub(crate) fn parse_timestamp(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "'{text}' is not a time; write it like 2026-11-20T21:30:00Z or \
             2026-11-20T21:30:00+01:00"
        )
    };
    read_timestamp(text.trim()).ok_or_else(wrong)
}

fn read_timestamp(text: &str) -> Option<u64> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let is = |at: usize, allowed: &str| text.get(at..=at).is_some_and(|c| allowed.contains(c));
    let punctuated = is(4, "-") && is(7, "-") && is(10, "Tt ") && is(13, ":") && is(16, ":");
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !punctuated || !in_range {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut ms = 0;
    if let Some(fraction) = rest.strip_prefix('.') {
        let digits =
            fraction.len() - fraction.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 {
            return None;
        }
        ms = format!("{:0<3}", &fraction[..digits.min(3)]).parse().ok()?;
        rest = &fraction[digits..];
    }
    let offset_minutes = match rest {
        "Z" | "z" => 0,
        _ => {
            let sign = if rest.starts_with('+') { 1 } else { -1 };
            let (hours, minutes) = rest.strip_prefix(['+', '-'])?.split_once(':')?;
            if hours.len() != 2 || minutes.len() != 2 {
                return None;
            }
            let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
            (hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))?
        }
    };
    let minutes = days_since_1970(year, month, day) * 1_440 + hour * 60 + minute - offset_minutes;
    u64::try_from((minutes * 60 + second) * 1_000 + ms).ok()
}

/// Formats milliseconds since 1970 as `2026-11-20T21:30:00.123Z`.
pub(crate) fn show_timestamp(wall_ms: u64) -> String {
    format!("{:.3}", Rfc3339(UNIX_EPOCH + Duration::from_millis(wall_ms)))
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Days from 1970-01-01, counting years from March so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_in_every_unit_and_combination() {
        for (text, ms) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1d2h", 93_600_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "5", "s", "5 s", "-1s", "5w", "1.5s", "99999999999999999999s", "9999999999999d"]
        {
            assert!(parse_duration(text).unwrap_err().contains("1h30m"), "{text}");
        }
    }

    #[test]
    fn durations_are_shown_in_their_two_largest_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (1_250, "1.25s"),
            (59_999, "59.999s"),
            (60_000, "1m"),
            (125_000, "2m5s"),
            (5_400_000, "1h30m"),
            (93_600_000, "1d2h"),
        ] {
            assert_eq!(show_duration(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn timestamps_parse_with_offsets_and_fractions() {
        for (text, ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2026-11-20T21:30:00Z", 1_795_210_200_000),
            ("2026-11-20 22:30:00+01:00", 1_795_210_200_000),
            ("2026-11-20T21:30:00.5Z", 1_795_210_200_500),
        ] {
            assert_eq!(parse_timestamp(text), Ok(ms), "{text}");
        }
        assert_eq!(show_timestamp(1_795_210_200_500), "2026-11-20T21:30:00.500Z");
        assert_eq!(show_timestamp(951_825_600_000), "2000-02-29T12:00:00.000Z");
    }

    #[test]
    fn every_day_round_trips_as_a_timestamp() {
        for day in (0..60_000u64).step_by(17) {
            let ms = day * 86_400_000 + 43_199_999;
            assert_eq!(parse_timestamp(&show_timestamp(ms)), Ok(ms));
        }
    }

    #[test]
    fn invalid_timestamps_are_refused() {
        for text in [
            "",
            "tomorrow",
            "2026-11-20",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-11-20T24:00:00Z",
            "2026-11-20T21:30:00",
            "2026-11-20T21:30:00+1:00",
            "2026-11-20T21:30:00.Z",
            "2026-11-2é 21:30:00Z",
        ] {
            assert!(parse_timestamp(text).is_err(), "{text}");
        }
    }
}
