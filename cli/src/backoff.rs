//! The text form of a back-off policy: `exponential:2s..10m`, `fixed:5s`, `list:1s,5s,1m`.

use std::time::Duration;

use longshore::Backoff;

use crate::time::{parse_duration, show_duration};

/// Parses a policy.
pub(crate) fn parse_backoff(text: &str) -> Result<Backoff, String> {
    let wrong = || {
        format!(
            "'{text}' is not a back-off; write it like exponential:2s..10m, fixed:5s, \
             linear:5s..10m, list:1s,5s,1m, quartic or hangfire"
        )
    };
    let (policy, rest) = text.split_once(':').unwrap_or((text, ""));
    let wait = |text: &str| if text.is_empty() { Err(wrong()) } else { wait(text) };
    let range = || -> Result<(u32, u32), String> {
        let (from, to) = rest.split_once("..").ok_or_else(wrong)?;
        let (from, to) = (wait(from)?, wait(to)?);
        if from > to {
            return Err(format!("'{text}': the first duration exceeds the second"));
        }
        Ok((from, to))
    };
    match policy {
        "exponential" => {
            let (base_ms, max_ms) = range()?;
            Ok(Backoff::Exponential { base_ms, max_ms })
        }
        "linear" => {
            let (step_ms, max_ms) = range()?;
            Ok(Backoff::Linear { step_ms, max_ms })
        }
        "fixed" => wait(rest).map(Backoff::Fixed),
        "list" => {
            let waits = rest.split(',').map(wait).collect::<Result<Vec<_>, _>>()?;
            if waits.len() > Backoff::LIST_MAX {
                return Err(format!(
                    "the list has {} waits; at most {}",
                    waits.len(),
                    Backoff::LIST_MAX
                ));
            }
            Ok(Backoff::List(waits))
        }
        "hangfire" if rest.is_empty() => Ok(Backoff::Hangfire),
        "quartic" if rest.is_empty() => Ok(Backoff::Quartic),
        _ => Err(wrong()),
    }
}

/// Formats a policy so that [`parse_backoff`] reads it back.
pub(crate) fn show_backoff(backoff: &Backoff) -> String {
    let show = |ms: u32| show_duration(Duration::from_millis(u64::from(ms)));
    match backoff {
        Backoff::Exponential { base_ms, max_ms } => {
            format!("exponential:{}..{}", show(*base_ms), show(*max_ms))
        }
        Backoff::Linear { step_ms, max_ms } => {
            format!("linear:{}..{}", show(*step_ms), show(*max_ms))
        }
        Backoff::Fixed(ms) => format!("fixed:{}", show(*ms)),
        Backoff::List(list) => {
            let waits: Vec<String> = list.iter().map(|ms| show(*ms)).collect();
            format!("list:{}", waits.join(","))
        }
        Backoff::Hangfire => "hangfire".to_owned(),
        Backoff::Quartic => "quartic".to_owned(),
    }
}

fn wait(text: &str) -> Result<u32, String> {
    let wait = parse_duration(text)?;
    u32::try_from(wait.as_millis())
        .map_err(|_| format!("a wait of {text} is too long; at most 49d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_round_trips_as_text() {
        for text in [
            "exponential:2s..10m",
            "linear:500ms..1h",
            "fixed:5s",
            "list:1s,5s,1m",
            "list:0ms",
            "hangfire",
            "quartic",
        ] {
            assert_eq!(show_backoff(&parse_backoff(text).unwrap()), text);
        }
        let exponential = Backoff::Exponential { base_ms: 2_000, max_ms: 600_000 };
        assert_eq!(parse_backoff("exponential:2s..10m"), Ok(exponential));
    }

    #[test]
    fn an_invalid_policy_is_refused_with_examples() {
        for text in ["", "often", "fixed", "fixed:", "list:", "exponential:2s", "quartic:1s"] {
            assert!(parse_backoff(text).unwrap_err().contains("is not a back-off"), "{text}");
        }
        for text in ["fixed:60d", "fixed:5", "exponential:10m..2s", "linear:2s..1s"] {
            assert!(parse_backoff(text).is_err(), "{text}");
        }
        let long = format!("list:{}1s", "1s,".repeat(64));
        assert!(parse_backoff(&long).unwrap_err().contains("at most 64"));
    }
}
