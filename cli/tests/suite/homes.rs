//! Homes: how publishers declare them, and how the declarations are listed.
#![allow(clippy::unwrap_used, reason = "its helpers are tests, too")]

use crate::common;

use common::{Service, longshore, run, wait_until};
use serde_json::{Value, json};

/// A replica and publishers, each with a folder of its own.
struct Case {
    folder: tempfile::TempDir,
    resolver: Service,
}

impl Case {
    fn start() -> Case {
        let resolver =
            longshore(&["resolver", "run", "--listen", "127.0.0.1:0", "--fresh", "--json"]);
        Case { folder: tempfile::tempdir().unwrap(), resolver: Service::start(resolver) }
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = longshore(arguments);
        command.args(["--resolver", self.resolver.text("address")]);
        command
    }

    fn publisher(&self, name: &str, arguments: &[&str]) -> std::process::Command {
        let run = ["publisher", "run", "--listen", "127.0.0.1:0", "--json", "--name", name];
        let mut command = self.command(&run);
        command.args(["--default", "/"]).args(arguments);
        command.arg("--data").arg(self.folder.path().join(name));
        command
    }

    /// `home ls`, once it has so many rows, and all publishers are known.
    fn homes(&self, publishers: usize, rows: usize) -> Vec<Value> {
        let listed = || {
            let listed = run(self.command(&["home", "ls", "--json"]), b"").code(0).json();
            listed["homes"].as_array().unwrap().clone()
        };
        wait_until("all are registered", || {
            let status = run(self.command(&["publisher", "status", "--json"]), b"").json();
            let known = status["publishers"].as_array().map_or(0, Vec::len);
            known == publishers && listed().len() == rows
        });
        listed()
    }
}

#[test]
fn declarations_that_differ_are_refused_and_listed() {
    let case = Case::start();
    for (arguments, words) in [
        (&["--home", "/a=pa", "--home", "/a/b=pb"][..], &["/a and /a/b cover the same"][..]),
        (&["--home", "/a"], &["/a", "PATTERN=NAME"]),
        (&["--home", "/a*=pa"], &["/a*", "one whole segment"]),
        (&["--home", "/a="], &["/a", "0 bytes"]),
    ] {
        run(case.publisher("pa", arguments), b"").code(2).stderr_has(words);
    }
    let file = case.folder.path().join("config.toml");
    std::fs::write(&file, "[homes]\n\"/a\" = \"pa\"\n\"/*\" = [\"pb\", \"pa\"]\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    run(case.publisher("pa", &config), b"")
        .code(2)
        .stderr_has(&["config.toml:", "/* and /a cover"]);
    std::fs::write(&file, "[homes]\n\"/a\" = \"pa\"\n\"/tenants/*\" = [\"pc\", \"pa\"]\n").unwrap();

    let _pa = Service::start(case.publisher("pa", &config));
    let pb_declares = ["--home", "/a=pa", "--home", "/tenants/*=pa,pb"];
    let _pb = Service::start(case.publisher("pb", &pb_declares));
    assert_eq!(
        json!(case.homes(2, 3)),
        json!([
            {
                "pattern": "/a", "homes": ["pa"], "declared_by": ["pa", "pb"],
                "not_declared_by": [], "missing": [],
            },
            {
                "pattern": "/tenants/*", "homes": ["pa", "pb"], "declared_by": ["pb"],
                "not_declared_by": ["pa"], "missing": [],
            },
            {
                "pattern": "/tenants/*", "homes": ["pa", "pc"], "declared_by": ["pa"],
                "not_declared_by": ["pb"], "missing": ["pc"],
            },
        ])
    );
    let shown = run(case.command(&["home", "ls"]), b"").code(0).stdout;
    let rows: Vec<Vec<&str>> = shown.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["/a", "pa", "pa,pb", "-", "-"], "{shown}");
    assert_eq!(rows[3], ["/tenants/*", "pa,pc", "pa", "pb", "pc"], "{shown}");

    // A job with a key is refused where they disagree, and goes to its home where they agree.
    let key = ["text", "--idempotency-key", "k", "--json"];
    let enqueue = |path: &str| run(case.command(&[&["enqueue", path][..], &key].concat()), b"");
    let moved = (0..50).map(|n| format!("/tenants/{n}")).find(|path| {
        let refused = enqueue(path);
        refused.stderr.contains("HomesDisagree")
            && refused.stderr.contains("pa declares")
            && refused.stderr.contains("pb declares")
    });
    assert!(moved.is_some(), "some tenant has different homes");
    enqueue("/a/b").code(0);
    let resolved = run(case.command(&["directory", "resolve", "/a/b", "--json"]), b"").json();
    assert_eq!(resolved["paths"][0]["publishers"][0]["name"], "pa");
    assert_eq!(resolved["paths"][0]["publishers"][0]["home"], "pa");
}

#[test]
fn a_publisher_with_keys_does_not_start_as_another_ones_neighbour() {
    let case = Case::start();
    let mut pa = Service::start(case.publisher("pa", &["--home", "/a=pa"]));
    case.homes(1, 1);
    let key = ["enqueue", "/a/b", "text", "--idempotency-key", "k"];
    run(case.command(&key), b"").code(0);
    pa.stop();
    run(case.publisher("pa", &["--home", "/a=pb"]), b"").code(1).stderr_has(&[
        "pb is declared as the home of /a/b",
        "has 1 keys with an end",
        "declare pa until the keys and jobs have ended",
    ]);
    let mut pa = Service::start(case.publisher("pa", &["--home", "/a=pa"]));
    pa.stop();
}
