//! Durations and back-offs as attributes have them.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, LitStr, Path, Result};

const DURATION: &str = "a whole number with a unit, such as 250ms, 30s, 5m, 12h or 7d";
const BACKOFF: &str = "exponential:2s..10m, fixed:5s, linear:5s..10m, list:1s,5s,1m, quartic or \
                       hangfire";

/// Milliseconds, within these bounds.
pub(crate) fn milliseconds(literal: &LitStr, least: u64, most: u64) -> Result<u64> {
    let text = literal.value();
    let wrong = || Error::new(literal.span(), format!("'{text}' is no duration: write {DURATION}"));
    let ms = parse(&text).ok_or_else(wrong)?;
    if (least..=most).contains(&ms) {
        return Ok(ms);
    }
    let limits = format!("'{text}' is out of its range: {least} ms to {most} ms");
    Err(Error::new(literal.span(), limits))
}

fn parse(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit_ms)
}

/// The back-off's value.
pub(crate) fn backoff(literal: &LitStr, longshore: &Path) -> Result<TokenStream> {
    let text = literal.value();
    let wrong = || Error::new(literal.span(), format!("'{text}' is no back-off: write {BACKOFF}"));
    let wait = |text: &str| {
        let ms = parse(text).and_then(|ms| u32::try_from(ms).ok());
        ms.ok_or_else(wrong)
    };
    let range = |text: &str| -> Result<(u32, u32)> {
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        let (from, to) = (wait(from)?, wait(to)?);
        if from <= to { Ok((from, to)) } else { Err(wrong()) }
    };
    let backoff = quote!(#longshore::Backoff);
    Ok(match text.split_once(':').unwrap_or((&text, "")) {
        ("quartic", "") => quote!(#backoff::Quartic),
        ("hangfire", "") => quote!(#backoff::Hangfire),
        ("fixed", rest) => {
            let ms = wait(rest)?;
            quote!(#backoff::Fixed(#ms))
        }
        ("exponential", rest) => {
            let (base_ms, max_ms) = range(rest)?;
            quote!(#backoff::Exponential { base_ms: #base_ms, max_ms: #max_ms })
        }
        ("linear", rest) => {
            let (step_ms, max_ms) = range(rest)?;
            quote!(#backoff::Linear { step_ms: #step_ms, max_ms: #max_ms })
        }
        ("list", rest) => {
            let waits = rest.split(',').map(wait).collect::<Result<Vec<u32>>>()?;
            if waits.len() > 64 {
                return Err(Error::new(literal.span(), "a list has at most 64 waits"));
            }
            quote!(#backoff::List(::std::vec![#(#waits),*]))
        }
        _ => return Err(wrong()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_numbers_with_a_unit() {
        let read = [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("12h", 43_200_000)];
        assert!(read.iter().all(|&(text, ms)| parse(text) == Some(ms)));
        assert_eq!(parse("7d"), Some(604_800_000));
        for wrong in ["", "30", "s", "1.5s", "-1s", "30 s", "30x", "99999999999999999999s"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
