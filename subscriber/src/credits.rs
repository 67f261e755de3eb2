//! Which publisher may push how many jobs. Credits granted and jobs held never add up to more than the bound, over all
//! publishers together: a credit that one publisher has can be had by another only once it is back.

use std::collections::BTreeMap;

use longshore_protocol::PublisherId;

/// An idle publisher keeps this fraction of its even share when others ask: the first job that it gets then need not wait
/// for a credit to travel. None is kept where a share is so small that it would cost a handler.
const IDLE_KEEPS_ONE_IN: u32 = 16;

/// What is to be said to a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    /// It may push so many more jobs.
    Grant(PublisherId, u32),
    /// It is asked for so many credits back.
    Recall(PublisherId, u32),
}

/// What is where.
#[derive(Debug)]
pub(crate) struct Credits {
    bound: u32,
    stopped: bool,
    /// Publishers whose first try is under way: the even split leaves their share.
    expected: u32,
    /// In the order of ids, so that nothing depends on a hash.
    accounts: BTreeMap<PublisherId, Account>,
    /// Counts grants.
    grants: u64,
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Account {
    alive: bool,
    /// Granted, and neither used nor given back.
    pub(crate) credits: u32,
    /// Asked back and not yet answered. Some may be used up before the publisher reads of it.
    recalled: Option<u32>,
    /// Those granted after it was asked.
    granted_since: u32,
    /// Credits that are known to be used up, by jobs that are still on their way.
    spent: u32,
    /// Jobs delivered and not yet freed.
    pub(crate) held: u32,
    /// Credits that it is to get before others: its share when it is new, or what it has work for.
    wanted: u32,
    /// What it wanted when it was asked for credits: they may all be used up, by jobs that are still on their way.
    claim: u32,
    /// The number of its last grant: of those that are alike, the one that has gone without for longest is first.
    served: u64,
}

impl Account {
    /// Credits end with their link; jobs held do not.
    fn on_a_new_link(&self, alive: bool) -> Account {
        Account { alive, held: self.held, served: self.served, ..Account::default() }
    }

    /// What it may still have.
    fn unspent(&self) -> u32 {
        self.credits.saturating_sub(self.spent)
    }

    /// What a recall can still bring.
    fn coming(&self) -> u32 {
        self.recalled.unwrap_or(0).min(self.unspent())
    }
}

impl Credits {
    pub(crate) fn new(bound: u32) -> Credits {
        Credits { bound, stopped: false, expected: 0, accounts: BTreeMap::new(), grants: 0 }
    }

    pub(crate) fn account(&self, id: &PublisherId) -> Account {
        self.accounts.get(id).copied().unwrap_or_default()
    }

    /// So many publishers may be alive soon.
    pub(crate) fn expect(&mut self, publishers: usize, moves: &mut Vec<Move>) {
        self.expected = u32::try_from(publishers).unwrap_or(u32::MAX);
        self.distribute(None, moves);
    }

    /// A publisher is alive: it gets its even share, from what others have too much of if need be. So many others are still
    /// expected.
    pub(crate) fn opened(&mut self, id: PublisherId, expected: usize, moves: &mut Vec<Move>) {
        self.expected = u32::try_from(expected).unwrap_or(u32::MAX);
        let account = self.accounts.entry(id).or_default();
        *account = account.on_a_new_link(true);
        let share = self.share();
        if let Some(account) = self.accounts.get_mut(&id) {
            account.wanted = share.saturating_sub(account.held);
        }
        self.distribute(None, moves);
        self.recall(share, moves);
    }

    /// Its link is dead, and its credits with it. Jobs held from it stay.
    pub(crate) fn lost(&mut self, id: PublisherId, moves: &mut Vec<Move>) {
        if let Some(account) = self.accounts.get_mut(&id) {
            *account = account.on_a_new_link(false);
        }
        self.distribute(None, moves);
    }

    /// The publisher is no more. Only one that nothing is held from can be forgotten.
    pub(crate) fn forget(&mut self, id: &PublisherId) {
        if self.accounts.get(id).is_some_and(|account| account.held == 0) {
            self.accounts.remove(id);
        }
    }

    /// Jobs came, each for a credit.
    pub(crate) fn delivered(&mut self, id: PublisherId, jobs: u32) {
        let account = self.accounts.entry(id).or_default();
        account.credits = account.credits.saturating_sub(jobs);
        account.spent = account.spent.saturating_sub(jobs);
        account.held = account.held.saturating_add(jobs);
    }

    /// Jobs of it are no longer held. What they freed goes to those that wait, and else back to where it came from.
    pub(crate) fn freed(&mut self, id: PublisherId, jobs: u32, moves: &mut Vec<Move>) {
        let account = self.accounts.entry(id).or_default();
        account.held = account.held.saturating_sub(jobs);
        self.distribute(Some((id, jobs)), moves);
        self.recall(self.idle_floor(), moves);
    }

    /// A recall is answered.
    pub(crate) fn returned(&mut self, id: PublisherId, credits: u32, moves: &mut Vec<Move>) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        // Less than was asked for means that it had none left: those granted before are used up, and are not asked for again
        // while their jobs are on their way.
        let had_none_left = account.recalled.is_some_and(|asked| credits < asked);
        account.credits = account.credits.saturating_sub(credits);
        account.recalled = None;
        if had_none_left {
            account.spent = account.credits.saturating_sub(account.granted_since);
        }
        let claim = std::mem::take(&mut account.claim);
        if credits == 0 {
            // It had said that it waits before it read of the recall, and does not say so twice.
            account.wanted = account.wanted.max(claim);
        }
        self.distribute(None, moves);
        self.recall(self.idle_floor(), moves);
    }

    /// A publisher has work and no credit: idle credits of others are asked back for it.
    pub(crate) fn waiting(&mut self, id: PublisherId, jobs: u64, moves: &mut Vec<Move>) {
        let bound = self.bound;
        let Some(account) = self.accounts.get_mut(&id).filter(|account| account.alive) else {
            return;
        };
        account.wanted = u32::try_from(jobs).unwrap_or(u32::MAX).min(bound);
        account.claim = 0;
        self.distribute(None, moves);
        self.recall(self.idle_floor(), moves);
    }

    /// No more grants, ever.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// What every publisher would have if all were alike.
    fn share(&self) -> u32 {
        let alive = self.accounts.values().filter(|account| account.alive).count() as u32;
        (self.bound / alive.saturating_add(self.expected).max(1)).max(1)
    }

    fn idle_floor(&self) -> u32 {
        self.share() / IDLE_KEEPS_ONE_IN
    }

    /// Neither granted nor held.
    fn pool(&self) -> u32 {
        let out = |account: &Account| u64::from(account.credits) + u64::from(account.held);
        let out: u64 = self.accounts.values().map(out).sum();
        u32::try_from(u64::from(self.bound).saturating_sub(out)).unwrap_or(0)
    }

    /// Grants what is free: first to those that wait, the poorest first; then to `home`, whose jobs freed it; then, but for the
    /// shares of those that are expected, to all alive.
    fn distribute(&mut self, home: Option<(PublisherId, u32)>, moves: &mut Vec<Move>) {
        let mut pool = self.pool();
        if pool == 0 || self.stopped {
            return;
        }
        let alive = || self.accounts.iter().filter(|(_, account)| account.alive);
        let mut jars: Vec<Jar> = alive().map(|(id, account)| Jar::new(*id, account)).collect();
        jars.sort_by_key(|jar| (jar.served, jar.id));
        if jars.is_empty() {
            return;
        }
        pool = pour(pool, &mut jars);
        if let Some((id, jobs)) = home
            && let Some(jar) = jars.iter_mut().find(|jar| jar.id == id)
        {
            let back = jobs.min(pool);
            jar.granted += back;
            pool -= back;
        }
        let reserved = self.share().saturating_mul(self.expected);
        jars.iter_mut().for_each(|jar| jar.room = u32::MAX);
        pour(pool.saturating_sub(reserved), &mut jars);
        for jar in jars.iter().filter(|jar| jar.granted > 0) {
            if let Some(account) = self.accounts.get_mut(&jar.id) {
                account.credits += jar.granted;
                account.granted_since = account.granted_since.saturating_add(jar.granted);
                account.wanted = account.wanted.saturating_sub(jar.granted);
                self.grants += 1;
                account.served = self.grants;
                moves.push(Move::Grant(jar.id, jar.granted));
            }
        }
    }

    /// Asks those that have more than `keep` for it, as far as others want it; the richest first. Who is asked has no claim
    /// until it has answered: it would get back what it gave. One that still has work uses its credits before it reads of the recall,
    /// and has none to give.
    fn recall(&mut self, keep: u32, moves: &mut Vec<Move>) {
        if self.stopped {
            return;
        }
        let alive = || self.accounts.values().filter(|account| account.alive);
        let wanted = alive().fold(0u32, |sum, account| sum.saturating_add(account.wanted));
        let coming = alive().fold(0u32, |sum, account| sum.saturating_add(account.coming()));
        let mut missing = wanted.saturating_sub(coming);
        if missing == 0 {
            return;
        }
        let mut rich: Vec<(u32, PublisherId)> = self
            .accounts
            .iter()
            .filter(|(_, a)| a.alive && a.recalled.is_none() && a.unspent() > keep)
            .map(|(id, account)| (account.unspent() - keep, *id))
            .collect();
        rich.sort_by(|a, b| b.cmp(a));
        for (spare, id) in rich {
            let Some(account) = self.accounts.get_mut(&id) else { continue };
            let for_others = missing.saturating_sub(account.wanted);
            let asked = spare.min(for_others);
            if asked == 0 {
                continue;
            }
            account.claim = std::mem::take(&mut account.wanted);
            (account.recalled, account.granted_since) = (Some(asked), 0);
            missing = for_others - asked;
            moves.push(Move::Recall(id, asked));
        }
    }
}

/// A publisher while credits are poured.
#[derive(Debug)]
struct Jar {
    id: PublisherId,
    served: u64,
    /// What it has: credits and jobs.
    level: u32,
    /// How much more it takes.
    room: u32,
    granted: u32,
}

impl Jar {
    fn new(id: PublisherId, account: &Account) -> Jar {
        let level = account.credits.saturating_add(account.held);
        Jar { id, served: account.served, level, room: account.wanted, granted: 0 }
    }

    fn surface(&self) -> u32 {
        self.level.saturating_add(self.granted)
    }
}

/// Pours `pool` so that the lowest surfaces rise together, none over its room. What nobody takes is given back.
fn pour(mut pool: u32, jars: &mut [Jar]) -> u32 {
    for jar in jars.iter_mut() {
        jar.room = jar.room.saturating_add(jar.granted);
    }
    while pool > 0 {
        let open = || jars.iter().filter(|jar| jar.granted < jar.room);
        let Some(low) = open().map(Jar::surface).min() else { break };
        let next = open().map(Jar::surface).filter(|surface| *surface > low).min();
        let lowest = || open().filter(|jar| jar.surface() == low);
        let tied = lowest().count() as u32;
        let room = lowest().map(|jar| jar.room - jar.granted).min().unwrap_or(0);
        let rise = room.min(next.map_or(u32::MAX, |next| next - low)).min(pool / tied.max(1));
        // Too little for all of the lowest: one each for the first of them.
        let each = rise.max(1);
        for jar in jars.iter_mut() {
            if pool > 0 && jar.granted < jar.room && jar.surface() == low {
                jar.granted += each;
                pool -= each;
            }
        }
    }
    pool
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    fn publisher(n: u8) -> PublisherId {
        PublisherId([n; 16])
    }

    const A: PublisherId = PublisherId([1; 16]);
    const B: PublisherId = PublisherId([2; 16]);
    const C: PublisherId = PublisherId([3; 16]);

    /// Credits, and the moves that they make.
    fn credits(bound: u32) -> (Credits, Vec<Move>) {
        (Credits::new(bound), Vec::new())
    }

    fn taken(moves: &mut Vec<Move>) -> Vec<Move> {
        std::mem::take(moves)
    }

    #[test]
    fn a_lone_publisher_gets_the_whole_bound() {
        let (mut credits, mut moves) = credits(10);
        credits.opened(A, 0, &mut moves);
        assert_eq!(moves, [Move::Grant(A, 10)]);
    }

    #[test]
    fn the_first_split_is_even_over_those_that_are_expected() {
        let (mut credits, mut moves) = credits(10);
        credits.expect(3, &mut moves);
        credits.opened(A, 2, &mut moves);
        credits.opened(B, 1, &mut moves);
        credits.opened(C, 0, &mut moves);
        assert_eq!(moves, [Move::Grant(A, 4), Move::Grant(B, 3), Move::Grant(C, 3)]);
    }

    #[test]
    fn what_was_kept_for_one_that_does_not_come_goes_to_the_others() {
        let (mut credits, mut moves) = credits(10);
        credits.opened(A, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 5)]);
        credits.expect(0, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 5)]);
    }

    #[test]
    fn a_new_publisher_gets_its_share_only_after_it_was_returned() {
        let (mut credits, mut moves) = credits(10);
        credits.opened(A, 0, &mut moves);
        taken(&mut moves);
        credits.opened(B, 0, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Recall(A, 5)]);
        credits.returned(A, 5, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(B, 5)]);
    }

    #[test]
    fn idle_credits_go_to_a_publisher_with_work_and_no_credit_after_they_are_returned() {
        let (mut credits, mut moves) = credits(4);
        credits.opened(A, 1, &mut moves);
        credits.opened(B, 0, &mut moves);
        let given = credits.account(&A).credits;
        credits.returned(A, given.saturating_sub(2), &mut moves);
        taken(&mut moves);
        credits.delivered(A, 2);
        credits.waiting(A, 100, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Recall(B, 2)]);
        credits.waiting(A, 100, &mut moves);
        assert_eq!(taken(&mut moves), [], "asked once");
        credits.returned(B, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
    }

    #[test]
    fn the_credits_of_a_dead_link_go_to_the_others_and_its_jobs_do_not() {
        let (mut credits, mut moves) = credits(10);
        credits.opened(A, 1, &mut moves);
        credits.opened(B, 0, &mut moves);
        taken(&mut moves);
        credits.delivered(A, 2);
        credits.lost(A, &mut moves);
        let granted: u32 =
            moves.iter().map(|m| if let Move::Grant(B, n) = m { *n } else { 0 }).sum();
        assert_eq!(credits.account(&A).held, 2);
        assert_eq!(credits.account(&B).credits, 8);
        assert!(granted > 0);
    }

    #[test]
    fn a_freed_job_gives_its_credit_back_to_where_it_came_from_unless_another_waits() {
        let (mut credits, mut moves) = credits(2);
        credits.opened(A, 1, &mut moves);
        credits.opened(B, 0, &mut moves);
        taken(&mut moves);
        credits.delivered(A, 1);
        credits.freed(A, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
        credits.delivered(A, 1);
        credits.delivered(B, 1);
        credits.waiting(B, 3, &mut moves);
        assert_eq!(taken(&mut moves), [], "A has no idle credit to give");
        credits.freed(A, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(B, 1)]);
    }

    #[test]
    fn a_new_publisher_without_work_does_not_keep_its_share_from_one_that_waits() {
        let (mut credits, mut moves) = credits(10);
        credits.opened(A, 0, &mut moves);
        credits.delivered(A, 10);
        credits.opened(B, 0, &mut moves);
        taken(&mut moves);
        credits.freed(A, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(B, 1)], "the first share of a new one");
        credits.waiting(A, 100, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Recall(B, 1)], "which has no work");
        credits.returned(B, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
        credits.delivered(A, 1);
        credits.waiting(A, 100, &mut moves);
        credits.freed(A, 10, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 10)]);
    }

    #[test]
    fn with_more_publishers_than_credits_each_that_waits_has_its_turn() {
        let (mut credits, mut moves) = credits(1);
        credits.opened(A, 0, &mut moves);
        credits.opened(B, 0, &mut moves);
        credits.waiting(B, 9, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 1), Move::Recall(A, 1)]);
        credits.delivered(A, 1);
        credits.returned(A, 0, &mut moves);
        credits.waiting(A, 9, &mut moves);
        let mut turns = Vec::new();
        let mut running = A;
        for _ in 0..6 {
            credits.freed(running, 1, &mut moves);
            let Some(Move::Grant(next, 1)) = taken(&mut moves).first().copied() else { panic!() };
            // It uses the credit, answers the recall that followed it, and waits again.
            credits.delivered(next, 1);
            credits.returned(next, 0, &mut moves);
            credits.waiting(next, 9, &mut moves);
            turns.push(next);
            running = next;
        }
        assert_eq!(turns, [B, A, B, A, B, A]);
    }

    #[test]
    fn a_credit_that_a_publisher_no_longer_needs_goes_to_the_other_that_waits() {
        let (mut credits, mut moves) = credits(1);
        credits.opened(A, 0, &mut moves);
        credits.opened(B, 0, &mut moves);
        credits.delivered(A, 1);
        credits.waiting(A, 1, &mut moves);
        credits.waiting(B, 1, &mut moves);
        taken(&mut moves);
        credits.freed(A, 1, &mut moves);
        let turn = taken(&mut moves);
        assert_eq!(turn, [Move::Grant(B, 1), Move::Recall(B, 1)], "use it now, or give it back");
        // Another worker took B's job in the meantime.
        credits.returned(B, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 1)]);
    }

    #[test]
    fn what_one_that_was_asked_has_used_up_is_asked_of_another() {
        let (mut credits, mut moves) = credits(6);
        credits.expect(3, &mut moves);
        for (id, expected) in [(A, 2), (B, 1), (C, 0)] {
            credits.opened(id, expected, &mut moves);
        }
        credits.delivered(C, 2);
        taken(&mut moves);
        credits.waiting(C, 2, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Recall(B, 2)]);
        credits.delivered(B, 2);
        credits.returned(B, 0, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Recall(A, 2)], "whose credits are idle");
        credits.returned(A, 2, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(C, 2)]);
    }

    #[test]
    fn a_credit_that_came_when_the_work_had_gone_is_not_kept_from_another_that_waits() {
        let (mut credits, mut moves) = credits(2);
        credits.opened(A, 1, &mut moves);
        credits.opened(B, 0, &mut moves);
        credits.delivered(A, 1);
        credits.delivered(B, 1);
        credits.waiting(A, 9, &mut moves);
        taken(&mut moves);
        credits.freed(A, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 1)], "half of what it has work for");
        // Another worker took A's jobs in the meantime: it is silent, and keeps the credit.
        credits.waiting(B, 9, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Recall(A, 1)]);
        credits.returned(A, 1, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(B, 1)]);
    }

    #[test]
    fn one_that_waits_and_is_asked_while_its_jobs_are_on_their_way_still_waits() {
        let (mut credits, mut moves) = credits(10);
        credits.opened(A, 1, &mut moves);
        credits.opened(B, 0, &mut moves);
        assert_eq!(taken(&mut moves), [Move::Grant(A, 5), Move::Grant(B, 5)]);
        // Both have used up their credits. The jobs come after the words.
        credits.waiting(A, 90, &mut moves);
        credits.waiting(B, 90, &mut moves);
        let asked = taken(&mut moves);
        assert!(asked.iter().any(|one| matches!(one, Move::Recall(A, _))), "{asked:?}");
        for id in [A, B] {
            credits.delivered(id, 5);
        }
        for one in asked {
            if let Move::Recall(id, _) = one {
                credits.returned(id, 0, &mut moves);
            }
        }
        credits.freed(A, 5, &mut moves);
        credits.freed(B, 5, &mut moves);
        let granted = |id| {
            let to = |one: &Move| matches!(*one, Move::Grant(to, _) if to == id);
            moves.iter().any(to)
        };
        assert!(granted(A) && granted(B), "{moves:?}");
    }

    #[test]
    fn those_whose_jobs_are_on_their_way_are_asked_once() {
        let (mut credits, mut moves) = credits(12);
        credits.expect(2, &mut moves);
        credits.opened(A, 1, &mut moves);
        credits.opened(B, 0, &mut moves);
        taken(&mut moves);
        // Both have used up all that they have, and no job of them has come.
        for id in [A, B] {
            credits.waiting(id, 50, &mut moves);
        }
        let mut asked = 0;
        while let Some(Move::Recall(id, _)) = (!moves.is_empty()).then(|| moves.remove(0)) {
            asked += 1;
            assert!(asked <= 2, "asked for ever");
            credits.returned(id, 0, &mut moves);
        }
        assert_eq!(asked, 2);
        credits.delivered(A, 6);
        credits.freed(A, 6, &mut moves);
        assert!(matches!(moves.first(), Some(Move::Grant(..))), "{moves:?}");
    }

    #[test]
    fn nothing_is_granted_after_a_stop() {
        let (mut credits, mut moves) = credits(4);
        credits.opened(A, 0, &mut moves);
        credits.delivered(A, 4);
        credits.stop();
        taken(&mut moves);
        credits.freed(A, 4, &mut moves);
        credits.waiting(A, 4, &mut moves);
        assert_eq!(moves, []);
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Expect(usize),
        Open(u8, usize),
        Lose(u8),
        Deliver(u8, u32),
        Free(u8, u32),
        Return(u8, u32),
        Wait(u8, u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let p = 0u8..4;
        prop_oneof![
            (0usize..4).prop_map(Event::Expect),
            (p.clone(), 0usize..4).prop_map(|(p, n)| Event::Open(p, n)),
            p.clone().prop_map(Event::Lose),
            (p.clone(), 1u32..20).prop_map(|(p, n)| Event::Deliver(p, n)),
            (p.clone(), 1u32..20).prop_map(|(p, n)| Event::Free(p, n)),
            (p.clone(), 0u32..20).prop_map(|(p, n)| Event::Return(p, n)),
            (p, 0u64..50).prop_map(|(p, n)| Event::Wait(p, n)),
        ]
    }

    /// One publisher's side, kept apart from `Credits`: what it has been told and has done.
    #[derive(Clone, Copy, Default)]
    struct Side {
        alive: bool,
        credits: u32,
        recalled: Option<u32>,
        held: u32,
    }

    /// A publisher that does as the state does: it hands out while it has jobs and credit, and says once that it waits. What it
    /// says and what it delivers travel apart.
    #[derive(Default)]
    struct Truthful {
        jobs: u32,
        credits: u32,
        untold: bool,
        to: VecDeque<Move>,
        words: VecDeque<Move>,
        deliveries: VecDeque<u32>,
        running: u32,
    }

    impl Truthful {
        fn hears(&mut self, one: Move) {
            match one {
                Move::Grant(_, n) => {
                    self.credits += n;
                    self.untold = false;
                }
                Move::Recall(id, n) => {
                    let back = n.min(self.credits);
                    self.credits -= back;
                    self.untold |= back > 0 && self.credits == 0;
                    self.words.push_back(Move::Recall(id, back));
                }
            }
        }

        /// Hands out, and says that it waits.
        fn serve(&mut self, id: PublisherId) {
            let handed = self.jobs.min(self.credits);
            if handed > 0 {
                self.jobs -= handed;
                self.credits -= handed;
                self.untold |= self.credits == 0;
                self.deliveries.push_back(handed);
            }
            if self.untold && self.jobs > 0 {
                self.untold = false;
                self.words.push_back(Move::Grant(id, self.jobs));
            }
        }

        /// Takes the next step that there is; false for none.
        fn step(
            &mut self,
            id: PublisherId,
            which: u8,
            credits: &mut Credits,
            moves: &mut Vec<Move>,
        ) -> bool {
            for nth in 0..4 {
                match (which % 4 + nth) % 4 {
                    0 if !self.to.is_empty() => {
                        while let Some(one) = self.to.pop_front() {
                            self.hears(one);
                            self.serve(id);
                        }
                    }
                    1 => match self.words.pop_front() {
                        Some(Move::Grant(id, jobs)) => credits.waiting(id, jobs.into(), moves),
                        Some(Move::Recall(id, back)) => credits.returned(id, back, moves),
                        None => continue,
                    },
                    2 => match self.deliveries.pop_front() {
                        Some(jobs) => {
                            credits.delivered(id, jobs);
                            self.running += jobs;
                        }
                        None => continue,
                    },
                    3 if self.running > 0 => {
                        let done = self.running.min(1 + u32::from(which));
                        self.running -= done;
                        credits.freed(id, done, moves);
                    }
                    _ => continue,
                }
                return true;
            }
            false
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// However words and jobs are delayed on their way: every publisher is rid of its jobs.
        #[test]
        fn no_publisher_is_left_with_jobs_and_without_credit(
            bound in 1u32..120,
            jobs in proptest::collection::vec(0u32..400, 2..4),
            turns in proptest::collection::vec((0usize..4, 0u8..=255), 1..300),
        ) {
            let mut credits = Credits::new(bound);
            let mut moves = Vec::new();
            let mut all: Vec<Truthful> = jobs
                .iter()
                .map(|&jobs| Truthful { jobs, untold: true, ..Truthful::default() })
                .collect();
            for (n, one) in all.iter_mut().enumerate() {
                one.serve(publisher(n as u8));
                credits.opened(publisher(n as u8), jobs.len() - n - 1, &mut moves);
            }
            let mut steps = 0;
            for (first, which) in turns.iter().cycle() {
                for one in moves.drain(..) {
                    let (Move::Grant(id, _) | Move::Recall(id, _)) = one;
                    all[id.0[0] as usize].to.push_back(one);
                }
                let count = all.len();
                let went_on = (0..count).any(|nth| {
                    let n = (first + nth) % count;
                    all[n].step(publisher(n as u8), *which, &mut credits, &mut moves)
                });
                if !went_on && moves.is_empty() {
                    break;
                }
                steps += 1;
                prop_assert!(steps < 100_000, "asked and given for ever");
            }
            let left: Vec<u32> = all.iter().map(|one| one.jobs).collect();
            prop_assert!(left.iter().all(|jobs| *jobs == 0), "{left:?} of {jobs:?} are left");
        }

        /// However publishers come, go, push, wait and give back: what they were granted and have not used or returned,
        /// and what is held of them, never exceeds the bound; and no credit is lost for good.
        #[test]
        fn credits_and_jobs_never_exceed_the_bound(
            bound in 1u32..40,
            events in proptest::collection::vec(event(), 1..200),
        ) {
            let mut credits = Credits::new(bound);
            let mut sides = [Side::default(); 4];
            let mut moves = Vec::new();
            for event in events {
                match event {
                    Event::Expect(n) => credits.expect(n, &mut moves),
                    Event::Open(p, n) if !sides[p as usize].alive => {
                        sides[p as usize].alive = true;
                        credits.opened(publisher(p), n, &mut moves);
                    }
                    Event::Lose(p) if sides[p as usize].alive => {
                        let side = &mut sides[p as usize];
                        *side = Side { held: side.held, ..Side::default() };
                        credits.lost(publisher(p), &mut moves);
                    }
                    Event::Deliver(p, n) if sides[p as usize].credits > 0 => {
                        let side = &mut sides[p as usize];
                        let n = n.min(side.credits);
                        side.credits -= n;
                        side.held += n;
                        credits.delivered(publisher(p), n);
                    }
                    Event::Free(p, n) if sides[p as usize].held > 0 => {
                        let n = n.min(sides[p as usize].held);
                        sides[p as usize].held -= n;
                        credits.freed(publisher(p), n, &mut moves);
                    }
                    Event::Return(p, n) => {
                        let side = &mut sides[p as usize];
                        if let Some(asked) = side.recalled.take() {
                            let n = n.min(asked).min(side.credits);
                            side.credits -= n;
                            credits.returned(publisher(p), n, &mut moves);
                        }
                    }
                    Event::Wait(p, n) if sides[p as usize].alive => {
                        credits.waiting(publisher(p), n, &mut moves);
                    }
                    _ => {}
                }
                for one in moves.drain(..) {
                    match one {
                        Move::Grant(id, n) => {
                            let side = &mut sides[id.0[0] as usize];
                            prop_assert!(side.alive && n > 0);
                            side.credits += n;
                        }
                        Move::Recall(id, n) => {
                            let side = &mut sides[id.0[0] as usize];
                            prop_assert!(side.alive && n > 0 && side.recalled.is_none());
                            side.recalled = Some(n);
                        }
                    }
                }
                let out: u32 = sides.iter().map(|side| side.credits + side.held).sum();
                prop_assert!(out <= bound, "{out} are out, {bound} may be");
            }
            credits.expect(0, &mut moves);
            for one in moves {
                if let Move::Grant(id, n) = one {
                    sides[id.0[0] as usize].credits += n;
                }
            }
            if sides.iter().any(|side| side.alive) {
                let out: u32 = sides.iter().map(|side| side.credits + side.held).sum();
                prop_assert_eq!(out, bound, "with a publisher alive, nothing stays in the pool");
            }
        }
    }
}
