//! Limits of jobs as arguments have them.

use longshore::LimitScope;
use longshore::protocol::limits::{LIMIT_PERIOD_MS_MAX, LIMIT_UNITS_MAX};

use crate::time::parse_duration;

/// Units in a period of milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rate {
    pub(crate) units: u32,
    pub(crate) per_ms: u64,
}

/// Parses a rate, like `100/s` or `5/1m`.
pub(crate) fn parse_rate(text: &str) -> Result<Rate, String> {
    let error = || {
        format!("'{text}' is no rate of 1 to {LIMIT_UNITS_MAX} in at most 31d, like 100/s or 5/1m")
    };
    let (units, period) = text.split_once('/').ok_or_else(error)?;
    let one = format!("1{period}");
    let period = if period.starts_with(|c: char| c.is_ascii_digit()) { period } else { &one };
    let units = units.parse().ok().filter(|units| (1..=LIMIT_UNITS_MAX).contains(units));
    let per_ms = parse_duration(period).ok().and_then(|it| u64::try_from(it.as_millis()).ok());
    let per_ms = per_ms.filter(|ms| (1..=LIMIT_PERIOD_MS_MAX).contains(ms));
    let (units, per_ms) = units.zip(per_ms).ok_or_else(error)?;
    Ok(Rate { units, per_ms })
}

/// Parses what a limit counts together.
pub(crate) fn parse_scope(text: &str) -> Result<LimitScope, String> {
    let named = LimitScope::ALL.iter().find(|scope| scope.to_string() == text);
    named.copied().ok_or_else(|| format!("'{text}' is neither queue, key nor shared"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units_and_a_period() {
        let rate = |units, per_ms| Ok(Rate { units, per_ms });
        assert_eq!(parse_rate("100/s"), rate(100, 1_000));
        assert_eq!(parse_rate("5/1m"), rate(5, 60_000));
        assert_eq!(parse_rate("1/250ms"), rate(1, 250));
        for bad in ["100", "0/s", "1/0s", "1/32d", "1000001/s", "x/s", "1/", "/s"] {
            assert!(parse_rate(bad).unwrap_err().contains("like 100/s"), "{bad}");
        }
        assert_eq!(parse_scope("shared"), Ok(LimitScope::Shared));
        assert!(parse_scope("each").unwrap_err().contains("neither queue, key nor shared"));
    }
}
