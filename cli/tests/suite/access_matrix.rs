//! What the program's commands may do: each action, over both kinds of identity, in six cases.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::harness::publisher_id;
use common::{BackgroundCommand, CommandOutput, Service, longshore, run, wait_until};
use longshore_access::{SECRET_RANDOM_BYTES, Secret, Token, Tokens};
use rcgen::{CertificateParams, CertifiedIssuer, DnType, Issuer, KeyPair, date_time_ymd};

/// Commands at a time: some refused ones wait for seconds.
const PARALLEL: usize = 16;

const ACTIONS: [&str; 9] =
    ["resolve", "enqueue", "work", "inspect", "payload", "act", "operate", "read", "write"];

/// Why a client has a right, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    Allowed,
    /// Everything is allowed to it, and a `[[deny]]` takes the action.
    Denied,
    /// The action is allowed on another path.
    WrongPath,
    /// Its certificate or token has ended.
    Expired,
    /// Its token is no longer in the file; no rule is about its certificate.
    Revoked,
    /// It has no token; its certificate is of another authority.
    Unauthenticated,
}

const CASES: [Case; 6] = [
    Case::Allowed,
    Case::Denied,
    Case::WrongPath,
    Case::Expired,
    Case::Revoked,
    Case::Unauthenticated,
];

impl Case {
    /// True if it gets a link, which shows it what the policy allows.
    fn is_admitted(self) -> bool {
        matches!(self, Case::Allowed | Case::Denied | Case::WrongPath)
    }
}

/// An action, and who tries it.
type Cell = (&'static str, Kind, Case);

/// A queue of one cell.
fn queue_of(number: usize) -> String {
    format!("/a/{number}")
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Certificate,
    Token,
}

/// The names of an action's clients in the policy.
fn name(action: &str, case: Case) -> String {
    match case {
        Case::Denied => format!("{action}-denied"),
        Case::WrongPath => format!("{action}-elsewhere"),
        Case::Revoked => format!("{action}-revoked"),
        Case::Expired => format!("{action}-expired"),
        Case::Allowed | Case::Unauthenticated => action.to_owned(),
    }
}

/// The rules for the clients of one action.
fn rules(action: &str) -> String {
    let rule = |effect: &str, who: &str, actions: &[&str], path: &str| {
        let who = [format!("cn:{who}"), format!("token:{who}")];
        format!("[[{effect}]]\nwho = {who:?}\ndo = {actions:?}\npaths = ['{path}']\n")
    };
    // What the command needs besides.
    let besides: &[&str] = match action {
        "resolve" => &[],
        "work" | "payload" => &["resolve", "inspect"],
        "write" => &["resolve", "read"],
        _ => &["resolve"],
    };
    let [denied, elsewhere, expired] =
        [Case::Denied, Case::WrongPath, Case::Expired].map(|case| name(action, case));
    let own = if action == "operate" { "/sys" } else { "/a/**" };
    let mut text = String::new();
    for (who, path) in [(action, own), (&expired, own), (&elsewhere, "/b/**")] {
        text += &rule("allow", who, &[action], path);
        if !besides.is_empty() {
            text += &rule("allow", who, besides, "/**");
        }
    }
    text + &rule("allow", &denied, &["*"], "/**") + &rule("deny", &denied, &[action], own)
}

struct Secured {
    folder: tempfile::TempDir,
    address: String,
    /// Of a dead job.
    job: String,
    tokens: Vec<(String, Secret)>,
    _services: [Service; 2],
    _clients: [BackgroundCommand; 2],
}

impl Secured {
    fn start() -> Secured {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let here = |arguments: &[&str]| {
            let mut command = longshore(arguments);
            command.current_dir(folder.path());
            command
        };
        run(here(&["cert", "ca"]), b"").code(0);
        run(here(&["cert", "issue", "host", "--host", "127.0.0.1"]), b"").code(0);
        certificates(folder.path());
        let tokens = tokens(&at("tokens.toml"));
        let id = publisher_id(&at("data"));
        let host = format!("[publishers]\n'{id}' = ['cn:host']\n")
            + "[[allow]]\nwho = ['cn:host']\ndo = ['*']\npaths = ['/**']\n";
        let rules: String = ACTIONS.iter().map(|action| rules(action)).collect();
        fs::write(at("policy.toml"), host + &rules).unwrap();
        let config = "[tls]\nca = 'ca.pem'\ncertificate = 'host.pem'\nkey = 'host.key'\n\
                      client_certificates = 'optional'\n[access]\npolicy = 'policy.toml'\n\
                      tokens = 'tokens.toml'\n[resolver]\nmetrics = false\n[timing]\n\
                      retry_wait_min = '50ms'\nretry_wait_max = '300ms'\n";
        fs::write(at("host.toml"), config).unwrap();
        let as_host = |arguments: &[&str]| here(&[&["--config", "host.toml"], arguments].concat());
        let on_a_free_port = ["--listen", "127.0.0.1:0", "--json"];
        let replica = ["resolver", "run", "--fresh", "--data", "replica"];
        let replica = Service::start(as_host(&[&replica[..], &on_a_free_port].concat()));
        let address = replica.text("address").to_owned();
        let resolver = ["--resolver", &address];
        let publisher = ["publisher", "run", "--data", "data", "--default", "/"];
        let publisher = [&publisher[..], &on_a_free_port, &resolver].concat();
        let publisher = Service::start(as_host(&publisher));
        let value = [&["value", "publish", "/a/lamp", "1", "--writable"], &resolver[..]].concat();
        let values = BackgroundCommand::start(as_host(&value));
        let worker = ["work", "/a/none", "--name", "quiet"];
        let worker = [&worker[..], &resolver, &["--", "cat"]].concat();
        let worker = BackgroundCommand::start(as_host(&worker));
        let of_host = |arguments: &[&str]| run(as_host(&[&resolver, arguments].concat()), b"");
        let enqueue = ["enqueue", "/a/dead", "the payload", "--max-attempts", "1", "--json"];
        wait_until("the publisher is registered", || {
            of_host(&["enqueue", "/a/first", "1"]).code == 0
        });
        let job = of_host(&enqueue).code(0).json()["job"].as_str().unwrap().to_owned();
        let work = ["work", "/a/dead", "--until-empty"];
        of_host(&[&work[..], &["--", "false"]].concat()).code(1);
        wait_until("the value is published", || {
            of_host(&["value", "subscribe", "/a/lamp", "--once"]).code == 0
        });
        wait_until("the worker is connected", || {
            of_host(&["workers", "ls", "--json"]).stdout.contains("\"quiet\"")
        });
        let (services, clients) = ([replica, publisher], [values, worker]);
        Secured { folder, address, job, tokens, _services: services, _clients: clients }
    }

    /// Tries an action; true if it was done.
    fn attempt(&self, number: usize, (action, kind, case): Cell) -> (bool, CommandOutput) {
        let queue = queue_of(number);
        let payload = number.to_string();
        let arguments: &[&str] = match action {
            "resolve" => &["directory", "resolve", "/a/dead", "--json"],
            "enqueue" => &["enqueue", &queue, &payload],
            "work" => &["work", &queue, "--until-empty", "--", "cat"],
            "inspect" => &["stat", "/a/dead", "--json"],
            "payload" => &["job", &self.job, "--payload"],
            "act" => &["pause", "/a/dead"],
            "operate" => &["workers", "quiet", "quiet", "--dry-run"],
            "read" => &["value", "subscribe", "/a/lamp", "--once"],
            "write" => &["value", "write", "/a/lamp", &payload],
            _ => unreachable!(),
        };
        let mut command = longshore(arguments);
        let waits = match action {
            // For servers that admit it, or let it take jobs.
            "work" => case != Case::Allowed,
            "enqueue" | "read" | "write" => !case.is_admitted(),
            _ => false,
        };
        if waits {
            let mut limited = Command::new("timeout");
            limited.args(["-s", "KILL", "2"]).arg(command.get_program()).args(command.get_args());
            for (variable, value) in command.get_envs() {
                match value {
                    Some(value) => limited.env(variable, value),
                    None => limited.env_remove(variable),
                };
            }
            command = limited;
        }
        self.identify(&mut command, action, kind, case);
        let output = run(command, b"");
        let shown = match action {
            "resolve" | "inspect" => output.stdout.contains("/a/dead"),
            "payload" => output.stdout == "the payload",
            "work" => output.stdout.contains("1 completed"),
            "read" => output.stdout.contains("/a/lamp"),
            _ => true,
        };
        (output.code == 0 && shown, output)
    }

    /// Runs a command of the host, which may do everything.
    fn of_host(&self, arguments: &[&str]) -> CommandOutput {
        let of_host = ["--config", "host.toml", "--resolver", &self.address];
        let mut command = longshore(&[&of_host, arguments].concat());
        command.current_dir(self.folder.path());
        run(command, b"")
    }

    fn identify(&self, command: &mut Command, action: &str, kind: Kind, case: Case) {
        command.current_dir(self.folder.path()).env("LONGSHORE_RESOLVERS", &self.address);
        command.env("LONGSHORE_TLS_CA", "ca.pem");
        let name = name(action, case);
        let name = if case == Case::Unauthenticated { "stranger" } else { &name };
        match kind {
            Kind::Certificate => {
                command.env("LONGSHORE_TLS_CERTIFICATE", format!("{name}.pem"));
                command.env("LONGSHORE_TLS_KEY", format!("{name}.key"));
            }
            Kind::Token => {
                if let Some((_, secret)) = self.tokens.iter().find(|(of, _)| of == name) {
                    let secret = std::str::from_utf8(secret.text()).unwrap();
                    command.env("LONGSHORE_TOKEN", secret);
                }
            }
        }
    }
}

/// Writes the certificates and keys of all clients.
fn certificates(folder: &Path) {
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let key = KeyPair::from_pem(&read("ca.key")).unwrap();
    let authority = Issuer::from_ca_cert_pem(&read("ca.pem"), key).unwrap();
    let write = |name: &str, pem: String, key: &KeyPair| {
        fs::write(folder.join(format!("{name}.pem")), pem).unwrap();
        fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    };
    let params = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    for action in ACTIONS {
        for case in CASES {
            let (name, key) = (name(action, case), KeyPair::generate().unwrap());
            let mut params = params(&name);
            if case == Case::Expired {
                params.not_after = date_time_ymd(2020, 1, 1);
            }
            write(&name, params.signed_by(&key, &authority).unwrap().pem(), &key);
        }
    }
    let other =
        CertifiedIssuer::self_signed(params("other"), KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    write("stranger", params(ACTIONS[0]).signed_by(&key, &other).unwrap().pem(), &key);
}

/// Writes the file of tokens; returns the secrets, also of those that are not in it.
fn tokens(file: &Path) -> Vec<(String, Secret)> {
    let (mut tokens, mut secrets) = (Tokens::default(), Vec::new());
    for action in ACTIONS {
        for case in CASES {
            let name = name(action, case);
            let seed = u8::try_from(secrets.len()).unwrap();
            let secret = Secret::from_random(&mut [seed; SECRET_RANDOM_BYTES]);
            let expires_unix_ms = (case == Case::Expired).then_some(1_577_836_800_000);
            let (name_of, hash) = (name.clone(), secret.hash());
            let token = Token { name: name_of, hash, created_unix_ms: 0, expires_unix_ms };
            match case {
                Case::Unauthenticated => continue,
                Case::Revoked => {}
                _ => tokens.add(token).unwrap(),
            }
            secrets.push((name, secret));
        }
    }
    fs::write(file, tokens.to_text()).unwrap();
    secrets
}

#[test]
fn each_command_does_what_its_client_may_and_nothing_else() {
    let mut cells = Vec::new();
    for action in ACTIONS {
        for kind in [Kind::Certificate, Kind::Token] {
            cells.extend(CASES.map(|case| (action, kind, case)));
        }
    }
    assert_eq!(cells.len(), 108);
    let system = Secured::start();
    let of_work = || cells.iter().enumerate().filter(|(_, (action, ..))| *action == "work");
    for (number, _) in of_work() {
        system.of_host(&["enqueue", &queue_of(number), "a job"]).code(0);
    }
    let (next, wrong) = (AtomicUsize::new(0), parking_lot::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&cell) = cells.get(number) else { break };
                    let (done, output) = system.attempt(number, cell);
                    if done != (cell.2 == Case::Allowed) {
                        wrong.lock().push((cell, output));
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for (number, (_, _, case)) in of_work() {
        let shown = system.of_host(&["stat", &queue_of(number), "--json"]).code(0).json();
        let waiting = u64::from(*case != Case::Allowed);
        assert_eq!(shown["queues"][0]["ready"], waiting, "{case:?}: {shown}");
    }
}
