//! The home of a path: the one publisher that gets the jobs that are related to others, because
//! what relates jobs is exact only there.

use std::sync::Arc;

use longshore_protocol::{Path, PublisherId};
use longshore_resolver::Publication;

/// The home of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    pub(crate) publisher: PublisherId,
    /// It was declared; otherwise it is the path's only publisher.
    pub(crate) is_declared: bool,
}

/// Why none of a path's publishers is its home.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Homeless {
    /// Its publishers declare this one, which does not publish it at present.
    Away(Arc<str>),
    /// It has several publishers, and none of them declares a home.
    Undeclared(Arc<str>),
    /// Its publishers declare different homes, or two have the name of its home.
    Disagree(Arc<str>),
}

/// The home of a path with these publishers, and these of the default above: the one that its
/// publishers declare, or its only one.
pub(crate) fn home_of(
    path: &Path,
    publishers: &[&Publication],
    fallback: &[&Publication],
) -> Result<Home, Homeless> {
    let Some((first, others)) = publishers.split_first() else {
        return Err(Homeless::Undeclared("no publishers".into()));
    };
    let name = declared(first, path);
    if let Some(other) = others.iter().find(|other| declared(other, path) != name) {
        return Err(disagree(path, first, other));
    }
    let Some(name) = name else {
        return match others.len() {
            0 => Ok(Home { publisher: first.publisher.id, is_declared: false }),
            more => {
                let why = format!("{} publishers, none of which declares its home", more + 1);
                Err(Homeless::Undeclared(why.into()))
            }
        };
    };
    // The home may be about to create the path, by its default.
    let mut homes = publishers.iter().chain(fallback).filter(|one| one.publisher.name == name);
    let Some(home) = homes.next() else { return Err(Homeless::Away(name.into())) };
    if let Some(other) = homes.find(|other| other.publisher.id != home.publisher.id) {
        let [one, other] = [home, other].map(|of| of.publisher.id.prefix());
        let why = format!("two publishers with the name of its home, {name}: {one} and {other}");
        return Err(Homeless::Disagree(why.into()));
    }
    match declared(home, path) == Some(name) {
        true => Ok(Home { publisher: home.publisher.id, is_declared: true }),
        false => Err(disagree(path, first, home)),
    }
}

fn declared<'a>(one: &'a Publication, path: &Path) -> Option<&'a str> {
    one.terms.homes.home_of(path).map(|home| home.name)
}

fn disagree(path: &Path, one: &Publication, other: &Publication) -> Homeless {
    let declares = |of: &Publication| {
        let home = of.terms.homes.home_of(path);
        let home = home.map_or("no home".to_owned(), |home| {
            format!("{} ({} = {:?})", home.name, home.pattern, home.names)
        });
        format!("{} declares {home}", of.publisher.name)
    };
    let why = format!("publishers that disagree: {}, {}", declares(one), declares(other));
    Homeless::Disagree(why.into())
}
