//! Compares the tables and examples of `docs/PROTOCOL.md` with the source and the golden vectors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::vectors;
use longshore_protocol::messages::{resolver, values, work};
use longshore_protocol::*;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn document() -> String {
    fs::read_to_string(root().join("../docs/PROTOCOL.md")).expect("docs/PROTOCOL.md")
}

/// The rows of the first table below a heading: its cells, without back quotes and surrounding
/// blanks.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let mut lines =
        document.lines().skip_while(|line| line.trim_start_matches('#') != format!(" {heading}"));
    assert!(lines.next().is_some(), "PROTOCOL.md has no heading '{heading}'");
    lines
        .take_while(|line| !line.starts_with('#'))
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|c| c.trim().replace('`', "")).collect())
        .collect()
}

/// The codes and names of the list below a heading: `- 1 `Name`: meaning`.
fn codes_listed(document: &str, heading: &str) -> Vec<(u64, String)> {
    let (_, rest) = document.split_once(&format!("\n### {heading}\n")).expect(heading);
    let items = rest.lines().take_while(|line| !line.starts_with('#'));
    items
        .filter_map(|line| line.strip_prefix("- ")?.split_once(" `"))
        .map(|(code, name)| {
            let (name, _) = name.split_once('`').expect("a name in back quotes");
            (code.parse().unwrap_or_else(|_| panic!("{heading}: '{code}'")), name.to_owned())
        })
        .collect()
}

/// The number and name of each row.
fn numbered(document: &str, heading: &str) -> Vec<(u64, String)> {
    let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("{heading}: '{cell}'"));
    table(document, heading).iter().map(|row| (number(&row[0]), row[1].clone())).collect()
}

/// Parses `pub const NAME: type = value;`, where a value is a product of numbers.
fn constants(source: &str) -> Vec<(String, u64)> {
    source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub const ")?.split_once(": "))
        .filter_map(|(name, rest)| {
            let value = rest.split_once(" = ")?.1.strip_suffix(';')?;
            let factors =
                value.split('*').map(|factor| factor.trim().replace('_', "").parse::<u64>());
            Some((name.to_owned(), factors.product::<Result<u64, _>>().ok()?))
        })
        .collect()
}

fn source(file: &str) -> String {
    fs::read_to_string(root().join("src").join(file)).expect("a source file")
}

#[test]
fn tag_tables_match_the_source() {
    let document = document();
    for (tags, tables) in [
        (work::tag::ALL, ["From a client to a publisher", "From a publisher to a client"]),
        (resolver::tag::ALL, ["From a client to a replica", "From a replica to a client"]),
        (
            values::tag::ALL,
            ["From a subscriber to a publisher", "From a publisher to a subscriber"],
        ),
    ] {
        let rows = tables.iter().flat_map(|heading| numbered(&document, heading));
        let documented: BTreeMap<u64, String> = rows.collect();
        let tags = tags.iter().map(|(tag, name)| (u64::from(*tag), (*name).to_owned())).collect();
        assert_eq!(documented, tags);
    }
    assert!(document.contains(&format!("**Heartbeat**, tag {},", messages::HEARTBEAT)));
}

#[test]
fn code_lists_match_the_source() {
    let document = document();
    let mut tables: BTreeMap<&str, Vec<(u64, String)>> = BTreeMap::new();
    macro_rules! codes {
        ($($name:ident: $type:ty),* $(,)?) => {$(
            let all = <$type>::ALL.iter().map(|code| (u64::from(code.code()), format!("{code:?}")));
            tables.insert(stringify!($name), all.collect());
        )*};
    }
    every_code!(codes);
    for (heading, codes) in &tables {
        assert_eq!(&codes_listed(&document, heading), codes, "{heading}");
    }
    assert_eq!(
        tables.len(),
        count_code_enums(&root().join("src")),
        "an enum of codes is not compared"
    );
}

#[test]
fn limit_table_matches_the_source() {
    let document = document();
    let (_, limits) = document.split_once("\n## Limits\n").expect("the limits");
    // - `NAME` value: meaning
    let items = limits.lines().filter_map(|line| line.strip_prefix("- `")?.split_once("` "));
    let number = |text: &str| text.split(':').next()?.replace(',', "").parse().ok();
    let documented: Vec<(String, u64)> =
        items.map(|(name, rest)| (name.to_owned(), number(rest).expect(name))).collect();
    let source = source("limits.rs");
    assert_eq!(source.matches("\npub const ").count(), documented.len());
    assert_eq!(documented, constants(&source));
}

#[test]
fn examples_match_the_golden_vectors() {
    let known: BTreeMap<String, Vec<u8>> = vectors::vectors().into_iter().collect();
    let document = document();
    let mut examples = 0;
    for example in document.split("```hex ").skip(1) {
        let (name, rest) = example.split_once('\n').expect("a name");
        let (hex, _) = rest.split_once("```").expect("an end");
        assert_eq!(Some(&vectors::from_text(hex)), known.get(name), "{name}");
        examples += 1;
    }
    assert!(examples >= 3);
}

/// Counts the uses of the macro that declares enums of codes.
fn count_code_enums(folder: &Path) -> usize {
    let entries =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries
        .map(|path| match path.is_dir() {
            true => count_code_enums(&path),
            false => {
                let text = fs::read_to_string(&path).expect("a source file");
                text.lines().filter(|line| line.starts_with("codes! {")).count()
            }
        })
        .sum()
}
