//! Checks that files named in the documents' code spans, link targets and their anchors exist.

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

/// Whether a heading has that anchor, as forges form it: lower case, blanks as hyphens, without
/// other punctuation.
fn has_anchor(text: &str, anchor: &str) -> bool {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim().to_lowercase()).any(|heading| {
        let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        heading.chars().filter(is_kept).collect::<String>().replace(' ', "-") == anchor
    })
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
        for link in between(&text, "](", ")").filter(|target| !target.contains(':')) {
            links += 1;
            let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match target {
                "" => document.clone(),
                target => document.parent().unwrap_or(Path::new("")).join(target),
            };
            let found = match anchor {
                "" => target.exists(),
                anchor => fs::read_to_string(target).is_ok_and(|text| has_anchor(&text, anchor)),
            };
            if !found {
                missing.push(format!("{}: ({link})", document.display()));
            }
        }
    }
    assert!(files > 50 && links > 20, "{files} files and {links} links were found");
    assert!(missing.is_empty(), "missing:\n{}", missing.join("\n"));
}
