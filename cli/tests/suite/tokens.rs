//! `longshore token`: the file of tokens, and who gets their secrets.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{BackgroundCommand, CommandOutput, longshore, run};
use longshore_access::{AuditVerifier, Tokens};
use rustix::process::Signal;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("tokens.toml")
    }

    fn token(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = longshore(&["token"]);
        command.args(arguments).current_dir(self.0.path());
        run(command, b"")
    }

    fn tokens(&self) -> Tokens {
        Tokens::parse(&fs::read_to_string(self.file()).unwrap()).unwrap()
    }
}

#[test]
fn a_secret_is_printed_once_and_only_its_hash_is_stored() {
    let folder = Folder::new();
    let file = ["--file", "tokens.toml"];
    let at = |arguments: &[&str]| folder.token(&[arguments, &file].concat());
    at(&["ls"]).code(1).stderr_has(&["there is no token file tokens.toml", "token create"]);
    let made = at(&["create", "shop", "--log", "trace"]).code(0);
    let made = made.stderr_has(&["tokens.toml has token shop", "until it is revoked"]);
    // Standard output can be a client's token file.
    let secret = made.stdout.trim_end().to_owned();
    assert_eq!(made.stdout, format!("{secret}\n"));
    assert!(!made.stderr.contains("lst_"), "{made:?}");
    assert_eq!(folder.tokens().verify(secret.as_bytes(), 0).unwrap().name, "shop");
    let mode = || fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);

    let made = at(&["create", "mail", "--expires", "2099-01-31", "--json"]).code(0).json();
    assert_eq!(made["expires"], "2099-01-31T00:00:00.000Z");
    let verified = folder.tokens().verify(made["secret"].as_str().unwrap().as_bytes(), 0).unwrap();
    assert_eq!(
        (verified.name.as_str(), verified.expires_unix_ms),
        ("mail", Some(4_073_500_800_000))
    );

    let before = folder.tokens();
    for (arguments, code, expected) in [
        (&["create", "shop"][..], 1, "another token has the name shop: choose another, or give"),
        (&["create", "shoq", "--replace"], 1, "there is no token shoq to replace"),
        (&["create", "a b"], 2, "\"a b\" is not a token's name: use 1 to 64 letters"),
        (&["create", "a", "--expires", "2020-01-31"], 2, "2020-01-31T00:00:00.000Z is in the past"),
        (&["create", "a", "--expires", "3000000d"], 2, "expires of token a: write a time"),
        (&["create", "a", "--expires", "soon"], 2, "'soon' is neither a duration, like 90d"),
    ] {
        at(arguments).code(code).stderr_has(&[expected]);
    }
    assert_eq!(folder.tokens(), before, "a refused token changes nothing");

    // A new secret for the same identity ends the old one.
    let renewed = at(&["create", "shop", "--replace"]).code(0).stdout;
    let verify = |secret: &str| folder.tokens().verify(secret.trim_end().as_bytes(), 0);
    assert_eq!(verify(&renewed).unwrap().name, "shop");
    assert!(verify(&secret).is_err());
    let before = folder.tokens();

    // The mode by which a service reads the file is retained.
    fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o644)).unwrap();
    let listed =
        at(&["ls"]).code(0).stderr_has(&["every user of this machine can read tokens.toml"]);
    assert_eq!(listed.stdout.lines().count(), 3, "{listed:?}");
    let listed = at(&["ls", "--json"]).code(0);
    let names: Vec<_> = listed.json()["tokens"].as_array().unwrap().clone();
    assert_eq!(
        (&names[0]["name"], &names[1]["expires"]),
        (&"mail".into(), &serde_json::Value::Null)
    );
    at(&["revoke", "mail", "shop", "--dry-run"]).code(0);
    assert_eq!(folder.tokens(), before);
    let revoked = at(&["revoke", "shop", "shoq"]).code(1).stderr_has(&["has no token shoq"]);
    assert_eq!(revoked.stdout, "token shop is revoked\n");
    assert_eq!((folder.tokens().get("shop"), folder.tokens().len(), mode()), (None, 1, 0o644));
    let json = at(&["revoke", "mail", "--json"]).code(0).json();
    assert_eq!((&json["revoked"][0], &json["unknown"]), (&"mail".into(), &serde_json::json!([])));

    // A damaged file is never replaced.
    fs::write(
        folder.file(),
        "[[token]]\nname = 'a'\nhash = 'lst_x'\ncreated = 2026-01-01T00:00:00Z",
    )
    .unwrap();
    for arguments in [&["create", "b"][..], &["revoke", "a"], &["ls"]] {
        let refused =
            at(arguments).code(1).stderr_has(&["tokens.toml:3: hash of token a: not a hash"]);
        assert!(!refused.stderr.contains("lst_"), "{refused:?}");
    }
}

#[test]
fn a_secret_that_is_not_printed_is_a_failure() {
    let folder = Folder::new();
    folder.token(&["create", "shop", "--file", "tokens.toml"]).code(0);
    let (read, closed) = std::io::pipe().unwrap();
    drop(read);
    for more in [&["--file", "tokens.toml"][..], &["--file", "tokens.toml", "--json"]] {
        let mut command = longshore(&["token", "create", "shop", "--replace"]);
        command.args(more).current_dir(folder.0.path()).stdout(closed.try_clone().unwrap());
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("its secret was not printed"), "{errors}");
        assert!(errors.contains("run it again with --replace"), "{errors}");
    }
}

#[test]
fn the_configured_file_is_used_and_a_missing_one_is_named() {
    let folder = Folder::new();
    let config = folder.0.path().join("config.toml");
    let config = config.to_str().unwrap();
    fs::write(config, "[access]\ntokens = 'new/tokens.toml'\n").unwrap();
    folder.token(&["create", "shop", "--config", config]).code(0);
    assert!(folder.0.path().join("new/tokens.toml").exists());
    folder.token(&["ls"]).code(2).stderr_has(&["--file FILE", "access.tokens"]);
    fs::write(config, "[access]\ntoken = 'tokens.toml'\n").unwrap();
    let refused = folder.token(&["ls", "--config", config]).code(2);
    refused.stderr_has(&["config.toml:2: unknown field `token`"]);
}

#[test]
fn commands_that_change_the_file_at_once_lose_nothing() {
    let folder = Folder::new();
    let create = |name: String| folder.token(&["create", &name, "--file", "tokens.toml"]).code(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || (0..4).for_each(|n| drop(create(format!("{thread}-{n}")))));
        }
    });
    let tokens = folder.tokens();
    let hashes: BTreeSet<String> = tokens.iter().map(|token| token.hash.to_string()).collect();
    assert_eq!((tokens.len(), hashes.len()), (16, 16));
}

#[test]
fn a_replica_admits_a_token_under_its_policy_until_it_is_revoked() {
    let folder = Folder::new();
    let dir = folder.0.path();
    let at = |name: &str| dir.join(name).display().to_string();
    for arguments in [&["ca"][..], &["issue", "host", "--host", "127.0.0.1"]] {
        let mut command = longshore(&["cert"]);
        command.args(arguments).current_dir(dir);
        run(command, b"").code(0);
    }
    let made = folder.token(&["create", "shop", "--file", "tokens.toml"]).code(0);
    fs::write(at("shop.token"), made.stdout).unwrap();
    fs::write(
        at("policy.toml"),
        "[[allow]]\nwho = ['token:shop']\ndo = ['resolve']\npaths = ['/**']\n",
    )
    .unwrap();
    let tls = "[tls]\nca = 'ca.pem'\ncertificate = 'host.pem'\nkey = 'host.key'\n";
    let server = |more: &str| {
        let text =
            format!("{tls}{more}[resolver]\nmetrics = false\n[access]\ntokens = 'tokens.toml'\n");
        fs::write(at("server.toml"), text).unwrap();
        let run = ["resolver", "run", "--fresh", "--listen", "127.0.0.1:0", "--json"];
        let mut command = longshore(&run);
        command.args(["--config", "server.toml"]).current_dir(dir);
        command
    };
    // Its listener would admit everyone.
    let mut open = server("client_certificates = 'optional'\n");
    open.arg("--end-with-stdin");
    let open = run(open, b"").code(2);
    open.stderr_has(&["access.tokens: without a policy, clients without a token"]);
    let mut command = server("client_certificates = 'optional'\n");
    let text = fs::read_to_string(at("server.toml")).unwrap();
    fs::write(at("server.toml"), format!("{text}policy = 'policy.toml'\naudit = 'audit.jsonl'\n"))
        .unwrap();
    command.current_dir(dir);
    let mut replica = BackgroundCommand::start(command);
    let ready: serde_json::Value = serde_json::from_str(&replica.line()).unwrap();
    let listed = |flags: &[&str]| {
        let address = ready["address"].as_str().unwrap();
        let mut command = longshore(&["directory", "ls", "--resolver", address]);
        command.args(["--tls-ca", "ca.pem"]).args(flags).current_dir(dir);
        run(command, b"")
    };
    let token = ["--token-file", "shop.token"];
    listed(&token).code(0);
    listed(&[]).code(3).stderr_has(&["neither a certificate nor a token"]);
    let host = ["--tls-certificate", "host.pem", "--tls-key", "host.key"];
    listed(&host).code(3).stderr_has(&["the policy allows nothing to cn:host"]);
    // A command that would wait for replicas ends, too, and one that admits the client is enough.
    let enqueue = |resolvers: &str| {
        let mut command = longshore(&["enqueue", "/jobs/a", "hello", "--resolver", resolvers]);
        command.args(["--tls-ca", "ca.pem"]).current_dir(dir);
        run(command, b"")
    };
    let address = ready["address"].as_str().unwrap();
    let refused = enqueue(address).code(3);
    refused
        .stderr_has(&["no replica of the resolver accepts this client", "neither a certificate"]);
    let anyone = "[[allow]]\nwho = ['anonymous']\ndo = ['*']\npaths = ['/**']\n";
    fs::write(at("anyone.toml"), anyone).unwrap();
    let text = fs::read_to_string(at("server.toml")).unwrap();
    let text = text.replace("policy.toml", "anyone.toml").replace("audit = 'audit.jsonl'\n", "");
    fs::write(at("other.toml"), text).unwrap();
    let run_other = ["resolver", "run", "--fresh", "--listen", "127.0.0.1:0", "--json"];
    let mut other = longshore(&run_other);
    other.args(["--config", "other.toml"]).current_dir(dir);
    let other = crate::common::Service::start(other);
    let both = format!("{address},{}", other.text("address"));
    let mut ls = longshore(&["directory", "ls", "--resolver", &both, "--tls-ca", "ca.pem"]);
    ls.current_dir(dir);
    run(ls, b"").code(0);
    listed(&["--token-file", "no.token"]).code(2).stderr_has(&["no.token"]);

    // The operator rotates the audit log.
    fs::rename(at("audit.jsonl"), at("audit.1")).unwrap();
    replica.send(Signal::HUP);
    while !fs::exists(at("audit.jsonl")).unwrap() {
        std::thread::sleep(Duration::from_millis(5));
    }
    folder.token(&["revoke", "shop", "--file", "tokens.toml"]).code(0);
    let began = Instant::now();
    let refused = loop {
        let output = listed(&token);
        if output.code != 0 {
            break output;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it is not revoked");
    };
    refused.code(3).stderr_has(&["the token is unknown or was revoked"]);
    // Its end writes what waits.
    replica.send(Signal::TERM);
    replica.ended().code(0);
    let (old, new) = (at("audit.1"), at("audit.jsonl"));
    let old = fs::read_to_string(old).unwrap();
    let text = old.clone() + &fs::read_to_string(new).unwrap();
    let mut verifier = AuditVerifier::default();
    text.lines().for_each(|line| verifier.line(line).unwrap());
    for part in ["allows nothing to cn:host", "tokens revoked: shop", "unknown or was revoked"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let audit = |files: &[&str]| {
        let mut command = longshore(&["access", "audit"]);
        command.args(files).current_dir(dir);
        run(command, b"")
    };
    let lines = format!("{} lines follow each other", text.lines().count());
    assert!(audit(&["audit.1", "audit.jsonl"]).code(0).stdout.starts_with(&lines));
    audit(&["audit.jsonl", "audit.1"]).code(1).stderr_has(&["audit.1:1: "]);
    let from = old.lines().count() + 1;
    let begins = format!("the log begins before line {from}");
    audit(&["audit.jsonl"]).code(0).stderr_has(&[&begins]);
    fs::write(at("audit.1"), old.replacen("refused", "allowed", 1) + "{\"seq\":").unwrap();
    audit(&["audit.1"]).code(1).stderr_has(&["audit.1:2: it was changed"]);
    let secret = fs::read_to_string(at("shop.token")).unwrap();
    assert!(!text.contains(secret.trim()) && !text.contains("lst"), "{text}");
}

#[test]
fn a_replica_admits_a_jwt_by_its_groups_until_its_key_is_gone() {
    let folder = Folder::new();
    let dir = folder.0.path();
    let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
    for arguments in [&["ca"][..], &["issue", "host", "--host", "127.0.0.1"]] {
        let mut command = longshore(&["cert"]);
        command.args(arguments).current_dir(dir);
        run(command, b"").code(0);
    }
    let keys = include_str!("../../../access/src/jwt/golden/keys.json");
    write("keys.json", keys);
    // Of jwt:ann in the groups ops and shop, and of a service account in none.
    write("ann.jwt", include_str!("../../../access/src/jwt/golden/rs256.jwt"));
    write("mail.jwt", include_str!("../../../access/src/jwt/golden/es256.jwt"));
    let rule = "[[allow]]\nwho = ['jwt-group:shop']\ndo = ['resolve']\npaths = ['/**']\n";
    write("policy.toml", rule);
    let jwt = "[access.jwt]\nissuer = 'https://id.example'\naudience = 'longshore'\n\
               keys = 'keys.json'\ngroups_claim = 'groups'\n";
    let tls = "[tls]\nca = 'ca.pem'\ncertificate = 'host.pem'\nkey = 'host.key'\n\
               client_certificates = 'optional'\n";
    let access = "[resolver]\nmetrics = false\n[access]\npolicy = 'policy.toml'\n";
    write("server.toml", &format!("{tls}{access}{jwt}"));
    let listening = ["resolver", "run", "--fresh", "--listen", "127.0.0.1:0", "--json"];
    let mut command = longshore(&listening);
    command.args(["--config", "server.toml"]).current_dir(dir);
    let mut replica = BackgroundCommand::start(command);
    let ready: serde_json::Value = serde_json::from_str(&replica.line()).unwrap();
    let listed = |file: &str| {
        let address = ready["address"].as_str().unwrap();
        let mut command = longshore(&["directory", "ls", "--resolver", address]);
        command.args(["--tls-ca", "ca.pem", "--token-file", file]).current_dir(dir);
        run(command, b"")
    };
    listed("ann.jwt").code(0);
    let refused = "the policy allows nothing to jwt:system:serviceaccount:shop:mail";
    listed("mail.jwt").code(3).stderr_has(&[refused]);
    let show = ["access", "show", "jwt:ann", "--policy", "policy.toml", "--jwt-group", "shop"];
    let mut command = longshore(&show);
    command.current_dir(dir);
    assert!(run(command, b"").code(0).stdout.contains("resolve"));
    let mut command = longshore(&[&show[..5], &["--jwt-group", "ops"]].concat());
    command.current_dir(dir);
    run(command, b"").code(0).stderr_has(&["policy.toml allows nothing to jwt:ann"]);
    let mut command = longshore(&[&["access", "show", "token:ann"], &show[3..]].concat());
    command.current_dir(dir);
    run(command, b"").code(2).stderr_has(&["--jwt-group is for a client with a JWT"]);

    write("keys.json", &keys.replace("\"RS256\"", "\"RS384\""));
    let began = Instant::now();
    let refused = loop {
        let output = listed("ann.jwt");
        if output.code != 0 {
            break output;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "its key is still there");
    };
    refused.code(3).stderr_has(&["this server does not have the key by which the JWT is signed"]);
    replica.send(Signal::TERM);
    replica.ended().code(0);
}

#[test]
fn a_policy_is_asked_and_names_the_rule_that_decides() {
    let folder = Folder::new();
    let file = folder.0.path().join("policy.toml");
    let rule = |effect: &str, who: &str, action: &str, path: &str| {
        format!("[[{effect}]]\nwho = ['{who}']\ndo = ['{action}']\npaths = ['{path}']\n")
    };
    let quotas = "[[quota]]\nwho = ['*']\nlinks = 9\nbytes = 50_000\nregistered_paths = 7\n\
                  [[quota]]\nwho = ['*']\npaths = ['/jobs/${user}/**']\nwaiting_jobs = 5\n";
    let rules = rule("allow", "token:*", "enqueue", "/jobs/${user}/**")
        + &rule("deny", "*", "*", "/jobs/shop/secret")
        + quotas;
    fs::write(&file, &rules).unwrap();
    let access = |arguments: &[&str]| {
        let mut command = longshore(&["access"]);
        command.args(arguments).current_dir(folder.0.path());
        run(command, b"")
    };
    let policy = ["--policy", "policy.toml"];
    let check = |rest: &[&str]| access(&[&["check", "token:shop"], rest, &policy].concat());
    let allowed = check(&["enqueue", "/jobs/shop/a"]).code(0);
    let expected = "token:shop may enqueue /jobs/shop/a: the rule at policy.toml:1 allows it\n";
    assert_eq!(allowed.stdout, expected);
    let denied = check(&["enqueue", "/jobs/shop/secret"]).code(1);
    denied.stderr_has(&["may not enqueue", "the rule at policy.toml:5 denies it"]);
    check(&["work", "/jobs/shop/a"]).code(1).stderr_has(&["no rule of policy.toml allows it"]);
    let json = check(&["enqueue", "/jobs/shop/secret", "--json"]).code(1).json();
    assert_eq!((&json["allowed"], &json["rule"]["line"]), (&false.into(), &5.into()));
    let json = check(&["work", "/jobs/mail/a", "--json"]).code(1).json();
    assert_eq!((&json["allowed"], json["rule"].is_null()), (&false.into(), true));

    let shown = access(&["show", "token:shop", "--json", "--policy", "policy.toml"]).code(0).json();
    let expected = serde_json::json!([
        { "action": "enqueue", "allow": ["/jobs/shop/**"], "deny": ["/jobs/shop/secret"] }
    ]);
    assert_eq!(shown["actions"], expected);
    assert_eq!(
        (&shown["quota"]["links"], &shown["quota"]["registered_paths"]),
        (&3.into(), &7.into())
    );
    assert_eq!(shown["queue_quotas"][0]["paths"], serde_json::json!(["/jobs/shop/**"]));
    let shown = access(&["show", "token:shop", "--policy", "policy.toml"]).code(0).stdout;
    for expected in [
        "quota at each server: 3 links (as its bytes serve no more), 50000 bytes a second, \
         7 registered paths\n",
        "quota at each publisher (policy.toml:14): 5 waiting jobs on /jobs/shop/**\n",
    ] {
        assert!(shown.contains(expected), "{shown}");
    }
    let nothing = access(&["show", "anonymous", "--policy", "policy.toml"]).code(0);
    nothing.stderr_has(&["policy.toml allows nothing to anonymous"]);
    access(&["show", "token:shop"]).code(2).stderr_has(&["--policy FILE", "access.policy"]);
    fs::write(&file, rules.replace("'enqueue'", "'enque'")).unwrap();
    check(&["enqueue", "/jobs"]).code(2).stderr_has(&["policy.toml:3:", "enque"]);
}
