//! Declarations of homes: which publisher is the home of a path. Producers and publishers use the
//! same function, [`Homes::home_of`], and so agree without asking each other.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use twox_hash::XxHash3_64;

use crate::codec::{Encode, Reader, WireError, number_bytes};
use crate::frame::FrameWriter;
use crate::limits::{
    HOME_PATTERNS_MAX, HOMES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, TERMS_BYTES_MAX,
};
use crate::name::{NameError, check_name};
use crate::path::{Path, PathError, segments};

/// Which paths have a home together: `/shop` is this path and all below it, `/tenants/*` each path
/// directly below `/tenants` with all below that. A `*` stands for one whole segment.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HomePattern(String);

impl HomePattern {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn depth(&self) -> usize {
        segments(&self.0).count()
    }

    /// The part of `path` that the pattern matches; `None` if it does not. All paths with the same
    /// part have the same home.
    fn matched<'a>(&self, path: &'a Path) -> Option<&'a str> {
        let text = path.as_str();
        let (mut rest, mut end) = (segments(text), 0);
        for wanted in segments(&self.0) {
            let segment = rest.next()?;
            if wanted != "*" && wanted != segment {
                return None;
            }
            end += 1 + segment.len();
        }
        Some(if end == 0 { "/" } else { &text[..end] })
    }

    /// True if some path is covered by both.
    fn overlaps(&self, other: &HomePattern) -> bool {
        segments(&self.0).zip(segments(&other.0)).all(|(a, b)| a == b || a == "*" || b == "*")
    }
}

impl FromStr for HomePattern {
    type Err = PathError;

    fn from_str(text: &str) -> Result<HomePattern, PathError> {
        // A segment `*` is valid where a path may have any segment.
        let as_path: Vec<&str> =
            text.split('/').map(|segment| if segment == "*" { "_" } else { segment }).collect();
        match Path::check(&as_path.join("/")) {
            Ok(()) => Ok(HomePattern(text.to_owned())),
            // Its message has the text as written.
            Err(why) => Err(Path::check(text).err().unwrap_or(why)),
        }
    }
}

impl fmt::Display for HomePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The declared homes of one publisher: patterns, each with the names of the publishers among which
/// its paths find their home. At most 64 patterns with 64 names each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Homes(Vec<(HomePattern, Vec<String>)>);

/// The home of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeclaredHome<'a> {
    /// The publisher's name.
    pub name: &'a str,
    /// The declaration: its pattern,
    pub pattern: &'a HomePattern,
    /// and its names, sorted.
    pub names: &'a [String],
}

/// Why declarations of homes are invalid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HomesError {
    /// More than 64 patterns. Contains their number.
    #[error(
        "{0} patterns are more than the {HOME_PATTERNS_MAX} that may have homes; \
         use a `*`, as in \"/tenants/*\""
    )]
    TooManyPatterns(usize),
    /// A pattern is declared twice.
    #[error("{0} is declared twice; name all its publishers in one declaration")]
    Repeated(HomePattern),
    /// A pattern without names, or with more than 64. Contains their number.
    #[error("{0} has {1} homes; name 1 to {HOMES_MAX} publishers")]
    NumberOfNames(HomePattern, usize),
    /// The name of a home is empty or too long.
    #[error("a home of {0}: {1}")]
    BadName(HomePattern, #[source] NameError),
    /// Both cover the same path, and may give it different homes.
    #[error(
        "{0} and {1} cover the same paths and differ; \
         declare patterns of which no path has two, or the same name for both"
    )]
    Overlap(HomePattern, HomePattern),
    /// All declarations together take too many bytes. Contains their bytes.
    #[error(
        "the declarations take {0} bytes and may take {HOMES_BYTES_MAX}; \
         use fewer patterns, fewer names, or shorter ones"
    )]
    TooLong(usize),
}

/// What a publisher's declarations may take of its terms, in bytes: the rest is for other fields.
const HOMES_BYTES_MAX: usize = TERMS_BYTES_MAX - 32;

impl Homes {
    /// Checks declarations, each a pattern and the names of publishers.
    pub fn new(
        declared: impl IntoIterator<Item = (HomePattern, Vec<String>)>,
    ) -> Result<Homes, HomesError> {
        let mut all: BTreeMap<HomePattern, Vec<String>> = BTreeMap::new();
        for (pattern, mut names) in declared {
            names.sort_unstable();
            names.dedup();
            if !(1..=HOMES_MAX).contains(&names.len()) {
                return Err(HomesError::NumberOfNames(pattern, names.len()));
            }
            if let Some(bad) = names.iter().find_map(|name| check_name(name).err()) {
                return Err(HomesError::BadName(pattern, bad));
            }
            if all.contains_key(&pattern) {
                return Err(HomesError::Repeated(pattern));
            }
            all.insert(pattern, names);
        }
        if all.len() > HOME_PATTERNS_MAX {
            return Err(HomesError::TooManyPatterns(all.len()));
        }
        let homes = Homes(all.into_iter().collect());
        for (at, (one, names)) in homes.0.iter().enumerate() {
            // One name is the home of every path. Several are only if the same part of the path
            // chooses among them.
            let is_same = |other: &HomePattern, others: &Vec<String>| {
                names == others && (names.len() == 1 || one.depth() == other.depth())
            };
            let differs = |(other, others): &&(HomePattern, Vec<String>)| {
                one.overlaps(other) && !is_same(other, others)
            };
            if let Some((other, _)) = homes.0[at + 1..].iter().find(differs) {
                return Err(HomesError::Overlap(one.clone(), other.clone()));
            }
        }
        match homes.bytes() {
            bytes if bytes > HOMES_BYTES_MAX => Err(HomesError::TooLong(bytes)),
            _ => Ok(homes),
        }
    }

    /// True if nothing is declared.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The patterns and their names, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&HomePattern, &[String])> {
        self.0.iter().map(|(pattern, names)| (pattern, &names[..]))
    }

    /// The declared home of `path`, if there is one. Of several names it is the one with the
    /// highest hash together with the part of the path that the pattern matches (rendezvous
    /// hashing), so that a name more or less moves only the paths that it gets or had.
    pub fn home_of(&self, path: &Path) -> Option<DeclaredHome<'_>> {
        self.0.iter().find_map(|(pattern, names)| {
            let part = pattern.matched(path)?;
            let seed = XxHash3_64::oneshot(part.as_bytes());
            let rank = |name: &&String| XxHash3_64::oneshot_with_seed(seed, name.as_bytes());
            // Sorted names: of two with the same hash it is the last.
            let name = names.iter().max_by_key(rank)?;
            Some(DeclaredHome { name, pattern, names })
        })
    }

    /// Its size in terms, in bytes, with numbers in their shortest form.
    pub(crate) fn bytes(&self) -> usize {
        let text = |text: &str| number_bytes(text.len() as u64) + text.len();
        let each = self.0.iter().map(|(pattern, names)| {
            let names: usize = number_bytes(names.len() as u64)
                + names.iter().map(|name| text(name)).sum::<usize>();
            text(&pattern.0) + names
        });
        number_bytes(self.0.len() as u64) + each.sum::<usize>()
    }

    /// The size of its texts in memory and beside each other on the wire, in bytes.
    pub fn text_bytes(&self) -> usize {
        let names = |names: &Vec<String>| names.iter().map(String::len).sum::<usize>();
        self.0.iter().map(|(pattern, all)| pattern.0.len() + names(all)).sum()
    }

    /// The number of its texts: patterns and names.
    pub fn texts(&self) -> usize {
        self.0.iter().map(|(_, names)| 1 + names.len()).sum()
    }

    pub(crate) fn encode(&self, out: &mut FrameWriter) {
        out.u64(self.0.len() as u64);
        for (pattern, names) in &self.0 {
            out.string(&pattern.0);
            names.encode(out);
        }
    }

    /// Reads declarations. Their order is fixed, so that the same ones have only one encoding.
    /// Overlaps are not searched for: the publisher did, and the first match counts anywhere.
    pub(crate) fn decode(r: &mut Reader) -> Result<Homes, WireError> {
        let unsorted = r.invalid("order of homes");
        let count = r.count("patterns with homes", HOME_PATTERNS_MAX, 3)?;
        let mut homes: Vec<(HomePattern, Vec<String>)> = Vec::with_capacity(count);
        for _ in 0..count {
            let bad = r.invalid("pattern with homes");
            let pattern = r.string("bytes of a pattern with homes", PATH_BYTES_MAX)?;
            let pattern: HomePattern = pattern.parse().map_err(|_| bad)?;
            if homes.last().is_some_and(|(before, _)| *before >= pattern) {
                return Err(unsorted);
            }
            let none = r.invalid("pattern without homes");
            let count = r.count("homes", HOMES_MAX, 1)?;
            if count == 0 {
                return Err(none);
            }
            let mut names: Vec<String> = Vec::with_capacity(count);
            for _ in 0..count {
                let name = r.string("name of a home", NAME_BYTES_MAX)?;
                if names.last().is_some_and(|before| *before >= name) {
                    return Err(unsorted);
                }
                names.push(name);
            }
            homes.push((pattern, names));
        }
        Ok(Homes(homes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(declared: &[(&str, &[&str])]) -> Result<Homes, HomesError> {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Homes::new(declared.iter().map(|(pattern, all)| (pattern.parse().unwrap(), names(all))))
    }

    fn home(homes: &Homes, path: &str) -> Option<String> {
        homes.home_of(&Path::new(path).unwrap()).map(|home| home.name.to_owned())
    }

    #[test]
    fn a_declaration_covers_its_matches_and_all_below() {
        let homes = homes(&[("/shop", &["pa"]), ("/tenants/*/mail", &["pb"])]).unwrap();
        for (path, expected) in [
            ("/shop", Some("pa")),
            ("/shop/orders/new", Some("pa")),
            ("/shopping", None),
            ("/", None),
            ("/tenants/a/mail", Some("pb")),
            ("/tenants/a/mail/out", Some("pb")),
            ("/tenants/a", None),
            ("/tenants/a/bills", None),
        ] {
            assert_eq!(home(&homes, path).as_deref(), expected, "{path}");
        }
        let all = super::tests::homes(&[("/", &["pa"])]).unwrap();
        assert_eq!(home(&all, "/a/b").as_deref(), Some("pa"));
    }

    /// The table of docs/PROTOCOL.md, which names the homes for other languages.
    #[test]
    fn homes_of_known_paths_never_change() {
        let homes = homes(&[("/tenants/*", &["pa", "pb", "pc"])]).unwrap();
        for (path, part, expected, hashes) in [
            (
                "/tenants/acme/mail",
                "/tenants/acme",
                "pb",
                ["3452d2acab671ebc", "96ce6a85609896e6", "65c2cbe64eb30756"],
            ),
            (
                "/tenants/beta",
                "/tenants/beta",
                "pb",
                ["7e9c72aaafd31baa", "e211f4a9ac1640aa", "76c4c092163037a3"],
            ),
            (
                "/tenants/gamma/a/b",
                "/tenants/gamma",
                "pc",
                ["09ef7c3dd1b11c40", "7318ca9d46d22238", "a034c78bb8d5245c"],
            ),
            (
                "/tenants/ünal",
                "/tenants/ünal",
                "pa",
                ["e3d75f0adb0972d4", "258186e78fb9e7ed", "db4ecf6d3036c034"],
            ),
        ] {
            let seed = XxHash3_64::oneshot(part.as_bytes());
            let hash = |name: &str| XxHash3_64::oneshot_with_seed(seed, name.as_bytes());
            assert_eq!(["pa", "pb", "pc"].map(|name| format!("{:016x}", hash(name))), hashes);
            assert_eq!(home(&homes, path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn a_further_name_takes_its_share_and_moves_nothing_else() {
        let names = ["pa", "pb", "pc", "pd"];
        let three = homes(&[("/*", &names[..3])]).unwrap();
        let four = homes(&[("/*", &names)]).unwrap();
        let mut counts = BTreeMap::<String, u32>::new();
        for n in 0..10_000 {
            let path = format!("/{n}/jobs");
            let (before, now) = (home(&three, &path).unwrap(), home(&four, &path).unwrap());
            assert!(now == before || now == "pd", "{path}: {before}, {now}");
            *counts.entry(now).or_default() += 1;
        }
        assert!(counts.values().all(|&count| (2_300..2_700).contains(&count)), "{counts:?}");
    }

    #[test]
    fn declarations_that_overlap_and_differ_are_refused_by_name() {
        for (a, b) in [
            (("/shop", &["pa"][..]), ("/shop/orders", &["pb"][..])),
            (("/", &["pa"]), ("/x", &["pb"])),
            (("/*/mail", &["pa"]), ("/tenants/*", &["pb"])),
            // The first part of a path chooses among them here, and two parts there.
            (("/tenants", &["pa", "pb"]), ("/tenants/*", &["pa", "pb"])),
        ] {
            let refused = homes(&[a, b]).unwrap_err();
            let HomesError::Overlap(one, other) = &refused else { panic!("{refused}") };
            assert_eq!([one.as_str(), other.as_str()], [a.0, b.0]);
        }
        for (a, b) in [
            (("/shop", &["pa"][..]), ("/shopping", &["pb"][..])),
            (("/", &["pa"]), ("/x", &["pa"])),
            (("/tenants/*", &["pa", "pb"]), ("/tenants/acme", &["pb", "pa"])),
            (("/a/*", &["pa"]), ("/b", &["pb"])),
        ] {
            assert!(homes(&[a, b]).is_ok(), "{a:?} {b:?}");
        }
    }

    #[test]
    fn bad_declarations_are_refused_with_the_limit() {
        let named = |count: usize, bytes: usize| -> Vec<String> {
            (0..count).map(|n| format!("{n:0bytes$}")).collect()
        };
        let one = |pattern: &str, names| Homes::new([(pattern.parse().unwrap(), names)]);
        let error = |refused: Result<Homes, HomesError>| refused.unwrap_err().to_string();
        assert_eq!(error(one("/a", vec![])), "/a has 0 homes; name 1 to 64 publishers");
        assert_eq!(error(one("/a", named(65, 2))), "/a has 65 homes; name 1 to 64 publishers");
        assert!(one("/a", named(64, 2)).is_ok());
        assert!(error(one("/a", named(1, 129))).contains("129 bytes"));
        assert!(error(one("/a", named(64, 128))).contains(" bytes and may take 6112"));
        let many = |count: u32| {
            Homes::new((0..count).map(|n| (format!("/{n}").parse().unwrap(), named(1, 2))))
        };
        assert!(many(64).is_ok());
        assert!(error(many(65)).starts_with("65 patterns are more than the 64"));
        let pattern = || "/a".parse().unwrap();
        let twice = Homes::new([(pattern(), named(1, 2)), (pattern(), named(1, 2))]);
        assert!(matches!(twice, Err(HomesError::Repeated(_))));
        for text in ["", "a", "/a/", "/a*", "/**", "/a/../b", "/?"] {
            assert!(text.parse::<HomePattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn unsorted_or_repeated_homes_do_not_decode() {
        let decode = |patterns: &[&str], names: &[&str]| {
            let mut out = FrameWriter::new();
            out.u64(patterns.len() as u64);
            for pattern in patterns {
                out.string(pattern);
                out.u64(names.len() as u64);
                names.iter().for_each(|name| out.string(name));
            }
            let body = out.into_body();
            let bytes = body.len();
            Homes::decode(&mut Reader::new(body)).map(|homes| assert_eq!(homes.bytes(), bytes))
        };
        assert!(decode(&["/a", "/b"], &["a", "b"]).is_ok());
        assert!(decode(&[], &[]).is_ok());
        for (patterns, names) in [
            (&["/b", "/a"][..], &["a"][..]),
            (&["/a", "/a"], &["a"]),
            (&["/a"], &["b", "a"]),
            (&["/a"], &["a", "a"]),
            (&["/a"], &[]),
            (&["a"], &["a"]),
        ] {
            let refused = decode(patterns, names);
            assert!(matches!(refused, Err(WireError::Invalid { .. })), "{patterns:?} {names:?}");
        }
    }
}
