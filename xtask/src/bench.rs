//! `cargo xtask bench`: compares Longshore with similar systems. The benchmarks are in `bench/`,
//! outside the workspace: the other systems have many dependencies and need system libraries, which
//! the workspace's checks should not build.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

use crate::cargo::cargo;
use crate::mutants::root;

/// Programs that find Kerberos, which netidx links; one is enough.
const KERBEROS: [(&str, &[&str]); 2] =
    [("krb5-config", &["--version"]), ("pkg-config", &["--exists", "mit-krb5-gssapi"])];
const NO_KERBEROS: &str = "\
netidx needs Kerberos, which neither krb5-config nor pkg-config finds.
On Debian: apt-get install libkrb5-dev libclang-dev";
const NOT_BUILT: &str = "\
the comparison does not compile.
It needs the system libraries libkrb5-dev and libclang-dev (see bench/README.md)";

/// Builds and runs the benchmark; false if it failed and printed why.
pub(crate) fn compare(what: &str, options: &[String]) -> anyhow::Result<bool> {
    if !has_kerberos(succeeds) {
        bail!(NO_KERBEROS);
    }
    if !run("build", &[])? {
        bail!(NOT_BUILT);
    }
    let mut arguments = vec!["--quiet", "--", what];
    arguments.extend(options.iter().map(String::as_str));
    run("run", &arguments)
}

fn has_kerberos(succeeds: impl Fn(&str, &[&str]) -> bool) -> bool {
    KERBEROS.iter().any(|(program, arguments)| succeeds(program, arguments))
}

/// True if the program exists and exits with success.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs Cargo in the workspace of `bench/`. Not with `--locked`: its lock file lacks new
/// dependencies of Longshore's crates until the next build. The build folder is separate too,
/// unless CARGO_TARGET_DIR is set.
fn run(what: &str, arguments: &[&str]) -> anyhow::Result<bool> {
    let mut command = cargo();
    command.args([what, "--release", "--manifest-path"]);
    command.arg(root().join("bench/Cargo.toml")).args(arguments);
    Ok(command.status().context("cannot run cargo")?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kerberos_is_found_by_either_program() {
        assert!(has_kerberos(|program, _| program == "krb5-config"));
        assert!(has_kerberos(|program, _| program == "pkg-config"));
        assert!(!has_kerberos(|_, _| false));
        assert!(NO_KERBEROS.contains("libkrb5-dev"));
    }

    #[test]
    fn a_missing_program_does_not_succeed() {
        assert!(!succeeds("a-missing-program", &[]));
        assert!(succeeds("cargo", &["--version"]));
        assert!(!succeeds("cargo", &["--an-unknown-flag"]));
    }
}
