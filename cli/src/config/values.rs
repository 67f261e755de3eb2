//! How the values of single keys are read. Errors say what was expected; who calls says where.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::protocol::{Address, AddressError, check_name};
use longshore::{Durability, Path, PublisherOptions};

use super::RESOLVER_PORT;
use super::file::MetricsWritten;
use crate::logging;
use crate::time::parse_length;

/// Most connections that a listener may be told to take: a process opens about a million files at
/// most.
pub(super) const CONNECTIONS_MOST: usize = 1_000_000;
/// Most tries. The hundredth comes after ten minutes of waits.
const TRIES_MOST: u64 = 100;
/// The longest of all lengths of time. On the wire they are milliseconds in 32 bits, 49 days.
const LENGTH_MOST: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest time to live: four heartbeats fit into it, and one that is late by 50 ms, as on any
/// busy machine, is no hang.
const TTL_LEAST: Duration = Duration::from_millis(200);

/// A length of time as it is written, with everything that is in it: `1h0m1s` is not `1h`.
pub(crate) struct Exactly(pub(crate) Duration);

impl fmt::Display for Exactly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = self.0.as_micros();
        if us == 0 || !us.is_multiple_of(1_000) {
            return write!(f, "{us}us");
        }
        let mut ms = us / 1_000;
        for (unit, length) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)] {
            if ms >= length {
                write!(f, "{}{unit}", ms / length)?;
                ms %= length;
            }
        }
        if ms > 0 { write!(f, "{ms}ms") } else { Ok(()) }
    }
}

/// Reads `IP:PORT`. A listening address is a number: what a name means may change under a running
/// service.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("'{text}' is not an address; write it like 127.0.0.1:4780 or [::1]:4780")
    })
}

/// Reads `fsync` or `none`.
pub(crate) fn parse_durability(text: &str) -> Result<Durability, String> {
    match text {
        "fsync" => Ok(Durability::Fsync),
        "none" => Ok(Durability::None),
        _ => Err(format!("'{text}' is not a durability; expected fsync or none")),
    }
}

pub(super) fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

pub(super) fn address(text: String) -> Result<SocketAddr, String> {
    parse_address(&text)
}

/// Whether a replica tells its metrics, and where it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplicaMetrics {
    /// Not at all.
    Off,
    /// At a free port of the address that it listens on.
    Beside,
    /// There.
    At(SocketAddr),
}

pub(super) fn metrics(written: MetricsWritten) -> Result<ReplicaMetrics, String> {
    match written {
        MetricsWritten::Told(true) => Ok(ReplicaMetrics::Beside),
        MetricsWritten::Told(false) => Ok(ReplicaMetrics::Off),
        MetricsWritten::At(text) => match parse_address(&text)? {
            at if at.ip().is_unspecified() => {
                Err(format!("nobody can dial {at}; write the address that those who look on reach"))
            }
            at => Ok(ReplicaMetrics::At(at)),
        },
    }
}

/// Reads `HOST:PORT` or `IP:PORT`, where others dial a publisher: all addresses are nowhere, and so
/// is port 0.
pub(crate) fn parse_advertised(text: &str) -> Result<Address, String> {
    let at: Address = text.parse().map_err(|error: AddressError| error.to_string())?;
    if at.ip().is_some_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "nobody can dial {at}; write the address that workers and producers reach"
        ));
    }
    if at.port() == 0 {
        return Err(format!("nobody can dial {at}; write the port that the publisher listens on"));
    }
    Ok(at)
}

pub(super) fn advertised(list: Vec<String>) -> Result<Vec<Address>, String> {
    list.iter().map(|text| parse_advertised(text)).collect()
}

pub(super) fn paths(list: Vec<String>) -> Result<Vec<Path>, String> {
    list.iter().map(|text| Path::new(text).map_err(|error| error.to_string())).collect()
}

pub(super) fn name(text: String) -> Result<String, String> {
    check_name(&text).map(|()| text).map_err(|error| error.to_string())
}

pub(super) fn log_filter(text: String) -> Result<String, String> {
    logging::parse(&text).map(|_| text)
}

/// Reads a number that lies within a range.
pub(super) fn within(range: RangeInclusive<usize>) -> impl Fn(u64) -> Result<usize, String> {
    move |n| match usize::try_from(n) {
        Ok(n) if range.contains(&n) => Ok(n),
        _ if *range.end() == usize::MAX => {
            Err(format!("{n} is out of range; expected at least {}", range.start()))
        }
        _ => Err(format!("{n} is out of range; expected {} to {}", range.start(), range.end())),
    }
}

pub(super) fn segment_bytes(n: u64) -> Result<u64, String> {
    let range = PublisherOptions::SEGMENT_BYTES_MIN..=PublisherOptions::SEGMENT_BYTES_MAX;
    match range.contains(&n) {
        true => Ok(n),
        false => Err(format!("{n} is out of range; expected {} to {}", range.start(), range.end())),
    }
}

pub(super) fn memory_max(n: u64) -> Result<u64, String> {
    match n >= PublisherOptions::MEMORY_MAX_MIN {
        true => Ok(n),
        false => Err(format!(
            "{n} is out of range; expected at least {}",
            PublisherOptions::MEMORY_MAX_MIN
        )),
    }
}

pub(super) fn tries(n: u64) -> Result<u32, String> {
    match u32::try_from(n) {
        Ok(tries) if (1..=TRIES_MOST).contains(&n) => Ok(tries),
        _ => Err(format!("{n} is out of range; expected 1 to {TRIES_MOST}")),
    }
}

pub(super) fn hang_after(text: String) -> Result<Duration, String> {
    at_least(
        parse_length(&text)?,
        PublisherOptions::HANG_AFTER_MIN,
        "a disk may be busy for that long",
    )
}

pub(super) fn clock_skew_max(text: String) -> Result<Duration, String> {
    let length = parse_length(&text)?;
    let why = "what keeps clocks right moves them by that much";
    at_least(length, PublisherOptions::CLOCK_SKEW_MAX_MIN, why).and_then(at_most)
}

/// A length of time above 0, in microseconds or more.
pub(super) fn short_length(text: String) -> Result<Duration, String> {
    let micros = text.trim().strip_suffix("us").and_then(|n| n.trim_end().parse().ok());
    let length = match micros {
        Some(n) => Duration::from_micros(n),
        None => parse_length(&text)?,
    };
    match length {
        Duration::ZERO => Err("expected a length of time above 0".to_owned()),
        length => at_most(length),
    }
}

/// How long a side of a resolver's link may be silent.
pub(super) fn ttl(text: String) -> Result<Duration, String> {
    let why = "four heartbeats have to fit into it, and a machine may be late with one";
    at_least(short_length(text)?, TTL_LEAST, why)
}

fn at_least(length: Duration, least: Duration, why: &str) -> Result<Duration, String> {
    match length < least {
        true => Err(format!(
            "{} is too short: {why}; expected at least {}",
            Exactly(length),
            Exactly(least)
        )),
        false => Ok(length),
    }
}

fn at_most(length: Duration) -> Result<Duration, String> {
    match length > LENGTH_MOST {
        true => Err(format!(
            "{} is too long; expected at most {}",
            Exactly(length),
            Exactly(LENGTH_MOST)
        )),
        false => Ok(length),
    }
}

pub(super) fn replicas(list: Vec<String>) -> Result<Vec<String>, String> {
    if list.is_empty() {
        return Err("expected at least one HOST:PORT".to_owned());
    }
    for (place, replica) in list.iter().enumerate() {
        let dialled = dialled(replica).ok_or_else(|| {
            format!("'{replica}' is not HOST:PORT, like 127.0.0.1:{RESOLVER_PORT}")
        })?;
        if let Ok(address) = dialled.parse::<SocketAddr>()
            && address.ip().is_unspecified()
        {
            return Err(format!("nobody can dial {replica}; write the address that clients reach"));
        }
        if list[..place].iter().any(|other| self::dialled(other).as_ref() == Some(&dialled)) {
            return Err(format!(
                "the replica {dialled} is named twice: publishers would write to it twice, and one \
                 that is down would count as two; name each replica once"
            ));
        }
    }
    Ok(list)
}

/// What is dialled for a replica, written in one way only. None if it is no address.
fn dialled(replica: &str) -> Option<String> {
    let (host, port) = match replica.rsplit_once(':') {
        // A colon within brackets is the address's own.
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (replica, RESOLVER_PORT),
    };
    if host.is_empty() || port == 0 {
        return None;
    }
    let address = format!("{host}:{port}").parse::<SocketAddr>();
    Some(address.map_or_else(
        |_| format!("{}:{port}", host.to_ascii_lowercase()),
        |address| SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
    ))
}

pub(super) fn expand_home(text: &str, home: Option<&FilePath>) -> Result<PathBuf, String> {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Ok(home.join(rest)),
        (Some(_), None) => {
            Err(format!("'{text}' begins with ~, and there is no $HOME; write it from /"))
        }
        (None, _) => Ok(PathBuf::from(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_shown_with_all_that_is_in_it_and_read_again() {
        for (us, text) in [
            (50, "50us"),
            (1_500, "1500us"),
            (250_000, "250ms"),
            (1_250_000, "1s250ms"),
            (120_000_000, "2m"),
            (3_601_000_000, "1h1s"),
            (86_400_000_000, "1d"),
        ] {
            let length = Duration::from_micros(us);
            assert_eq!(Exactly(length).to_string(), text);
            assert_eq!(short_length(text.to_owned()), Ok(length));
        }
        for text in ["0us", "0s", "us", "-1us", "1d1ms", "99999999999999999999us"] {
            assert!(short_length(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn one_replica_can_be_written_in_many_ways() {
        for (one, other) in [
            ("127.0.0.1", "127.0.0.1:4770"),
            ("Berlin:4770", "berlin"),
            ("[::1]:4770", "[0:0::1]"),
            ("[::ffff:10.0.0.1]:4770", "10.0.0.1"),
        ] {
            let error = replicas(vec![one.into(), "other:1".into(), other.into()]).unwrap_err();
            assert!(error.contains("named twice") && error.contains("once"), "{error}");
        }
        assert!(replicas(vec!["a:1".into(), "a:2".into(), "b:1".into()]).is_ok());
    }
}
