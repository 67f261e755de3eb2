//! Which publisher may push how many jobs. Credits granted and jobs held never add up to more than
//! the bound, over all publishers together: a credit that one publisher has can be had by another
//! only once it is back.
//!
//! A publisher that is stopped gives nothing back until its link is dead, 10 s after its last byte
//! by the hang timeout of work links. An even share of 8 credits or more keeps a reserve, and the
//! first job of another publisher waits for nobody. Below, all credits may be where the last work
//! was, and such a job may wait for those 10 s. One credit at each idle publisher would fix that
//! and cost more: with load below saturation it travels with nearly every job, and each publisher
//! that is stopped takes a handler with it.

use std::collections::BTreeMap;

use longshore_protocol::PublisherId;

/// An idle publisher keeps this fraction of its even share when others ask: the first job that it
/// gets then need not wait for a credit to travel.
const IDLE_RESERVE_DIVISOR: u32 = 16;
/// It keeps one at least from this share on. Of a smaller one, one would be too large a part of
/// what handlers run.
const IDLE_RESERVE_MIN_SHARE: u32 = 8;

/// What is to be said to a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CreditMessage {
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
    /// Nothing is granted, and what was is asked back.
    quiet: bool,
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
    /// What it wanted when it was asked for credits: they may all be used up, by jobs that are
    /// still on their way.
    claim: u32,
    /// The number of its last grant: of those that are alike, the one that has gone without for
    /// longest is first.
    served: u64,
}

impl Account {
    /// Credits end with their link; jobs held do not.
    fn for_new_link(&self, alive: bool) -> Account {
        Account { alive, held: self.held, served: self.served, ..Account::default() }
    }

    /// What it may still have.
    fn unspent(&self) -> u32 {
        self.credits.saturating_sub(self.spent)
    }

    /// What a recall can still bring.
    fn recallable(&self) -> u32 {
        self.recalled.unwrap_or(0).min(self.unspent())
    }
}

impl Credits {
    pub(crate) fn new(bound: u32) -> Credits {
        let accounts = BTreeMap::new();
        Credits { bound, stopped: false, quiet: false, expected: 0, accounts, grants: 0 }
    }

    pub(crate) fn account(&self, id: &PublisherId) -> Account {
        self.accounts.get(id).copied().unwrap_or_default()
    }

    /// So many publishers may be alive soon.
    pub(crate) fn expect(&mut self, publishers: usize, messages: &mut Vec<CreditMessage>) {
        self.expected = u32::try_from(publishers).unwrap_or(u32::MAX);
        self.distribute(None, messages);
    }

    /// A publisher is alive: it gets its even share, from what others have too much of if need be.
    /// So many others are still expected.
    pub(crate) fn opened(
        &mut self,
        id: PublisherId,
        expected: usize,
        messages: &mut Vec<CreditMessage>,
    ) {
        self.expected = u32::try_from(expected).unwrap_or(u32::MAX);
        let account = self.accounts.entry(id).or_default();
        *account = account.for_new_link(true);
        let share = self.share();
        if let Some(account) = self.accounts.get_mut(&id) {
            account.wanted = share.saturating_sub(account.held);
        }
        self.distribute(None, messages);
        self.recall(share, messages);
    }

    /// Its link is dead, and its credits with it. Jobs held from it stay.
    pub(crate) fn lost(&mut self, id: PublisherId, messages: &mut Vec<CreditMessage>) {
        if let Some(account) = self.accounts.get_mut(&id) {
            *account = account.for_new_link(false);
        }
        self.distribute(None, messages);
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

    /// Jobs of it are no longer held. What they freed goes to those that wait, and else back to
    /// where it came from.
    pub(crate) fn freed(&mut self, id: PublisherId, jobs: u32, messages: &mut Vec<CreditMessage>) {
        let account = self.accounts.entry(id).or_default();
        account.held = account.held.saturating_sub(jobs);
        self.distribute(Some((id, jobs)), messages);
        self.recall(self.idle_reserve(), messages);
    }

    /// A recall is answered.
    pub(crate) fn returned(
        &mut self,
        id: PublisherId,
        credits: u32,
        messages: &mut Vec<CreditMessage>,
    ) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        // Less than was asked for means that it had none left: those granted before are used up,
        // and are not asked for again while their jobs are on their way.
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
        self.distribute(None, messages);
        self.recall(self.idle_reserve(), messages);
        if self.quiet {
            self.recall_all(messages);
        }
    }

    /// A publisher has work and no credit: idle credits of others are asked back for it.
    pub(crate) fn waiting(
        &mut self,
        id: PublisherId,
        jobs: u64,
        messages: &mut Vec<CreditMessage>,
    ) {
        let bound = self.bound;
        let Some(account) = self.accounts.get_mut(&id).filter(|account| account.alive) else {
            return;
        };
        account.wanted = u32::try_from(jobs).unwrap_or(u32::MAX).min(bound);
        account.claim = 0;
        self.distribute(None, messages);
        self.recall(self.idle_reserve(), messages);
    }

    /// No more grants, ever.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// No grants for a while, and every publisher is asked for what it has; or grants again, to
    /// those first that have said meanwhile that they wait.
    pub(crate) fn set_quiet(&mut self, quiet: bool, messages: &mut Vec<CreditMessage>) {
        self.quiet = quiet;
        if quiet {
            self.recall_all(messages);
        } else {
            self.distribute(None, messages);
            self.recall(self.idle_reserve(), messages);
        }
    }

    /// A grant that its publisher was not told of is taken back. It may have said that it waits,
    /// and does not say so twice: it is first when there are grants again.
    pub(crate) fn grant_withdrawn(&mut self, id: PublisherId, credits: u32) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.credits = account.credits.saturating_sub(credits);
            account.granted_since = account.granted_since.saturating_sub(credits);
            account.wanted = account.wanted.saturating_add(credits).min(self.bound);
        }
    }

    /// True when the publisher has no credit: none that it was asked for, and none that it could
    /// be.
    pub(crate) fn all_returned(&self, id: &PublisherId) -> bool {
        let account = self.account(id);
        account.recalled.is_none() && account.unspent() == 0
    }

    /// What every publisher would have if all were alike.
    fn share(&self) -> u32 {
        let alive = self.accounts.values().filter(|account| account.alive).count() as u32;
        (self.bound / alive.saturating_add(self.expected).max(1)).max(1)
    }

    fn idle_reserve(&self) -> u32 {
        let share = self.share();
        (share / IDLE_RESERVE_DIVISOR).max(u32::from(share >= IDLE_RESERVE_MIN_SHARE))
    }

    /// Neither granted nor held.
    fn pool(&self) -> u32 {
        let out = |account: &Account| u64::from(account.credits) + u64::from(account.held);
        let out: u64 = self.accounts.values().map(out).sum();
        u32::try_from(u64::from(self.bound).saturating_sub(out)).unwrap_or(0)
    }

    /// Grants what is free: first to those that wait, the poorest first; then to `freed_by`, whose jobs
    /// freed it; then, but for the shares of those that are expected, to all alive.
    fn distribute(
        &mut self,
        freed_by: Option<(PublisherId, u32)>,
        messages: &mut Vec<CreditMessage>,
    ) {
        let mut pool = self.pool();
        if pool == 0 || self.stopped || self.quiet {
            return;
        }
        let alive = || self.accounts.iter().filter(|(_, account)| account.alive);
        let mut allotments: Vec<Allotment> =
            alive().map(|(id, account)| Allotment::new(*id, account)).collect();
        allotments.sort_by_key(|allotment| (allotment.served, allotment.id));
        if allotments.is_empty() {
            return;
        }
        pool = water_fill(pool, &mut allotments);
        if let Some((id, jobs)) = freed_by
            && let Some(allotment) = allotments.iter_mut().find(|allotment| allotment.id == id)
        {
            let back = jobs.min(pool);
            allotment.granted += back;
            pool -= back;
        }
        let reserved = self.share().saturating_mul(self.expected);
        allotments.iter_mut().for_each(|allotment| allotment.room = u32::MAX);
        water_fill(pool.saturating_sub(reserved), &mut allotments);
        for allotment in allotments.iter().filter(|allotment| allotment.granted > 0) {
            if let Some(account) = self.accounts.get_mut(&allotment.id) {
                account.credits += allotment.granted;
                account.granted_since = account.granted_since.saturating_add(allotment.granted);
                account.wanted = account.wanted.saturating_sub(allotment.granted);
                self.grants += 1;
                account.served = self.grants;
                messages.push(CreditMessage::Grant(allotment.id, allotment.granted));
            }
        }
    }

    /// Asks those that have more than `reserve` for it, as far as others want it; the richest first.
    /// Who is asked has no claim until it has answered: it would get back what it gave. One that
    /// still has work uses its credits before it reads of the recall, and has none to give.
    fn recall(&mut self, reserve: u32, messages: &mut Vec<CreditMessage>) {
        if self.stopped || self.quiet {
            return;
        }
        let alive = || self.accounts.values().filter(|account| account.alive);
        let wanted = alive().fold(0u32, |sum, account| sum.saturating_add(account.wanted));
        let recallable =
            alive().fold(0u32, |sum, account| sum.saturating_add(account.recallable()));
        let mut missing = wanted.saturating_sub(recallable);
        if missing == 0 {
            return;
        }
        let mut rich: Vec<(u32, PublisherId)> = self
            .accounts
            .iter()
            .filter(|(_, a)| a.alive && a.recalled.is_none() && a.unspent() > reserve)
            .map(|(id, account)| (account.unspent() - reserve, *id))
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
            messages.push(CreditMessage::Recall(id, asked));
        }
    }

    /// Asks everybody for everything. Who is asked already is asked for the rest once it has
    /// answered.
    fn recall_all(&mut self, messages: &mut Vec<CreditMessage>) {
        if self.stopped {
            return;
        }
        for (id, account) in &mut self.accounts {
            let asked = account.unspent();
            if account.alive && account.recalled.is_none() && asked > 0 {
                account.claim = std::mem::take(&mut account.wanted);
                (account.recalled, account.granted_since) = (Some(asked), 0);
                messages.push(CreditMessage::Recall(*id, asked));
            }
        }
    }
}

/// A publisher while credits are poured.
#[derive(Debug)]
struct Allotment {
    id: PublisherId,
    served: u64,
    /// What it has: credits and jobs.
    current: u32,
    /// How much more it takes.
    room: u32,
    granted: u32,
}

impl Allotment {
    fn new(id: PublisherId, account: &Account) -> Allotment {
        let current = account.credits.saturating_add(account.held);
        Allotment { id, served: account.served, current, room: account.wanted, granted: 0 }
    }

    fn total(&self) -> u32 {
        self.current.saturating_add(self.granted)
    }
}

/// Pours `pool` so that the lowest surfaces rise together, none over its room. What nobody takes is
/// given back.
fn water_fill(mut pool: u32, allotments: &mut [Allotment]) -> u32 {
    for allotment in allotments.iter_mut() {
        allotment.room = allotment.room.saturating_add(allotment.granted);
    }
    while pool > 0 {
        let open = || allotments.iter().filter(|allotment| allotment.granted < allotment.room);
        let Some(low) = open().map(Allotment::total).min() else { break };
        let next = open().map(Allotment::total).filter(|total| *total > low).min();
        let lowest = || open().filter(|allotment| allotment.total() == low);
        let tied = lowest().count() as u32;
        let room = lowest().map(|allotment| allotment.room - allotment.granted).min().unwrap_or(0);
        let rise = room.min(next.map_or(u32::MAX, |next| next - low)).min(pool / tied.max(1));
        // Too little for all of the lowest: one each for the first of them.
        let each = rise.max(1);
        for allotment in allotments.iter_mut() {
            if pool > 0 && allotment.granted < allotment.room && allotment.total() == low {
                allotment.granted += each;
                pool -= each;
            }
        }
    }
    pool
}

#[cfg(test)]
mod tests;
