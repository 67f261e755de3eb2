//! Which texts are paths, which are globs, and which paths a glob matches, compared with a naive
//! matcher.

use longshore_protocol::{Glob, Path};
use proptest::prelude::*;

#[test]
fn invalid_paths_are_refused_with_an_explanation() {
    let long = format!("/{}", ["x"; 513].join("/"));
    let (wide, deep) = (format!("/{}", "x".repeat(256)), "/x".repeat(33));
    let table: &[(&str, &str)] = &[
        ("", "path '' does not begin with '/'"),
        ("jobs/mail", "path 'jobs/mail' does not begin with '/'"),
        ("jobs\u{1b}[2J", "path 'jobs\\u{1b}[2J' does not begin with '/'"),
        (
            "/jobs/",
            "path '/jobs/' has an empty segment; write it without a trailing or doubled '/'",
        ),
        (
            "//jobs",
            "path '//jobs' has an empty segment; write it without a trailing or doubled '/'",
        ),
        ("/jobs/../mail", "path '/jobs/../mail' has a segment '.' or '..'; write the path in full"),
        ("/.", "path '/.' has a segment '.' or '..'; write the path in full"),
        (&long, "path of 1026 bytes is over the limit of 1024 bytes"),
        (&wide, "path segment of 256 bytes is over the limit of 255 bytes"),
        (&deep, "path of 33 segments is over the limit of 32"),
        (
            "/jobs/a\nb",
            "path '/jobs/a\\nb' contains the character '\\n'; \
             control characters and * ? { } [ ] are not allowed",
        ),
        (
            "/jobs/*",
            "path '/jobs/*' contains the character '*'; \
             control characters and * ? { } [ ] are not allowed",
        ),
    ];
    for (text, error) in table {
        assert_eq!(Path::new(text).unwrap_err().to_string(), *error);
    }
}

#[test]
fn paths_at_their_limits_are_accepted() {
    let wide = format!("/{}", "x".repeat(255));
    for text in
        ["/", "/a", "/a b/'c\"/é…", "/.a/..b/c./...", &wide, &"/x".repeat(32), &wide.repeat(4)]
    {
        assert_eq!(Path::new(text).unwrap().as_str(), text);
    }
    assert!(Path::new("/sys/links").unwrap().is_reserved());
    assert!(!Path::new("/system").unwrap().is_reserved());
}

#[test]
fn invalid_globs_are_refused_with_an_explanation() {
    let (long, braces) = ("/x".repeat(513), format!("/a{}", "{b}".repeat(33)));
    let many = "/{a,b}".repeat(9);
    let large = format!("/{{{}}}/{}", ["a"; 200].join(","), "x".repeat(100));
    let too_many = |glob: &str| {
        format!("the braces of glob '{glob}' stand for over 256 alternatives or 16384 bytes")
    };
    let table: &[(&str, &str)] = &[
        (&long, "glob of 1026 bytes is over the limit of 1024 bytes"),
        (&braces, "glob with 33 pairs of braces is over the limit of 32"),
        (&many, &too_many(&many)),
        (&large, &too_many(&large)),
        ("/a/{b", "glob '/a/{b' has a brace without its partner"),
        ("/a/b}", "glob '/a/b}' has a brace without its partner"),
        (
            "/a/**b",
            "glob '/a/**b' has '**' beside other characters; it stands for whole segments only",
        ),
        (
            "/a/***",
            "glob '/a/***' has '**' beside other characters; it stands for whole segments only",
        ),
        ("/a[b]", "glob '/a[b]' has '[' or ']'; use {a,b} for alternatives"),
        ("a/*", "glob 'a/*': path 'a/x' does not begin with '/'"),
        (
            "/a/../*",
            "glob '/a/../*': path '/a/../x' has a segment '.' or '..'; write the path in full",
        ),
    ];
    for (text, error) in table {
        assert_eq!(Glob::new(text).unwrap_err().to_string(), *error);
    }
    for glob in ["", "/a//b", "/a/", "/{a,}/b"] {
        assert!(Glob::new(glob).is_err(), "{glob}");
    }
}

#[test]
fn costly_globs_are_refused_or_matched_quickly() {
    let start = std::time::Instant::now();
    let many_alternatives_then_braces = format!("/{{{}}}{}", ",".repeat(250), "{a}".repeat(250));
    assert!(Glob::new(&many_alternatives_then_braces).is_err());
    let stars = Glob::new(&format!("/{}b", "*a".repeat(120))).unwrap();
    assert!(!stars.matches(&Path::new(&format!("/{}", "a".repeat(255))).unwrap()));
    let deep = Glob::new(&format!("{}/z", "/**/a".repeat(15))).unwrap();
    assert!(!deep.matches(&Path::new(&"/a".repeat(32)).unwrap()));
    // Backtracking would take forever; the bounded algorithm takes less than a millisecond.
    assert!(start.elapsed().as_secs() < 5);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn globs_match_like_the_naive_matcher(
        glob in "(/([abé*?]{1,4}|\\*\\*|\\{a,b\\*?,\\{ab,\\?\\}b\\})){1,4}",
        path in "(/[abé]{1,3}){0,5}",
    ) {
        let path = Path::new(if path.is_empty() { "/" } else { &path }).unwrap();
        if let Ok(glob) = Glob::new(&glob) {
            prop_assert_eq!(glob.matches(&path), naive(glob.as_str(), path.as_str()));
        }
    }

    #[test]
    fn ancestors_of_a_match_could_match(
        glob in "(/([ab*?]{1,2}|\\*\\*)){1,4}",
        path in "(/[ab]{1,2}){1,5}",
        above in 0usize..5,
    ) {
        let (Ok(glob), path) = (Glob::new(&glob), Path::new(&path).unwrap()) else { return Ok(()) };
        let base = (0..above).fold(path.clone(), |p, _| p.parent().unwrap_or(p));
        if glob.matches(&path) {
            prop_assert!(glob.could_match_at_or_below(&base));
        }
        // Conversely, a base that could match has a match at most three segments deeper than the
        // length of the glob.
        if glob.could_match_at_or_below(&base) {
            let base_text = base.as_str().trim_end_matches('/');
            prop_assert!(some_path_below(&glob, base_text, 8), "{} {}", glob, base);
        } else {
            prop_assert!(!glob.matches(&path));
        }
    }

    #[test]
    fn descendants_are_compared_by_segments(a in "(/[ab]{1,2}){1,4}", b in "(/[ab]{1,2}){1,4}") {
        let (a, b) = (Path::new(&a).unwrap(), Path::new(&b).unwrap());
        let (below, above): (Vec<_>, Vec<_>) = (a.segments().collect(), b.segments().collect());
        prop_assert_eq!(a.is_at_or_below(&b), below.starts_with(&above));
        prop_assert!(a.is_at_or_below(&a) && a.is_at_or_below(&Path::root()));
    }
}

/// Searches for a match below `base`, with segments made of the glob's letters.
fn some_path_below(glob: &Glob, base: &str, left: usize) -> bool {
    let here = if base.is_empty() { "/" } else { base };
    let path = Path::new(here).unwrap();
    if glob.matches(&path) {
        return true;
    }
    left > 0
        && glob.could_match_at_or_below(&path)
        && ["a", "b", "aa", "ab", "ba", "bb"].iter().any(|segment| {
            left > 0 && some_path_below(glob, &format!("{base}/{segment}"), left.saturating_sub(2))
        })
}

/// Expands the first innermost braces textually; then compares segment by segment and character by
/// character with full backtracking.
fn naive(glob: &str, path: &str) -> bool {
    if let Some(close) = glob.find('}') {
        let open = glob[..close].rfind('{').expect("its partner");
        return glob[open + 1..close]
            .split(',')
            .any(|a| naive(&format!("{}{a}{}", &glob[..open], &glob[close + 1..]), path));
    }
    let segments = |text: &str| -> Vec<Vec<char>> {
        text.split('/').filter(|s| !s.is_empty()).map(|s| s.chars().collect()).collect()
    };
    deep(&segments(glob), &segments(path))
}

fn deep(glob: &[Vec<char>], path: &[Vec<char>]) -> bool {
    match (glob, path) {
        ([], []) => true,
        ([first, rest @ ..], _) if first == &['*', '*'] => {
            deep(rest, path) || (!path.is_empty() && deep(glob, &path[1..]))
        }
        ([first, rest @ ..], [segment, below @ ..]) => flat(first, segment) && deep(rest, below),
        _ => false,
    }
}

fn flat(glob: &[char], text: &[char]) -> bool {
    match (glob, text) {
        ([], []) => true,
        (['*', rest @ ..], _) => flat(rest, text) || (!text.is_empty() && flat(glob, &text[1..])),
        (['?', rest @ ..], [_, after @ ..]) => flat(rest, after),
        ([a, rest @ ..], [b, after @ ..]) => a == b && flat(rest, after),
        _ => false,
    }
}
