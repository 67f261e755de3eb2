//! `cargo xtask bench`: Longshore beside its peers. What measures lies in `bench/`, outside the
//! workspace: peers bring many dependencies and want libraries of the system, and nothing that has
//! to hold is built with them.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail};

use crate::mutants::root;

/// What netidx is linked with, in any of these ways.
const KERBEROS: [(&str, &[&str]); 2] =
    [("krb5-config", &["--version"]), ("pkg-config", &["--exists", "mit-krb5-gssapi"])];
const NO_KERBEROS: &str = "netidx is linked with Kerberos, which is not installed: neither krb5-config nor pkg-config knows it.
On Debian: apt-get install libkrb5-dev libclang-dev";
const NOT_BUILT: &str = "the comparison could not be built.
Its peers want libraries of the system: libkrb5-dev, and libclang-dev for what describes it to Rust (bench/README.md)";

/// The command, with what stands behind its name.
pub(crate) fn command(arguments: &[&str]) -> ExitCode {
    match compare(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Builds what measures, and runs it; false when it has failed and said why.
fn compare(arguments: &[&str]) -> anyhow::Result<bool> {
    if !has_kerberos(succeeds) {
        bail!(NO_KERBEROS);
    }
    if !cargo("build", &[])? {
        bail!(NOT_BUILT);
    }
    let arguments: Vec<&str> = [&["--quiet", "--"], arguments].concat();
    cargo("run", &arguments)
}

fn has_kerberos(succeeds: impl Fn(&str, &[&str]) -> bool) -> bool {
    KERBEROS.iter().any(|(program, arguments)| succeeds(program, arguments))
}

/// Whether the program is there and has no complaint.
fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs Cargo in the comparison's own workspace. Not with `--locked`: its lock file knows of a new
/// dependency of Longshore's crates only once it is built again, and holds what it has all the
/// same. Its folder of builds is its own, too, unless CARGO_TARGET_DIR says otherwise.
fn cargo(what: &str, arguments: &[&str]) -> anyhow::Result<bool> {
    let mut command = Command::new("cargo");
    // What Cargo has told us of ourselves: build scripts of netidx's dependencies would take it for
    // news, and all of it be built again.
    let ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
        command.env_remove(name);
    }
    command.args([what, "--release", "--manifest-path"]);
    command.arg(root().join("bench/Cargo.toml")).args(arguments);
    Ok(command.status().context("cannot run cargo")?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kerberos_is_found_by_either_way_and_missed_without_both() {
        assert!(has_kerberos(|program, _| program == "krb5-config"));
        assert!(has_kerberos(|program, _| program == "pkg-config"));
        assert!(!has_kerberos(|_, _| false));
        assert!(NO_KERBEROS.contains("libkrb5-dev"));
    }

    #[test]
    fn a_program_that_is_not_there_does_not_succeed() {
        assert!(!succeeds("a-program-that-nobody-has", &[]));
        assert!(succeeds("cargo", &["--version"]));
        assert!(!succeeds("cargo", &["--a-flag-that-cargo-does-not-have"]));
    }
}
