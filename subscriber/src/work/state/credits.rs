//! How many jobs each publisher may push for each subscription. The sum of granted credits and jobs
//! held, over all publishers and subscriptions, never exceeds the bound, and that of a subscription
//! its own bound: a credit moves only after its publisher returned it.
//!
//! Subscriptions share the bound in proportion to their weights, as far as each has jobs and room
//! below its own bound; publishers share the part of a subscription evenly.
//!
//! A stopped publisher returns nothing until its link is dead, 10 s after its last byte by the hang
//! timeout of work links. So beside others no publisher has all credits: one at least is granted on
//! demand, is at another publisher, or is used by a job, which frees it within 0.32 s of its end
//! (`settles::ANSWER_WAIT`). The same applies to each subscription. (With a bound of 1 there is no
//! other.) With an even share of 8 credits or more,
//! idle publishers keep a reserve, too, and the first job of each is delivered at once. With smaller
//! shares a reserve would cost more: below saturation it moves with nearly every job, and makes
//! handlers idle where nothing is prefetched.

use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::ops::RangeInclusive;

use longshore_protocol::PublisherId;

/// An idle publisher keeps this fraction of its even share when others need credits, so that its
/// first job need not wait for a credit.
const IDLE_RESERVE_DIVISOR: u32 = 16;
/// From this share on, the reserve is at least one. Of a smaller share, one credit would be too
/// large a part of the handlers.
const IDLE_RESERVE_MIN_SHARE: u32 = 8;

/// Levels by weight are compared in these units: weights are below 2²³ in total, bounds below 2¹⁶.
const WEIGHT_UNITS: u64 = 1 << 24;

/// A subscription at a publisher. Ordered by publisher.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SubscriptionKey {
    pub(crate) publisher: PublisherId,
    /// The index of the subscription, the same at all publishers.
    pub(crate) subscription: u32,
}

/// What a subscription may have of the bound, over all publishers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubscriptionBound {
    /// The most credits and jobs held; 0 if it subscribes to nothing.
    pub(crate) most: u32,
    /// Its share while others have jobs, too.
    pub(crate) weight: u32,
}

/// A message to a publisher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CreditMessage {
    /// The publisher may push this many more jobs.
    Grant(SubscriptionKey, u32),
    /// The publisher is to return this many credits.
    Recall(SubscriptionKey, u32),
}

/// The credits of all publishers.
#[derive(Debug)]
pub(crate) struct Credits {
    bound: u32,
    subscriptions: Vec<SubscriptionBound>,
    stopped: bool,
    /// Grants nothing, and recalls everything.
    quiet: bool,
    /// Publishers whose first attempt is in progress: the even split reserves their share.
    expected: u32,
    /// Ordered by id: the result must not depend on a hash.
    accounts: BTreeMap<SubscriptionKey, Account>,
    /// Publishers that are alive: each step asks for it once per account, or more often.
    alive: u32,
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

    /// Credits and jobs held.
    fn out(&self) -> u32 {
        self.credits.saturating_add(self.jobs_held)
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
    /// `bound` limits all subscriptions together.
    pub(crate) fn new(bound: u32, subscriptions: Vec<SubscriptionBound>) -> Credits {
        let accounts = BTreeMap::new();
        let (stopped, quiet, expected, alive, grants) = (false, false, 0, 0, 0);
        Credits { bound, subscriptions, stopped, quiet, expected, accounts, alive, grants }
    }

    /// The credits and jobs held of a publisher.
    pub(crate) fn of_publisher(&self, id: &PublisherId) -> (u32, u32) {
        let accounts = self.accounts_of(id).map(|(_, account)| account);
        accounts.fold((0, 0), |(credits, jobs), a| (credits + a.credits, jobs + a.jobs_held))
    }

    fn accounts_of(&self, id: &PublisherId) -> btree_map::Range<'_, SubscriptionKey, Account> {
        self.accounts.range(keys_of(*id))
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
        for key in self.keys_at(id) {
            let account = self.accounts.entry(key).or_default();
            *account = account.for_new_link(true);
        }
        self.alive = self.count_alive();
        for key in self.keys_at(id) {
            let share = self.share(key.subscription);
            if let Some(account) = self.accounts.get_mut(&key) {
                account.demand = share.saturating_sub(account.jobs_held);
            }
        }
        self.distribute(None, messages);
        self.recall(Credits::share, messages);
    }

    /// The link is dead, and its credits are gone. Jobs held remain.
    pub(crate) fn lost(&mut self, id: PublisherId, messages: &mut Vec<CreditMessage>) {
        for (_, account) in self.accounts.range_mut(keys_of(id)) {
            *account = account.for_new_link(false);
        }
        self.alive = self.count_alive();
        self.distribute(None, messages);
    }

    /// Forgets a publisher, unless jobs of it are held.
    pub(crate) fn forget(&mut self, id: &PublisherId) {
        if self.of_publisher(id).1 == 0 {
            self.accounts.retain(|key, _| key.publisher != *id);
            self.alive = self.count_alive();
        }
    }

    /// Jobs arrived, each using a credit.
    pub(crate) fn delivered(&mut self, id: SubscriptionKey, jobs: u32) {
        let account = self.accounts.entry(id).or_default();
        account.credits = account.credits.saturating_sub(jobs);
        account.spent = account.spent.saturating_sub(jobs);
        account.jobs_held = account.jobs_held.saturating_add(jobs);
    }

    /// Jobs are no longer held. Their credits go to publishers that wait, and otherwise back to
    /// their publisher.
    pub(crate) fn freed(
        &mut self,
        id: SubscriptionKey,
        jobs: u32,
        messages: &mut Vec<CreditMessage>,
    ) {
        let account = self.accounts.entry(id).or_default();
        account.jobs_held = account.jobs_held.saturating_sub(jobs);
        self.distribute(Some((id, jobs)), messages);
        self.recall(Credits::idle_reserve, messages);
    }

    /// Handles the answer to a recall.
    pub(crate) fn returned(
        &mut self,
        id: SubscriptionKey,
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
        self.recall(Credits::idle_reserve, messages);
        if self.quiet {
            self.recall_all(messages);
        }
    }

    /// A publisher has jobs and no credit: recalls idle credits of others for it.
    pub(crate) fn waiting(
        &mut self,
        id: SubscriptionKey,
        jobs: u64,
        messages: &mut Vec<CreditMessage>,
    ) {
        let most = self.most(id.subscription);
        let Some(account) = self.accounts.get_mut(&id).filter(|account| account.alive) else {
            return;
        };
        account.demand = u32::try_from(jobs).unwrap_or(u32::MAX).min(most);
        account.recalled_demand = 0;
        self.distribute(None, messages);
        self.recall(Credits::idle_reserve, messages);
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
            self.recall(Credits::idle_reserve, messages);
        }
    }

    /// Withdraws a grant that was not sent. The publisher may have reported its backlog, and does
    /// not report it twice: it comes first when grants resume.
    pub(crate) fn grant_withdrawn(&mut self, id: SubscriptionKey, credits: u32) {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.credits = account.credits.saturating_sub(credits);
            account.granted_since = account.granted_since.saturating_sub(credits);
            account.demand = account.demand.saturating_add(credits).min(self.bound);
        }
    }

    /// True if the publisher has no credit and no pending recall.
    pub(crate) fn all_returned(&self, id: &PublisherId) -> bool {
        self.accounts_of(id).all(|(_, a)| a.recalled.is_none() && a.unspent() == 0)
    }

    fn keys_at(&self, publisher: PublisherId) -> impl Iterator<Item = SubscriptionKey> + use<> {
        let subscriptions = 0..self.subscriptions.len() as u32;
        subscriptions.map(move |subscription| SubscriptionKey { publisher, subscription })
    }

    /// The bound of a subscription.
    fn most(&self, subscription: u32) -> u32 {
        self.subscriptions.get(subscription as usize).map_or(0, |one| one.most)
    }

    fn count_alive(&self) -> u32 {
        let alive = self.accounts.values().filter(|account| account.alive).count();
        (alive / self.subscriptions.len().max(1)) as u32
    }

    /// The even share of each publisher in a subscription's part of the bound.
    fn share(&self, subscription: u32) -> u32 {
        let all: u64 = self.subscriptions.iter().map(|one| u64::from(one.weight)).sum();
        let own = self.subscriptions.get(subscription as usize);
        let Some(own) = own.filter(|own| own.most > 0) else { return 0 };
        let part = u64::from(self.bound) * u64::from(own.weight) / all.max(1);
        let part = u32::try_from(part).unwrap_or(u32::MAX).min(own.most);
        (part / self.alive.saturating_add(self.expected).max(1)).max(1)
    }

    fn idle_reserve(&self, subscription: u32) -> u32 {
        let share = self.share(subscription);
        (share / IDLE_RESERVE_DIVISOR).max(u32::from(share >= IDLE_RESERVE_MIN_SHARE))
    }

    /// The most of a bound that one publisher may have unused: beside others never all of it.
    fn most_unused(&self, bound: u32) -> u32 {
        match self.alive + self.expected {
            0 | 1 => bound,
            _ => bound.saturating_sub(1).max(bound.min(1)),
        }
    }

    fn account(&self, id: &SubscriptionKey) -> Account {
        self.accounts.get(id).copied().unwrap_or_default()
    }

    /// How many more credits a publisher may get.
    fn room_at(&self, id: &PublisherId) -> u32 {
        match self.subscriptions.len() {
            // The bound of the subscription covers it.
            1 => self.bound,
            _ => self.most_unused(self.bound).saturating_sub(self.of_publisher(id).0),
        }
    }

    /// Credits and jobs held, of one subscription or of all.
    fn out(&self, subscription: Option<u32>) -> u32 {
        let of = |key: &SubscriptionKey| subscription.is_none_or(|one| one == key.subscription);
        let all = self.accounts.iter().filter(|(key, _)| of(key));
        all.fold(0u32, |out, (_, account)| out.saturating_add(account.out()))
    }

    /// Grants free credits: first to publishers that wait, the poorest first; then to `freed_by`,
    /// whose jobs freed them; then, except for the shares of expected publishers, to all.
    fn distribute(
        &mut self,
        freed_by: Option<(SubscriptionKey, u32)>,
        messages: &mut Vec<CreditMessage>,
    ) {
        let mut pool = self.bound.saturating_sub(self.out(None));
        if pool == 0 || self.stopped || self.quiet {
            return;
        }
        let alive = self.accounts.iter().filter(|(_, account)| account.alive);
        let mut allotments: Vec<Allotment> = alive
            .map(|(id, account)| {
                Allotment::new(*id, account, self.most_unused(self.most(id.subscription)))
            })
            .collect();
        if allotments.is_empty() {
            return;
        }
        allotments.sort_by_key(|one| (one.id.subscription, one.served, one.id));
        pool = self.fill(pool, &mut allotments);
        if let Some((id, jobs)) = freed_by {
            allotments.iter_mut().for_each(|one| one.wanted = 0);
            if let Some(one) = allotments.iter_mut().find(|one| one.id == id) {
                one.wanted = one.most.min(one.level.granted.saturating_add(jobs));
            }
            pool = self.fill(pool, &mut allotments);
        }
        // Credits that return one by one for such a publisher are granted to no other meanwhile.
        let has_room = |subscription| self.most(subscription) > self.out(Some(subscription));
        let is_starving = |one: &Allotment| {
            let account = self.account(&one.id);
            account.out() == 0
                && account.demand > 0
                && one.level.granted == 0
                && one.most > 0
                && has_room(one.id.subscription)
        };
        if self.accounts.values().any(|account| account.recalled.is_some())
            && allotments.iter().any(is_starving)
        {
            pool = 0;
        }
        let shares = (0..self.subscriptions.len() as u32).map(|number| self.share(number));
        let reserved = shares.sum::<u32>().saturating_mul(self.expected);
        allotments.iter_mut().for_each(|one| one.wanted = one.most);
        self.fill(pool.saturating_sub(reserved), &mut allotments);
        for Allotment { id, level, .. } in allotments.iter().filter(|one| one.level.granted > 0) {
            if let Some(account) = self.accounts.get_mut(id) {
                account.credits += level.granted;
                account.granted_since = account.granted_since.saturating_add(level.granted);
                account.demand = account.demand.saturating_sub(level.granted);
                self.grants += 1;
                account.served = self.grants;
                messages.push(CreditMessage::Grant(*id, level.granted));
            }
        }
    }

    /// Distributes `pool` over subscriptions by weight, and each one's part over its publishers.
    /// Returns the rest. `allotments` are grouped by subscription.
    fn fill(&self, mut pool: u32, allotments: &mut [Allotment]) -> u32 {
        if self.subscriptions.len() == 1 {
            allotments.iter_mut().for_each(|one| one.level.room = one.wanted);
            return water_fill(pool, allotments);
        }
        // A part may find no room at its publishers: then others get the rest.
        while pool > 0 {
            let mut room: BTreeMap<PublisherId, u32> = BTreeMap::new();
            for Allotment { id: SubscriptionKey { publisher, .. }, level, .. } in &*allotments {
                let room = room.entry(*publisher).or_insert_with(|| self.room_at(publisher));
                *room = room.saturating_sub(level.granted);
            }
            let of_one = |a: &Allotment, b: &Allotment| a.id.subscription == b.id.subscription;
            let part = |all: &[Allotment]| self.part_of(all, &room);
            let mut parts: Vec<Part> = allotments.chunk_by(of_one).map(part).collect();
            parts.sort_by_key(|part| (part.served, part.subscription));
            water_fill(pool, &mut parts);
            let before = pool;
            for all in allotments.chunk_by_mut(of_one) {
                let own = |part: &&Part| all.iter().any(|a| a.id.subscription == part.subscription);
                let granted = parts.iter().find(own).map_or(0, |part| part.level.granted);
                for one in all.iter_mut() {
                    let room = room.entry(one.id.publisher).or_default();
                    *room += one.level.granted;
                    one.level.room = one.wanted.min(*room);
                }
                pool -= granted - water_fill(granted, all);
                for one in all.iter() {
                    *room.entry(one.id.publisher).or_default() -= one.level.granted;
                }
            }
            if pool == before {
                break;
            }
        }
        pool
    }

    /// A subscription's part: `all` are its publishers.
    fn part_of(&self, all: &[Allotment], room_at: &BTreeMap<PublisherId, u32>) -> Part {
        let subscription = all.first().map_or(0, |one| one.id.subscription);
        let granted: u32 = all.iter().map(|one| one.level.granted).sum();
        let current = self.out(Some(subscription)).saturating_add(granted);
        let room = |one: &Allotment| {
            let room = one.wanted.saturating_sub(one.level.granted);
            room.min(room_at.get(&one.id.publisher).copied().unwrap_or(0))
        };
        let room = all.iter().fold(0u32, |sum, one| sum.saturating_add(room(one)));
        let room = room.min(self.most(subscription).saturating_sub(current));
        let weight = self.subscriptions.get(subscription as usize).map_or(1, |one| one.weight);
        let served = all.iter().map(|one| one.served).max().unwrap_or(0);
        Part { subscription, served, level: Level { current, room, weight, granted: 0 } }
    }

    /// Recalls credits above the `reserve` of their subscription for publishers that wait.
    fn recall(&mut self, reserve: fn(&Credits, u32) -> u32, messages: &mut Vec<CreditMessage>) {
        if self.stopped || self.quiet {
            return;
        }
        for subscription in 0..self.subscriptions.len() as u32 {
            self.recall_for(subscription, reserve, messages);
        }
    }

    /// Recalls credits for the publishers of a subscription that wait, the richest first: credits
    /// of the same subscription if it is at its bound, and of any otherwise. A recalled publisher
    /// has no demand until it has answered: it would get the same credits again. A publisher with jobs
    /// uses its credits before it reads the recall, and returns none.
    fn recall_for(
        &mut self,
        subscription: u32,
        reserve: fn(&Credits, u32) -> u32,
        messages: &mut Vec<CreditMessage>,
    ) {
        let own =
            || self.accounts.iter().filter(|(id, a)| a.alive && id.subscription == subscription);
        let demand = own().fold(0u32, |sum, (_, account)| sum.saturating_add(account.demand));
        if demand == 0 {
            return;
        }
        let most = self.most(subscription);
        let (most_unused, room) =
            (self.most_unused(most), most.saturating_sub(self.out(Some(subscription))));
        // What nobody may take would come back at once, for ever.
        let waits = |account: &Account| account.usable(most_unused) > 0;
        let has_room = |id: &SubscriptionKey| self.room_at(&id.publisher) > 0;
        // If those that wait have all that a publisher may have, idle, it is to return some of it.
        let is_full = !own().any(|(id, account)| waits(account) && has_room(id));
        let usable =
            |id: &SubscriptionKey, account: &Account| waits(account) && (is_full || has_room(id));
        let others = room > 0 && self.subscriptions.len() > 1;
        let at_waiting = |id: &SubscriptionKey| {
            own().any(|(one, account)| one.publisher == id.publisher && waits(account))
        };
        let source = |id: &SubscriptionKey| {
            let is_own = id.subscription == subscription;
            match (others, is_full) {
                (true, false) => true,
                (true, true) => at_waiting(id),
                (false, false) => is_own,
                // Both are at their bounds: each is to return some.
                (false, true) => is_own || at_waiting(id),
            }
        };
        let sources = || self.accounts.iter().filter(|(id, a)| a.alive && source(id));
        let recallable =
            sources().fold(0u32, |sum, (_, account)| sum.saturating_add(account.recallable()));
        let mut missing = demand.saturating_sub(recallable);
        // More would come back at once.
        let mut grantable = if others { room.saturating_sub(recallable) } else { missing };
        // The richest may be stopped: a publisher without anything gets a credit of any other.
        let is_starving = own().any(|(id, a)| usable(id, a) && a.out() == 0);
        let is_enough = missing.min(grantable) == 0;
        if !own().any(|(id, a)| usable(id, a)) || (is_enough && !is_starving) {
            return;
        }
        let reserve = |id: &SubscriptionKey| match is_starving {
            true => 0,
            false => reserve(self, id.subscription),
        };
        let mut rich: Vec<(u32, SubscriptionKey)> = sources()
            .filter(|(_, account)| account.recalled.is_none())
            .map(|(id, account)| (account.unspent().saturating_sub(reserve(id)), *id))
            .filter(|(spare, _)| *spare > 0)
            .collect();
        rich.sort_by(|a, b| b.cmp(a));
        for (spare, id) in rich {
            let Some(account) = self.accounts.get_mut(&id) else { continue };
            let is_own = id.subscription == subscription;
            let for_others = missing.saturating_sub(if is_own { account.demand } else { 0 });
            let least = u32::from(is_starving && (account.demand == 0 || !is_own));
            let recall = spare.min(for_others.min(grantable).max(least));
            if recall == 0 {
                continue;
            }
            account.recalled_demand = std::mem::take(&mut account.demand);
            (account.recalled, account.granted_since) = (Some(recall), 0);
            missing = for_others.saturating_sub(recall);
            grantable = grantable.saturating_sub(recall);
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

/// All subscriptions at a publisher.
fn keys_of(publisher: PublisherId) -> RangeInclusive<SubscriptionKey> {
    let key = |subscription| SubscriptionKey { publisher, subscription };
    key(0)..=key(u32::MAX)
}

/// What an account or a subscription has, and gets of a distribution.
#[derive(Debug)]
struct Level {
    /// Credits and jobs that it has.
    current: u32,
    /// The most that it may get now.
    room: u32,
    weight: u32,
    granted: u32,
}

impl Level {
    fn is_open(&self) -> bool {
        self.granted < self.room
    }

    /// By weight, in units of `1 / WEIGHT_UNITS`.
    fn height(&self) -> u64 {
        let total = u64::from(self.current) + u64::from(self.granted);
        total * WEIGHT_UNITS / u64::from(self.weight.max(1))
    }
}

/// A publisher's part of a distribution.
#[derive(Debug)]
struct Allotment {
    id: SubscriptionKey,
    served: u64,
    /// The most that it may get, and that it is to get now.
    most: u32,
    wanted: u32,
    level: Level,
}

/// A subscription's part of a distribution.
#[derive(Debug)]
struct Part {
    subscription: u32,
    served: u64,
    level: Level,
}

impl Allotment {
    /// `most` credits may be unused.
    fn new(id: SubscriptionKey, account: &Account, most: u32) -> Allotment {
        let wanted = account.usable(most);
        let most = most.saturating_sub(account.credits);
        let level = Level { current: account.out(), room: 0, weight: 1, granted: 0 };
        Allotment { id, served: account.served, most, wanted, level }
    }
}

impl AsMut<Level> for Allotment {
    fn as_mut(&mut self) -> &mut Level {
        &mut self.level
    }
}

impl AsMut<Level> for Part {
    fn as_mut(&mut self) -> &mut Level {
        &mut self.level
    }
}

/// Distributes `pool` so that the lowest levels rise together, up to each limit. Returns the rest.
fn water_fill(mut pool: u32, all: &mut [impl AsMut<Level>]) -> u32 {
    while pool > 0 {
        let (mut low, mut next, mut weights) = (u64::MAX, u64::MAX, 0u64);
        for level in all.iter_mut().map(AsMut::as_mut).filter(|level| level.is_open()) {
            let height = level.height();
            match height.cmp(&low) {
                Ordering::Less => (low, next, weights) = (height, low, u64::from(level.weight)),
                Ordering::Equal => weights += u64::from(level.weight),
                Ordering::Greater => next = next.min(height),
            }
        }
        if low == u64::MAX {
            break;
        }
        let rise = (next - low).min(u64::from(pool) * WEIGHT_UNITS / weights.max(1));
        for level in all.iter_mut().map(AsMut::as_mut) {
            if pool > 0 && level.is_open() && level.height() == low {
                // Too little for all of the lowest: one each for the first of them.
                let each = rise.saturating_mul(level.weight.into()) / WEIGHT_UNITS;
                let each = u32::try_from(each).unwrap_or(u32::MAX).max(1);
                let granted = each.min(level.room - level.granted).min(pool);
                level.granted += granted;
                pool -= granted;
            }
        }
    }
    pool
}

#[cfg(test)]
mod tests;
