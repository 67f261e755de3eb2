//! `cargo xtask api`: compares the public items of the libraries with an earlier revision. What
//! `longshore` re-exports belongs to the crate that defines it, so each of them is compared.

use std::process::Command;

use anyhow::{Context as _, bail};

use crate::cargo::cargo;
use crate::mutants::root;

/// The crates whose items the library shows.
const LIBRARIES: [&str; 9] = [
    "longshore",
    "longshore-kinds",
    "longshore-producer",
    "longshore-protocol",
    "longshore-publisher",
    "longshore-queue",
    "longshore-resolver",
    "longshore-subscriber",
    "longshore-transport",
];

pub(crate) fn compare(since: Option<String>) -> anyhow::Result<bool> {
    let Some(revision) = since.map_or_else(last_release, |revision| Ok(Some(revision)))? else {
        println!("nothing is released yet; compare with any revision: --since REV");
        return Ok(true);
    };
    let found = cargo().args(["semver-checks", "--version"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        bail!(
            "cargo-semver-checks is not installed, run: cargo install --locked cargo-semver-checks"
        );
    }
    let mut check = cargo();
    check.args(["semver-checks", "--baseline-rev", &revision]).current_dir(root());
    check.args(LIBRARIES.iter().flat_map(|library| ["--package", library]));
    Ok(check.status().context("cargo semver-checks")?.success())
}

/// The newest tag of a version.
fn last_release() -> anyhow::Result<Option<String>> {
    let arguments = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"];
    let found = Command::new("git").args(arguments).current_dir(root()).output().context("git")?;
    let tag = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    Ok((found.status.success() && !tag.is_empty()).then_some(tag))
}
