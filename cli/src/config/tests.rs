//! Tests of precedence and validation.

use super::*;

struct Case {
    _folder: tempfile::TempDir,
    file: PathBuf,
    environment: Environment,
}

fn with_file(text: &str) -> Case {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, text).unwrap();
    let environment =
        [(ENV_CONFIG.to_owned(), file.clone().into()), ("HOME".to_owned(), "/home/user".into())];
    Case { _folder: folder, file, environment: environment.into() }
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let mut case = with_file("# two replicas\nresolvers = [\"file:1\", \"file:2\"]\n");
    let mut overrides = ConfigOverrides::default();

    let config = Config::resolve(&overrides, &case.environment).unwrap();
    assert_eq!(config.resolvers.value, ["file:1", "file:2"]);
    let origin = Origin::File { file: case.file.clone(), line: 2 };
    assert_eq!(config.resolvers.origin, origin);

    case.environment.insert(ENV_RESOLVERS.to_owned(), "env:1, env:2".into());
    let config = Config::resolve(&overrides, &case.environment).unwrap();
    assert_eq!(config.resolvers.value, ["env:1", "env:2"]);
    assert_eq!(config.resolvers.origin, Origin::Environment(ENV_RESOLVERS));

    overrides.resolvers = Some(vec!["flag:1".to_owned()]);
    let config = Config::resolve(&overrides, &case.environment).unwrap();
    assert_eq!(config.resolvers.value, ["flag:1"]);
    assert_eq!(config.resolvers.origin, Origin::Flag("--resolver"));

    case.environment.clear();
    let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
    assert_eq!(config.resolvers, Setting::default_of(vec!["127.0.0.1:4770".to_owned()]));
}

#[test]
fn settings_from_sections_report_their_lines() {
    let case = with_file(
        "data = '~/jobs'\n[publisher]\nlisten = '127.0.0.1:0'\npaths = ['/a', '/b']\n\
         [timing]\nwriter_ttl = '2s'\n",
    );
    let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
    assert_eq!(config.data.value, Some("/home/user/jobs".into()));
    assert_eq!(config.publisher.paths.value.len(), 2);
    assert_eq!(config.timing().writer_ttl, Duration::from_secs(2));
    assert_eq!(config.timing().reader_ttl, ResolverTiming::default().reader_ttl);
    assert!(matches!(config.publisher.listen.origin, Origin::File { line: 3, .. }));
}

#[test]
fn a_relative_audit_log_is_in_the_folder_that_systemd_gives_to_the_service() {
    let mut case = with_file("[access]\naudit = 'audit.jsonl'\n");
    let audit = |case: &Case| {
        let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
        config.access.audit.value
    };
    assert_eq!(audit(&case), Some("audit.jsonl".into()));
    case.environment.insert("LOGS_DIRECTORY".to_owned(), "/var/log/longshore".into());
    assert_eq!(audit(&case), Some("/var/log/longshore/audit.jsonl".into()));
    std::fs::write(&case.file, "[access]\naudit = '/elsewhere/audit.jsonl'\n").unwrap();
    assert_eq!(audit(&case), Some("/elsewhere/audit.jsonl".into()));
}

#[test]
fn an_invalid_value_reports_file_line_and_expectation() {
    for (text, line, expected) in [
        ("[publisher]\nlisten = 'localhost'\n", 2, "127.0.0.1:4780"),
        ("\n[publisher]\npaths = ['jobs']\n", 3, "begin with '/'"),
        ("[publisher]\ndurability = 'sometimes'\n", 2, "fsync or none"),
        ("[timing]\nwriter_ttl = 'two weeks'\n", 2, "1h30m"),
        ("[timing]\nwriter_ttl = '0s'\n", 2, "above 0"),
        ("[publisher]\nhang_after = '999ms'\n", 2, "at least 1s"),
        ("[publisher]\nhang_after = 'soon'\n", 2, "1h30m"),
        ("resolvers = ['host:port']\n", 1, "HOST:PORT"),
        ("resolvers = []\n", 1, "at least one"),
        ("resolvers = [\n'a', 'b',\n'A:4770']\n", 1, "name each replica once"),
        ("resolvers = ['0.0.0.0:4770']\n", 1, "an address that clients can reach"),
        ("resolvers = 'a:1, b:1'\n", 1, "resolvers: expected a list of texts in quotes"),
        ("resolvers = 'a:1, b:1'\n", 1, "not \"a:1, b:1\"; write resolvers = [\"a:1\", \"b:1\"]"),
        ("[timing]\nwriter_ttl = 20\n", 2, "timing.writer_ttl: expected a duration in quotes"),
        ("[timing]\nwriter_ttl = 20\n", 2, "like \"20s\", not 20; write writer_ttl = \"20s\""),
        (
            "[timing]\ntries = '3'\n",
            2,
            "a whole number from 0, without quotes, not \"3\"; write tries = 3",
        ),
        ("[publisher]\nname = 7\n", 2, "expected a text in quotes, not 7; write name = \"7\""),
        (
            "[publisher]\ninsecure = 'true'\n",
            2,
            "true or false, without quotes, not \"true\"; write insecure = true",
        ),
        (
            "[publisher]\ncache_bytes = -1\n",
            2,
            "expected a whole number from 0, without quotes, not -1",
        ),
        ("[publisher]\npaths = [1]\n", 2, "publisher.paths: expected a list of texts in quotes"),
        ("[resolver]\nmetrics = 4790\n", 2, "expected true, false or \"IP:PORT\", not 4790"),
        ("log = 'longshore=loud'\n[publisher]\n", 1, "expected off, error, warn, info"),
        ("[publisher]\nname = ''\n", 2, "has 0 bytes; give one of 1 to 128"),
        (
            "[publisher]\nadvertise = ['10.0.0.1:1', '[::]:4780']\n",
            2,
            "[::]:4780 cannot be dialled",
        ),
        ("[publisher]\nadvertise = ['10.0.0.1:0']\n", 2, "the port that the publisher listens on"),
        ("[publisher]\nsegment_bytes = 1048575\n", 2, "expected 1048576 to 1073741824"),
        ("[publisher]\nconnections_max = 0\n", 2, "expected 1 to 1000000"),
        ("[publisher]\nclock_skew_max = '999ms'\n", 2, "at least 1s"),
        ("[resolver]\nname = 'r'\nwatches_max = 16385\n", 3, "expected 1 to 16384"),
        (
            "[resolver]\nconnections_max = 100\nwriters_reserved = 40\ntools_reserved = 11\n",
            3,
            "at most half",
        ),
        ("[resolver]\nconnections_max = 9\ntools_reserved = 5\n", 3, "at most half"),
        ("[resolver]\npaths_max = 268435457\n", 2, "expected 1 to 268435456"),
        ("[resolver]\nreceived_bytes_max = 33554431\n", 2, "at least 33554432"),
        ("[timing]\nwriter_ttl = '199ms'\n", 2, "four heartbeats"),
        ("[timing]\nreader_ttl = '199ms'\n", 2, "at least 200ms"),
        ("[timing]\nhandshake_timeout = '25h'\n", 2, "at most 1d"),
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
        let error = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap_err();
        let start = format!("{}:{line}: ", case.file.display());
        assert!(error.starts_with(&start) && error.contains(expected), "{error}");
    }
}

#[test]
fn a_non_utf_8_environment_fails_only_for_text_settings() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = || OsString::from_vec(b"/data/\xff".to_vec());
    let with = |name: &str| Environment::from([(name.to_owned(), bytes())]);
    let config = Config::resolve(&ConfigOverrides::default(), &with(ENV_DATA)).unwrap();
    assert_eq!(config.data.value, Some(bytes().into()));
    let config = Config::resolve(&ConfigOverrides::default(), &with("HOME")).unwrap();
    assert!(config.data.value.unwrap().starts_with(bytes()));
    for name in [ENV_RESOLVERS, ENV_LOG] {
        let error = Config::resolve(&ConfigOverrides::default(), &with(name)).unwrap_err();
        assert!(error.starts_with(&format!("${name}: ")) && error.contains("UTF-8"), "{error}");
    }
}

#[test]
fn without_a_home_a_data_directory_is_required() {
    for environment in [Environment::new(), [("HOME".to_owned(), OsString::new())].into()] {
        let config = Config::resolve(&ConfigOverrides::default(), &environment).unwrap();
        let error = config.data_dir(None).unwrap_err().0;
        assert!(error.contains("--data DIR") && error.contains("$LONGSHORE_DATA"), "{error}");
        assert_eq!(config.data_dir(Some("here".into())).map_err(|e| e.0), Ok("here".into()));
    }
    let mut case = with_file("data = '~/jobs'\n");
    case.environment.remove("HOME");
    let error = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap_err();
    assert!(error.contains(":1: data: ") && error.contains("no $HOME"), "{error}");
}

#[test]
fn an_explicit_configuration_file_must_exist() {
    let overrides = ConfigOverrides {
        config: Some("/nowhere/config.toml".into()),
        ..ConfigOverrides::default()
    };
    let error = Config::resolve(&overrides, &BTreeMap::new()).unwrap_err();
    assert!(error.contains("/nowhere/config.toml (--config)"), "{error}");
}

#[test]
fn documented_configuration_parses_and_lists_every_key() {
    let page = include_str!("../../../docs/OPERATING.md");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let case = with_file(text);
    let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
    assert_eq!(check::services(&config), Ok(()));
    assert_eq!(config.timing(), ResolverTiming::default());
    assert_eq!(config.limits(), Limits::from(&ServerOptions::default()));
    // The default of `memory_max` is half of the machine's memory.
    let not_default = ["resolvers", "data", "log", "publisher.memory_max"];
    let named = ["name", "listen", "paths", "insecure"];
    let defaults = Config::resolve(&ConfigOverrides::default(), &BTreeMap::new()).unwrap();
    for (row, default) in rows(&config).into_iter().zip(rows(&defaults)) {
        let is_key = row.key != "context";
        assert!(!is_key || row.origin.contains("config.toml:"), "{} is not in it", row.key);
        let differs = not_default.contains(&row.key)
            || ["cluster", "token_file"].contains(&row.key)
            || row.key.starts_with("tls.")
            || row.key.starts_with("access.")
            || row.key.starts_with("publisher.defaults")
            || row.key.ends_with(".tls_name")
            || row.key == "homes"
            || row.key.ends_with(".listen_unix")
            || named.iter().any(|name| row.key.ends_with(&format!(".{name}")));
        assert!(differs || row.value == default.value, "{} is not the default", row.key);
    }
}

#[test]
fn every_number_of_the_defaults_table_can_be_set() {
    let case = with_file(
        "[timing]\nreader_ttl = '1s'\nwriter_ttl = '2s'\nhandshake_timeout = '3s'\n\
         retry_wait_min = '4s'\nretry_wait_max = '5s'\nread_op_timeout = '6us'\n\
         write_op_timeout = '7us'\nrequest_timeout_min = '8s'\ntries = 9\n\
         connect_timeout = '10s'\n\
         [resolver]\nconnections_max = 11\nwriters_reserved = 4\ntools_reserved = 0\n\
         watches_max = 12\npaths_max = 13\nreceived_bytes_max = 33554433\n\
         [publisher]\nclock_skew_max = '14s'\nhang_after = '15s'\nsegment_bytes = 1048577\n\
         cache_bytes = 16\nmemory_max = 16777217\nconnections_max = 17\n\
         value_connections_max = 3\nmetrics = false\n",
    );
    let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
    let secs = Duration::from_secs;
    let timing = ResolverTiming {
        reader_ttl: secs(1),
        writer_ttl: secs(2),
        handshake_timeout: secs(3),
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
        writers_reserved: 4,
        tools_reserved: 0,
        watches_max: 12,
        paths_max: 13,
    };
    assert_eq!(config.timing(), timing);
    let server = config.server_options();
    assert_eq!(server.budget.bytes(), 33_554_433);
    assert_eq!((Limits::from(&server), server.timing), (limits, timing));
    let publisher = config.publisher_options("data".into());
    assert_eq!((publisher.clock_skew_max, publisher.hang_after), (secs(14), secs(15)));
    assert_eq!((publisher.segment_bytes, publisher.cache_bytes), (1_048_577, 16));
    assert_eq!(publisher.memory_max, Some(16_777_217));
    assert_eq!((publisher.connections_max, publisher.value_connections_max), (17, Some(3)));
    assert!(!publisher.metrics);
    let shown = rows(&config);
    let shown = |key| shown.iter().find(|row| row.key == key).unwrap();
    assert_eq!(shown("timing.write_op_timeout").text(), "7us");
    assert!(shown("timing.tries").origin.ends_with("config.toml:10"));
}

#[test]
fn replica_metrics_are_on_by_default_and_configurable() {
    let at = |text: &str| text.parse().unwrap();
    for (text, expected, shown, origin) in [
        ("", ReplicaMetrics::Automatic, "true", "default"),
        ("metrics = true", ReplicaMetrics::Automatic, "true", "config.toml:2"),
        ("metrics = false", ReplicaMetrics::Off, "false", "config.toml:2"),
        (
            "metrics = '127.0.0.1:4790'",
            ReplicaMetrics::At(at("127.0.0.1:4790")),
            "127.0.0.1:4790",
            "config.toml:2",
        ),
    ] {
        let case = with_file(&format!("[resolver]\n{text}\n"));
        let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
        assert_eq!(config.resolver.metrics.value, expected);
        assert!(config.publisher.metrics.value);
        let rows = rows(&config);
        let row = rows.iter().find(|row| row.key == "resolver.metrics").unwrap();
        assert_eq!(row.text(), shown);
        assert!(row.origin.ends_with(origin), "{}", row.origin);
    }
    let case = with_file("[resolver]\nmetrics = '192.0.2.1:4790'\n");
    let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
    let refused = check::services(&config).unwrap_err();
    assert!(refused.contains("other machines can reach 192.0.2.1:4790"), "{refused}");
    for wrong in ["'0.0.0.0:4790'", "'here'", "3"] {
        let case = with_file(&format!("[resolver]\nmetrics = {wrong}\n"));
        let refused = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap_err();
        assert!(refused.contains("config.toml:2"), "{refused}");
    }
}

#[test]
fn command_line_settings_are_validated() {
    let overrides = ConfigOverrides {
        resolvers: Some(vec!["a".into(), "a:4770".into()]),
        ..ConfigOverrides::default()
    };
    let error = Config::resolve(&overrides, &BTreeMap::new()).unwrap_err();
    assert!(error.starts_with("--resolver: ") && error.contains("twice"), "{error}");
    let overrides =
        ConfigOverrides { log: Some("longshore=loud".into()), ..ConfigOverrides::default() };
    let error = Config::resolve(&overrides, &BTreeMap::new()).unwrap_err();
    assert!(error.starts_with("--log: "), "{error}");
}

#[test]
fn services_that_could_not_start_are_refused_early() {
    for (text, line, key, remedy) in [
        (
            "[publisher]\nlisten = '10.0.0.1:4780'\n",
            2,
            "publisher.listen",
            "publisher.insecure = true",
        ),
        ("[resolver]\nlisten = '[::]:4770'\n", 2, "resolver.listen", "resolver.insecure = true"),
        (
            "[publisher]\ninsecure = true\nlisten = '0.0.0.0:4780'\n",
            3,
            "publisher.listen",
            "publisher.advertise = ",
        ),
        ("[resolver]\nlisten = '127.0.0.1:4780'\n", 2, "resolver.listen", "another port"),
        ("[publisher]\nlisten = '127.0.0.1:4770'\n", 2, "publisher.listen", "another port"),
        (
            "[publisher]\nlisten = '127.0.0.1:1'\n[resolver]\nlisten = '127.0.0.1:1'\n",
            2,
            "publisher.listen",
            "a replica on 127.0.0.1:1 (resolver.listen)",
        ),
        // Metrics have their own listener.
        (
            "[resolver]\nmetrics = '127.0.0.1:4770'\n",
            2,
            "resolver.metrics",
            "a replica on 127.0.0.1:4770 (resolver.listen); give one of them another port",
        ),
        (
            "[resolver]\nmetrics = '[::ffff:127.0.0.1]:4780'\n",
            2,
            "resolver.metrics",
            "the publisher on 127.0.0.1:4780 (publisher.listen); give one of them another port",
        ),
        (
            "[resolver]\ninsecure = true\nmetrics = '10.0.0.1:4790'\nlisten = '0.0.0.0:4790'\n",
            3,
            "resolver.metrics",
            "a replica on 0.0.0.0:4790",
        ),
        ("[publisher]\ntls_name = 'a'\n", 2, "publisher.tls_name", "nothing without certificates"),
        (
            &format!("[resolver]\nlisten_unix = '/{}'\n", "a".repeat(99)),
            2,
            "resolver.listen_unix",
            "of 108 bytes, and a path of a socket has at most 107; write a path of at most 99",
        ),
        ("[resolver]\ntls_name = 'a'\n", 2, "resolver.tls_name", "nothing without certificates"),
    ] {
        let case = with_file(text);
        let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
        let error = check::services(&config).unwrap_err();
        let start = format!("{}:{line}: {key}: ", case.file.display());
        assert!(error.starts_with(&start) && error.contains(remedy), "{error}");
    }
    for text in [
        "",
        "[publisher]\nlisten = '[::ffff:127.0.0.1]:4780'\n",
        "[publisher]\nlisten = '127.0.0.1:0'\n[resolver]\nlisten = '127.0.0.1:0'\n",
        "[publisher]\nlisten = '10.0.0.1:1'\ninsecure = true\n\
         [resolver]\nlisten = '10.0.0.2:1'\ninsecure = true\n",
        "[publisher]\nlisten = '0.0.0.0:1'\ninsecure = true\nadvertise = ['10.0.0.2:1']\n",
        "[resolver]\nmetrics = '127.0.0.1:4790'\n",
        &format!("[resolver]\nlisten_unix = '/{}'\n", "a".repeat(98)),
        &format!("[resolver]\nlisten_unix = '/{}'\nmetrics = false\n", "a".repeat(106)),
        "[resolver]\nlisten = '127.0.0.1:0'\nmetrics = '127.0.0.1:0'\n",
    ] {
        let case = with_file(text);
        let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
        assert!(check::services(&config).is_ok(), "{text}");
    }
}

#[test]
fn a_context_names_the_replicas_unless_something_closer_does() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("longshore");
    let contexts = Contexts::in_folder(home.clone());
    for name in ["prod", "test"] {
        contexts.add(name, &[format!("{name}:4770")], &ContextKeys::default(), false).unwrap();
    }
    contexts.select("prod").unwrap();
    std::fs::write(home.join("config.toml"), "resolvers = ['file:4770']\n").unwrap();
    let mut environment: Environment =
        [("XDG_CONFIG_HOME".to_owned(), folder.path().into())].into();
    let mut overrides = ConfigOverrides::default();
    let resolved = |overrides: &ConfigOverrides, environment: &Environment| {
        let config = Config::resolve(overrides, environment).unwrap();
        (config.resolvers.value[0].clone(), config.context.value, config.context.origin.to_string())
    };
    let (replica, name, origin) = resolved(&overrides, &environment);
    assert_eq!((replica.as_str(), name.as_deref()), ("prod:4770", Some("prod")));
    assert!(origin.ends_with("longshore/context:1"), "{origin}");
    overrides.ignore_selected = true;
    assert_eq!(resolved(&overrides, &environment).0, "file:4770");
    environment.insert(ENV_CONTEXT.to_owned(), "test".into());
    let (replica, name, origin) = resolved(&overrides, &environment);
    assert_eq!((replica.as_str(), name.as_deref()), ("test:4770", Some("test")));
    assert_eq!(origin, "$LONGSHORE_CONTEXT");
    overrides.context = Some("prod".to_owned());
    assert_eq!(resolved(&overrides, &environment).0, "prod:4770");
    overrides.context = Some("staging".to_owned());
    let error = Config::resolve(&overrides, &environment).unwrap_err();
    assert_eq!(error, "--context: there is no context staging; there are: prod, test");
    overrides.resolvers = Some(vec!["flag:1".to_owned()]);
    assert_eq!(resolved(&overrides, &environment).0, "flag:1");
}

#[test]
fn every_problem_is_found_and_the_rest_is_resolved() {
    let case = with_file(
        "log = 'loud'\ndata = '/srv'\n[publisher]\nlisten = 'here'\n[timing]\ntries = 0\n",
    );
    let (config, problems) = Config::read(&ConfigOverrides::default(), &case.environment);
    let keys: Vec<&str> = problems.iter().filter_map(|problem| problem.key.as_deref()).collect();
    assert_eq!(keys, ["log", "publisher.listen", "timing.tries"]);
    assert!(problems[1].origin.ends_with("config.toml:4"), "{problems:?}");
    assert_eq!(config.data.value, Some("/srv".into()));
    let case = with_file("data = \n");
    let (_, problems) = Config::read(&ConfigOverrides::default(), &case.environment);
    assert!(problems.len() == 1 && problems[0].message.contains("config.toml:1: "), "{problems:?}");
}

#[test]
fn half_of_a_tls_configuration_is_refused() {
    for (text, expected) in [
        ("[tls]\nkey = 'k'\n", "tls.key: a certificate and its key go together"),
        ("[tls]\nserver_name = 'n'\n", "tls.server_name: this says nothing without"),
        ("[tls]\nclient_certificates = 'off'\n", "tls.client_certificates: this says nothing"),
        (
            "[tls]\nca = 'system'\nclient_certificates = 'required'\n",
            "anyone can have a certificate that the machine trusts",
        ),
        ("[tls]\nclient_certificates = 'maybe'\n", "expected required, optional or off"),
        ("cluster = 'a b'\n", "is not a cluster's name"),
    ] {
        let case = with_file(text);
        let error = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn half_of_a_jwt_configuration_is_refused() {
    let tls = "[tls]\nca = '/ca.pem'\ncertificate = 'c'\nkey = 'k'\n";
    let issuer = "[access.jwt]\nissuer = 'https://id.example'\n";
    let whole = format!("{issuer}audience = 'longshore'\nkeys = '/keys.json'\n");
    let checked = |text: &str| {
        let case = with_file(text);
        check::access(&Config::resolve(&ConfigOverrides::default(), &case.environment)?)
    };
    assert_eq!(checked(&format!("{tls}{whole}")), Ok(()));
    for (text, expected) in [
        (format!("{tls}{issuer}"), "config.toml:6: access.jwt.issuer: issuer, audience and keys"),
        (
            format!("{tls}[access.jwt]\ngroups_claim = 'groups'\n"),
            "access.jwt.groups_claim: issuer, audience and keys go together; set access.jwt.issuer",
        ),
        (whole.clone(), "access.jwt.keys: tokens are accepted over TLS and Unix sockets"),
        (
            format!("{tls}client_certificates = 'optional'\n{whole}"),
            "access.jwt.keys: without a policy, clients without a token may do everything",
        ),
        (format!("{tls}[access.jwt]\nissuer = ' '\n"), "expected a text that is not empty"),
        (format!("{tls}{issuer}issuers = 'x'\n"), "unknown field `issuers`"),
    ] {
        let error = checked(&text).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

/// A certificate alone encrypts, and would admit everyone.
#[test]
fn a_listener_for_other_machines_names_who_may_be_its_client() {
    let listen = "[publisher]\nlisten = '10.0.0.1:4780'\n[tls]\ncertificate = 'c'\nkey = 'k'\n";
    for (more, admitted) in [
        ("", false),
        ("ca = 'system'\n", false),
        ("ca = '/ca.pem'\n", true),
        ("client_certificates = 'off'\n", true),
        ("ca = '/ca.pem'\nclient_certificates = 'off'\n", true),
    ] {
        let case = with_file(&format!("{listen}{more}"));
        let config = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap();
        let checked = check::services(&config);
        assert_eq!(checked.is_ok(), admitted, "{more}: {checked:?}");
    }
}

#[test]
fn a_context_names_its_cluster_and_tls_whole() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("longshore");
    let contexts = Contexts::in_folder(home.clone());
    let keys = ContextKeys {
        top: vec![("cluster", "prod".to_owned())],
        tls: vec![("ca", "/p.pem".to_owned())],
    };
    contexts.add("prod", &["a:1".to_owned()], &keys, false).unwrap();
    let file = "cluster = 'file'\n[tls]\nca = '/f.pem'\ncertificate = '/f.pem'\nkey = '/f.key'\n";
    std::fs::write(home.join("config.toml"), file).unwrap();
    let mut environment: Environment =
        [("XDG_CONFIG_HOME".to_owned(), folder.path().into())].into();
    environment.insert("LONGSHORE_TLS_CA".to_owned(), "/e.pem".into());
    let mut overrides = ConfigOverrides::default();
    let resolved = |overrides: &ConfigOverrides, environment: &Environment| {
        let config = Config::resolve(overrides, environment).unwrap();
        let Some(Authority::File(ca)) = config.tls.ca.value else { panic!("no authority") };
        (config.cluster.value, ca.display().to_string(), config.tls.key.value.is_some())
    };
    let of = |cluster: &str, ca: &str, key| (cluster.to_owned(), ca.to_owned(), key);
    assert_eq!(resolved(&overrides, &environment), of("file", "/e.pem", true));
    overrides.context = Some("prod".to_owned());
    assert_eq!(resolved(&overrides, &environment), of("prod", "/p.pem", false));
    overrides.system.cluster = Some("flag".to_owned());
    assert_eq!(resolved(&overrides, &environment), of("flag", "/p.pem", false));
    overrides.ignore_selected = true;
    let error = Config::resolve(&overrides, &environment).unwrap_err();
    assert!(error.contains("leave the context out"), "{error}");
    overrides.ignore_selected = false;
    overrides.context = None;
    environment.insert(ENV_CONTEXT.to_owned(), "prod".into());
    assert_eq!(resolved(&overrides, &environment), of("flag", "/e.pem", false));
}

const SECRET: &str = "lst_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";

#[test]
fn a_token_comes_from_a_file_or_a_variable_and_its_secret_is_never_shown() {
    let tls = "[tls]\nca = 'system'\n";
    let case = with_file(&format!("token_file = '/f.token'\n{tls}"));
    let resolved = |flag: Option<&str>, variables: &[(&str, &str)]| {
        let mut environment = case.environment.clone();
        environment.extend(variables.iter().map(|(name, value)| ((*name).into(), value.into())));
        let mut overrides = ConfigOverrides::default();
        overrides.system.token_file = flag.map(str::to_owned);
        let config = Config::resolve(&overrides, &environment);
        assert!(!format!("{config:?}").contains(&SECRET[4..12]), "{config:?}");
        let rows = rows(&config?);
        let row = rows.into_iter().find(|row| row.key == "token_file").unwrap();
        Ok::<_, String>((row.text(), row.origin))
    };
    let of = |text: &str, origin: &str| Ok((text.to_owned(), origin.to_owned()));
    let (text, origin) = resolved(None, &[]).unwrap();
    assert!(text == "/f.token" && origin.ends_with("config.toml:1"), "{text} {origin}");
    let (file, secret) = (("LONGSHORE_TOKEN_FILE", "/e.token"), ("LONGSHORE_TOKEN", SECRET));
    assert_eq!(resolved(None, &[file]), of("/e.token", "$LONGSHORE_TOKEN_FILE"));
    assert_eq!(resolved(None, &[secret]), of("(a secret)", "$LONGSHORE_TOKEN"));
    assert_eq!(resolved(Some("/g.token"), &[file, secret]), of("/g.token", "--token-file"));
    for (variables, expected) in [
        (&[file, secret][..], "$LONGSHORE_TOKEN: $LONGSHORE_TOKEN_FILE is set, too"),
        (&[("LONGSHORE_TOKEN", &SECRET[..40])], "$LONGSHORE_TOKEN: neither the secret of a token"),
    ] {
        assert!(resolved(None, variables).unwrap_err().starts_with(expected), "{variables:?}");
    }
    // Nobody can read it on the way.
    let case = with_file("token_file = '/f.token'\n");
    let error = Config::resolve(&ConfigOverrides::default(), &case.environment).unwrap_err();
    assert!(
        error.contains("config.toml:1: token_file: a token is sent over TLS or a Unix"),
        "{error}"
    );
    let local = |more: &str| {
        let text = format!("token_file = '/f.token'\nresolvers = ['unix:/a.sock'{more}]\n");
        Config::resolve(&ConfigOverrides::default(), &with_file(&text).environment)
    };
    assert!(local("").is_ok() && local(", 'unix:/b.sock'").is_ok());
    for (more, expected) in [
        (", 'a:1'", "over TLS or a Unix socket only"),
        (", 'unix:b.sock'", "'unix:b.sock' is neither HOST:PORT"),
        (", 'unix:/a.sock'", "named twice"),
    ] {
        let error = local(more).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_context_has_its_own_token() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("longshore");
    let keys = ContextKeys {
        top: vec![("token_file", "/c.token".to_owned())],
        tls: vec![("ca", "system".to_owned())],
    };
    Contexts::in_folder(home).add("prod", &["a:1".to_owned()], &keys, false).unwrap();
    let environment = [
        ("XDG_CONFIG_HOME".to_owned(), folder.path().into()),
        ("LONGSHORE_TOKEN".to_owned(), SECRET.into()),
    ];
    let overrides = ConfigOverrides { context: Some("prod".into()), ..ConfigOverrides::default() };
    let config = Config::resolve(&overrides, &environment.into()).unwrap();
    assert_eq!(config.token.value.unwrap().path(), Some(FilePath::new("/c.token")));
}
