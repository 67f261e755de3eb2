//! Connection slots: the number of links a listener may have, the slots reserved for a role, and
//! what one client may have of the others. Pure, except for the guard that releases a slot.
//!
//! **One client may have three times as many links as unreserved slots are free.** Alone it gets
//! three quarters of them, of two that want all each gets three sevenths, of ten each 3/31: without
//! a share for each, which would lie idle, there is room for the next client at any time. This is
//! the dynamic threshold of Choudhury and Hahne (1998), where queues share the buffer of a switch.
//! It holds under a policy only, which tells clients apart.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use longshore_protocol::Role;
use parking_lot::Mutex;

/// Slots that only links of one role may take. A role may also take unreserved slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReservedSlots {
    /// The role.
    pub role: Role,
    /// The number of reserved slots.
    pub slots: usize,
}

/// How many links one client may have for each unreserved slot that is free.
const LINKS_PER_FREE_SLOT: usize = 3;

/// Counts links by role.
#[derive(Debug)]
pub(crate) struct SlotTable {
    limit: usize,
    /// The most slots that links of the role `Values` may take; `None` for no separate limit.
    values_limit: Option<usize>,
    reserved: BTreeMap<Role, usize>,
    open: BTreeMap<Role, usize>,
}

impl SlotTable {
    /// A table of `limit` slots. Those in `reserved` are reserved for their roles; together they
    /// are at most half of all, and above that each reservation shrinks in proportion.
    pub(crate) fn new(limit: usize, reserved: &[ReservedSlots]) -> SlotTable {
        let sum: u128 = reserved.iter().map(|reserved| reserved.slots as u128).sum();
        let half = (limit / 2) as u128;
        let cut = |slots: usize| match sum > half {
            // At most `half`, which fits a usize.
            true => (slots as u128 * half / sum) as usize,
            false => slots,
        };
        let mut of_role = BTreeMap::new();
        for reserved in reserved {
            *of_role.entry(reserved.role).or_default() += cut(reserved.slots);
        }
        of_role.retain(|_, slots| *slots > 0);
        SlotTable { limit, values_limit: None, reserved: of_role, open: BTreeMap::new() }
    }

    /// Limits links of the role `Values`: they are idle for longer than others, and may be many.
    pub(crate) fn with_values_at_most(self, values_limit: Option<usize>) -> SlotTable {
        SlotTable { values_limit, ..self }
    }

    /// Changes the number of slots. Open links keep their slots even above a lower limit; until
    /// enough have closed, only roles with an unused reservation get a slot.
    pub(crate) fn resize(&mut self, limit: usize, reserved: &[ReservedSlots]) {
        let open = std::mem::take(&mut self.open);
        let values_limit = self.values_limit;
        *self = SlotTable { open, values_limit, ..SlotTable::new(limit, reserved) };
    }

    /// Takes a slot, preferring one that is reserved for the role.
    fn take(&mut self, role: Role) -> bool {
        if self.is_full_of(role) {
            return false;
        }
        let free = self.has_reserved(role) || self.unreserved() > 0;
        if free {
            *self.open.entry(role).or_default() += 1;
        }
        free
    }

    /// True if a slot is free that is reserved for the role.
    fn has_reserved(&self, role: Role) -> bool {
        self.open_in(role) < self.reserved_for(role)
    }

    /// Free slots that are not reserved.
    fn unreserved(&self) -> usize {
        let beyond =
            self.open.iter().map(|(role, open)| open.saturating_sub(self.reserved_for(*role)));
        let for_all = self.limit - self.reserved.values().sum::<usize>();
        for_all.saturating_sub(beyond.sum())
    }

    /// Why a client with `links` links may have no further one though slots are free, if that is
    /// so.
    fn over_fair_share(&self, role: Role, links: usize) -> Option<String> {
        let free = self.unreserved();
        let may = free == 0 || links < LINKS_PER_FREE_SLOT.saturating_mul(free);
        if may || self.has_reserved(role) {
            return None;
        }
        Some(format!(
            "this client has {links} connections, and {free} of {} are free for all; under a \
             policy a client may have {LINKS_PER_FREE_SLOT} times as many as are free: close \
             some, give its programs identities of their own, or raise the server's limit",
            self.limit
        ))
    }

    /// True if the role has reached its own limit, even if slots are free.
    fn is_full_of(&self, role: Role) -> bool {
        role == Role::Values && self.values_limit.is_some_and(|limit| self.open_in(role) >= limit)
    }

    /// The reason why no slot is free for the role.
    fn reason(&self, role: Role) -> String {
        match self.values_limit {
            Some(limit) if self.is_full_of(role) => {
                let (open, all) = (self.open_in(role), self.limit);
                format!(
                    "{open} of {limit} connections for live values are taken; \
                     the rest of {all} is for other roles"
                )
            }
            _ => self.to_string(),
        }
    }

    fn release(&mut self, role: Role) {
        if let Some(open) = self.open.get_mut(&role) {
            *open = open.saturating_sub(1);
        }
    }

    /// The limit of links.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Links that are open.
    pub(crate) fn open(&self) -> usize {
        self.open.values().sum()
    }

    fn open_in(&self, role: Role) -> usize {
        self.open.get(&role).copied().unwrap_or(0)
    }

    fn reserved_for(&self, role: Role) -> usize {
        self.reserved.get(&role).copied().unwrap_or(0)
    }
}

impl fmt::Display for SlotTable {
    /// The text of a refusal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} connections are taken", self.open(), self.limit)?;
        for (index, (role, reserved)) in self.reserved.iter().enumerate() {
            let lead = if index == 0 { "; " } else { ", " };
            write!(f, "{lead}{reserved} are reserved for the role `{role}`")?;
        }
        Ok(())
    }
}

/// A link's slot; released when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Arc<Mutex<SlotTable>>,
    role: Role,
}

impl Slot {
    /// Takes a slot for a client with `links` links, which under a policy has a fair share only, or
    /// returns the reason why there is none.
    pub(crate) fn take(
        slots: &Arc<Mutex<SlotTable>>,
        role: Role,
        links: Option<usize>,
    ) -> Result<Slot, String> {
        let mut counted = slots.lock();
        if let Some(why) = links.and_then(|links| counted.over_fair_share(role, links)) {
            return Err(why);
        }
        if counted.take(role) {
            Ok(Slot { slots: slots.clone(), role })
        } else {
            Err(counted.reason(role))
        }
    }

    /// The role under which the link is counted.
    pub(crate) fn role(&self) -> Role {
        self.role
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().release(self.role);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROLES: [Role; 3] = [Role::ResolverReader, Role::ResolverWriter, Role::Tool];

    fn reserved(writers: usize, tools: usize) -> [ReservedSlots; 2] {
        [
            ReservedSlots { role: Role::ResolverWriter, slots: writers },
            ReservedSlots { role: Role::Tool, slots: tools },
        ]
    }

    fn taken(slots: &mut SlotTable, role: Role) -> usize {
        std::iter::from_fn(|| slots.take(role).then_some(())).count()
    }

    #[test]
    fn readers_shut_out_neither_writers_nor_tools() {
        let mut slots = SlotTable::new(768, &reserved(96, 8));
        assert_eq!(taken(&mut slots, Role::ResolverReader), 664);
        assert_eq!(taken(&mut slots, Role::ResolverWriter), 96);
        assert_eq!(taken(&mut slots, Role::Tool), 8);
        assert_eq!(
            slots.to_string(),
            "768 of 768 connections are taken; 96 are reserved for the role `resolver writer`, \
             8 are reserved for the role `tool`"
        );
    }

    #[test]
    fn a_role_may_exceed_its_reservation_when_slots_are_free() {
        let mut slots = SlotTable::new(10, &reserved(2, 1));
        assert_eq!(taken(&mut slots, Role::ResolverWriter), 9, "all but the tools'");
        assert!(!slots.take(Role::ResolverReader));
        slots.release(Role::ResolverWriter);
        assert!(slots.take(Role::ResolverReader), "it was an unreserved slot");
    }

    #[test]
    fn links_of_values_leave_slots_for_others_which_may_take_theirs() {
        let slots = SlotTable::new(8, &reserved(0, 1));
        let slots = Arc::new(Mutex::new(slots.with_values_at_most(Some(4))));
        let values: Vec<Slot> =
            (0..4).map(|_| Slot::take(&slots, Role::Values, None).unwrap()).collect();
        assert_eq!(
            Slot::take(&slots, Role::Values, None).unwrap_err(),
            "4 of 4 connections for live values are taken; the rest of 8 is for other roles"
        );
        assert_eq!(taken(&mut slots.lock(), Role::Worker), 3, "all but the tools'");
        drop(values);
        assert_eq!(taken(&mut slots.lock(), Role::Worker), 4, "they are slots for every role");
        let reason = Slot::take(&slots, Role::Values, None).unwrap_err();
        assert!(reason.starts_with("7 of 8 connections are taken"), "{reason}");
        slots.lock().resize(20, &reserved(0, 1));
        assert_eq!(taken(&mut slots.lock(), Role::Values), 4, "as before");
    }

    /// The links of clients that all want as many as they can have, taken in turn.
    fn greedy(limit: usize, clients: usize) -> Vec<usize> {
        let slots = Arc::new(Mutex::new(SlotTable::new(limit, &[])));
        let (mut taken, mut links, mut any) = (Vec::new(), vec![0; clients], true);
        while std::mem::take(&mut any) {
            for links in &mut links {
                if let Ok(slot) = Slot::take(&slots, Role::Worker, Some(*links)) {
                    taken.push(slot);
                    (*links, any) = (*links + 1, true);
                }
            }
        }
        links
    }

    #[test]
    fn greedy_clients_share_the_slots_and_leave_some() {
        assert_eq!(greedy(16_384, 1), [12_288]);
        assert_eq!(greedy(700, 2), [300, 300]);
        assert!(greedy(3_100, 10).iter().all(|links| *links == 300));
        // Small listeners stay useful: up to three slots, one client may have all.
        assert_eq!(
            (1..=6).map(|limit| greedy(limit, 1)[0]).collect::<Vec<_>>(),
            [1, 2, 3, 3, 4, 5]
        );
        // Who comes later has room.
        let slots = Arc::new(Mutex::new(SlotTable::new(1_000, &reserved(0, 1))));
        let taken: Vec<_> =
            (0..749).map(|links| Slot::take(&slots, Role::Worker, Some(links)).unwrap()).collect();
        assert!(Slot::take(&slots, Role::Worker, Some(749)).is_ok(), "749 < 3 * 250");
        let held: Vec<_> =
            (0..100).map(|links| Slot::take(&slots, Role::Worker, Some(links)).unwrap()).collect();
        let why = Slot::take(&slots, Role::Worker, Some(749)).unwrap_err();
        assert!(why.starts_with("this client has 749 connections, and 150 of 1000 are"), "{why}");
        assert!(Slot::take(&slots, Role::Tool, Some(749)).is_ok(), "it is reserved for tools");
        drop((taken, held));
        assert!(Slot::take(&slots, Role::Worker, Some(749)).is_ok(), "enough is free");
    }

    #[test]
    fn without_a_policy_one_client_may_have_all_slots() {
        let slots = Arc::new(Mutex::new(SlotTable::new(8, &[])));
        let taken = || Slot::take(&slots, Role::Worker, None);
        let all: Vec<_> = std::iter::from_fn(|| taken().ok()).collect();
        assert_eq!(all.len(), 8);
        assert!(taken().unwrap_err().starts_with("8 of 8 connections are taken"));
        let why = Slot::take(&slots, Role::Worker, Some(8)).unwrap_err();
        assert!(why.starts_with("8 of 8 connections are taken"), "no slot is free: {why}");
    }

    #[test]
    fn at_most_half_of_the_slots_is_reserved() {
        let mut slots = SlotTable::new(8, &reserved(96, 8));
        assert_eq!(taken(&mut slots, Role::ResolverReader), 5, "3 of 4 and 0 of 4 are reserved");
        assert_eq!(taken(&mut slots, Role::ResolverWriter), 3);
        assert_eq!(taken(&mut SlotTable::new(1, &reserved(1, 1)), Role::ResolverReader), 1);
        assert_eq!(taken(&mut SlotTable::new(0, &reserved(1, 1)), Role::ResolverWriter), 0);
    }

    #[test]
    fn open_links_keep_their_slots_when_the_limit_falls() {
        let mut slots = SlotTable::new(10, &reserved(2, 0));
        assert_eq!(taken(&mut slots, Role::ResolverReader), 8);
        slots.resize(6, &reserved(2, 0));
        assert_eq!((slots.open(), taken(&mut slots, Role::ResolverReader)), (8, 0));
        assert_eq!(taken(&mut slots, Role::ResolverWriter), 2, "theirs are reserved all the same");
        (0..4).for_each(|_| slots.release(Role::ResolverReader));
        assert!(!slots.take(Role::ResolverReader), "4 of the 4 unreserved ones are taken");
        slots.release(Role::ResolverReader);
        assert!(slots.take(Role::ResolverReader));
        slots.resize(12, &reserved(0, 0));
        assert_eq!(taken(&mut slots, Role::ResolverReader), 6);
    }

    proptest! {
        #[test]
        fn the_limit_is_never_exceeded_and_reservations_are_honoured(
            limit in 0_usize..20,
            writers in 0_usize..20,
            tools in 0_usize..20,
            steps in prop::collection::vec((0_usize..3, any::<bool>()), 0..80),
        ) {
            let mut slots = SlotTable::new(limit, &reserved(writers, tools));
            for (role, comes) in steps {
                let role = ROLES[role];
                let (open, sum) = (slots.open_in(role), slots.open());
                if comes {
                    let took = slots.take(role);
                    prop_assert!(took || open >= slots.reserved_for(role));
                    prop_assert_eq!(slots.open(), sum + usize::from(took));
                } else if open > 0 {
                    slots.release(role);
                }
                prop_assert!(slots.open() <= limit);
                let unused = |role: &Role| {
                    slots.reserved_for(*role).saturating_sub(slots.open_in(*role))
                };
                prop_assert!(slots.open() + ROLES.iter().map(unused).sum::<usize>() <= limit);
            }
        }
    }
}
