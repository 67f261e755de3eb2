//! `longshore cert`: an authority, its certificates in links over mutual TLS, and what is shown.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{CommandOutput, longshore, run};
use longshore::protocol::{Handshake, LinkTiming, Role, SessionId};
use longshore_transport::{
    Access, DialError, Link, LinkOptions, Listener, ListenerOptions, ServerInfo, TlsAcceptor,
    TlsDialer, dial,
};

fn cert(folder: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = longshore(&["cert"]);
    command.args(arguments).current_dir(folder);
    run(command, b"")
}

/// A folder with an authority, and certificates of these names for 127.0.0.1.
fn authority(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    cert(folder.path(), &["ca"]).code(0);
    for name in names {
        cert(folder.path(), &["issue", name, "--host", "127.0.0.1"]).code(0);
    }
    folder
}

fn files(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")))
}

async fn dialled(
    address: SocketAddr,
    authority: &Path,
    identity: Option<(PathBuf, PathBuf)>,
) -> Result<Link, DialError> {
    let identity = identity.as_ref().map(|(pem, key)| (pem.as_path(), key.as_path()));
    let tls = TlsDialer::from_pem(&authority.join("ca.pem"), None, identity).unwrap();
    let access = Access { tls: Some(tls), ..Access::default() };
    let options = LinkOptions::default().or_access(&access);
    let handshake = Handshake::new(Role::Worker, SessionId([1; 16]), "worker", LinkTiming::WORK);
    let dialled = dial(address, &handshake, &options);
    tokio::time::timeout(Duration::from_secs(20), dialled).await.unwrap()
}

#[tokio::test]
async fn members_of_one_authority_link_over_mutual_tls_and_strangers_do_not() {
    let (ours, theirs) = (authority(&["server", "worker"]), authority(&["stranger"]));
    let (ours, theirs) = (ours.path(), theirs.path());
    let (chain, key) = files(ours, "server");
    let tls = TlsAcceptor::from_pem(&chain, &key, Some(&ours.join("ca.pem"))).unwrap();
    let options = ListenerOptions { tls: Some(tls), ..ListenerOptions::default() };
    let info = ServerInfo { instance: [9; 16], epoch: 4, name: "here".into(), serves: |_| true };
    let loopback = (Ipv4Addr::LOCALHOST, 0).into();
    let mut listener = Listener::bind(loopback, info, options).unwrap();
    let address = listener.local_address();
    let worker = || Some(files(ours, "worker"));

    let _link = dialled(address, ours, worker()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(20), listener.accept()).await.unwrap();
    // A stranger, nobody, and a client that expects another authority's server.
    for (authority, identity) in
        [(ours, Some(files(theirs, "stranger"))), (ours, None), (theirs, worker())]
    {
        let error = dialled(address, authority, identity).await.err().unwrap();
        assert!(matches!(error, DialError::Tls { .. }), "{error}");
    }
}

#[test]
fn keys_are_private_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let at = |arguments: &[&str]| cert(folder.path(), arguments);
    at(&["issue", "a", "--dir", "tls"]).code(1).stderr_has(&["longshore cert ca --dir tls"]);
    let made =
        at(&["ca", "--dir", "tls", "--name", "ours", "--days", "30", "--json"]).code(0).json();
    let issued =
        at(&["issue", "a", "--dir", "tls", "--uri", "urn:a", "--host", "a.test", "--json"]);
    let json = issued.code(0).json();
    assert_eq!(json["certificate_file"], "tls/a.pem");
    assert_eq!(json["identity"], "uri:urn:a");
    assert_eq!(json["dns"], serde_json::json!(["a.test"]));
    assert_eq!(json["valid_until"], made["valid_until"], "it ends with its authority");
    assert_eq!(json["issuer"], "CN=ours");
    let text = at(&["issue", "b", "--dir", "tls", "--out", "more", "--days", "3"]).code(0).stdout;
    assert!(text.contains("identity       cn:b\n"), "{text}");
    assert!(text.contains("hosts          none"), "{text}");
    let flags = "--tls-ca tls/ca.pem --tls-certificate more/b.pem --tls-key more/b.key\n";
    assert!(text.ends_with(flags), "{text}");

    let mode = |file: &str| {
        let file = fs::metadata(folder.path().join(file)).unwrap();
        file.permissions().mode() & 0o777
    };
    assert_eq!(["tls/ca.key", "tls/a.key", "more/b.key"].map(mode), [0o600; 3]);
    let names = fs::read_dir(folder.path().join("tls")).unwrap();
    assert_eq!(names.count(), 4, "no temporary file is left");

    let read = || {
        ["ca.pem", "ca.key", "a.pem", "a.key"]
            .map(|name| fs::read(folder.path().join("tls").join(name)).unwrap())
    };
    let before = read();
    at(&["ca", "--dir", "tls"]).code(1).stderr_has(&["tls/ca.key exists already", "remove it"]);
    let again = at(&["issue", "a", "--dir", "tls", "--json"]).code(1);
    assert!(again.stderr.contains("tls/a.key exists already"), "{again:?}");
    // One of the two is enough.
    fs::remove_file(folder.path().join("more/b.key")).unwrap();
    at(&["issue", "b", "--dir", "tls", "--out", "more"]).code(1).stderr_has(&["more/b.pem exists"]);
    assert_eq!(fs::read_dir(folder.path().join("more")).unwrap().count(), 1);
    assert!(before == read(), "a file has changed");

    fs::set_permissions(folder.path().join("tls/a.key"), fs::Permissions::from_mode(0o640))
        .unwrap();
    let renewed = at(&["issue", "a", "--dir", "tls", "--replace"]).code(0).stdout;
    assert!(renewed.contains("key            tls/a.key\n"), "{renewed}");
    let after = read();
    assert!(before[..2] == after[..2] && before[2] != after[2] && before[3] != after[3]);
    assert_eq!(mode("tls/a.key"), 0o640, "a service's group may read it");

    fs::set_permissions(folder.path().join("tls/ca.key"), fs::Permissions::from_mode(0o644))
        .unwrap();
    // Files are made also for a configuration that is not valid yet.
    fs::write(folder.path().join("config.toml"), "nonsense = 1\n").unwrap();
    at(&["issue", "c", "--dir", "tls", "--config", "config.toml"])
        .code(0)
        .stderr_has(&["other users can read tls/ca.key"]);
}

#[test]
fn certificates_are_shown_with_what_is_wrong_and_without_keys() {
    let folder = authority(&["a", "b"]);
    let at = |arguments: &[&str]| cert(folder.path(), arguments);
    let file = |name: &str| folder.path().join(name);
    // A chain with its key in one file; another's key beside a certificate; a hostile author.
    let pem = |name: &str| fs::read_to_string(file(name)).unwrap();
    fs::write(file("chain.pem"), [pem("a.pem"), pem("a.key"), pem("ca.pem")].concat()).unwrap();
    fs::copy(file("a.key"), file("b.key")).unwrap();
    let mut params = rcgen::CertificateParams::new(["x.test".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "\x1b[31mroot\n  key  fits");
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    fs::write(file("hostile.pem"), params.self_signed(&key).unwrap().pem()).unwrap();

    let json = at(&["show", "chain.pem", "b.pem", "hostile.pem", "ca.pem", "--json"]).code(0);
    let shown = json.json()["certificates"].as_array().unwrap().clone();
    let fits: Vec<_> = shown.iter().map(|one| one["key"]["fits"].clone()).collect();
    let (yes, no, none) = (true.into(), false.into(), serde_json::Value::Null);
    assert_eq!(fits, [yes, none.clone(), no, none, true.into()], "{shown:#?}");
    assert_eq!((&shown[1]["position"], &shown[1]["ca"]), (&2.into(), &true.into()));
    assert_eq!(shown[0]["identity"], "cn:a");
    assert_eq!(shown[3]["validity"], "expired");

    let text = at(&["show", "chain.pem", "b.pem", "hostile.pem"]).code(0);
    assert!(text.stdout.contains("b.key DOES NOT FIT"), "{text:?}");
    assert!(text.stdout.contains("chain.pem fits"), "{text:?}");
    assert!(text.stdout.contains("\\u{1b}[31mroot\\n"), "{text:?}");
    assert!(text.stdout.contains("2020-01-01T00:00:00Z: EXPIRED"), "{text:?}");
    let text = text.stderr_has(&["b.key is another certificate's", "hostile.pem: EXPIRED"]);
    let printed = [json.stdout, json.stderr, text.stdout, text.stderr].concat();
    assert!(!printed.contains('\x1b'), "{printed}");
    for name in ["a.key", "ca.key"] {
        let key = pem(name);
        let secret = key.lines().nth(2).unwrap();
        assert!(!printed.contains(&secret[..16]), "{name} was printed");
    }
    // What cannot be read is named, and the rest is shown.
    let rest = at(&["show", "a.key", "missing.pem", "a.pem"]).code(1);
    let rest = rest.stderr_has(&["a.key has a private key and no certificate", "missing.pem"]);
    assert!(rest.stdout.contains("CN=a"), "{rest:?}");
}
