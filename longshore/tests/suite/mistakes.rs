//! What the compiler reports about mistakes in kinds and handlers.
//!
//! Each program in `tests/mistakes` has the sentences that its errors must contain, in comments
//! `//~^` below the line that the error must point to. Only our own sentences are compared: the
//! rest changes with the compiler.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

/// An error's line and text.
type Error = (u64, String);

/// Checks all programs in one run of cargo, which shares the workspace's lock file, profile and
/// target folder. Returns the errors by program.
fn errors(programs: &[String]) -> anyhow::Result<BTreeMap<String, Vec<Error>>> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    let workspace = library.parent().unwrap_or(library);
    let manifest = fs::read_to_string(workspace.join("Cargo.toml"))?;
    let profiles = manifest.find("[profile.").map_or("", |start| &manifest[start..]);
    let mut project = format!(
        "[package]\nname = \"mistakes\"\nedition = \"2024\"\n[workspace]\nresolver = \"3\"\n\
         [dependencies]\nserde = {{ version = \"1\", features = [\"derive\"] }}\n\
         longshore = {{ path = {library:?}, default-features = false, \
         features = [\"producer\", \"worker\"] }}\n{profiles}\n"
    );
    for name in programs {
        let path = library.join(format!("tests/mistakes/{name}.rs"));
        project += &format!("[[bin]]\nname = {name:?}\npath = {path:?}\n");
    }
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("Cargo.toml"), project)?;
    fs::copy(workspace.join("Cargo.lock"), folder.path().join("Cargo.lock"))?;
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| workspace.join("target").into());
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["check", "--offline", "--keep-going", "--message-format=json"])
        .current_dir(folder.path())
        .env("CARGO_TARGET_DIR", std::path::absolute(target)?);
    // The build script of *ring* depends on these: with this test's own, cargo would build it and
    // all that uses it again, here and at the next build.
    for (name, _) in env::vars_os() {
        let of_this_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| of_this_package.iter().any(|p| name.starts_with(p))) {
            cargo.env_remove(name);
        }
    }
    let cargo = cargo.output()?;
    let mut errors: BTreeMap<String, Vec<Error>> = BTreeMap::new();
    for line in String::from_utf8(cargo.stdout)?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let (message, text) = (&line["message"], line["message"]["rendered"].as_str());
        let spans = message["spans"].as_array().into_iter().flatten();
        let mut primary = spans.filter(|span| span["is_primary"] == true);
        if let (true, Some(text), Some(at)) = (message["level"] == "error", text, primary.next()) {
            let at = &at["line_start"];
            let name = line["target"]["name"].as_str().unwrap_or_default().to_owned();
            errors.entry(name).or_default().push((at.as_u64().unwrap_or(0), text.to_owned()));
        }
    }
    anyhow::ensure!(!errors.is_empty(), "{}", String::from_utf8_lossy(&cargo.stderr));
    Ok(errors)
}

/// The sentences that a program expects, with the line of each.
fn expected(program: &str) -> Vec<Error> {
    let (mut at, mut expected) = (0, Vec::new());
    for (number, line) in (1..).zip(program.lines()) {
        match line.trim().strip_prefix("//~^ ") {
            Some(sentence) => expected.push((at, sentence.to_owned())),
            None => at = number,
        }
    }
    expected
}

#[test]
fn mistakes_are_explained_where_they_are() -> anyhow::Result<()> {
    let mut programs = BTreeMap::new();
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes"))? {
        let path = file?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        programs.insert(name, expected(&fs::read_to_string(path)?));
    }
    let names: Vec<String> = programs.keys().cloned().collect();
    let mut reported = errors(&names)?;
    for (name, expected) in programs {
        let errors = reported.remove(&name).unwrap_or_default();
        let shown: String = errors.iter().map(|(_, text)| text.as_str()).collect();
        assert!(!expected.is_empty(), "{name} expects nothing\n{shown}");
        for (at, sentence) in &expected {
            let is = |error: &&Error| error.0 == *at && error.1.contains(sentence);
            assert!(errors.iter().any(|error| is(&error)), "{name}:{at}: {sentence}\n{shown}");
        }
        for (at, text) in &errors {
            let is = |sentence: &&Error| sentence.0 == *at && text.contains(&sentence.1);
            assert!(expected.iter().any(|sentence| is(&sentence)), "{name}:{at} has\n{text}");
        }
    }
    Ok(())
}
