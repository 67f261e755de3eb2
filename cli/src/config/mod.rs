//! The effective configuration: command line, then environment, then configuration file, then
//! default.

mod check;
mod file;
mod layers;
mod raw_value;
mod reload;
mod rows;
mod setting;
mod values;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::protocol::Address;
use longshore::{
    Durability, FrameBudget, Limits, Path, PublisherOptions, ResolverTiming, ServerOptions,
};

pub(crate) use reload::{ReloadPlan, Service, plan_reload};
pub(crate) use rows::{Row, rows};
pub(crate) use setting::{Origin, Setting};
pub(crate) use values::{ReplicaMetrics, parse_address, parse_advertised, parse_durability};

use crate::failure::UsageError;
use crate::logging::LogFormat;
use file::{ConfigFile, PublisherSection, ResolverSection, TimingSection};
use layers::{ConfigSource, Layers, home, text};
use raw_value::DurationText;

/// The default port of a resolver replica.
pub(crate) const RESOLVER_PORT: u16 = 4770;
/// The default port of a publisher.
pub(crate) const PUBLISHER_PORT: u16 = 4780;

const ENV_CONFIG: &str = "LONGSHORE_CONFIG";
const ENV_RESOLVERS: &str = "LONGSHORE_RESOLVERS";
const ENV_DATA: &str = "LONGSHORE_DATA";
const ENV_LOG: &str = "LONGSHORE_LOG";
const ENV_LOG_FORMAT: &str = "LONGSHORE_LOG_FORMAT";

/// Environment variables whose names are UTF-8, as Longshore's are. Values may be any bytes, as
/// paths may.
type Environment = BTreeMap<String, OsString>;

/// Settings from the global command-line flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigOverrides {
    /// `--resolver`
    pub(crate) resolvers: Option<Vec<String>>,
    /// `--config`
    pub(crate) config: Option<PathBuf>,
    /// `--log`
    pub(crate) log: Option<String>,
    /// `--log-format`
    pub(crate) log_format: Option<LogFormat>,
}

/// All settings, resolved, each with its origin.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The configuration file that was read, if any.
    pub(crate) file: Option<Setting<PathBuf>>,
    /// Addresses of the resolver's replicas.
    pub(crate) resolvers: Setting<Vec<String>>,
    /// The directory of the publisher's journal; none if neither it nor a home directory is set.
    pub(crate) data: Setting<Option<PathBuf>>,
    /// The log filter; none: the command's default.
    pub(crate) log: Setting<Option<String>>,
    /// The format of log lines.
    pub(crate) log_format: Setting<LogFormat>,
    /// Settings of `longshore publisher run`.
    pub(crate) publisher: PublisherConfig,
    /// Settings of `longshore resolver run`.
    pub(crate) resolver: ResolverConfig,
    /// The timing of resolver clients and servers.
    pub(crate) timing: TimingConfig,
}

/// `[publisher]`
#[derive(Clone, Debug)]
pub(crate) struct PublisherConfig {
    pub(crate) name: Setting<String>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) advertise: Setting<Vec<Address>>,
    pub(crate) paths: Setting<Vec<Path>>,
    pub(crate) defaults: Setting<Vec<Path>>,
    pub(crate) homes: Setting<Vec<String>>,
    pub(crate) durability: Setting<Durability>,
    pub(crate) segment_bytes: Setting<u64>,
    pub(crate) cache_bytes: Setting<usize>,
    pub(crate) memory_max: Setting<u64>,
    pub(crate) connections_max: Setting<usize>,
    pub(crate) value_connections_max: Setting<usize>,
    pub(crate) hang_after: Setting<Duration>,
    pub(crate) clock_skew_max: Setting<Duration>,
    pub(crate) metrics: Setting<bool>,
    pub(crate) insecure: Setting<bool>,
}

/// `[resolver]`
#[derive(Clone, Debug)]
pub(crate) struct ResolverConfig {
    pub(crate) name: Setting<String>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) connections_max: Setting<usize>,
    pub(crate) writers_reserved: Setting<usize>,
    pub(crate) tools_reserved: Setting<usize>,
    pub(crate) watches_max: Setting<usize>,
    pub(crate) paths_max: Setting<usize>,
    pub(crate) received_bytes_max: Setting<usize>,
    pub(crate) metrics: Setting<ReplicaMetrics>,
    pub(crate) insecure: Setting<bool>,
}

/// `[timing]`
#[derive(Clone, Debug)]
pub(crate) struct TimingConfig {
    pub(crate) reader_ttl: Setting<Duration>,
    pub(crate) writer_ttl: Setting<Duration>,
    pub(crate) handshake_timeout: Setting<Duration>,
    pub(crate) connect_timeout: Setting<Duration>,
    pub(crate) retry_wait_min: Setting<Duration>,
    pub(crate) retry_wait_max: Setting<Duration>,
    pub(crate) request_timeout_min: Setting<Duration>,
    pub(crate) read_op_timeout: Setting<Duration>,
    pub(crate) write_op_timeout: Setting<Duration>,
    pub(crate) tries: Setting<u32>,
}

impl Config {
    /// Reads the environment and the configuration file, and validates keys that depend on each
    /// other.
    pub(crate) fn load(overrides: &ConfigOverrides) -> Result<Config, UsageError> {
        Config::resolve(overrides, &environment()).map_err(UsageError)
    }

    fn resolve(overrides: &ConfigOverrides, environment: &Environment) -> Result<Config, String> {
        let source = ConfigSource::find(overrides, environment)?;
        let (content, file) = match &source {
            Some(source) => (source.text.as_str(), file::parse(&source.text, &source.path.value)?),
            None => ("", ConfigFile::default()),
        };
        let path = source.as_ref().map_or(FilePath::new(""), |source| source.path.value.as_path());
        let layers = Layers { environment, path, text: content };
        let ConfigFile { resolvers, data, log, log_format, publisher, resolver, timing } = file;

        let listed = |value: &OsStr| {
            let list = text(value)?.split(',').map(str::trim).filter(|s| !s.is_empty());
            values::replicas(list.map(str::to_owned).collect())
        };
        let default_resolver = vec![format!("127.0.0.1:{RESOLVER_PORT}")];
        let home = home(environment).map(FilePath::new);
        let default_data = home.map(|home| home.join(".local/share/longshore"));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "longshore" } else { host.trim() };

        let mut config = Config {
            resolvers: layers.pick(
                "resolvers",
                Some((ENV_RESOLVERS, &listed)),
                resolvers,
                values::replicas,
                default_resolver,
            )?,
            data: layers.pick(
                "data",
                Some((ENV_DATA, &|value| Ok(Some(PathBuf::from(value))))),
                data,
                |text| values::expand_home(&text, home).map(Some),
                default_data,
            )?,
            log: layers.pick(
                "log",
                Some((ENV_LOG, &|value| values::log_filter(text(value)?.to_owned()).map(Some))),
                log,
                |text| values::log_filter(text).map(Some),
                None,
            )?,
            log_format: layers.pick(
                "log_format",
                Some((ENV_LOG_FORMAT, &|value| LogFormat::parse(text(value)?))),
                log_format,
                |text| LogFormat::parse(&text),
                LogFormat::Text,
            )?,
            publisher: PublisherConfig::resolve(&layers, publisher, host)?,
            resolver: ResolverConfig::resolve(&layers, resolver, host)?,
            timing: TimingConfig::resolve(&layers, timing)?,
            file: source.as_ref().map(|source| source.path.clone()),
        };
        if let Some(list) = overrides.resolvers.clone() {
            let list = values::replicas(list).map_err(|e| format!("--resolver: {e}"))?;
            config.resolvers = config.resolvers.or_flag(Some(list), "--resolver");
        }
        if let Some(filter) = overrides.log.clone() {
            let filter = values::log_filter(filter).map_err(|e| format!("--log: {e}"))?;
            config.log = config.log.or_flag(Some(Some(filter)), "--log");
        }
        config.log_format = config.log_format.or_flag(overrides.log_format, "--log-format");
        check::cluster(&config)?;
        Ok(config)
    }

    /// The data directory: from the command line, or the configured one.
    pub(crate) fn data_dir(&self, flag: Option<PathBuf>) -> Result<PathBuf, UsageError> {
        flag.or_else(|| self.data.value.clone()).ok_or_else(|| {
            let what = "no data directory is set, and without $HOME there is no default; set one \
                        with --data DIR, $LONGSHORE_DATA, or data in the configuration file";
            UsageError(what.to_owned())
        })
    }

    /// Checks that the services could start with this configuration, apart from flags of their own.
    /// `longshore config` runs it; other commands do not.
    pub(crate) fn check_services(&self) -> Result<(), UsageError> {
        check::services(self).map_err(UsageError)
    }

    /// The timing of resolver clients and servers.
    pub(crate) fn timing(&self) -> ResolverTiming {
        let timing = &self.timing;
        ResolverTiming {
            reader_ttl: timing.reader_ttl.value,
            writer_ttl: timing.writer_ttl.value,
            handshake_timeout: timing.handshake_timeout.value,
            connect_timeout: timing.connect_timeout.value,
            retry_wait_min: timing.retry_wait_min.value,
            retry_wait_max: timing.retry_wait_max.value,
            tries: timing.tries.value,
            read_op_timeout: timing.read_op_timeout.value,
            write_op_timeout: timing.write_op_timeout.value,
            request_timeout_min: timing.request_timeout_min.value,
        }
    }

    /// Options of a replica. The caller sets `fresh` and may override the name.
    pub(crate) fn server_options(&self) -> ServerOptions {
        let Limits { connections_max, writers_reserved, tools_reserved, watches_max, paths_max } =
            self.limits();
        ServerOptions {
            name: self.resolver.name.value.clone(),
            timing: self.timing(),
            connections_max,
            writers_reserved: Some(writers_reserved),
            tools_reserved: Some(tools_reserved),
            watches_max,
            paths_max,
            budget: FrameBudget::new(self.resolver.received_bytes_max.value),
            insecure: self.resolver.insecure.value,
            ..ServerOptions::default()
        }
    }

    /// The limits of a replica.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.resolver.connections_max.value,
            writers_reserved: self.resolver.writers_reserved.value,
            tools_reserved: self.resolver.tools_reserved.value,
            watches_max: self.resolver.watches_max.value,
            paths_max: self.resolver.paths_max.value,
        }
    }

    /// Options of a publisher with its journal in `data`. The caller sets its addresses and paths.
    pub(crate) fn publisher_options(&self, data: PathBuf) -> PublisherOptions {
        let configured = &self.publisher;
        let mut options = PublisherOptions::new(data);
        options.name = configured.name.value.clone();
        options.durability = configured.durability.value;
        options.segment_bytes = configured.segment_bytes.value;
        options.cache_bytes = configured.cache_bytes.value;
        options.memory_max = Some(configured.memory_max.value);
        options.connections_max = configured.connections_max.value;
        options.value_connections_max = Some(configured.value_connections_max.value);
        options.hang_after = configured.hang_after.value;
        options.clock_skew_max = configured.clock_skew_max.value;
        options.metrics = configured.metrics.value;
        options
    }
}

fn environment() -> Environment {
    let named = std::env::vars_os().map(|(name, value)| (name.into_string(), value));
    named.filter_map(|(name, value)| Some((name.ok()?, value))).collect()
}

impl PublisherConfig {
    fn resolve(
        layers: &Layers<'_>,
        written: PublisherSection,
        host: &str,
    ) -> Result<PublisherConfig, String> {
        let name = host.to_owned();
        let listen = values::local(PUBLISHER_PORT);
        let connections_max = layers.of_file(
            "publisher.connections_max",
            written.connections_max,
            values::within(1..=values::CONNECTIONS_LIMIT),
            PublisherOptions::CONNECTIONS_MAX,
        )?;
        Ok(PublisherConfig {
            name: layers.of_file("publisher.name", written.name, values::name, name)?,
            listen: layers.of_file("publisher.listen", written.listen, values::address, listen)?,
            advertise: layers.of_file(
                "publisher.advertise",
                written.advertise,
                values::advertised,
                Vec::new(),
            )?,
            paths: layers.of_file("publisher.paths", written.paths, values::paths, Vec::new())?,
            defaults: layers.of_file(
                "publisher.defaults",
                written.defaults,
                values::paths,
                Vec::new(),
            )?,
            homes: layers.of_file("publisher.homes", written.homes, Ok, Vec::new())?,
            durability: layers.of_file(
                "publisher.durability",
                written.durability,
                |text| parse_durability(&text),
                Durability::Fsync,
            )?,
            segment_bytes: layers.of_file(
                "publisher.segment_bytes",
                written.segment_bytes,
                values::segment_bytes,
                PublisherOptions::SEGMENT_BYTES,
            )?,
            cache_bytes: layers.of_file(
                "publisher.cache_bytes",
                written.cache_bytes,
                |n| usize::try_from(n).map_err(|_| format!("{n} is out of range")),
                PublisherOptions::CACHE_BYTES,
            )?,
            memory_max: layers.of_file(
                "publisher.memory_max",
                written.memory_max,
                values::memory_max,
                PublisherOptions::default_memory_max(),
            )?,
            value_connections_max: layers.of_file(
                "publisher.value_connections_max",
                written.value_connections_max,
                values::within(1..=values::CONNECTIONS_LIMIT),
                PublisherOptions::default_value_connections(connections_max.value),
            )?,
            connections_max,
            hang_after: layers.of_file(
                "publisher.hang_after",
                written.hang_after,
                |DurationText(text)| values::hang_after(text),
                PublisherOptions::HANG_AFTER,
            )?,
            clock_skew_max: layers.of_file(
                "publisher.clock_skew_max",
                written.clock_skew_max,
                |DurationText(text)| values::clock_skew_max(text),
                PublisherOptions::CLOCK_SKEW_MAX,
            )?,
            metrics: layers.of_file("publisher.metrics", written.metrics, Ok, true)?,
            insecure: layers.of_file("publisher.insecure", written.insecure, Ok, false)?,
        })
    }
}

impl ResolverConfig {
    fn resolve(
        layers: &Layers<'_>,
        written: ResolverSection,
        host: &str,
    ) -> Result<ResolverConfig, String> {
        let default = ServerOptions::default();
        let name = host.to_owned();
        let listen = values::local(RESOLVER_PORT);
        let connections_max = layers.of_file(
            "resolver.connections_max",
            written.connections_max,
            values::within(1..=values::CONNECTIONS_LIMIT),
            default.connections_max,
        )?;
        let reserved = |key, written, default| {
            layers.of_file(key, written, values::within(0..=values::CONNECTIONS_LIMIT), default)
        };
        Ok(ResolverConfig {
            writers_reserved: reserved(
                "resolver.writers_reserved",
                written.writers_reserved,
                Limits::default_writers_reserved(connections_max.value),
            )?,
            tools_reserved: reserved(
                "resolver.tools_reserved",
                written.tools_reserved,
                Limits::default_tools_reserved(connections_max.value),
            )?,
            name: layers.of_file("resolver.name", written.name, values::name, name)?,
            listen: layers.of_file("resolver.listen", written.listen, values::address, listen)?,
            connections_max,
            watches_max: layers.of_file(
                "resolver.watches_max",
                written.watches_max,
                values::within(1..=Limits::WATCHES_LIMIT_MAX),
                default.watches_max,
            )?,
            paths_max: layers.of_file(
                "resolver.paths_max",
                written.paths_max,
                values::within(1..=Limits::PATHS_LIMIT_MAX),
                default.paths_max,
            )?,
            received_bytes_max: layers.of_file(
                "resolver.received_bytes_max",
                written.received_bytes_max,
                values::within(FrameBudget::BYTES_MIN..=usize::MAX),
                FrameBudget::BYTES,
            )?,
            metrics: layers.of_file(
                "resolver.metrics",
                written.metrics,
                values::metrics,
                ReplicaMetrics::Automatic,
            )?,
            insecure: layers.of_file("resolver.insecure", written.insecure, Ok, false)?,
        })
    }
}

impl TimingConfig {
    fn resolve(layers: &Layers<'_>, written: TimingSection) -> Result<TimingConfig, String> {
        let default = ResolverTiming::default();
        let duration = |key, written, default| {
            layers.of_file(
                key,
                written,
                |DurationText(text)| values::positive_duration(text),
                default,
            )
        };
        let ttl = |key, written, default| {
            layers.of_file(key, written, |DurationText(text)| values::ttl(text), default)
        };
        Ok(TimingConfig {
            reader_ttl: ttl("timing.reader_ttl", written.reader_ttl, default.reader_ttl)?,
            writer_ttl: ttl("timing.writer_ttl", written.writer_ttl, default.writer_ttl)?,
            handshake_timeout: duration(
                "timing.handshake_timeout",
                written.handshake_timeout,
                default.handshake_timeout,
            )?,
            connect_timeout: duration(
                "timing.connect_timeout",
                written.connect_timeout,
                default.connect_timeout,
            )?,
            retry_wait_min: duration(
                "timing.retry_wait_min",
                written.retry_wait_min,
                default.retry_wait_min,
            )?,
            retry_wait_max: duration(
                "timing.retry_wait_max",
                written.retry_wait_max,
                default.retry_wait_max,
            )?,
            request_timeout_min: duration(
                "timing.request_timeout_min",
                written.request_timeout_min,
                default.request_timeout_min,
            )?,
            read_op_timeout: duration(
                "timing.read_op_timeout",
                written.read_op_timeout,
                default.read_op_timeout,
            )?,
            write_op_timeout: duration(
                "timing.write_op_timeout",
                written.write_op_timeout,
                default.write_op_timeout,
            )?,
            tries: layers.of_file("timing.tries", written.tries, values::tries, default.tries)?,
        })
    }
}

#[cfg(test)]
mod tests;
