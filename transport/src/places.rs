//! Places: how many links there may be, and for whom some are kept. Pure, but for the guard that
//! gives a place back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use longshore_protocol::Role;
use parking_lot::Mutex;

/// Places that only links of one role take. It may have more, if there are any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// For whom.
    pub role: Role,
    /// How many places.
    pub places: usize,
}

/// Counts links by role.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    /// Of these for links of the role `Values`, if they may not have all.
    values_most: Option<usize>,
    kept: BTreeMap<Role, usize>,
    open: BTreeMap<Role, usize>,
}

impl Places {
    /// Of `most` places those in `kept` are for their roles. Together they are at most half;
    /// beyond, each is cut in proportion.
    pub(crate) fn new(most: usize, kept: &[Kept]) -> Places {
        let sum: u128 = kept.iter().map(|kept| kept.places as u128).sum();
        let half = (most / 2) as u128;
        let cut = |places: usize| match sum > half {
            // Not more than `half`, which was a usize.
            true => (places as u128 * half / sum) as usize,
            false => places,
        };
        let mut of_role = BTreeMap::new();
        for kept in kept {
            *of_role.entry(kept.role).or_default() += cut(kept.places);
        }
        of_role.retain(|_, places| *places > 0);
        Places { most, values_most: None, kept: of_role, open: BTreeMap::new() }
    }

    /// Links of the role `Values` take so many at most: they are idle for longer than others, and
    /// may be many.
    pub(crate) fn with_values_at_most(self, values_most: Option<usize>) -> Places {
        Places { values_most, ..self }
    }

    /// Changes how many there are. Who has one keeps it, also beyond a lower number; then nobody
    /// gets one but whom some are kept for.
    pub(crate) fn resize(&mut self, most: usize, kept: &[Kept]) {
        let open = std::mem::take(&mut self.open);
        let values_most = self.values_most;
        *self = Places { open, values_most, ..Places::new(most, kept) };
    }

    /// Takes a place: one that is kept for the role first.
    fn take(&mut self, role: Role) -> bool {
        if self.is_full_of(role) {
            return false;
        }
        let (open, kept) = (self.open_in(role), self.kept_for(role));
        let beyond = self.open.iter().map(|(role, open)| open.saturating_sub(self.kept_for(*role)));
        let for_all = self.most - self.kept.values().sum::<usize>();
        let free = open < kept || beyond.sum::<usize>() < for_all;
        if free {
            *self.open.entry(role).or_default() += 1;
        }
        free
    }

    /// True if the role has all that it may have, whatever there is.
    fn is_full_of(&self, role: Role) -> bool {
        role == Role::Values && self.values_most.is_some_and(|most| self.open_in(role) >= most)
    }

    /// Why there is no place for the role.
    fn reason(&self, role: Role) -> String {
        match self.values_most {
            Some(most) if self.is_full_of(role) => {
                let (open, all) = (self.open_in(role), self.most);
                format!(
                    "{open} of {most} connections for live values are taken; the rest of {all} is for other roles"
                )
            }
            _ => self.to_string(),
        }
    }

    fn give_back(&mut self, role: Role) {
        if let Some(open) = self.open.get_mut(&role) {
            *open = open.saturating_sub(1);
        }
    }

    /// Most links that there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Links that are open.
    pub(crate) fn open(&self) -> usize {
        self.open.values().sum()
    }

    fn open_in(&self, role: Role) -> usize {
        self.open.get(&role).copied().unwrap_or(0)
    }

    fn kept_for(&self, role: Role) -> usize {
        self.kept.get(&role).copied().unwrap_or(0)
    }
}

impl fmt::Display for Places {
    /// As a refusal puts it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} connections are taken", self.open(), self.most)?;
        for (place, (role, kept)) in self.kept.iter().enumerate() {
            let lead = if place == 0 { "; " } else { ", " };
            write!(f, "{lead}{kept} are kept for the role `{role}`")?;
        }
        Ok(())
    }
}

/// A link's place; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Mutex<Places>>,
    role: Role,
}

impl Place {
    /// Takes a place; or the reason why there is none.
    pub(crate) fn take(places: &Arc<Mutex<Places>>, role: Role) -> Result<Place, String> {
        let mut counted = places.lock();
        if counted.take(role) {
            Ok(Place { places: places.clone(), role })
        } else {
            Err(counted.reason(role))
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().give_back(self.role);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROLES: [Role; 3] = [Role::ResolverReader, Role::ResolverWriter, Role::Tool];

    fn kept(writers: usize, tools: usize) -> [Kept; 2] {
        [
            Kept { role: Role::ResolverWriter, places: writers },
            Kept { role: Role::Tool, places: tools },
        ]
    }

    fn taken(places: &mut Places, role: Role) -> usize {
        std::iter::from_fn(|| places.take(role).then_some(())).count()
    }

    #[test]
    fn readers_shut_out_neither_writers_nor_tools() {
        let mut places = Places::new(768, &kept(96, 8));
        assert_eq!(taken(&mut places, Role::ResolverReader), 664);
        assert_eq!(taken(&mut places, Role::ResolverWriter), 96);
        assert_eq!(taken(&mut places, Role::Tool), 8);
        assert_eq!(
            places.to_string(),
            "768 of 768 connections are taken; 96 are kept for the role `resolver writer`, \
             8 are kept for the role `tool`"
        );
    }

    #[test]
    fn a_role_may_have_more_than_is_kept_for_it_and_gives_that_back_first() {
        let mut places = Places::new(10, &kept(2, 1));
        assert_eq!(taken(&mut places, Role::ResolverWriter), 9, "all but the tools'");
        assert!(!places.take(Role::ResolverReader));
        places.give_back(Role::ResolverWriter);
        assert!(places.take(Role::ResolverReader), "it was one of those for all");
    }

    #[test]
    fn links_of_values_leave_places_for_others_and_others_may_take_theirs() {
        let places = Places::new(8, &kept(0, 1));
        let places = Arc::new(Mutex::new(places.with_values_at_most(Some(4))));
        let values: Vec<Place> =
            (0..4).map(|_| Place::take(&places, Role::Values).unwrap()).collect();
        assert_eq!(
            Place::take(&places, Role::Values).unwrap_err(),
            "4 of 4 connections for live values are taken; the rest of 8 is for other roles"
        );
        assert_eq!(taken(&mut places.lock(), Role::Worker), 3, "all but the tools'");
        drop(values);
        assert_eq!(taken(&mut places.lock(), Role::Worker), 4, "they are places for all");
        let reason = Place::take(&places, Role::Values).unwrap_err();
        assert!(reason.starts_with("7 of 8 connections are taken"), "{reason}");
        places.lock().resize(20, &kept(0, 1));
        assert_eq!(taken(&mut places.lock(), Role::Values), 4, "as before");
    }

    #[test]
    fn at_most_half_is_kept() {
        let mut places = Places::new(8, &kept(96, 8));
        assert_eq!(taken(&mut places, Role::ResolverReader), 5, "3 of 4 and 0 of 4 are kept");
        assert_eq!(taken(&mut places, Role::ResolverWriter), 3);
        assert_eq!(taken(&mut Places::new(1, &kept(1, 1)), Role::ResolverReader), 1);
        assert_eq!(taken(&mut Places::new(0, &kept(1, 1)), Role::ResolverWriter), 0);
    }

    #[test]
    fn who_has_a_place_keeps_it_when_there_are_fewer_and_nobody_else_gets_one() {
        let mut places = Places::new(10, &kept(2, 0));
        assert_eq!(taken(&mut places, Role::ResolverReader), 8);
        places.resize(6, &kept(2, 0));
        assert_eq!((places.open(), taken(&mut places, Role::ResolverReader)), (8, 0));
        assert_eq!(taken(&mut places, Role::ResolverWriter), 2, "theirs are kept all the same");
        (0..4).for_each(|_| places.give_back(Role::ResolverReader));
        assert!(!places.take(Role::ResolverReader), "4 of the 4 that are for all");
        places.give_back(Role::ResolverReader);
        assert!(places.take(Role::ResolverReader));
        places.resize(12, &kept(0, 0));
        assert_eq!(taken(&mut places, Role::ResolverReader), 6);
    }

    proptest! {
        #[test]
        fn there_are_never_too_many_and_who_is_kept_for_gets_in(
            most in 0_usize..20,
            writers in 0_usize..20,
            tools in 0_usize..20,
            steps in prop::collection::vec((0_usize..3, any::<bool>()), 0..80),
        ) {
            let mut places = Places::new(most, &kept(writers, tools));
            for (role, comes) in steps {
                let role = ROLES[role];
                let (open, sum) = (places.open_in(role), places.open());
                if comes {
                    let took = places.take(role);
                    prop_assert!(took || open >= places.kept_for(role));
                    prop_assert_eq!(places.open(), sum + usize::from(took));
                } else if open > 0 {
                    places.give_back(role);
                }
                prop_assert!(places.open() <= most);
                let owed = |role: &Role| places.kept_for(*role).saturating_sub(places.open_in(*role));
                prop_assert!(places.open() + ROLES.iter().map(owed).sum::<usize>() <= most);
            }
        }
    }
}
