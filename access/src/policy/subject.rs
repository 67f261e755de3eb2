//! Whom a rule is about.

use crate::identity::{Identity, NameKind};

/// Clients that a rule is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Subject {
    /// `*`: every client with an identity.
    Everyone,
    /// `anonymous`: a client without an identity.
    Anonymous,
    /// `KIND:PATTERN`: identities of that kind, where `*` is any text.
    Named {
        /// The kind.
        kind: NameKind,
        /// The pattern.
        pattern: String,
    },
    /// `jwt-group:PATTERN`: identities whose JWT claims a group that matches.
    InGroup(String),
}

impl Subject {
    /// True if the client is one of them.
    pub(super) fn matches(&self, who: Option<&Identity>) -> bool {
        match (self, who) {
            (Subject::Everyone, who) => who.is_some(),
            (Subject::Anonymous, who) => who.is_none(),
            (Subject::Named { kind, pattern }, Some(who)) => {
                who.kind == *kind && matches_text(pattern, &who.name)
            }
            (Subject::InGroup(pattern), Some(who)) => {
                who.groups.iter().any(|group| matches_text(pattern, group))
            }
            (Subject::Named { .. } | Subject::InGroup(_), None) => false,
        }
    }
}

/// True if the text matches the pattern, in which `*` is any text, also none.
fn matches_text(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    // The leftmost match of each part leaves the most text for the parts after it.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, in exponential time.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match pattern {
            [] => text.is_empty(),
            ['*', rest @ ..] => (0..=text.len()).any(|skip| naive(rest, &text[skip..])),
            [first, rest @ ..] => text.first() == Some(first) && naive(rest, &text[1..]),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]
        #[test]
        fn a_star_is_any_text(pattern in "[ab*]{0,6}", text in "[ab]{0,6}") {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(
                matches_text(&pattern, &text),
                naive(&chars(&pattern), &chars(&text)),
                "{} {}", pattern, text
            );
        }
    }
}
