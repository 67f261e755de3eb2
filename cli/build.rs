//! Records the commit and the profile of this build, for `longshore --version`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a commit's hash.
const DIGITS: usize = 8;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LONGSHORE_COMMIT");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let profile = profile();
    let build = match profile.as_str() {
        // A development build does not change with each commit, so that cargo builds nothing anew.
        "debug" => "debug build".to_owned(),
        _ => {
            let commit = commit().unwrap_or_else(|| "unknown".to_owned());
            format!("commit {commit}, {profile} build")
        }
    };
    println!("cargo::rustc-env=LONGSHORE_VERSION={version} ({build})");
}

/// The profile, such as `dist`: cargo names only the one that it inherits. The output folder is
/// `PROFILE/build/longshore-cli-HASH/out`.
fn profile() -> String {
    let inherited = env::var("PROFILE").unwrap_or_default();
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mut folders = out.ancestors().skip_while(|folder| !folder.ends_with("build"));
    let folder = folders.nth(1).and_then(Path::file_name).and_then(|name| name.to_str());
    folder.map_or(inherited, str::to_owned)
}

/// The commit: as given, as cargo has packaged it, or as git has it.
fn commit() -> Option<String> {
    if let Ok(given) = env::var("LONGSHORE_COMMIT") {
        return Some(given.chars().take(DIGITS).collect());
    }
    packaged_commit().or_else(git_commit)
}

/// From the file that `cargo package` adds.
fn packaged_commit() -> Option<String> {
    let file = fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, hash) = file.split_once("\"sha1\": \"")?;
    hash.get(..DIGITS).map(str::to_owned)
}

fn git_commit() -> Option<String> {
    // A repository around unpacked sources is another project's.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let head = git(&["rev-parse", "--git-path", "HEAD"])?;
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
    let branch = branch.and_then(|branch| git(&["rev-parse", "--git-path", &branch]));
    let packed = git(&["rev-parse", "--git-path", "packed-refs"]);
    // Cargo runs this again at each build if a file is missing.
    let files = [Some(head), branch, packed].into_iter().flatten();
    for file in files.filter(|file| Path::new(file).exists()) {
        println!("cargo::rerun-if-changed={file}");
    }
    git(&["rev-parse", &format!("--short={DIGITS}"), "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
