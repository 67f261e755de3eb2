//! Parsers of single keys. Errors name what was expected; the caller adds the origin.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::protocol::{
    Address, AddressError, HomePattern, Homes, NotASocketPath, NotATlsName, PathError, SocketPath,
    TlsName, check_name,
};
use longshore::{Durability, Path, PublisherOptions};

use super::RESOLVER_PORT;
use super::file::{HomeNames, HomesTable, MetricsSetting};
use crate::logging;
use crate::time::parse_duration;

/// The largest connection limit: a process opens about a million files at most.
pub(super) const CONNECTIONS_LIMIT: usize = 1_000_000;
/// The largest number of tries. The hundredth comes after ten minutes of waits.
const TRIES_MAX: u64 = 100;
/// The longest duration. On the wire durations are milliseconds in 32 bits, 49 days.
const DURATION_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The shortest time to live: four heartbeats fit into it, so one that is 50 ms late, as on any
/// busy machine, does not count as a hang.
const TTL_MIN: Duration = Duration::from_millis(200);

/// Formats a duration exactly: `1h1s` is not shortened to `1h`.
pub(crate) struct ExactDuration(pub(crate) Duration);

impl fmt::Display for ExactDuration {
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

/// Parses `IP:PORT`. Listening addresses are numeric: a name may resolve differently while the
/// service runs.
pub(crate) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("'{text}' is not an address; write it like 127.0.0.1:4780 or [::1]:4780")
    })
}

/// Parses `fsync` or `none`.
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

/// Whether and where a replica publishes its metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReplicaMetrics {
    /// Nowhere.
    Off,
    /// On a free port of the replica's own listening address.
    Automatic,
    /// At this address.
    At(SocketAddr),
}

pub(super) fn metrics(written: MetricsSetting) -> Result<ReplicaMetrics, String> {
    match written {
        MetricsSetting::Enabled(true) => Ok(ReplicaMetrics::Automatic),
        MetricsSetting::Enabled(false) => Ok(ReplicaMetrics::Off),
        MetricsSetting::Address(text) => match parse_address(&text)? {
            at if at.ip().is_unspecified() => {
                Err(format!("{at} cannot be dialled; write an address that subscribers can reach"))
            }
            at => Ok(ReplicaMetrics::At(at)),
        },
    }
}

/// Parses `HOST:PORT` or `IP:PORT`, where clients dial a publisher. The unspecified address and
/// port 0 are refused.
pub(crate) fn parse_advertised(text: &str) -> Result<Address, String> {
    let at: Address = text.parse().map_err(|error: AddressError| error.to_string())?;
    if at.ip().is_some_and(|ip| ip.is_unspecified()) {
        return Err(format!(
            "{at} cannot be dialled; write an address that workers and producers can reach"
        ));
    }
    if at.port() == Some(0) {
        return Err(format!(
            "{at} cannot be dialled; write the port that the publisher listens on"
        ));
    }
    Ok(at)
}

pub(super) fn advertised(list: Vec<String>) -> Result<Vec<Address>, String> {
    list.iter().map(|text| parse_advertised(text)).collect()
}

pub(super) fn paths(list: Vec<String>) -> Result<Vec<Path>, String> {
    list.iter().map(|text| Path::new(text).map_err(|error| error.to_string())).collect()
}

/// Parses `PATTERN=NAME` or `PATTERN=NAME,NAME`. A name may contain `=`; a pattern may as well, if
/// it is in the configuration file.
pub(crate) fn parse_home(text: &str) -> Result<(HomePattern, Vec<String>), String> {
    let (pattern, names) = text.split_once('=').ok_or_else(|| {
        format!("'{text}' declares no home; write PATTERN=NAME, like /shop=pa or /tenants/*=pa,pb")
    })?;
    let pattern = pattern.parse().map_err(|why| home_pattern(pattern, &why))?;
    Ok((pattern, names.split(',').map(|name| name.trim().to_owned()).collect()))
}

/// The declarations below `[homes]`.
pub(super) fn homes(table: HomesTable) -> Result<Homes, String> {
    let mut declared = Vec::with_capacity(table.len());
    for (text, names) in table {
        let pattern = text.parse().map_err(|why| home_pattern(&text, &why))?;
        let names = match names {
            HomeNames::One(name) => vec![name],
            HomeNames::Several(names) => names,
        };
        declared.push((pattern, names));
    }
    Homes::new(declared).map_err(|why| why.to_string())
}

fn home_pattern(text: &str, why: &PathError) -> String {
    let wild = text.contains(['*', '?']);
    let hint = if wild { "; in a pattern, `*` stands for one whole segment" } else { "" };
    format!("{why}{hint}")
}

pub(super) fn name(text: String) -> Result<String, String> {
    check_name(&text).map(|()| text).map_err(|error| error.to_string())
}

pub(super) fn log_filter(text: String) -> Result<String, String> {
    logging::parse(&text).map(|_| text)
}

/// Parses a number within a range.
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
        Ok(tries) if (1..=TRIES_MAX).contains(&n) => Ok(tries),
        _ => Err(format!("{n} is out of range; expected 1 to {TRIES_MAX}")),
    }
}

pub(super) fn hang_after(text: String) -> Result<Duration, String> {
    at_least(
        parse_duration(&text)?,
        PublisherOptions::HANG_AFTER_MIN,
        "a disk may be busy for that long",
    )
}

pub(super) fn clock_skew_max(text: String) -> Result<Duration, String> {
    let duration = parse_duration(&text)?;
    let why = "clock synchronisation moves a clock by that much";
    at_least(duration, PublisherOptions::CLOCK_SKEW_MAX_MIN, why).and_then(at_most)
}

/// Parses a duration above 0, in microseconds or larger units.
pub(super) fn positive_duration(text: String) -> Result<Duration, String> {
    let micros = text.trim().strip_suffix("us").and_then(|n| n.trim_end().parse().ok());
    let duration = match micros {
        Some(n) => Duration::from_micros(n),
        None => parse_duration(&text)?,
    };
    match duration {
        Duration::ZERO => Err("expected a duration above 0".to_owned()),
        duration => at_most(duration),
    }
}

/// How long a peer of a resolver's link may be silent.
pub(super) fn ttl(text: String) -> Result<Duration, String> {
    let why = "four heartbeats have to fit into it, and a machine may be late with one";
    at_least(positive_duration(text)?, TTL_MIN, why)
}

fn at_least(duration: Duration, min: Duration, why: &str) -> Result<Duration, String> {
    match duration < min {
        true => Err(format!(
            "{} is too short: {why}; expected at least {}",
            ExactDuration(duration),
            ExactDuration(min)
        )),
        false => Ok(duration),
    }
}

fn at_most(duration: Duration) -> Result<Duration, String> {
    match duration > DURATION_MAX {
        true => Err(format!(
            "{} is too long; expected at most {}",
            ExactDuration(duration),
            ExactDuration(DURATION_MAX)
        )),
        false => Ok(duration),
    }
}

pub(crate) fn replicas(list: Vec<String>) -> Result<Vec<String>, String> {
    if list.is_empty() {
        return Err("expected at least one HOST:PORT".to_owned());
    }
    for (index, replica) in list.iter().enumerate() {
        let address = normalised(replica).ok_or_else(|| {
            format!(
                "'{replica}' is neither HOST:PORT, like 127.0.0.1:{RESOLVER_PORT}, nor unix:PATH"
            )
        })?;
        if let Ok(socket) = address.parse::<SocketAddr>()
            && socket.ip().is_unspecified()
        {
            return Err(format!(
                "{replica} cannot be dialled; write an address that clients can reach"
            ));
        }
        if list[..index].iter().any(|other| normalised(other).as_ref() == Some(&address)) {
            return Err(format!(
                "the replica {address} is named twice: publishers would write to it twice, and \
                 it would count as two when it is down; name each replica once"
            ));
        }
    }
    Ok(list)
}

/// A replica's address in normal form; none if it is not an address.
fn normalised(replica: &str) -> Option<String> {
    if replica.starts_with("unix:") {
        return replica.parse().ok().map(|address: Address| address.to_string());
    }
    let (host, port) = match replica.rsplit_once(':') {
        // A colon within brackets belongs to the IP address.
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

pub(super) fn tls_name(text: String) -> Result<Option<TlsName>, String> {
    text.parse().map(Some).map_err(|why: NotATlsName| why.to_string())
}

pub(super) fn socket_path(text: String) -> Result<Option<SocketPath>, String> {
    text.parse().map(Some).map_err(|why: NotASocketPath| why.to_string())
}

pub(super) fn expand_home(text: &str, home: Option<&FilePath>) -> Result<PathBuf, String> {
    match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => Ok(home.join(rest)),
        (Some(_), None) => {
            Err(format!("'{text}' begins with ~, and there is no $HOME; write an absolute path"))
        }
        (None, _) => Ok(PathBuf::from(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_durations_round_trip_as_text() {
        for (us, text) in [
            (50, "50us"),
            (1_500, "1500us"),
            (250_000, "250ms"),
            (1_250_000, "1s250ms"),
            (120_000_000, "2m"),
            (3_601_000_000, "1h1s"),
            (86_400_000_000, "1d"),
        ] {
            let duration = Duration::from_micros(us);
            assert_eq!(ExactDuration(duration).to_string(), text);
            assert_eq!(positive_duration(text.to_owned()), Ok(duration));
        }
        for text in ["0us", "0s", "us", "-1us", "1d1ms", "99999999999999999999us"] {
            assert!(positive_duration(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_replica_listed_twice_is_refused_in_any_spelling() {
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
