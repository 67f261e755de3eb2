//! Checks that files named in the documents' code spans, and link targets, exist.

use std::fs;
use std::path::{Path, PathBuf};

use crate::mutants::root;

fn documents() -> Vec<PathBuf> {
    let in_folder = |folder: PathBuf| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "md"))
    };
    in_folder(root()).chain(in_folder(root().join("docs"))).collect()
}

/// The parts of `text` between `begin` and `end`, each within one line.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    let in_line = move |line: &'a str| {
        let after = move |(at, _)| &line[at + begin.len()..];
        line.match_indices(begin).map(after).filter_map(move |rest| Some(rest.split_once(end)?.0))
    };
    text.lines().flat_map(in_line)
}

#[test]
fn files_and_links_in_documents_exist() {
    let folders: Vec<String> = fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .map(|entry| format!("{}/", entry.file_name().to_string_lossy()))
        .collect();
    let mut missing = Vec::new();
    let (mut files, mut links) = (0, 0);
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let is_file = |span: &&str| {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_-.".contains(c);
            folders.iter().any(|folder| span.starts_with(folder.as_str()))
                && span.chars().all(is_plain)
        };
        let named = between(&text, "`", "`").filter(is_file).filter(|f| !f.starts_with("target/"));
        for file in named {
            files += 1;
            if !root().join(file).exists() {
                missing.push(format!("{}: `{file}`", document.display()));
            }
        }
        let is_local = |target: &&str| !target.contains(':') && !target.starts_with('#');
        for link in between(&text, "](", ")").filter(is_local) {
            links += 1;
            let target = link.split('#').next().unwrap_or(link);
            if !document.parent().unwrap_or(Path::new("")).join(target).exists() {
                missing.push(format!("{}: ({link})", document.display()));
            }
        }
    }
    assert!(files > 50 && links > 20, "{files} files and {links} links were found");
    assert!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
}
