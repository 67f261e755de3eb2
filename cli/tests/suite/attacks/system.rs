//! A replica and a publisher with TLS, a policy and tokens.

use std::fs;
use std::process::Command;

use longshore::{Access, Cluster, PublisherId, TlsDialer, TokenSource};
use longshore_tests::hostile::{GROUND, OTHERS, Target};
use tempfile::TempDir;

use super::server::Server;
use crate::common::harness::{publisher_id, timing};
use crate::common::{long, longshore, run, wait_until};

const CLUSTER: &str = "attacked";

/// In the short form, few links and little memory.
const SMALL: &str = "[resolver]\nreceived_bytes_max = 33554432\nmetrics = false\n\
                     [publisher]\ncache_bytes = 1048576\n";

pub(super) struct SecuredSystem {
    pub(super) replica: Server,
    pub(super) publisher: Server,
    pub(super) target: Target,
    shop: String,
    folder: TempDir,
}

impl SecuredSystem {
    /// Servers that may open so many files each.
    pub(super) fn start(files: u64) -> SecuredSystem {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let here = |arguments: &[&str]| {
            let mut command = longshore(arguments);
            command.current_dir(folder.path());
            command
        };
        run(here(&["cert", "ca"]), b"").code(0);
        run(here(&["cert", "issue", "host", "--host", "127.0.0.1"]), b"").code(0);
        let token = |name: &str| {
            let made = run(here(&["token", "create", name, "--file", "tokens.toml"]), b"").code(0);
            made.stdout.trim().to_owned()
        };
        let (shop, mallory, trudy) = (token("shop"), token("mallory"), token("trudy"));
        let id = publisher_id(&at("data"));
        fs::write(at("policy.toml"), policy(id)).unwrap();
        let server = |name: &'static str, arguments: &[&str]| {
            let config = format!(
                "cluster = '{CLUSTER}'\n[tls]\nca = 'ca.pem'\ncertificate = 'host.pem'\n\
                 key = 'host.key'\nclient_certificates = 'optional'\n[access]\n\
                 policy = 'policy.toml'\ntokens = 'tokens.toml'\naudit = '{name}.audit'\n{}",
                if long() { "" } else { SMALL }
            );
            let file = format!("{name}.toml");
            fs::write(at(&file), config).unwrap();
            let mut command = here(arguments);
            command.args(["--listen", "127.0.0.1:0", "--json", "--config", &file]);
            Server::start(name, &command, files)
        };
        let replica = server("replica", &["resolver", "run", "--fresh", "--data", "replica"]);
        let address = replica.service.text("address").to_owned();
        let arguments = ["publisher", "run", "--data", "data", "--default", "/"];
        let publisher = server("publisher", &[&arguments[..], &["--resolver", &address]].concat());
        let target = Target {
            publisher: publisher.service.text("address").parse().unwrap(),
            publisher_id: id,
            replica: address.parse().unwrap(),
            cluster: CLUSTER.to_owned(),
            mallory,
            trudy,
            authority: Target::authority(&at("ca.pem")),
        };
        let system = SecuredSystem { replica, publisher, target, shop, folder };
        wait_until("the publisher is registered", || {
            run(system.of_shop(&["enqueue", OTHERS, "a job"]), b"").code == 0
        });
        system
    }

    /// The tokens of all clients.
    pub(super) fn secrets(&self) -> [&str; 3] {
        [&self.shop, &self.target.mallory, &self.target.trudy]
    }

    /// A command of an honest client.
    fn of_shop(&self, arguments: &[&str]) -> Command {
        let mut command = longshore(arguments);
        command.args(["--resolver", &self.target.replica.to_string(), "--cluster", CLUSTER]);
        command.args(["--tls-ca", "ca.pem"]).env("LONGSHORE_TOKEN", &self.shop);
        command.current_dir(self.folder.path());
        command
    }

    /// The cluster as honest clients know it. They dial again within 300 ms if they were displaced.
    pub(super) fn cluster(&self) -> Cluster {
        let authority = self.folder.path().join("ca.pem");
        let tls = TlsDialer::from_pem(&authority, None, None).unwrap();
        let token = TokenSource::from_secret(&self.shop).unwrap();
        let access = Access { cluster: CLUSTER.to_owned(), tls: Some(tls), token: Some(token) };
        Cluster { access, timing: timing(), ..Cluster::new([self.target.replica.to_string()]) }
    }
}

fn policy(publisher: PublisherId) -> String {
    let allow = |who: &str, actions: &[&str], path: &str| {
        format!("[[allow]]\nwho = ['{who}']\ndo = {actions:?}\npaths = ['{path}/**']\n")
    };
    [
        format!("[publishers]\n'{publisher}' = ['cn:host']\n"),
        allow("cn:host", &["serve", "publish", "resolve"], ""),
        allow("token:shop", &["enqueue", "work", "inspect", "resolve"], "/shop"),
        allow("token:mallory", &["*"], GROUND),
        allow("token:trudy", &["*"], GROUND),
    ]
    .concat()
}
