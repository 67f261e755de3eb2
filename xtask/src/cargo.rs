//! Commands that run cargo.

use std::ffi::OsStr;
use std::process::Command;

/// Variables that cargo sets for the program that it runs, here xtask.
const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// A command that runs cargo as a shell would. The build script of *ring* depends on the variables
/// of xtask's package: with them, cargo would build ring and all that uses it again.
pub(crate) fn cargo() -> Command {
    without_package("cargo")
}

/// A command without the variables of xtask's package.
pub(crate) fn without_package(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let prefixes = || OF_THIS_PACKAGE.iter();
        if name.to_str().is_some_and(|name| prefixes().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    command
}
