//! The home of a path: the one publisher that gets its jobs with idempotency keys, because only
//! there a key is exact.

use std::collections::BTreeSet;
use std::sync::Arc;

use longshore_protocol::PublisherId;
use longshore_resolver::Publication;

/// Why none of a path's publishers is its home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Homeless {
    /// Its publishers name this one, which does not publish it at present.
    Away(Arc<str>),
    /// They name none, or several.
    Undeclared(Arc<str>),
}

/// The home of a path with these publishers: the one that all of them name, or the only one.
pub(super) fn home_of(publishers: &[&Publication]) -> Result<PublisherId, Homeless> {
    let lists: BTreeSet<&[String]> =
        publishers.iter().map(|one| &one.terms.homes[..]).filter(|list| !list.is_empty()).collect();
    let undeclared = |why: String| Err(Homeless::Undeclared(why.into()));
    let name = match (lists.first(), publishers) {
        (None, [only]) => return Ok(only.publisher.id),
        (None, several) => {
            return undeclared(format!("{} publishers, none of them its home", several.len()));
        }
        (Some(_), _) if lists.len() > 1 => {
            return undeclared("publishers that name different homes".to_owned());
        }
        (Some([name]), _) => name,
        (Some(names), _) => return undeclared(format!("{} homes", names.len())),
    };
    let mut named = publishers.iter().filter(|one| one.publisher.name == *name);
    match (named.next(), named.next()) {
        (None, _) => Err(Homeless::Away(name.as_str().into())),
        (Some(home), None) => Ok(home.publisher.id),
        (Some(_), Some(_)) => {
            undeclared(format!("several publishers with the name of its home, {name}"))
        }
    }
}
