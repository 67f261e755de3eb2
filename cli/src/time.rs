//! Text forms of durations and timestamps: `90s`, `1h30m`, `2026-11-20T21:30:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::fmt::friendly::{FractionalUnit, Spacing, SpanPrinter};
use jiff::{RoundMode, Span, SpanRelativeTo, SpanRound, Timestamp, Unit};

/// Parses `250ms`, `30s`, `5m`, `2h`, `1d`, a combination such as `1h30m`, and what else jiff calls
/// friendly: `1.5h`, `2 hours 30 minutes`. A day has 24 hours. Less than a millisecond is refused,
/// because it would be rounded to nothing.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let days = SpanRelativeTo::days_are_24_hours();
    let span: Option<Span> = text.trim().parse().ok();
    let duration = span.and_then(|span| span.to_duration(days).ok());
    duration
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| duration.subsec_nanos() % 1_000_000 == 0)
        .ok_or_else(|| format!("'{text}' is not a duration; write it like 250ms, 30s, 5m or 1h30m"))
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
    let ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    let smallest = match ms {
        0..60_000 => Unit::Millisecond,
        60_000..3_600_000 => Unit::Second,
        3_600_000..86_400_000 => Unit::Minute,
        _ => Unit::Hour,
    };
    let two_units = SpanRound::new()
        .largest(Unit::Day)
        .smallest(smallest)
        .mode(RoundMode::Trunc)
        .days_are_24_hours();
    let span = Span::new().try_milliseconds(ms).and_then(|span| span.round(two_units));
    let fraction = (1_000..60_000).contains(&ms).then_some(FractionalUnit::Second);
    let printer =
        SpanPrinter::new().spacing(Spacing::None).zero_unit(Unit::Millisecond).fractional(fraction);
    // A span ends after 19,998 years.
    span.map_or_else(|_| "forever".to_owned(), |span| printer.span_to_string(&span))
}

/// The wall clock, in milliseconds since 1970.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Parses an RFC 3339 timestamp, `2026-11-20T21:30:00Z` or `2026-11-20 21:30:00+01:00`, as
/// milliseconds since 1970.
pub(crate) fn parse_timestamp(text: &str) -> Result<u64, String> {
    let time: Option<Timestamp> = text.trim().parse().ok();
    time.and_then(|time| u64::try_from(time.as_millisecond()).ok()).ok_or_else(|| {
        format!(
            "'{text}' is not a time; write it like 2026-11-20T21:30:00Z or \
             2026-11-20T21:30:00+01:00"
        )
    })
}

/// Formats milliseconds since 1970 as `2026-11-20T21:30:00.123Z`.
pub(crate) fn show_timestamp(wall_ms: u64) -> String {
    let ms = i64::try_from(wall_ms).unwrap_or(i64::MAX);
    // The year 9999 ends the calendar.
    format!("{:.3}", Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX))
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
            ("1.5s", 1_500),
            ("2 weeks", 1_209_600_000),
            ("1 hour, 5 minutes", 3_900_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in
            ["", "5", "s", "-1s", "1us", "1mo", "1y", "99999999999999999999s", "9999999999999d"]
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
            (86_399_999, "23h59m"),
            (86_400_000, "1d"),
            (4_000_000_000_000, "46296d7h"),
            (u64::MAX, "forever"),
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
        assert!(show_timestamp(u64::MAX).starts_with("9999-12-30"));
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
            "1969-12-31T23:59:59Z",
        ] {
            assert!(parse_timestamp(text).is_err(), "{text}");
        }
    }
}
