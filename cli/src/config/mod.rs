//! The effective configuration: command line, then environment, then configuration file, then
//! default.

mod access;
mod check;
mod client_variables;
mod contexts;
mod file;
mod folders;
mod layers;
mod problem;
mod raw_value;
mod reload;
mod resolver_source;
mod rows;
mod sections;
mod setting;
mod system_flags;
mod tls;
mod token_source;
mod values;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use longshore::protocol::{Address, Homes, SocketPath, TlsName};
use longshore::{
    Durability, FrameBudget, Limits, Path, PublisherOptions, ResolverTiming, ServerOptions,
    TokenSource,
};

pub(crate) use access::{AccessConfig, JwtConfig};
pub(crate) use contexts::{
    ContextKeys, Contexts, NamedContext, parse_name as parse_context_name, write_system,
};
pub(crate) use problem::Problem;
pub(crate) use reload::{ReloadPlan, Service, plan_reload};
pub(crate) use rows::{Row, rows};
pub(crate) use setting::{Origin, Setting};
pub(crate) use system_flags::SystemFlags;
pub(crate) use tls::{Authority, ClientCertificates, TlsConfig, cluster_name};
pub(crate) use values::{
    ReplicaMetrics, parse_address, parse_advertised, parse_durability, parse_home,
    replicas as check_replicas,
};

use crate::failure::UsageError;
use crate::logging::LogFormat;
use file::ConfigFile;
use folders::Folders;
use layers::{ConfigSource, Layers, home, text};

/// The default port of a resolver replica.
pub(crate) const RESOLVER_PORT: u16 = 4770;
/// The default port of a publisher.
pub(crate) const PUBLISHER_PORT: u16 = 4780;

const ENV_PREFIX: &str = "LONGSHORE_";
const ENV_CONFIG: &str = "LONGSHORE_CONFIG";
const ENV_CONTEXT: &str = "LONGSHORE_CONTEXT";
const ENV_RESOLVERS: &str = "LONGSHORE_RESOLVERS";
const ENV_CLUSTER: &str = "LONGSHORE_CLUSTER";
const ENV_DATA: &str = "LONGSHORE_DATA";
const ENV_LOG: &str = "LONGSHORE_LOG";
const ENV_LOG_FORMAT: &str = "LONGSHORE_LOG_FORMAT";

/// Variables that say which system is meant and how to reach it, beside its replicas. An empty one
/// counts as unset.
#[cfg(any(feature = "bench", feature = "demo"))]
pub(crate) const SYSTEM_VARIABLES: [&str; 8] = [
    ENV_CONTEXT,
    ENV_CLUSTER,
    "LONGSHORE_TLS_CA",
    "LONGSHORE_TLS_CERTIFICATE",
    "LONGSHORE_TLS_KEY",
    "LONGSHORE_TLS_SERVER_NAME",
    token_source::ENV_TOKEN_FILE,
    token_source::ENV_TOKEN,
];

/// Environment variables whose names are UTF-8, as Longshore's are. Values may be any bytes, as
/// paths may.
type Environment = BTreeMap<String, OsString>;

/// Settings from the global command-line flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigOverrides {
    /// `--resolver`
    pub(crate) resolvers: Option<Vec<String>>,
    /// `--context`
    pub(crate) context: Option<String>,
    /// Services do not heed the selected context: it is for commands that are typed.
    pub(crate) ignore_selected: bool,
    /// `--cluster`, `--tls-ca` and the others
    pub(crate) system: SystemFlags,
    /// `--config`
    pub(crate) config: Option<PathBuf>,
    /// `--log`
    pub(crate) log: Option<String>,
    /// `--log-format`
    pub(crate) log_format: Option<LogFormat>,
}

#[cfg(feature = "bench")]
impl ConfigOverrides {
    /// The flags that say how to reach the system, beside its replicas, for another process of this
    /// program.
    pub(crate) fn system_flags(&self) -> Vec<OsString> {
        let config = self.config.as_ref().map(|file| ["--config".into(), file.into()]);
        self.system.given().chain(config).flatten().collect()
    }
}

/// All settings, resolved, each with its origin.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The configuration file that was read, if any.
    pub(crate) file: Option<Setting<PathBuf>>,
    /// The context that names the resolver's replicas, if one does.
    pub(crate) context: Setting<Option<String>>,
    /// Addresses of the resolver's replicas.
    pub(crate) resolvers: Setting<Vec<String>>,
    /// The name of the cluster; empty for one without a name.
    pub(crate) cluster: Setting<String>,
    /// TLS of all links.
    pub(crate) tls: TlsConfig,
    /// The token by which servers know this process.
    pub(crate) token: Setting<Option<TokenSource>>,
    /// The rules of servers.
    pub(crate) access: AccessConfig,
    /// The directory of the publisher's journal; none if neither it nor a home directory is set.
    pub(crate) data: Setting<Option<PathBuf>>,
    /// The log filter; none: the command's default.
    pub(crate) log: Setting<Option<String>>,
    /// The format of log lines.
    pub(crate) log_format: Setting<LogFormat>,
    /// Settings of `longshore publisher run`.
    pub(crate) publisher: PublisherConfig,
    /// Which publisher is the home of which paths.
    pub(crate) homes: Setting<Homes>,
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
    pub(crate) listen_unix: Setting<Option<SocketPath>>,
    pub(crate) advertise: Setting<Vec<Address>>,
    pub(crate) tls_name: Setting<Option<TlsName>>,
    pub(crate) paths: Setting<Vec<Path>>,
    pub(crate) defaults: Setting<Vec<Path>>,
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
    pub(crate) listen_unix: Setting<Option<SocketPath>>,
    pub(crate) tls_name: Setting<Option<TlsName>>,
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
    /// other. The error is the first problem.
    pub(crate) fn load(overrides: &ConfigOverrides) -> Result<Config, UsageError> {
        Config::resolve(overrides, &environment()).map_err(UsageError)
    }

    /// Like [`Config::load`], but with the default for each invalid value, and all problems.
    pub(crate) fn load_with_problems(overrides: &ConfigOverrides) -> (Config, Vec<Problem>) {
        let (config, mut problems) = Config::read(overrides, &environment());
        if problems.is_empty() {
            problems.extend(check::services(&config).err().map(Problem::of_several_keys));
        }
        (config, problems)
    }

    /// The variables by which commands of another terminal reach the system of this process at
    /// `replicas`; empty if they reach it without any. `clients` is a configuration for them, if
    /// one was written.
    pub(crate) fn client_variables(
        &self,
        replicas: &[String],
        clients: Option<&FilePath>,
    ) -> Vec<(&'static str, String)> {
        let named = self.file.as_ref().filter(|file| file.origin != Origin::Default);
        let file = clients.or(named.map(|file| file.value.as_path()));
        // What is set in this terminal may be unset in another.
        let mut environment = environment();
        environment.retain(|name, _| !name.starts_with(ENV_PREFIX));
        client_variables::of(self, replicas, file, environment)
    }

    fn resolve(overrides: &ConfigOverrides, environment: &Environment) -> Result<Config, String> {
        let (config, problems) = Config::read(overrides, environment);
        match problems.into_iter().next() {
            None => Ok(config),
            Some(problem) => Err(problem.message),
        }
    }

    fn read(overrides: &ConfigOverrides, environment: &Environment) -> (Config, Vec<Problem>) {
        let problems = RefCell::new(Vec::new());
        let failed = |why| problems.borrow_mut().push(Problem::of_several_keys(why));
        let folders = Folders::of(environment);
        let source = ConfigSource::find(overrides, environment, folders.config.as_deref());
        let source = source.unwrap_or_else(|why| {
            failed(why);
            None
        });
        let parsed = source.as_ref().map(|source| file::parse(&source.text, &source.path.value));
        let file = parsed.transpose().unwrap_or_else(|why| {
            failed(why);
            None
        });
        let content = source.as_ref().map_or("", |source| source.text.as_str());
        let path = source.as_ref().map_or(FilePath::new(""), |source| source.path.value.as_path());
        let layers = Layers { environment, path, text: content, problems: &problems };
        let ConfigFile {
            resolvers,
            cluster,
            token_file,
            tls,
            access,
            data,
            log,
            log_format,
            publisher,
            homes,
            resolver,
            timing,
        } = file.unwrap_or_default();

        let listed = |value: &OsStr| {
            let list = text(value)?.split(',').map(str::trim).filter(|s| !s.is_empty());
            values::replicas(list.map(str::to_owned).collect())
        };
        let home = home(environment).map(FilePath::new);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "longshore" } else { host.trim() };

        let is_named = source.as_ref().is_some_and(|source| source.path.origin != Origin::Default);
        let named_file = is_named && resolvers.is_some();
        let (context, of_context) = layers.context(overrides, folders.config, named_file);
        let default_resolver = vec![format!("127.0.0.1:{RESOLVER_PORT}")];
        let of_layers = layers.pick(
            "resolvers",
            Some((ENV_RESOLVERS, &listed)),
            resolvers,
            values::replicas,
            default_resolver,
        );
        // A context in force names its system whole: the file's keys are of another. One that the
        // command line names precedes the environment, too.
        if overrides.ignore_selected
            && of_context.is_some()
            && (cluster.is_some() || token_file.is_some() || tls.is_written())
        {
            // The listener would have the context's certificates, or none.
            failed(
                "a service takes its cluster, token_file and [tls] from one place, and both a context and \
                 the configuration file are named; leave the context out"
                    .to_owned(),
            );
        }
        let (of_context, place, cluster, token_file, tls) = match of_context {
            None => (None, None, cluster, token_file, tls),
            Some(NamedContext { resolvers, file, text, cluster, token_file, tls, .. }) => {
                (Some(resolvers), Some((file, text)), cluster, token_file, tls)
            }
        };
        let no_variables = Environment::new();
        let system = match &place {
            None => Layers { environment, path, text: content, problems: &problems },
            Some((path, text)) => {
                let environment =
                    if overrides.context.is_some() { &no_variables } else { environment };
                Layers { environment, path, text, problems: &problems }
            }
        };
        let mut config = Config {
            context,
            resolvers: of_context.unwrap_or(of_layers),
            cluster: system.of_text("cluster", ENV_CLUSTER, cluster, &cluster_name),
            tls: TlsConfig::resolve(&system, tls, &overrides.system, home),
            token: token_source::resolve(
                &system,
                token_file,
                overrides.system.token_file.clone(),
                home,
            ),
            access: AccessConfig::resolve(&layers, access, home),
            data: layers.pick(
                "data",
                Some((ENV_DATA, &|value| Ok(Some(PathBuf::from(value))))),
                data,
                |text| values::expand_home(&text, home).map(Some),
                folders.data,
            ),
            log: layers.pick(
                "log",
                Some((ENV_LOG, &|value| values::log_filter(text(value)?.to_owned()).map(Some))),
                log,
                |text| values::log_filter(text).map(Some),
                None,
            ),
            log_format: layers.pick(
                "log_format",
                Some((ENV_LOG_FORMAT, &|value| LogFormat::parse(text(value)?))),
                log_format,
                |text| LogFormat::parse(&text),
                LogFormat::Text,
            ),
            publisher: PublisherConfig::resolve(&layers, publisher, host),
            homes: layers.of_file("homes", homes, values::homes, Homes::default()),
            resolver: ResolverConfig::resolve(&layers, resolver, host),
            timing: TimingConfig::resolve(&layers, timing),
            file: source.as_ref().map(|source| source.path.clone()),
        };
        if let Some(list) = overrides.resolvers.clone() {
            let list = layers.flag("resolvers", "--resolver", values::replicas(list));
            config.resolvers = config.resolvers.or_flag(list, "--resolver");
        }
        if let Some(name) = overrides.system.cluster.clone() {
            let name = layers.flag("cluster", "--cluster", cluster_name(name));
            config.cluster = config.cluster.or_flag(name, "--cluster");
        }
        if let Some(filter) = overrides.log.clone() {
            let filter = layers.flag("log", "--log", values::log_filter(filter));
            config.log = config.log.or_flag(filter.map(Some), "--log");
        }
        config.log_format = config.log_format.or_flag(overrides.log_format, "--log-format");
        if problems.borrow().is_empty() {
            problems
                .borrow_mut()
                .extend(check::cluster(&config).err().map(Problem::of_several_keys));
        }
        (config, problems.into_inner())
    }

    /// Checks what a listener with TLS by configuration needs of `[access]`.
    pub(crate) fn check_access(&self) -> Result<(), UsageError> {
        check::access(self).map_err(UsageError)
    }

    /// The socket where a replica with a socket serves its metrics, if it serves them anywhere.
    pub(crate) fn metrics_socket(
        &self,
        metrics: ReplicaMetrics,
        listen: IpAddr,
    ) -> Result<Option<SocketPath>, UsageError> {
        check::metrics_socket(&self.resolver.listen_unix, metrics, listen).map_err(UsageError)
    }

    /// The data directory: from the command line, or the configured one.
    pub(crate) fn data_dir(&self, flag: Option<PathBuf>) -> Result<PathBuf, UsageError> {
        flag.or_else(|| self.data.value.clone()).ok_or_else(|| {
            let what = "no data directory is set, and without $HOME there is no default; set one \
                        with --data DIR, $LONGSHORE_DATA, or data in the configuration file";
            UsageError(what.to_owned())
        })
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
            cluster: self.cluster.value.clone(),
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
        options.tls_name = configured.tls_name.value.clone();
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

/// The contexts of this user; an error without a configuration folder.
pub(crate) fn contexts() -> Result<Contexts, UsageError> {
    let folder = Folders::of(&environment()).config.ok_or_else(|| {
        let why = "there is no folder for contexts; set $XDG_CONFIG_HOME, or $HOME";
        UsageError(why.to_owned())
    })?;
    Ok(Contexts::in_folder(folder))
}

fn environment() -> Environment {
    let named = std::env::vars_os().map(|(name, value)| (name.into_string(), value));
    named.filter_map(|(name, value)| Some((name.ok()?, value))).collect()
}

#[cfg(test)]
mod tests;
