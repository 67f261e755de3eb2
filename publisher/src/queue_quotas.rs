//! What may wait on the paths of a client's `[[quota]]`, whoever enqueued it. Pure: the time is an
//! argument.
//!
//! ```text
//! batch ──▶ the quotas of its client ──▶ Account: limits, globs, the queues that match them
//!                                           │ jobs and bytes as its queues count them, or, of many
//!                                           ▼ queues, at the last count and what came since
//!                                  accepted, or refused as OverQuota
//! ```
//!
//! Nothing is stored: after a restart or a new policy the queues are counted again. Jobs and bytes
//! are compared before a batch, as memory is, so that they exceed their limit by a batch at most;
//! a limit below the size of a batch, which the client does not choose, would let in none at all.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use longshore_access::{AccessControl, Identity, QueueQuota};
use longshore_protocol::Path;
use longshore_protocol::messages::work::EnqueueBatch;
use longshore_queue::{QueueId, State, WaitingJobs};

/// Queues of a quota that are counted for every batch.
const COUNTED_ALWAYS_MAX: usize = 64;
/// How long the count of more queues is used.
const COUNT_PERIOD: Duration = Duration::from_secs(1);
/// Clients whose quotas are known; with one more, all are looked up again.
const CLIENTS_MAX: usize = 16_384;

/// The quotas of the clients that enqueue.
#[derive(Debug)]
pub(crate) struct QueueQuotas {
    access_control: AccessControl,
    /// The version of the rules from which the following comes.
    version: Option<u64>,
    /// A client may have a quota.
    any: bool,
    accounts: Vec<Account>,
    /// The account of an entry of the policy with these paths: clients with equal ones share it.
    by_paths: HashMap<(usize, Vec<String>), usize>,
    /// The accounts of each client, with the groups that it had.
    clients: HashMap<Identity, (Groups, Numbers)>,
    nameless: Option<Numbers>,
}

type Groups = Arc<[String]>;
/// Places in the list of accounts.
type Numbers = Arc<[usize]>;

/// What of a batch is over a quota.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct OverQuota {
    /// For each of the batch's paths, whether its jobs are refused.
    pub(crate) refused: Vec<bool>,
    /// One of those paths, and the reason.
    pub(crate) path: Path,
    pub(crate) why: String,
}

/// The queues as an account sees them.
pub(crate) trait Queues {
    fn len(&self) -> u32;
    fn path(&self, queue: QueueId) -> &Path;
    fn has(&self, path: &Path) -> bool;
    /// False if jobs are refused there for another reason, which their client is to know.
    fn takes_jobs(&self, path: &Path) -> bool;
    fn waiting(&self, queue: QueueId) -> WaitingJobs;
}

impl Queues for State {
    fn len(&self) -> u32 {
        self.queues_len()
    }

    fn path(&self, queue: QueueId) -> &Path {
        self.path(queue)
    }

    fn has(&self, path: &Path) -> bool {
        self.has_queue(path)
    }

    fn takes_jobs(&self, path: &Path) -> bool {
        self.takes_jobs(path)
    }

    fn waiting(&self, queue: QueueId) -> WaitingJobs {
        self.waiting(queue)
    }
}

impl QueueQuotas {
    pub(crate) fn new(access_control: AccessControl) -> QueueQuotas {
        QueueQuotas {
            access_control,
            version: None,
            any: false,
            accounts: Vec::new(),
            by_paths: HashMap::new(),
            clients: HashMap::new(),
            nameless: None,
        }
    }

    /// What of a batch is over a quota of its client; none if all of it may be enqueued. Jobs
    /// that are not refused are counted.
    pub(crate) fn check(
        &mut self,
        queues: &impl Queues,
        who: Option<&Identity>,
        batch: &EnqueueBatch,
        now: Instant,
    ) -> Option<OverQuota> {
        let mut over = None;
        let accounts = self.accounts_of(who)?;
        for &account in accounts.iter() {
            self.accounts[account].check(queues, batch, now, &mut over);
        }
        // What one account refuses counts in none: it would use up what other clients share.
        for &account in accounts.iter() {
            self.accounts[account].add(queues, batch, over.as_ref());
        }
        over
    }

    /// Why the client may create no queue at that path, if that is so.
    pub(crate) fn refuses_queue(
        &mut self,
        queues: &impl Queues,
        who: Option<&Identity>,
        path: &Path,
    ) -> Option<String> {
        let accounts = self.accounts_of(who)?;
        accounts.iter().find_map(|&account| self.accounts[account].refuses_queue(queues, path))
    }

    /// The accounts of a client; none without quotas, which costs a comparison.
    fn accounts_of(&mut self, who: Option<&Identity>) -> Option<Numbers> {
        let version = self.access_control.version();
        if self.version != Some(version) {
            *self = QueueQuotas::new(self.access_control.clone());
            (self.version, self.any) = (Some(version), self.access_control.has_queue_quotas());
        }
        if !self.any {
            return None;
        }
        let known = match who {
            None => self.nameless.as_ref(),
            Some(who) => {
                let known = self.clients.get(who).filter(|(groups, _)| *groups == who.groups);
                known.map(|(_, accounts)| accounts)
            }
        };
        if let Some(known) = known {
            return Some(known.clone());
        }
        if self.clients.len() >= CLIENTS_MAX {
            self.accounts.clear();
            self.by_paths.clear();
            self.clients.clear();
            self.nameless = None;
        }
        let quotas = self.access_control.queue_quotas(who);
        let accounts: Numbers = quotas.into_iter().map(|quota| self.account(quota)).collect();
        match who {
            Some(who) => {
                let known = (who.groups.clone(), accounts.clone());
                self.clients.insert(who.clone(), known);
            }
            None => self.nameless = Some(accounts.clone()),
        }
        Some(accounts)
    }

    fn account(&mut self, quota: QueueQuota) -> usize {
        let paths = quota.paths.iter().map(ToString::to_string).collect();
        let accounts = &mut self.accounts;
        *self.by_paths.entry((quota.entry, paths)).or_insert_with(|| {
            accounts.push(Account::new(quota));
            accounts.len() - 1
        })
    }
}

/// What waits on the paths of one quota.
#[derive(Debug)]
struct Account {
    quota: QueueQuota,
    /// Its queues among the first `seen` ones: no queue is ever removed.
    queues: Vec<QueueId>,
    seen: u32,
    /// The last count of their jobs, with what came since.
    waiting: WaitingJobs,
    counted_at: Option<Instant>,
}

impl Account {
    fn new(quota: QueueQuota) -> Account {
        let waiting = WaitingJobs::default();
        Account { quota, queues: Vec::new(), seen: 0, waiting, counted_at: None }
    }

    fn matches(&self, path: &Path) -> bool {
        self.quota.paths.iter().any(|glob| glob.matches(path))
    }

    /// Finds its queues among those that are new.
    fn see(&mut self, queues: &impl Queues) {
        for queue in (self.seen..queues.len()).map(QueueId) {
            if self.matches(queues.path(queue)) {
                self.queues.push(queue);
            }
        }
        self.seen = queues.len();
    }

    fn count(&mut self, queues: &impl Queues, now: Instant) {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < COUNT_PERIOD;
        if self.queues.len() > COUNTED_ALWAYS_MAX && self.counted_at.is_some_and(is_recent) {
            return;
        }
        self.waiting = WaitingJobs::default();
        for &queue in &self.queues {
            let WaitingJobs { jobs, bytes } = queues.waiting(queue);
            self.waiting.jobs += jobs;
            self.waiting.bytes += bytes;
        }
        self.counted_at = Some(now);
    }

    fn check(
        &mut self,
        queues: &impl Queues,
        batch: &EnqueueBatch,
        now: Instant,
        over: &mut Option<OverQuota>,
    ) {
        let mut refused: Vec<bool> =
            batch.paths.iter().map(|path| self.counts_at(queues, path)).collect();
        if !refused.contains(&true) {
            return;
        }
        self.see(queues);
        self.count(queues, now);
        let why = match self.reached() {
            Some(why) => why,
            None => {
                let most = self.quota.limits.queues.map_or(u32::MAX, |most| most.get()) as usize;
                let mut room = most.saturating_sub(self.queues.len());
                for (refused, path) in refused.iter_mut().zip(&batch.paths) {
                    let is_new = *refused && !queues.has(path);
                    *refused = is_new && room == 0;
                    room -= usize::from(is_new && room > 0);
                }
                self.why(self.queues.len() as u64, "queues", "queues")
            }
        };
        let Some(first) = refused.iter().position(|&refused| refused) else { return };
        let path = batch.paths[first].clone();
        match over {
            None => *over = Some(OverQuota { refused, path, why }),
            Some(over) => {
                let also = over.refused.iter_mut().zip(refused);
                also.for_each(|(of_batch, refused)| *of_batch |= refused);
            }
        }
    }

    /// Why no more jobs may wait, if that is so.
    fn reached(&self) -> Option<String> {
        let (limits, WaitingJobs { jobs, bytes }) = (self.quota.limits, self.waiting);
        if limits.waiting_jobs.is_some_and(|most| jobs >= most.get()) {
            return Some(self.why(jobs, "jobs that have not ended", "waiting_jobs"));
        }
        let is_over = limits.waiting_bytes.is_some_and(|most| bytes >= most.get());
        is_over.then(|| self.why(bytes, "bytes of jobs that have not ended", "waiting_bytes"))
    }

    /// True if jobs on that path count.
    fn counts_at(&self, queues: &impl Queues, path: &Path) -> bool {
        self.matches(path) && queues.takes_jobs(path)
    }

    /// Adds the jobs of a batch that count and are not refused.
    fn add(&mut self, queues: &impl Queues, batch: &EnqueueBatch, over: Option<&OverQuota>) {
        if self.queues.len() <= COUNTED_ALWAYS_MAX {
            return;
        }
        let is_refused = |path: usize| over.is_some_and(|over| over.refused[path]);
        let paths = batch.paths.iter().enumerate();
        let counts: Vec<bool> =
            paths.map(|(i, path)| self.counts_at(queues, path) && !is_refused(i)).collect();
        if !counts.contains(&true) {
            return;
        }
        if !counts.contains(&false) {
            self.waiting.jobs += batch.len() as u64;
            self.waiting.bytes += batch.body().len() as u64;
            return;
        }
        for entry in batch.entries().filter(|entry| counts[entry.path]) {
            self.waiting.jobs += 1;
            self.waiting.bytes += u64::from(entry.length);
        }
    }

    fn refuses_queue(&mut self, queues: &impl Queues, path: &Path) -> Option<String> {
        let most = self.quota.limits.queues?.get() as usize;
        if !self.matches(path) || queues.has(path) {
            return None;
        }
        self.see(queues);
        let is_full = self.queues.len() >= most;
        is_full.then(|| self.why(self.queues.len() as u64, "queues", "queues"))
    }

    fn why(&self, has: u64, what: &str, key: &str) -> String {
        let QueueQuota { line, paths, .. } = &self.quota;
        let paths: Vec<&str> = paths.iter().map(|glob| glob.as_str()).collect();
        format!(
            "OverQuota: there are {has} {what} on {}, and `{key}` of the [[quota]] at line {line} \
             allows no more",
            paths.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use longshore_access::Policy;
    use longshore_protocol::messages::work::BatchBuilder;
    use longshore_protocol::{JobId, NewJob};

    use super::*;

    /// Queues with their jobs, each of ten bytes.
    #[derive(Default)]
    struct Model(Vec<(Path, u64)>);

    impl Queues for Model {
        fn len(&self) -> u32 {
            self.0.len() as u32
        }

        fn path(&self, queue: QueueId) -> &Path {
            &self.0[queue.0 as usize].0
        }

        fn has(&self, path: &Path) -> bool {
            self.0.iter().any(|(has, _)| has == path)
        }

        fn takes_jobs(&self, path: &Path) -> bool {
            !path.is_reserved()
        }

        fn waiting(&self, queue: QueueId) -> WaitingJobs {
            let jobs = self.0[queue.0 as usize].1;
            WaitingJobs { jobs, bytes: 10 * jobs }
        }
    }

    fn path(text: &str) -> Path {
        Path::new(text).unwrap()
    }

    fn batch(texts: &[&str]) -> EnqueueBatch {
        let mut batch = BatchBuilder::new();
        for text in texts {
            batch.push(&NewJob::new(path(text), JobId([0; 16]), "x"));
        }
        batch.seal(false).to_batch(1).unwrap()
    }

    fn policy(quotas: &str) -> Option<Policy> {
        Some(Policy::parse(quotas).unwrap())
    }

    fn quotas(text: &str) -> (QueueQuotas, AccessControl) {
        let control = AccessControl::new(policy(text), None);
        (QueueQuotas::new(control.clone()), control)
    }

    fn who(name: &str) -> Identity {
        format!("token:{name}").parse().unwrap()
    }

    const TENANTS: &str =
        "[[quota]]\nwho = [\"token:*\"]\npaths = [\"/t/${user}/**\"]\nwaiting_jobs = 3\n";

    #[test]
    fn jobs_wait_up_to_the_quota_of_each_client() {
        let (mut quotas, control) = quotas(TENANTS);
        let (a, b, now) = (who("a"), who("b"), Instant::now());
        let mut model = Model(vec![(path("/t/a/1"), 2), (path("/t/b/1"), 3), (path("/x"), 99)]);
        assert_eq!(quotas.check(&model, Some(&a), &batch(&["/t/a/1", "/t/a/2"]), now), None);
        let over = quotas.check(&model, Some(&b), &batch(&["/x", "/t/b/1", "/t/a/1"]), now);
        let over = over.unwrap();
        assert_eq!((over.refused, over.path), (vec![false, true, false], path("/t/b/1")));
        assert_eq!(
            over.why,
            "OverQuota: there are 3 jobs that have not ended on /t/b/**, and `waiting_jobs` of the \
             [[quota]] at line 1 allows no more"
        );
        assert_eq!(quotas.check(&model, None, &batch(&["/t/b/1"]), now), None, "of no client");
        // A new queue counts, and a job that has ended does not.
        model.0.push((path("/t/a/2"), 1));
        assert!(quotas.check(&model, Some(&a), &batch(&["/t/a/3"]), now).is_some());
        model.0[0].1 = 1;
        assert_eq!(quotas.check(&model, Some(&a), &batch(&["/t/a/3"]), now), None);
        // Another policy holds at once.
        control.replace(policy(&TENANTS.replace('3', "2")), None);
        assert!(quotas.check(&model, Some(&a), &batch(&["/t/a/3"]), now).is_some());
        control.replace(None, None);
        assert_eq!(quotas.check(&model, Some(&a), &batch(&["/t/a/3"]), now), None);
    }

    #[test]
    fn bytes_wait_up_to_the_quota() {
        let (mut quotas, _) = quotas(&TENANTS.replace("waiting_jobs = 3", "waiting_bytes = 30"));
        let (a, now) = (who("a"), Instant::now());
        let mut model = Model(vec![(path("/t/a/1"), 2)]);
        assert_eq!(quotas.check(&model, Some(&a), &batch(&["/t/a/1"]), now), None);
        model.0[0].1 = 3;
        let over = quotas.check(&model, Some(&a), &batch(&["/t/a/1"]), now).unwrap();
        assert!(over.why.contains("30 bytes of jobs that have not ended"), "{}", over.why);
    }

    #[test]
    fn only_new_queues_are_over_a_quota_of_queues() {
        let (mut quotas, _) = quotas(&TENANTS.replace("waiting_jobs", "queues"));
        let (a, now) = (who("a"), Instant::now());
        let model = Model(vec![(path("/t/a/1"), 9), (path("/t/b/1"), 9), (path("/t/a/2"), 9)]);
        let all = batch(&["/t/a/3", "/t/a/1", "/t/a/4", "/t/b/2"]);
        let over = quotas.check(&model, Some(&a), &all, now).unwrap();
        assert_eq!(over.refused, [false, false, true, false]);
        assert!(over.why.starts_with("OverQuota: there are 2 queues on /t/a/**"), "{}", over.why);
        assert_eq!(quotas.refuses_queue(&model, Some(&a), &path("/t/a/3")), None);
        let model = Model(vec![(path("/t/a/1"), 0), (path("/t/a/2"), 0), (path("/t/a/3"), 0)]);
        assert!(quotas.refuses_queue(&model, Some(&a), &path("/t/a/4")).is_none(), "seen two only");
        let mut model = model;
        model.0.push((path("/t/a/4"), 0));
        assert!(quotas.refuses_queue(&model, Some(&a), &path("/t/a/5")).is_some());
        assert_eq!(quotas.refuses_queue(&model, Some(&a), &path("/t/a/4")), None, "it is there");
        assert_eq!(quotas.refuses_queue(&model, Some(&a), &path("/t/b/4")), None);
    }

    /// Counting many queues for each batch would cost more than the batch.
    #[test]
    fn many_queues_are_counted_once_a_second_and_what_comes_is_added() {
        let text = TENANTS.replace("waiting_jobs = 3", "waiting_jobs = 103");
        let (mut quotas, _) = quotas(&text);
        let (a, start) = (who("a"), Instant::now());
        let mut model = Model((0..100).map(|n| (path(&format!("/t/a/{n}")), 1)).collect());
        let check = |quotas: &mut QueueQuotas, model: &Model, ms: u64| {
            let batch = batch(&["/t/a/1", "/t/a/2", "/x"]);
            quotas.check(model, Some(&a), &batch, start + Duration::from_millis(ms))
        };
        assert_eq!(check(&mut quotas, &model, 0), None, "100, and 2 of this batch");
        assert_eq!(check(&mut quotas, &model, 1), None, "102, and 2");
        assert!(check(&mut quotas, &model, 2).is_some());
        model.0[5].1 = 0;
        assert!(check(&mut quotas, &model, 999).is_some(), "not counted again");
        assert_eq!(check(&mut quotas, &model, 1_000), None, "99");
        model.0[6].1 = 9;
        assert_eq!(check(&mut quotas, &model, 1_999), None, "jobs of others are seen later");
        assert!(check(&mut quotas, &model, 2_000).is_some());
    }

    #[test]
    fn what_one_quota_refuses_uses_up_no_other() {
        let all = "[[quota]]\nwho = [\"*\"]\npaths = [\"/t/**\"]\nwaiting_jobs = 102\n";
        let (mut quotas, _) = quotas(&format!("{all}{TENANTS}"));
        let (a, b, now) = (who("a"), who("b"), Instant::now());
        let queues = (0..97).map(|n| (path(&format!("/t/c/{n}")), 1));
        let model = Model(queues.chain([(path("/t/a/1"), 3), (path("/t/b/1"), 1)]).collect());
        for _ in 0..9 {
            let over = quotas.check(&model, Some(&a), &batch(&["/t/a/1"]), now);
            assert!(over.unwrap().why.contains("on /t/a/**"));
        }
        assert_eq!(quotas.check(&model, Some(&b), &batch(&["/t/b/1"]), now), None, "101 of 102");
    }

    #[test]
    fn quotas_on_one_line_of_the_policy_are_two() {
        let (mut quotas, _) = quotas(
            "quota = [{ who = [\"token:a\"], paths = [\"/t/**\"], waiting_jobs = 3 }, \
             { who = [\"token:b\"], paths = [\"/t/**\"], waiting_jobs = 9 }]\n",
        );
        let (model, now) = (Model(vec![(path("/t/1"), 4)]), Instant::now());
        let mut check = |name| quotas.check(&model, Some(&who(name)), &batch(&["/t/1"]), now);
        assert!(check("a").is_some() && check("b").is_none());
    }

    #[test]
    fn clients_share_what_is_counted_on_equal_paths_and_their_number_is_bounded() {
        let shared = "[[quota]]\nwho = [\"*\"]\npaths = [\"/s/**\"]\nwaiting_jobs = 3\n";
        let (mut quotas, _) = quotas(shared);
        let model = Model::default();
        for number in 0..CLIENTS_MAX + 5 {
            let who = who(&number.to_string());
            assert_eq!(quotas.check(&model, Some(&who), &batch(&["/s/1"]), Instant::now()), None);
        }
        assert_eq!((quotas.accounts.len(), quotas.clients.len()), (1, 5));
    }
}
