//! How many jobs each publisher may push. The sum of granted credits and jobs held, over all
//! publishers, never exceeds the bound: a credit moves only after its publisher returned it.
//!
//! A stopped publisher returns nothing until its link is dead, 10 s after its last byte by the hang
//! timeout of work links. So beside others no publisher has all credits: one at least is granted on
//! demand, is at another publisher, or is used by a job, which frees it. (With a bound of 1 there
//! is no other.) With an even share of 8 credits or more, idle publishers keep a reserve, too, and
//! the first job of each is delivered at once. With smaller shares a reserve would cost more: below
//! saturation it moves with nearly every job, and makes handlers idle where nothing is prefetched.

use std::collections::BTreeMap;

use longshore_protocol::PublisherId;

/// An idle publisher keeps this fraction of its even share when others need credits, so that its
/// first job need not wait for a credit.
const IDLE_RESERVE_DIVISOR: u32 = 16;
/// From this share on, the reserve is at least one. Of a smaller share, one credit would be too
/// large a part of the handlers.
const IDLE_RESERVE_MIN_SHARE: u32 = 8;

/// A message to a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CreditMessage {
    /// The publisher may push this many more jobs.
    Grant(PublisherId, u32),
    /// The publisher is to return this many credits.
    Recall(PublisherId, u32),
}

/// The credits of all publishers.
#[derive(Debug)]
pub(crate) struct Credits {
    bound: u32,
    stopped: bool,
    /// Grants nothing, and recalls everything.
    quiet: bool,
    /// Publishers whose first attempt is in progress: the even split reserves their share.
    expected: u32,
    /// Ordered by id: the result must not depend on a hash.
    accounts: BTreeMap<PublisherId, Account>,
    /// The number of grants so far.
    grants: u64,
}

#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Account {
    alive: bool,
    /// Granted, and neither used nor returned.
    pub(crate) credits: u32,
    /// Recalled without an answer. Some may be used up before the publisher reads the recall.
    recalled: Option<u32>,
    /// Granted after the recall.
    granted_since: u32,
    /// Credits known to be used up by jobs in flight.
    spent: u32,
    /// Jobs delivered and not yet freed.
    pub(crate) jobs_held: u32,
    /// Credits to grant before others: the share of a new publisher, or its reported backlog.
    demand: u32,
    /// The value of `demand` at the time of the recall: all credits may be used up by jobs in
    /// flight.
    recalled_demand: u32,
    /// The number of its last grant: among equals, the one without a grant for longest comes first.
    served: u64,
}

impl Account {
    /// Credits end with their link; jobs held do not.
    fn for_new_link(&self, alive: bool) -> Account {
        Account { alive, jobs_held: self.jobs_held, served: self.served, ..Account::default() }
    }

    /// Credits that the publisher may still have.
    fn unspent(&self) -> u32 {
        self.credits.saturating_sub(self.spent)
    }

    /// Its demand, as far as it may be granted.
    fn usable(&self, most: u32) -> u32 {
        self.demand.min(most.saturating_sub(self.credits))
    }

    /// Credits that the pending recall can still return.
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

    /// This many publishers may be alive soon.
    pub(crate) fn expect(&mut self, publishers: usize, messages: &mut Vec<CreditMessage>) {
        self.expected = u32::try_from(publishers).unwrap_or(u32::MAX);
        self.distribute(None, messages);
    }

    /// A publisher is alive: it gets its even share, if necessary from the surplus of others.
    /// `expected` others are still connecting.
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
            account.demand = share.saturating_sub(account.jobs_held);
        }
        self.distribute(None, messages);
        self.recall(share, messages);
    }

    /// The link is dead, and its credits are gone. Jobs held remain.
    pub(crate) fn lost(&mut self, id: PublisherId, messages: &mut Vec<CreditMessage>) {
        if let Some(account) = self.accounts.get_mut(&id) {
            *account = account.for_new_link(false);
        }
        self.distribute(None, messages);
    }

    /// Forgets a publisher, unless jobs of it are held.
    pub(crate) fn forget(&mut self, id: &PublisherId) {
        if self.accounts.get(id).is_some_and(|account| account.jobs_held == 0) {
            self.accounts.remove(id);
        }
    }

    /// Jobs arrived, each using a credit.
    pub(crate) fn delivered(&mut self, id: PublisherId, jobs: u32) {
        let account = self.accounts.entry(id).or_default();
        account.credits = account.credits.saturating_sub(jobs);
        account.spent = account.spent.saturating_sub(jobs);
        account.jobs_held = account.jobs_held.saturating_add(jobs);
    }

    /// Jobs are no longer held. Their credits go to publishers that wait, and otherwise back to
    /// their publisher.
    pub(crate) fn freed(&mut self, id: PublisherId, jobs: u32, messages: &mut Vec<CreditMessage>) {
        let account = self.accounts.entry(id).or_default();
        account.jobs_held = account.jobs_held.saturating_sub(jobs);
        self.distribute(Some((id, jobs)), messages);
        self.recall(self.idle_reserve(), messages);
    }

    /// Handles the answer to a recall.
    pub(crate) fn returned(
        &mut self,
        id: PublisherId,
        credits: u32,
        messages: &mut Vec<CreditMessage>,
    ) {
        let Some(account) = self.accounts.get_mut(&id) else { return };
        // A smaller answer than the recall means that no credit was left: all earlier grants are
        // used up, and are not recalled again while their jobs are in flight.
        let had_none_left = account.recalled.is_some_and(|recall| credits < recall);
        account.credits = account.credits.saturating_sub(credits);
        account.recalled = None;
        if had_none_left {
            account.spent = account.credits.saturating_sub(account.granted_since);
        }
        let recalled_demand = std::mem::take(&mut account.recalled_demand);
        if credits == 0 {
            // It reported its backlog before it read the recall, and does not report it twice.
            account.demand = account.demand.max(recalled_demand);
        }
        self.distribute(None, messages);
        self.recall(self.idle_reserve(), messages);
        if self.quiet {
            self.recall_all(messages);
        }
    }

    /// A publisher has jobs and no credit: recalls idle credits of others for it.
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
        account.demand = u32::try_from(jobs).unwrap_or(u32::MAX).min(bound);
        account.recalled_demand = 0;
        self.distribute(None, messages);
        self.recall(self.idle_reserve(), messages);
    }

    /// Grants nothing from now on.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Quiet: grants nothing, and recalls all credits. Otherwise grants again, first to publishers
    /// that reported a backlog meanwhile.
    pub(crate) fn set_quiet(&mut self, quiet: bool, messages: &mut Vec<CreditMessage>) {
        self.quiet = quiet;
        if quiet {
            self.recall_all(messages);
        } else {
            self.distribute(None, messages);
            self.recall(self.idle_reserve(), messages);
        }
    }

    /// Withdraws a grant that was not sent. The publisher may have reported its backlog, and does
    /// not report it twice: it comes first when grants resume.
    pub(crate) fn grant_withdrawn(&mut self, id: PublisherId, credits: u32) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.credits = account.credits.saturating_sub(credits);
            account.granted_since = account.granted_since.saturating_sub(credits);
            account.demand = account.demand.saturating_add(credits).min(self.bound);
        }
    }

    /// True if the publisher has no credit and no pending recall.
    pub(crate) fn all_returned(&self, id: &PublisherId) -> bool {
        let account = self.account(id);
        account.recalled.is_none() && account.unspent() == 0
    }

    /// The even share.
    fn share(&self) -> u32 {
        let alive = self.accounts.values().filter(|account| account.alive).count() as u32;
        (self.bound / alive.saturating_add(self.expected).max(1)).max(1)
    }

    fn idle_reserve(&self) -> u32 {
        let share = self.share();
        (share / IDLE_RESERVE_DIVISOR).max(u32::from(share >= IDLE_RESERVE_MIN_SHARE))
    }

    /// The most credits that one publisher may have: beside others never all of them.
    fn most_unused(&self) -> u32 {
        let alive = self.accounts.values().filter(|account| account.alive).count();
        match alive as u32 + self.expected {
            0 | 1 => self.bound,
            _ => self.bound.saturating_sub(1).max(1),
        }
    }

    /// Neither granted nor held.
    fn pool(&self) -> u32 {
        let out = |account: &Account| u64::from(account.credits) + u64::from(account.jobs_held);
        let out: u64 = self.accounts.values().map(out).sum();
        u32::try_from(u64::from(self.bound).saturating_sub(out)).unwrap_or(0)
    }

    /// Grants free credits: first to publishers that wait, the poorest first; then to `freed_by`,
    /// whose jobs freed them; then, except for the shares of expected publishers, to all.
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
        let most = self.most_unused();
        let mut allotments: Vec<Allotment> =
            alive().map(|(id, account)| Allotment::new(*id, account, most)).collect();
        allotments.sort_by_key(|allotment| (allotment.served, allotment.id));
        if allotments.is_empty() {
            return;
        }
        pool = water_fill(pool, &mut allotments);
        if let Some((id, jobs)) = freed_by
            && let Some(allotment) = allotments.iter_mut().find(|allotment| allotment.id == id)
        {
            let back = jobs.min(pool).min(allotment.most - allotment.granted);
            allotment.granted += back;
            pool -= back;
        }
        let reserved = self.share().saturating_mul(self.expected);
        allotments.iter_mut().for_each(|allotment| allotment.room = allotment.most);
        water_fill(pool.saturating_sub(reserved), &mut allotments);
        for allotment in allotments.iter().filter(|allotment| allotment.granted > 0) {
            if let Some(account) = self.accounts.get_mut(&allotment.id) {
                account.credits += allotment.granted;
                account.granted_since = account.granted_since.saturating_add(allotment.granted);
                account.demand = account.demand.saturating_sub(allotment.granted);
                self.grants += 1;
                account.served = self.grants;
                messages.push(CreditMessage::Grant(allotment.id, allotment.granted));
            }
        }
    }

    /// Recalls credits above `reserve` for publishers that wait, the richest first. A recalled
    /// publisher has no demand until it has answered: it would get the same credits again. A
    /// publisher with jobs uses its credits before it reads the recall, and returns none.
    fn recall(&mut self, reserve: u32, messages: &mut Vec<CreditMessage>) {
        if self.stopped || self.quiet {
            return;
        }
        let alive = || self.accounts.values().filter(|account| account.alive);
        let most = self.most_unused();
        let demand = alive().fold(0u32, |sum, account| sum.saturating_add(account.demand));
        let recallable =
            alive().fold(0u32, |sum, account| sum.saturating_add(account.recallable()));
        let mut missing = demand.saturating_sub(recallable);
        // The richest may be stopped: a publisher without anything gets a credit of any other.
        let is_starving = alive().any(|a| a.usable(most) > 0 && a.credits == 0 && a.jobs_held == 0);
        // What nobody may take would come back at once, for ever.
        if !alive().any(|account| account.usable(most) > 0) || (missing == 0 && !is_starving) {
            return;
        }
        let reserve = if is_starving { 0 } else { reserve };
        let mut rich: Vec<(u32, PublisherId)> = self
            .accounts
            .iter()
            .filter(|(_, a)| a.alive && a.recalled.is_none() && a.unspent() > reserve)
            .map(|(id, account)| (account.unspent() - reserve, *id))
            .collect();
        rich.sort_by(|a, b| b.cmp(a));
        for (spare, id) in rich {
            let Some(account) = self.accounts.get_mut(&id) else { continue };
            let for_others = missing.saturating_sub(account.demand);
            let least = u32::from(is_starving && account.demand == 0);
            let recall = spare.min(for_others.max(least));
            if recall == 0 {
                continue;
            }
            account.recalled_demand = std::mem::take(&mut account.demand);
            (account.recalled, account.granted_since) = (Some(recall), 0);
            missing = for_others.saturating_sub(recall);
            messages.push(CreditMessage::Recall(id, recall));
        }
    }

    /// Recalls all credits. A publisher with a pending recall gets another, for the rest, after its
    /// answer.
    fn recall_all(&mut self, messages: &mut Vec<CreditMessage>) {
        if self.stopped {
            return;
        }
        for (id, account) in &mut self.accounts {
            let recall = account.unspent();
            if account.alive && account.recalled.is_none() && recall > 0 {
                account.recalled_demand = std::mem::take(&mut account.demand);
                (account.recalled, account.granted_since) = (Some(recall), 0);
                messages.push(CreditMessage::Recall(*id, recall));
            }
        }
    }
}

/// A publisher's part of a distribution.
#[derive(Debug)]
struct Allotment {
    id: PublisherId,
    served: u64,
    /// Credits and jobs that it has.
    current: u32,
    /// The most that it accepts now.
    room: u32,
    /// The most that it may get.
    most: u32,
    granted: u32,
}

impl Allotment {
    /// `most` credits may be unused.
    fn new(id: PublisherId, account: &Account, most: u32) -> Allotment {
        let current = account.credits.saturating_add(account.jobs_held);
        let room = account.usable(most);
        let most = most.saturating_sub(account.credits);
        Allotment { id, served: account.served, current, room, most, granted: 0 }
    }

    fn total(&self) -> u32 {
        self.current.saturating_add(self.granted)
    }
}

/// Distributes `pool` so that the lowest totals rise together, up to each limit. Returns the rest.
fn water_fill(mut pool: u32, allotments: &mut [Allotment]) -> u32 {
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
