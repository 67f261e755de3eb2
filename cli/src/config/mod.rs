//! What is in force: command line, then environment, then configuration file, then default.

mod file;
mod setting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::{Durability, Path, PublisherOptions, ResolverTiming};
use toml::Spanned;

pub(crate) use setting::{Origin, Setting};

use crate::failure::WrongUsage;
use crate::time::{parse_length, show_length};
use file::{ConfigFile, line_of};

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
    pub(crate) timing: Vec<(&'static str, Setting<Duration>)>,
}

/// `[publisher]`
#[derive(Clone, Debug)]
pub(crate) struct PublisherConfig {
    pub(crate) name: Setting<String>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) advertise: Setting<Vec<SocketAddr>>,
    pub(crate) paths: Setting<Vec<Path>>,
    pub(crate) defaults: Setting<Vec<Path>>,
    pub(crate) durability: Setting<Durability>,
    pub(crate) segment_bytes: Setting<Option<u64>>,
    pub(crate) cache_bytes: Setting<Option<usize>>,
    pub(crate) connections_max: Setting<Option<usize>>,
    pub(crate) hang_after: Setting<Duration>,
    pub(crate) insecure: Setting<bool>,
}

/// `[resolver]`
#[derive(Clone, Debug)]
pub(crate) struct ResolverConfig {
    pub(crate) name: Setting<String>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) connections_max: Setting<Option<usize>>,
    pub(crate) insecure: Setting<bool>,
}

impl Config {
    /// Reads the environment and the configuration file.
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
            let list: Vec<String> = text
                .split(',')
                .map(str::trim)
                .filter(|s| !s.is_empty())
                .map(str::to_owned)
                .collect();
            check_resolvers(&list).map(|()| list)
        };
        let default_resolver = vec![format!("127.0.0.1:{RESOLVER_PORT}")];
        let home = environment.get("HOME").map_or(".", String::as_str);
        let default_data = FilePath::new(home).join(".local/share/longshore");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "longshore" } else { host.trim() };
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let address = |text: &str| parse_address(text);

        let mut config = Config {
            resolvers: layers.pick(
                "resolvers",
                Some((ENV_RESOLVERS, &listed)),
                resolvers,
                |list| check_resolvers(&list).map(|()| list),
                default_resolver,
            )?,
            data: layers.pick(
                "data",
                Some((ENV_DATA, &|text| Ok(PathBuf::from(text)))),
                data,
                |text| Ok(expand_home(&text, home)),
                default_data,
            )?,
            log: layers.pick(
                "log",
                Some((ENV_LOG, &|text| Ok(Some(text.to_owned())))),
                log,
                |text| Ok(Some(text)),
                None,
            )?,
            publisher: PublisherConfig {
                name: layers.pick("publisher.name", None, publisher.name, Ok, host.to_owned())?,
                listen: layers.pick(
                    "publisher.listen",
                    None,
                    publisher.listen,
                    |text| address(&text),
                    local(PUBLISHER_PORT),
                )?,
                advertise: layers.pick(
                    "publisher.advertise",
                    None,
                    publisher.advertise,
                    |list| list.iter().map(|text| address(text)).collect(),
                    Vec::new(),
                )?,
                paths: layers.pick(
                    "publisher.paths",
                    None,
                    publisher.paths,
                    |list| parse_paths(&list),
                    Vec::new(),
                )?,
                defaults: layers.pick(
                    "publisher.defaults",
                    None,
                    publisher.defaults,
                    |list| parse_paths(&list),
                    Vec::new(),
                )?,
                durability: layers.pick(
                    "publisher.durability",
                    None,
                    publisher.durability,
                    |text| parse_durability(&text),
                    Durability::Fsync,
                )?,
                segment_bytes: layers.pick(
                    "publisher.segment_bytes",
                    None,
                    publisher.segment_bytes,
                    |n| Ok(Some(n)),
                    None,
                )?,
                cache_bytes: layers.pick(
                    "publisher.cache_bytes",
                    None,
                    publisher.cache_bytes,
                    |n| usize::try_from(n).map(Some).map_err(|_| format!("{n} is out of range")),
                    None,
                )?,
                connections_max: layers.pick(
                    "publisher.connections_max",
                    None,
                    publisher.connections_max,
                    count,
                    None,
                )?,
                hang_after: layers.pick(
                    "publisher.hang_after",
                    None,
                    publisher.hang_after,
                    |text| parse_hang_after(&text),
                    PublisherOptions::HANG_AFTER,
                )?,
                insecure: layers.pick("publisher.insecure", None, publisher.insecure, Ok, false)?,
            },
            resolver: ResolverConfig {
                name: layers.pick("resolver.name", None, resolver.name, Ok, host.to_owned())?,
                listen: layers.pick(
                    "resolver.listen",
                    None,
                    resolver.listen,
                    |text| address(&text),
                    local(RESOLVER_PORT),
                )?,
                connections_max: layers.pick(
                    "resolver.connections_max",
                    None,
                    resolver.connections_max,
                    count,
                    None,
                )?,
                insecure: layers.pick("resolver.insecure", None, resolver.insecure, Ok, false)?,
            },
            timing: Vec::new(),
            file: named.as_ref().map(|named| named.place.clone()),
        };
        let default = ResolverTiming::default();
        for (key, written, default) in [
            ("timing.reader_ttl", timing.reader_ttl, default.reader_ttl),
            ("timing.writer_ttl", timing.writer_ttl, default.writer_ttl),
            ("timing.hello_timeout", timing.hello_timeout, default.hello_timeout),
            ("timing.connect_timeout", timing.connect_timeout, default.connect_timeout),
            ("timing.retry_wait_min", timing.retry_wait_min, default.retry_wait_min),
            ("timing.retry_wait_max", timing.retry_wait_max, default.retry_wait_max),
            ("timing.request_timeout_min", timing.request_timeout_min, default.request_timeout_min),
        ] {
            let setting = layers.pick(key, None, written, |text| positive(&text), default)?;
            config.timing.push((key, setting));
        }
        config.resolvers = config.resolvers.or_flag(given.resolvers.clone(), "--resolver");
        check_resolvers(&config.resolvers.value).map_err(|e| format!("--resolver: {e}"))?;
        config.log = config.log.or_flag(given.log.clone().map(Some), "--log");
        Ok(config)
    }

    /// The timing in force.
    pub(crate) fn timing(&self) -> ResolverTiming {
        let mut timing = ResolverTiming::default();
        for (key, setting) in &self.timing {
            let field = match *key {
                "timing.reader_ttl" => &mut timing.reader_ttl,
                "timing.writer_ttl" => &mut timing.writer_ttl,
                "timing.hello_timeout" => &mut timing.hello_timeout,
                "timing.connect_timeout" => &mut timing.connect_timeout,
                "timing.retry_wait_min" => &mut timing.retry_wait_min,
                "timing.retry_wait_max" => &mut timing.retry_wait_max,
                _ => &mut timing.request_timeout_min,
            };
            *field = setting.value;
        }
        timing
    }
}

/// A configuration file that was found.
struct Named {
    place: Setting<PathBuf>,
    text: String,
}

impl Named {
    /// A file that was asked for must be there; the usual places may be empty.
    fn find(
        given: &Given,
        environment: &BTreeMap<String, String>,
    ) -> Result<Option<Named>, String> {
        let asked = given
            .config
            .clone()
            .map(|file| Setting { value: file, origin: Origin::Flag("--config") })
            .or_else(|| {
                let file = environment.get(ENV_CONFIG).filter(|file| !file.is_empty())?;
                Some(Setting {
                    value: PathBuf::from(file),
                    origin: Origin::Environment(ENV_CONFIG),
                })
            });
        if let Some(place) = asked {
            let text = std::fs::read_to_string(&place.value).map_err(|error| {
                format!("cannot read {} ({}): {error}", place.value.display(), place.origin)
            })?;
            return Ok(Some(Named { place, text }));
        }
        let usual = environment
            .get("HOME")
            .map(|home| FilePath::new(home).join(".config/longshore/config.toml"))
            .into_iter()
            .chain([PathBuf::from("/etc/longshore/config.toml")]);
        for file in usual {
            match std::fs::read_to_string(&file) {
                Ok(text) => {
                    return Ok(Some(Named { place: Setting::default_of(file), text }));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {}
                Err(error) => return Err(format!("cannot read {}: {error}", file.display())),
            }
        }
        Ok(None)
    }
}

type FromEnvironment<'a, T> = (&'static str, &'a dyn Fn(&str) -> Result<T, String>);

/// The environment over the file over the default.
struct Layers<'a> {
    environment: &'a BTreeMap<String, String>,
    path: &'a FilePath,
    text: &'a str,
}

impl Layers<'_> {
    fn pick<W, T>(
        &self,
        key: &str,
        environment: Option<FromEnvironment<'_, T>>,
        written: Option<Spanned<W>>,
        read: impl FnOnce(W) -> Result<T, String>,
        default: T,
    ) -> Result<Setting<T>, String> {
        if let Some((variable, read)) = environment
            && let Some(text) = self.environment.get(variable).filter(|text| !text.is_empty())
        {
            let value = read(text).map_err(|error| format!("${variable}: {error}"))?;
            return Ok(Setting { value, origin: Origin::Environment(variable) });
        }
        let Some(written) = written else { return Ok(Setting::default_of(default)) };
        let line = line_of(self.text, written.span().start);
        let value = read(written.into_inner())
            .map_err(|error| format!("{}:{line}: {key}: {error}", self.path.display()))?;
        Ok(Setting { value, origin: Origin::File { file: self.path.to_owned(), line } })
    }
}

/// Reads `IP:PORT`. Listening and advertised addresses are numbers: what a name means may change under a running service.
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

fn parse_hang_after(text: &str) -> Result<Duration, String> {
    match parse_length(text)? {
        length if length < PublisherOptions::HANG_AFTER_MIN => Err(format!(
            "a disk may be busy for that long; expected at least {}",
            show_length(PublisherOptions::HANG_AFTER_MIN)
        )),
        length => Ok(length),
    }
}

fn parse_paths(list: &[String]) -> Result<Vec<Path>, String> {
    list.iter().map(|text| Path::new(text).map_err(|error| error.to_string())).collect()
}

fn positive(text: &str) -> Result<Duration, String> {
    match parse_length(text)? {
        Duration::ZERO => Err("expected a length of time above 0".to_owned()),
        length => Ok(length),
    }
}

fn count(n: u64) -> Result<Option<usize>, String> {
    match usize::try_from(n) {
        Ok(n) if n > 0 => Ok(Some(n)),
        _ => Err(format!("{n} is out of range; expected at least 1")),
    }
}

fn check_resolvers(list: &[String]) -> Result<(), String> {
    if list.is_empty() {
        return Err("expected at least one HOST:PORT".to_owned());
    }
    for replica in list {
        let (host, port) = match replica.rsplit_once(':') {
            // A colon within brackets is the address's own.
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (replica.as_str(), None),
        };
        let port_is_good = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        if host.is_empty() || !port_is_good {
            return Err(format!("'{replica}' is not HOST:PORT, like 127.0.0.1:{RESOLVER_PORT}"));
        }
    }
    Ok(())
}

fn expand_home(text: &str, home: &str) -> PathBuf {
    match text.strip_prefix("~/") {
        Some(rest) => FilePath::new(home).join(rest),
        None => PathBuf::from(text),
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
        let is_written = |origin: &Origin| matches!(origin, Origin::File { .. });
        assert!(is_written(&config.resolvers.origin) && is_written(&config.data.origin));
        assert!(is_written(&config.publisher.insecure.origin));
        assert!(is_written(&config.publisher.hang_after.origin));
        assert_eq!(config.publisher.hang_after.value, PublisherOptions::HANG_AFTER);
        assert!(is_written(&config.resolver.connections_max.origin));
        assert!(config.timing.iter().all(|(_, setting)| is_written(&setting.origin)));
        assert_eq!(config.timing(), ResolverTiming::default());
    }
}
