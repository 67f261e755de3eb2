//! What is in force: command line, then environment, then configuration file, then default.

mod check;
mod file;
mod layers;
mod reload;
mod rows;
mod setting;
mod values;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::{Durability, Limits, Path, PublisherOptions, ResolverTiming, ServerOptions};

pub(crate) use reload::{Plan, Service, plan};
pub(crate) use rows::{Row, rows};
pub(crate) use setting::{Origin, Setting};
pub(crate) use values::{ReplicaFigures, parse_address, parse_durability};

use crate::failure::WrongUsage;
use file::{ConfigFile, PublisherSection, ResolverSection, TimingSection};
use layers::{Layers, Named};

/// Where the first replica of a system listens, and where clients look for one.
pub(crate) const RESOLVER_PORT: u16 = 4770;
/// Where a publisher listens.
pub(crate) const PUBLISHER_PORT: u16 = 4780;

const ENV_CONFIG: &str = "LONGSHORE_CONFIG";
const ENV_RESOLVERS: &str = "LONGSHORE_RESOLVERS";
const ENV_DATA: &str = "LONGSHORE_DATA";
const ENV_LOG: &str = "LONGSHORE_LOG";

/// What the command line says for every command.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// `--resolver`
    pub(crate) resolvers: Option<Vec<String>>,
    /// `--config`
    pub(crate) config: Option<PathBuf>,
    /// `--log`
    pub(crate) log: Option<String>,
}

/// Everything that can be configured, resolved.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The configuration file that was read, if there is one.
    pub(crate) file: Option<Setting<PathBuf>>,
    /// Where the resolver's replicas are.
    pub(crate) resolvers: Setting<Vec<String>>,
    /// Where publishers keep their journals.
    pub(crate) data: Setting<PathBuf>,
    /// What is logged; none: what suits the command.
    pub(crate) log: Setting<Option<String>>,
    /// What `longshore publisher` runs with.
    pub(crate) publisher: PublisherConfig,
    /// What `longshore resolver` runs with.
    pub(crate) resolver: ResolverConfig,
    /// The timing of resolver clients and servers.
    pub(crate) timing: TimingConfig,
}

/// `[publisher]`
#[derive(Clone, Debug)]
pub(crate) struct PublisherConfig {
    pub(crate) name: Setting<String>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) advertise: Setting<Vec<SocketAddr>>,
    pub(crate) paths: Setting<Vec<Path>>,
    pub(crate) defaults: Setting<Vec<Path>>,
    pub(crate) homes: Setting<Vec<String>>,
    pub(crate) durability: Setting<Durability>,
    pub(crate) segment_bytes: Setting<u64>,
    pub(crate) cache_bytes: Setting<usize>,
    pub(crate) connections_max: Setting<usize>,
    pub(crate) value_connections_max: Setting<usize>,
    pub(crate) hang_after: Setting<Duration>,
    pub(crate) clock_skew_max: Setting<Duration>,
    pub(crate) figures: Setting<bool>,
    pub(crate) insecure: Setting<bool>,
}

/// `[resolver]`
#[derive(Clone, Debug)]
pub(crate) struct ResolverConfig {
    pub(crate) name: Setting<String>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) connections_max: Setting<usize>,
    pub(crate) writers_kept: Setting<usize>,
    pub(crate) tools_kept: Setting<usize>,
    pub(crate) watches_max: Setting<usize>,
    pub(crate) paths_max: Setting<usize>,
    pub(crate) requests_bytes_max: Setting<usize>,
    pub(crate) figures: Setting<ReplicaFigures>,
    pub(crate) insecure: Setting<bool>,
}

/// `[timing]`
#[derive(Clone, Debug)]
pub(crate) struct TimingConfig {
    pub(crate) reader_ttl: Setting<Duration>,
    pub(crate) writer_ttl: Setting<Duration>,
    pub(crate) hello_timeout: Setting<Duration>,
    pub(crate) connect_timeout: Setting<Duration>,
    pub(crate) retry_wait_min: Setting<Duration>,
    pub(crate) retry_wait_max: Setting<Duration>,
    pub(crate) request_timeout_min: Setting<Duration>,
    pub(crate) read_op_timeout: Setting<Duration>,
    pub(crate) write_op_timeout: Setting<Duration>,
    pub(crate) tries: Setting<u32>,
}

impl Config {
    /// Reads the environment and the configuration file, and checks what hangs together.
    pub(crate) fn load(given: &Given) -> Result<Config, WrongUsage> {
        Config::resolve(given, &std::env::vars().collect()).map_err(WrongUsage)
    }

    fn resolve(given: &Given, environment: &BTreeMap<String, String>) -> Result<Config, String> {
        let named = Named::find(given, environment)?;
        let (text, file) = match &named {
            Some(named) => (named.text.as_str(), file::parse(&named.text, &named.place.value)?),
            None => ("", ConfigFile::default()),
        };
        let path = named.as_ref().map_or(FilePath::new(""), |n| n.place.value.as_path());
        let layers = Layers { environment, path, text };
        let ConfigFile { resolvers, data, log, publisher, resolver, timing } = file;

        let listed = |text: &str| {
            let list = text.split(',').map(str::trim).filter(|s| !s.is_empty());
            values::replicas(list.map(str::to_owned).collect())
        };
        let default_resolver = vec![format!("127.0.0.1:{RESOLVER_PORT}")];
        let home = environment.get("HOME").map_or(".", String::as_str);
        let default_data = FilePath::new(home).join(".local/share/longshore");
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
                Some((ENV_DATA, &|text| Ok(PathBuf::from(text)))),
                data,
                |text| Ok(values::expand_home(&text, home)),
                default_data,
            )?,
            log: layers.pick(
                "log",
                Some((ENV_LOG, &|text| values::log_filter(text.to_owned()).map(Some))),
                log,
                |text| values::log_filter(text).map(Some),
                None,
            )?,
            publisher: PublisherConfig::resolve(&layers, publisher, host)?,
            resolver: ResolverConfig::resolve(&layers, resolver, host)?,
            timing: TimingConfig::resolve(&layers, timing)?,
            file: named.as_ref().map(|named| named.place.clone()),
        };
        if let Some(list) = given.resolvers.clone() {
            let list = values::replicas(list).map_err(|e| format!("--resolver: {e}"))?;
            config.resolvers = config.resolvers.or_flag(Some(list), "--resolver");
        }
        if let Some(filter) = given.log.clone() {
            let filter = values::log_filter(filter).map_err(|e| format!("--log: {e}"))?;
            config.log = config.log.or_flag(Some(Some(filter)), "--log");
        }
        check::cluster(&config)?;
        Ok(config)
    }

    /// What `longshore config` checks beyond what every command does: whether the services start with what is written
    /// here. What their own command lines would add is not known to it.
    pub(crate) fn check_services(&self) -> Result<(), WrongUsage> {
        check::services(self).map_err(WrongUsage)
    }

    /// The timing in force.
    pub(crate) fn timing(&self) -> ResolverTiming {
        let timing = &self.timing;
        ResolverTiming {
            reader_ttl: timing.reader_ttl.value,
            writer_ttl: timing.writer_ttl.value,
            hello_timeout: timing.hello_timeout.value,
            connect_timeout: timing.connect_timeout.value,
            retry_wait_min: timing.retry_wait_min.value,
            retry_wait_max: timing.retry_wait_max.value,
            tries: timing.tries.value,
            read_op_timeout: timing.read_op_timeout.value,
            write_op_timeout: timing.write_op_timeout.value,
            request_timeout_min: timing.request_timeout_min.value,
        }
    }

    /// How a replica serves; its name and whether it is fresh are its starter's to say.
    pub(crate) fn server_options(&self) -> ServerOptions {
        let Limits {
            connections_max,
            writers_kept,
            tools_kept,
            watches_max,
            paths_max,
            requests_bytes_max,
        } = self.limits();
        ServerOptions {
            name: self.resolver.name.value.clone(),
            timing: self.timing(),
            connections_max,
            writers_kept: Some(writers_kept),
            tools_kept: Some(tools_kept),
            watches_max,
            paths_max,
            requests_bytes_max,
            insecure: self.resolver.insecure.value,
            ..ServerOptions::default()
        }
    }

    /// The limits of a replica.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.resolver.connections_max.value,
            writers_kept: self.resolver.writers_kept.value,
            tools_kept: self.resolver.tools_kept.value,
            watches_max: self.resolver.watches_max.value,
            paths_max: self.resolver.paths_max.value,
            requests_bytes_max: self.resolver.requests_bytes_max.value,
        }
    }

    /// How a publisher with its journal in `data` serves; where it listens and what it publishes are its starter's to say.
    pub(crate) fn publisher_options(&self, data: PathBuf) -> PublisherOptions {
        let configured = &self.publisher;
        let mut options = PublisherOptions::new(data);
        options.name = configured.name.value.clone();
        options.durability = configured.durability.value;
        options.segment_bytes = configured.segment_bytes.value;
        options.cache_bytes = configured.cache_bytes.value;
        options.connections_max = configured.connections_max.value;
        options.value_connections_max = Some(configured.value_connections_max.value);
        options.hang_after = configured.hang_after.value;
        options.clock_skew_max = configured.clock_skew_max.value;
        options.figures = configured.figures.value;
        options
    }
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
            values::within(1..=values::CONNECTIONS_MOST),
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
            value_connections_max: layers.of_file(
                "publisher.value_connections_max",
                written.value_connections_max,
                values::within(1..=values::CONNECTIONS_MOST),
                PublisherOptions::usual_value_connections(connections_max.value),
            )?,
            connections_max,
            hang_after: layers.of_file(
                "publisher.hang_after",
                written.hang_after,
                values::hang_after,
                PublisherOptions::HANG_AFTER,
            )?,
            clock_skew_max: layers.of_file(
                "publisher.clock_skew_max",
                written.clock_skew_max,
                values::clock_skew_max,
                PublisherOptions::CLOCK_SKEW_MAX,
            )?,
            figures: layers.of_file("publisher.figures", written.figures, Ok, true)?,
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
            values::within(1..=values::CONNECTIONS_MOST),
            default.connections_max,
        )?;
        let kept = |key, written, usual| {
            layers.of_file(key, written, values::within(0..=values::CONNECTIONS_MOST), usual)
        };
        Ok(ResolverConfig {
            writers_kept: kept(
                "resolver.writers_kept",
                written.writers_kept,
                Limits::usual_writers_kept(connections_max.value),
            )?,
            tools_kept: kept(
                "resolver.tools_kept",
                written.tools_kept,
                Limits::usual_tools_kept(connections_max.value),
            )?,
            name: layers.of_file("resolver.name", written.name, values::name, name)?,
            listen: layers.of_file("resolver.listen", written.listen, values::address, listen)?,
            connections_max,
            watches_max: layers.of_file(
                "resolver.watches_max",
                written.watches_max,
                values::within(1..=Limits::WATCHES_MOST),
                default.watches_max,
            )?,
            paths_max: layers.of_file(
                "resolver.paths_max",
                written.paths_max,
                values::within(1..=Limits::PATHS_MOST),
                default.paths_max,
            )?,
            requests_bytes_max: layers.of_file(
                "resolver.requests_bytes_max",
                written.requests_bytes_max,
                values::within(Limits::REQUESTS_BYTES_LEAST..=usize::MAX),
                default.requests_bytes_max,
            )?,
            figures: layers.of_file(
                "resolver.figures",
                written.figures,
                values::figures,
                ReplicaFigures::Beside,
            )?,
            insecure: layers.of_file("resolver.insecure", written.insecure, Ok, false)?,
        })
    }
}

impl TimingConfig {
    fn resolve(layers: &Layers<'_>, written: TimingSection) -> Result<TimingConfig, String> {
        let default = ResolverTiming::default();
        let length =
            |key, written, default| layers.of_file(key, written, values::short_length, default);
        let ttl = |key, written, default| layers.of_file(key, written, values::ttl, default);
        Ok(TimingConfig {
            reader_ttl: ttl("timing.reader_ttl", written.reader_ttl, default.reader_ttl)?,
            writer_ttl: ttl("timing.writer_ttl", written.writer_ttl, default.writer_ttl)?,
            hello_timeout: length(
                "timing.hello_timeout",
                written.hello_timeout,
                default.hello_timeout,
            )?,
            connect_timeout: length(
                "timing.connect_timeout",
                written.connect_timeout,
                default.connect_timeout,
            )?,
            retry_wait_min: length(
                "timing.retry_wait_min",
                written.retry_wait_min,
                default.retry_wait_min,
            )?,
            retry_wait_max: length(
                "timing.retry_wait_max",
                written.retry_wait_max,
                default.retry_wait_max,
            )?,
            request_timeout_min: length(
                "timing.request_timeout_min",
                written.request_timeout_min,
                default.request_timeout_min,
            )?,
            read_op_timeout: length(
                "timing.read_op_timeout",
                written.read_op_timeout,
                default.read_op_timeout,
            )?,
            write_op_timeout: length(
                "timing.write_op_timeout",
                written.write_op_timeout,
                default.write_op_timeout,
            )?,
            tries: layers.of_file("timing.tries", written.tries, values::tries, default.tries)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Case {
        _folder: tempfile::TempDir,
        file: PathBuf,
        environment: BTreeMap<String, String>,
    }

    fn with_file(text: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        let environment = [
            (ENV_CONFIG.to_owned(), file.display().to_string()),
            ("HOME".to_owned(), "/home/somebody".to_owned()),
        ];
        Case { _folder: folder, file, environment: environment.into() }
    }

    #[test]
    fn flag_beats_environment_beats_file_beats_default() {
        let mut case = with_file("# two replicas\nresolvers = [\"file:1\", \"file:2\"]\n");
        let mut given = Given::default();

        let config = Config::resolve(&given, &case.environment).unwrap();
        assert_eq!(config.resolvers.value, ["file:1", "file:2"]);
        let origin = Origin::File { file: case.file.clone(), line: 2 };
        assert_eq!(config.resolvers.origin, origin);

        case.environment.insert(ENV_RESOLVERS.to_owned(), "env:1, env:2".to_owned());
        let config = Config::resolve(&given, &case.environment).unwrap();
        assert_eq!(config.resolvers.value, ["env:1", "env:2"]);
        assert_eq!(config.resolvers.origin, Origin::Environment(ENV_RESOLVERS));

        given.resolvers = Some(vec!["flag:1".to_owned()]);
        let config = Config::resolve(&given, &case.environment).unwrap();
        assert_eq!(config.resolvers.value, ["flag:1"]);
        assert_eq!(config.resolvers.origin, Origin::Flag("--resolver"));

        case.environment.clear();
        let config = Config::resolve(&Given::default(), &case.environment).unwrap();
        assert_eq!(config.resolvers, Setting::default_of(vec!["127.0.0.1:4770".to_owned()]));
    }

    #[test]
    fn sections_are_read_and_know_their_lines() {
        let case = with_file(
            "data = '~/jobs'\n[publisher]\nlisten = '127.0.0.1:0'\npaths = ['/a', '/b']\n[timing]\nwriter_ttl = '2s'\n",
        );
        let config = Config::resolve(&Given::default(), &case.environment).unwrap();
        assert_eq!(config.data.value, FilePath::new("/home/somebody/jobs"));
        assert_eq!(config.publisher.paths.value.len(), 2);
        assert_eq!(config.timing().writer_ttl, Duration::from_secs(2));
        assert_eq!(config.timing().reader_ttl, ResolverTiming::default().reader_ttl);
        assert!(matches!(config.publisher.listen.origin, Origin::File { line: 3, .. }));
    }

    #[test]
    fn a_value_that_does_not_parse_names_file_line_and_what_was_expected() {
        for (text, line, expected) in [
            ("[publisher]\nlisten = 'localhost'\n", 2, "127.0.0.1:4780"),
            ("\n[publisher]\npaths = ['jobs']\n", 3, "begin with '/'"),
            ("[publisher]\ndurability = 'sometimes'\n", 2, "fsync or none"),
            ("[timing]\nwriter_ttl = '2 weeks'\n", 2, "1h30m"),
            ("[timing]\nwriter_ttl = '0s'\n", 2, "above 0"),
            ("[publisher]\nhang_after = '999ms'\n", 2, "at least 1s"),
            ("[publisher]\nhang_after = 'soon'\n", 2, "1h30m"),
            ("resolvers = ['host:port']\n", 1, "HOST:PORT"),
            ("resolvers = []\n", 1, "at least one"),
            ("resolvers = [\n'a', 'b',\n'A:4770']\n", 1, "name each replica once"),
            ("resolvers = ['0.0.0.0:4770']\n", 1, "the address that clients reach"),
            ("log = 'longshore=loud'\n[publisher]\n", 1, "expected error, warn, info"),
            ("[publisher]\nname = ''\n", 2, "expected 1 to 128"),
            (
                "[publisher]\nadvertise = ['10.0.0.1:1', '[::]:4780']\n",
                2,
                "nobody can dial [::]:4780",
            ),
            (
                "[publisher]\nadvertise = ['10.0.0.1:0']\n",
                2,
                "the port that the publisher listens on",
            ),
            ("[publisher]\nsegment_bytes = 1048575\n", 2, "expected 1048576 to 1073741824"),
            ("[publisher]\nconnections_max = 0\n", 2, "expected 1 to 1000000"),
            ("[publisher]\nclock_skew_max = '999ms'\n", 2, "at least 1s"),
            ("[resolver]\nname = 'r'\nwatches_max = 16385\n", 3, "expected 1 to 16384"),
            (
                "[resolver]\nconnections_max = 100\nwriters_kept = 40\ntools_kept = 11\n",
                3,
                "at most half",
            ),
            ("[resolver]\nconnections_max = 9\ntools_kept = 5\n", 3, "at most half"),
            ("[resolver]\npaths_max = 268435457\n", 2, "expected 1 to 268435456"),
            ("[resolver]\nrequests_bytes_max = 16777215\n", 2, "at least 16777216"),
            ("[timing]\nwriter_ttl = '199ms'\n", 2, "four heartbeats"),
            ("[timing]\nreader_ttl = '199ms'\n", 2, "at least 200ms"),
            ("[timing]\nhello_timeout = '25h'\n", 2, "at most 1d"),
            ("[timing]\nread_op_timeout = '0us'\n", 2, "above 0"),
            ("[timing]\ntries = 0\n", 2, "expected 1 to 100"),
            ("[timing]\ntries = 101\n", 2, "expected 1 to 100"),
            ("[timing]\nretry_wait_min = '13s'\n", 2, "retry_wait_max"),
            ("[timing]\nretry_wait_max = '999ms'\n", 2, "retry_wait_min"),
            (
                "[timing]\nretry_wait_min = '3s'\nretry_wait_max = '2s'\n",
                3,
                "the shorter one as timing.retry_wait_min",
            ),
        ] {
            let case = with_file(text);
            let error = Config::resolve(&Given::default(), &case.environment).unwrap_err();
            let start = format!("{}:{line}: ", case.file.display());
            assert!(error.starts_with(&start) && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_asked_for_must_be_there() {
        let given = Given { config: Some("/nowhere/config.toml".into()), ..Given::default() };
        let error = Config::resolve(&given, &BTreeMap::new()).unwrap_err();
        assert!(error.contains("/nowhere/config.toml (--config)"), "{error}");
    }

    #[test]
    fn the_configuration_in_the_documentation_is_understood_and_complete() {
        let page = include_str!("../../../docs/OPERATING.md");
        let (_, rest) = page.split_once("```toml\n").unwrap();
        let (text, _) = rest.split_once("```").unwrap();
        let case = with_file(text);
        let config = Config::resolve(&Given::default(), &case.environment).unwrap();
        assert_eq!(config.check_services().map_err(|error| error.0), Ok(()));
        assert_eq!(config.timing(), ResolverTiming::default());
        assert_eq!(config.limits(), Limits::from(&ServerOptions::default()));
        let unlike_default = ["resolvers", "data", "log"];
        let named = ["name", "listen", "paths", "insecure"];
        let defaults = Config::resolve(&Given::default(), &BTreeMap::new()).unwrap();
        for (row, default) in rows(&config).into_iter().zip(rows(&defaults)) {
            assert!(row.origin.contains("config.toml:"), "{} is not in it", row.key);
            let own = unlike_default.contains(&row.key)
                || row.key.starts_with("publisher.defaults")
                || named.iter().any(|name| row.key.ends_with(&format!(".{name}")));
            assert!(own || row.value == default.value, "{} is not the default", row.key);
        }
    }

    #[test]
    fn every_number_of_the_defaults_table_can_be_set() {
        let case = with_file(
            "[timing]\nreader_ttl = '1s'\nwriter_ttl = '2s'\nhello_timeout = '3s'\nretry_wait_min = '4s'\nretry_wait_max = '5s'\n\
             read_op_timeout = '6us'\nwrite_op_timeout = '7us'\nrequest_timeout_min = '8s'\ntries = 9\nconnect_timeout = '10s'\n\
             [resolver]\nconnections_max = 11\nwriters_kept = 4\ntools_kept = 0\nwatches_max = 12\npaths_max = 13\nrequests_bytes_max = 16777217\n\
             [publisher]\nclock_skew_max = '14s'\nhang_after = '15s'\nsegment_bytes = 1048577\ncache_bytes = 16\nconnections_max = 17\n\
             value_connections_max = 3\nfigures = false\n",
        );
        let config = Config::resolve(&Given::default(), &case.environment).unwrap();
        let secs = Duration::from_secs;
        let timing = ResolverTiming {
            reader_ttl: secs(1),
            writer_ttl: secs(2),
            hello_timeout: secs(3),
            retry_wait_min: secs(4),
            retry_wait_max: secs(5),
            read_op_timeout: Duration::from_micros(6),
            write_op_timeout: Duration::from_micros(7),
            request_timeout_min: secs(8),
            tries: 9,
            connect_timeout: secs(10),
        };
        let limits = Limits {
            connections_max: 11,
            writers_kept: 4,
            tools_kept: 0,
            watches_max: 12,
            paths_max: 13,
            requests_bytes_max: 16_777_217,
        };
        assert_eq!(config.timing(), timing);
        let server = config.server_options();
        assert_eq!((Limits::from(&server), server.timing), (limits, timing));
        let publisher = config.publisher_options("data".into());
        assert_eq!((publisher.clock_skew_max, publisher.hang_after), (secs(14), secs(15)));
        assert_eq!((publisher.segment_bytes, publisher.cache_bytes), (1_048_577, 16));
        assert_eq!((publisher.connections_max, publisher.value_connections_max), (17, Some(3)));
        assert!(!publisher.figures);
        let shown = rows(&config);
        let shown = |key| shown.iter().find(|row| row.key == key).unwrap();
        assert_eq!(shown("timing.write_op_timeout").text(), "7us");
        assert!(shown("timing.tries").origin.ends_with("config.toml:10"));
    }

    #[test]
    fn figures_are_told_unless_the_file_says_otherwise_and_it_may_say_where() {
        let at = |text: &str| text.parse().unwrap();
        for (text, told, shown, origin) in [
            ("", ReplicaFigures::Beside, "true", "default"),
            ("figures = true", ReplicaFigures::Beside, "true", "config.toml:2"),
            ("figures = false", ReplicaFigures::Off, "false", "config.toml:2"),
            (
                "figures = '127.0.0.1:4790'",
                ReplicaFigures::At(at("127.0.0.1:4790")),
                "127.0.0.1:4790",
                "config.toml:2",
            ),
        ] {
            let case = with_file(&format!("[resolver]\n{text}\n"));
            let config = Config::resolve(&Given::default(), &case.environment).unwrap();
            assert_eq!(config.resolver.figures.value, told);
            assert!(config.publisher.figures.value);
            let rows = rows(&config);
            let row = rows.iter().find(|row| row.key == "resolver.figures").unwrap();
            assert_eq!(row.text(), shown);
            assert!(row.origin.ends_with(origin), "{}", row.origin);
        }
        let case = with_file("[resolver]\nfigures = '192.0.2.1:4790'\n");
        let config = Config::resolve(&Given::default(), &case.environment).unwrap();
        let refused = config.check_services().unwrap_err().0;
        assert!(refused.contains("other machines can reach 192.0.2.1:4790"), "{refused}");
        for wrong in ["'0.0.0.0:4790'", "'here'", "3"] {
            let case = with_file(&format!("[resolver]\nfigures = {wrong}\n"));
            let refused = Config::resolve(&Given::default(), &case.environment).unwrap_err();
            assert!(refused.contains("config.toml:2"), "{refused}");
        }
    }

    #[test]
    fn what_the_command_line_says_is_checked_too() {
        let given =
            Given { resolvers: Some(vec!["a".into(), "a:4770".into()]), ..Given::default() };
        let error = Config::resolve(&given, &BTreeMap::new()).unwrap_err();
        assert!(error.starts_with("--resolver: ") && error.contains("twice"), "{error}");
        let given = Given { log: Some("longshore=loud".into()), ..Given::default() };
        let error = Config::resolve(&given, &BTreeMap::new()).unwrap_err();
        assert!(error.starts_with("--log: "), "{error}");
    }

    #[test]
    fn services_that_would_not_start_are_named_before_they_are_started() {
        for (text, line, key, remedy) in [
            (
                "[publisher]\nlisten = '10.0.0.1:4780'\n",
                2,
                "publisher.listen",
                "publisher.insecure = true",
            ),
            (
                "[resolver]\nlisten = '[::]:4770'\n",
                2,
                "resolver.listen",
                "resolver.insecure = true",
            ),
            (
                "[publisher]\ninsecure = true\nlisten = '0.0.0.0:4780'\n",
                3,
                "publisher.listen",
                "publisher.advertise = ",
            ),
            ("[resolver]\nlisten = '127.0.0.1:4780'\n", 2, "resolver.listen", "another port"),
            ("[publisher]\nlisten = '127.0.0.1:4770'\n", 2, "publisher.listen", "another port"),
        ] {
            let case = with_file(text);
            let config = Config::resolve(&Given::default(), &case.environment).unwrap();
            let error = config.check_services().unwrap_err().0;
            let start = format!("{}:{line}: {key}: ", case.file.display());
            assert!(error.starts_with(&start) && error.contains(remedy), "{error}");
        }
        for text in [
            "",
            "[publisher]\nlisten = '[::ffff:127.0.0.1]:4780'\n",
            "[publisher]\nlisten = '127.0.0.1:0'\n[resolver]\nlisten = '127.0.0.1:0'\n",
            "[publisher]\nlisten = '10.0.0.1:1'\ninsecure = true\n[resolver]\nlisten = '10.0.0.2:1'\ninsecure = true\n",
            "[publisher]\nlisten = '0.0.0.0:1'\ninsecure = true\nadvertise = ['10.0.0.2:1']\n",
        ] {
            let case = with_file(text);
            let config = Config::resolve(&Given::default(), &case.environment).unwrap();
            assert!(config.check_services().is_ok(), "{text}");
        }
    }
}
