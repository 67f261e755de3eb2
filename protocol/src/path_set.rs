//! Sets of paths: those of some globs, without those of others.

use crate::fields::fields;
use crate::glob::{Glob, GlobPart, matches_segment, split};
use crate::limits::PATH_DEPTH_MAX;
use crate::path::Path;

/// Most globs in each list of a path set.
pub const PATH_SET_GLOBS_MAX: usize = 4_096;

/// Most parts of a glob, and of a path with `**` below it.
const PARTS_MAX: usize = PATH_DEPTH_MAX + 1;

fields! {
    /// The paths that some glob of `allow` matches and no glob of `deny` does.
    #[derive(Hash, Default)]
    pub struct PathSet {
        /// At most 4,096 globs.
        pub allow: Vec<Glob> = at_most("globs of a path set", PATH_SET_GLOBS_MAX),
        /// At most 4,096 globs.
        pub deny: Vec<Glob> = at_most("globs of a path set", PATH_SET_GLOBS_MAX),
    }
}

impl PathSet {
    /// All paths.
    pub fn everything() -> PathSet {
        PathSet { allow: vec![Glob::everything()], deny: Vec::new() }
    }

    /// True if it is certainly the set of all paths.
    pub fn is_everything(&self) -> bool {
        self.deny.is_empty() && self.allow.iter().any(Glob::is_everything)
    }

    /// True if it is certainly empty.
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() || self.deny.iter().any(Glob::is_everything)
    }

    /// True if the path is in the set.
    pub fn contains(&self, path: &Path) -> bool {
        self.contains_str(path.as_str())
    }

    /// True if the path with that text is in the set.
    pub fn contains_str(&self, path: &str) -> bool {
        let mut buffer = [""; PATH_DEPTH_MAX];
        let Some(segments) = split(path, &mut buffer) else { return false };
        let matches = |glob: &Glob| glob.matches_segments(segments);
        self.allow.iter().any(matches) && !self.deny.iter().any(matches)
    }

    /// True only if every path that the glob matches is in the set, paths of the future included.
    /// It decides segment by segment, and may be false for a glob that only several globs of the
    /// set cover together.
    pub fn covers(&self, glob: &Glob) -> bool {
        glob.alternatives().all(|parts| {
            let covers = |one: &Glob| one.alternatives().any(|wide| covers(wide, parts));
            let meets = |one: &Glob| one.alternatives().any(|other| meet(other, parts));
            self.allow.iter().any(covers) && !self.deny.iter().any(meets)
        })
    }

    /// False only if no path at or below `base` is in the set.
    pub fn may_reach_below(&self, base: &Path) -> bool {
        let mut all: Vec<GlobPart> =
            base.segments().map(|segment| GlobPart::Segment(segment.to_owned())).collect();
        all.push(GlobPart::Deep);
        let denies = |glob: &Glob| glob.alternatives().any(|wide| covers(wide, &all));
        self.allow.iter().any(|glob| glob.could_match_at_or_below(base))
            && !self.deny.iter().any(denies)
    }
}

/// True only if `wide` matches every path that `narrow` matches.
fn covers(wide: &[GlobPart], narrow: &[GlobPart]) -> bool {
    // `**` of `narrow` may be no segment, or several: only `**` covers it.
    pairs_up(wide, narrow, false, |wide, narrow| {
        wide == "*" || wide == narrow || !has_wildcard(narrow) && matches_segment(wide, narrow)
    })
}

/// False only if no path matches both.
fn meet(one: &[GlobPart], other: &[GlobPart]) -> bool {
    pairs_up(one, other, true, |one, other| match (has_wildcard(one), has_wildcard(other)) {
        (true, true) => true,
        (true, false) => matches_segment(one, other),
        (false, true) => matches_segment(other, one),
        (false, false) => one == other,
    })
}

fn has_wildcard(segment: &str) -> bool {
    segment.contains(['*', '?'])
}

/// True if the parts of two globs pair up, where `**` of `one`, and of `other` if `both`, takes any
/// number of parts. Dynamic programming over both: at most 34 × 34 steps.
fn pairs_up(
    one: &[GlobPart],
    other: &[GlobPart],
    both: bool,
    fits: impl Fn(&str, &str) -> bool,
) -> bool {
    // Whether the parts of `one` before this one pair up with the first `j` of `other`.
    let mut reached = [false; PARTS_MAX + 1];
    reached[0] = true;
    for i in 0..=one.len() {
        let is_deep = one.get(i) == Some(&GlobPart::Deep);
        let mut next = [false; PARTS_MAX + 1];
        for j in 0..=other.len() {
            if !reached[j] {
                continue;
            }
            let other_is_deep = both && other.get(j) == Some(&GlobPart::Deep);
            if j < other.len() && (is_deep || other_is_deep) {
                reached[j + 1] = true;
            }
            next[j] |= i < one.len() && (is_deep || other_is_deep);
            if let (Some(GlobPart::Segment(one)), Some(GlobPart::Segment(other))) =
                (one.get(i), other.get(j))
            {
                next[j + 1] |= fits(one, other);
            }
        }
        if i == one.len() {
            return reached[other.len()];
        }
        reached = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(allow: &[&str], deny: &[&str]) -> PathSet {
        let globs = |texts: &[&str]| texts.iter().map(|text| Glob::new(text).unwrap()).collect();
        PathSet { allow: globs(allow), deny: globs(deny) }
    }

    fn path(text: &str) -> Path {
        Path::new(text).unwrap()
    }

    fn covers(allow: &[&str], deny: &[&str], glob: &str) -> bool {
        set(allow, deny).covers(&Glob::new(glob).unwrap())
    }

    #[test]
    fn a_deny_beats_every_allow() {
        let set = set(&["/shop/**", "/shop/bills"], &["/shop/bills/**"]);
        for (text, contained) in
            [("/shop", true), ("/shop/mail", true), ("/shop/bills", false), ("/mail", false)]
        {
            assert_eq!(set.contains(&path(text)), contained, "{text}");
        }
        assert!(PathSet::everything().contains(&path("/a")) && PathSet::default().is_empty());
        assert!(!PathSet::default().contains(&path("/a")));
    }

    #[test]
    fn a_glob_is_covered_segment_by_segment() {
        for (wide, narrow) in [
            ("/**", "/**"),
            ("/shop/**", "/shop/**"),
            ("/shop/**", "/shop"),
            ("/shop/**", "/shop/*/x?"),
            ("/shop/*", "/shop/m?"),
            ("/shop/m*", "/shop/mail"),
            ("/shop/{a,b}", "/shop/a"),
            ("/**/mail", "/a/**/mail"),
        ] {
            assert!(covers(&[wide], &[], narrow), "{wide} covers {narrow}");
        }
        for (wide, narrow) in [
            ("/shop/*", "/shop/**"),
            ("/shop/*", "/*/a"),
            ("/shop/**", "/**"),
            ("/shop/m*", "/shop/*"),
            ("/shop/a", "/shop/{a,b}"),
            ("/**/*", "/**"),
        ] {
            assert!(!covers(&[wide], &[], narrow), "{wide} does not cover {narrow}");
        }
        assert!(covers(&["/a", "/b"], &[], "/{a,b}"));
        assert!(!covers(&["/shop/**"], &["/**/bills"], "/shop/**"));
        assert!(!covers(&["/shop/**"], &["/shop/b*"], "/shop/*s"));
        assert!(covers(&["/shop/**"], &["/other/**"], "/shop/**"));
    }

    #[test]
    fn nothing_below_a_denied_prefix_is_reached() {
        let set = set(&["/shop/**", "/*/mail"], &["/shop/bills/**"]);
        for (text, reached) in [
            ("/shop", true),
            ("/shop/x/y", true),
            ("/shop/bills", false),
            ("/shop/bills/a", false),
            ("/other", true),
            ("/other/mail", true),
            ("/other/bills", false),
        ] {
            assert_eq!(set.may_reach_below(&path(text)), reached, "{text}");
        }
        assert!(set.may_reach_below(&path("/")));
    }

    #[test]
    fn a_path_of_the_greatest_depth_is_decided() {
        let deepest = path(&"/a".repeat(PATH_DEPTH_MAX));
        let all = Glob::new(&"/*".repeat(PATH_DEPTH_MAX)).unwrap();
        for deny in [all.as_str(), "/b/**", "/**/a", "/**"] {
            let set = set(&["/**"], &[deny]);
            assert_eq!(set.may_reach_below(&deepest), deny != "/**", "{deny}");
            assert!(!set.covers(&all));
        }
    }

    fn glob() -> impl Strategy<Value = Glob> {
        let segment = prop_oneof![
            Just("a"),
            Just("b"),
            Just("ab"),
            Just("*"),
            Just("a*"),
            Just("?"),
            Just("**"),
            Just("{a,b}")
        ];
        proptest::collection::vec(segment, 1..5)
            .prop_map(|segments| Glob::new(&format!("/{}", segments.join("/"))).unwrap())
    }

    fn any_path() -> impl Strategy<Value = Path> {
        let segment = prop_oneof![Just("a"), Just("b"), Just("ab"), Just("c")];
        proptest::collection::vec(segment, 1..5)
            .prop_map(|segments| path(&format!("/{}", segments.join("/"))))
    }

    fn any_set() -> impl Strategy<Value = PathSet> {
        let globs = || proptest::collection::vec(glob(), 0..3);
        (globs(), globs()).prop_map(|(allow, deny)| PathSet { allow, deny })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn covers_and_reaches_are_never_wrong_about_a_path(
            set in any_set(), glob in glob(), path in any_path(), keep in 0_usize..5,
        ) {
            if set.covers(&glob) && glob.matches(&path) {
                prop_assert!(set.contains(&path), "{set:?} covers {glob}, not {path}");
            }
            let base = path.segments().take(keep).fold(String::new(), |a, s| a + "/" + s);
            if set.contains(&path) {
                let base = Path::new(if base.is_empty() { "/" } else { &base }).unwrap();
                prop_assert!(set.may_reach_below(&base), "{set:?} reaches {path} below {base}");
            }
        }
    }
}
