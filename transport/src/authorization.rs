//! The rights of a listener's open links. When rules change, every link is checked again, and when
//! a certificate or token ends, its links are: one that has lost a right is cut at once, whatever
//! it has queued, and the others receive their new rights.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longshore_access::{
    AccessControl, AccessRefusal, Client, Credentials, Identity, Quota, Rights, RuleChangeFeed,
};
use longshore_protocol::SessionId;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::audit::AuditLog;
use crate::link_end::LinkEnd;
use crate::log_limit::LogLimit;
use crate::quota::{ClientRate, Holder, OverQuota, Usages};
use crate::send_queue::Shared;

/// Links that are checked before others may begin and end.
const CHECKED_AT_ONCE: usize = 64;
/// The longest wait for the end of a certificate or token: the wall clock may be set meanwhile.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// Log lines about links that were cut, in [`LOG_PERIOD`].
const LOG_LINES_MAX: u32 = 10;
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// Why a dead link ends before it counts as hung.
const DISPLACED: &str = "it was silent, and its client, at its quota of links, has opened another";

/// The clients of a listener and their rights.
#[derive(Debug)]
pub(crate) struct Authorization {
    control: AccessControl,
    audit: AuditLog,
    /// The server's name.
    server: String,
    links: Mutex<Links>,
    /// A certificate or token ends before the end that is awaited.
    wake: Notify,
    log: Mutex<LogLimit>,
    /// Until it runs: no change is missed.
    change_feed: Mutex<Option<RuleChangeFeed>>,
}

#[derive(Debug, Default)]
struct Links {
    open: HashMap<u64, OpenLink>,
    /// When certificates and tokens end, with the links' numbers.
    ends: BTreeSet<(u64, u64)>,
    next: u64,
    usages: Usages,
}

#[derive(Debug)]
struct OpenLink {
    client: Client,
    session: SessionId,
    rights: watch::Sender<Arc<Rights>>,
    holder: Holder,
    /// Set once the link has started.
    link: Weak<Shared>,
}

/// The entry of one link; dropping it removes the link.
#[derive(Debug)]
pub(crate) struct Registration {
    authorization: Arc<Authorization>,
    number: u64,
}

/// What a server knows of a link's client.
#[derive(Clone, Debug)]
pub(crate) struct LinkClient {
    pub(crate) identity: Option<Arc<Identity>>,
    pub(crate) rights: watch::Receiver<Arc<Rights>>,
    pub(crate) rate: Arc<ClientRate>,
    pub(crate) holder: Holder,
    /// Under a policy: how many other links the client had when this one began.
    pub(crate) other_links: Option<usize>,
}

/// Why a client is not admitted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotAuthorized {
    #[error("{0}")]
    Access(#[from] AccessRefusal),
    #[error("{}: {why}", named(.identity.as_deref()))]
    OverQuota { identity: Option<Arc<Identity>>, why: OverQuota },
}

impl Authorization {
    pub(crate) fn new(control: AccessControl, audit: AuditLog, server: String) -> Authorization {
        Authorization {
            change_feed: Mutex::new(Some(control.change_feed())),
            control,
            audit,
            server,
            links: Mutex::default(),
            wake: Notify::new(),
            log: Mutex::new(LogLimit::new(LOG_LINES_MAX, LOG_PERIOD)),
        }
    }

    /// Admits a client, or refuses it.
    pub(crate) fn admit(
        self: &Arc<Self>,
        credentials: &Credentials<'_>,
        address: IpAddr,
        session: SessionId,
    ) -> Result<(LinkClient, Registration), NotAuthorized> {
        let client = self.control.admit(credentials, now_unix_ms())?;
        let (rights, received) = watch::channel(client.rights.clone());
        let identity = client.identity.clone();
        let holder = Holder::of(identity.as_ref(), address);
        let mut links = self.links.lock();
        let quota = self.control.quota(identity.as_deref());
        let dead = match links.usages.has_all_links(&holder, quota) {
            true => links.take_silent(&holder, session),
            false => None,
        };
        let rate = match links.usages.begin(&holder, quota, Instant::now()) {
            Ok(rate) => rate,
            Err(why) => {
                // A link that has left the table is checked no more: it must not stay open.
                drop(links);
                self.cut(dead.map(|link| (link, DISPLACED.to_owned())));
                return Err(NotAuthorized::OverQuota { identity, why });
            }
        };
        let other_links =
            self.control.has_policy().then(|| links.usages.links(&holder).saturating_sub(1));
        let of_link =
            LinkClient { identity, rights: received, rate, holder: holder.clone(), other_links };
        let number = links.next;
        links.next += 1;
        if let Some(end) = client.end_unix_ms() {
            links.ends.insert((end, number));
            if links.ends.first() == Some(&(end, number)) {
                self.wake.notify_one();
            }
        }
        let link = Weak::new();
        links.open.insert(number, OpenLink { client, session, rights, holder, link });
        drop(links);
        self.cut(dead.map(|link| (link, DISPLACED.to_owned())));
        Ok((of_link, Registration { authorization: self.clone(), number }))
    }

    /// Checks links whenever that is due, for as long as the listener listens.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut changes = self.control.changes();
        let feed = self.change_feed.lock().take();
        let mut feed = feed.unwrap_or_else(|| self.control.change_feed());
        // Rules may have changed since the first client was admitted.
        self.check_all(now_unix_ms()).await;
        loop {
            let next_end = self.check_ended(now_unix_ms());
            let at_end = async {
                match next_end {
                    Some(wait) => tokio::time::sleep(wait.min(END_WAIT_MAX)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = changes.changed() => self.check_all(now_unix_ms()).await,
                change = feed.next() => {
                    match change {
                        Ok(change) => self.audit.rules_changed(&self.server, &change),
                        Err(missed) => {
                            let missed = format!("{missed} further changes");
                            self.audit.rules_changed(&self.server, &missed);
                        }
                    }
                }
                () = self.wake.notified() => {}
                () = at_end => {}
            }
        }
    }

    /// Checks every link: some at a time, as the rights of each client may take up to a millisecond
    /// after a change of the policy, and links begin and end meanwhile.
    async fn check_all(&self, now_unix_ms: u64) {
        let numbers: Vec<u64> = self.links.lock().open.keys().copied().collect();
        let mut changes = RightsChanges::default();
        for some in numbers.chunks(CHECKED_AT_ONCE) {
            let cut: Vec<_> = {
                let mut links = self.links.lock();
                let check = |&number| links.check(number, &self.control, &mut changes, now_unix_ms);
                some.iter().filter_map(check).collect()
            };
            self.cut(cut);
            tokio::task::yield_now().await;
        }
        let quota = |holder: &Holder| -> Quota {
            match holder {
                Holder::Identity(identity, _) => self.control.quota(Some(identity.as_ref())),
                Holder::Address(_) => self.control.quota(None),
            }
        };
        self.links.lock().usages.set_all(quota, Instant::now());
    }

    /// Checks the links whose certificate or token has ended; returns the time until the next ends.
    fn check_ended(&self, now_unix_ms: u64) -> Option<Duration> {
        let mut links = self.links.lock();
        let mut cut = Vec::new();
        let next = loop {
            let Some(&(end, number)) = links.ends.first() else { break None };
            if end > now_unix_ms {
                break Some(Duration::from_millis(end - now_unix_ms));
            }
            links.ends.pop_first();
            let changes = &mut RightsChanges::default();
            cut.extend(links.check(number, &self.control, changes, now_unix_ms));
        };
        drop(links);
        self.cut(cut);
        next
    }

    /// Ends links, which wakes the tasks that remove them. Without the lock of the links.
    fn cut(&self, links: impl IntoIterator<Item = (Arc<Shared>, String)>) {
        for (link, why) in links {
            if let Some(left_out) = self.log.lock().admit(Instant::now()) {
                let peer = link.peer_address;
                tracing::info!(%peer, %why, left_out, "a link is cut");
            }
            link.end(LinkEnd::Local(why.into()));
        }
    }
}

impl Links {
    /// Removes a link of the session that nothing has arrived from for half its time to hang: its
    /// client opens another because it has lost this one.
    fn take_silent(&mut self, holder: &Holder, session: SessionId) -> Option<Arc<Shared>> {
        let of_session =
            self.open.iter().filter(|(_, open)| open.session == session && open.holder == *holder);
        let (number, link) = of_session
            .filter_map(|(number, open)| Some((*number, open.link.upgrade()?)))
            .find(|(_, link)| link.is_silent_for(link.timing.hang / 2))?;
        self.remove(number);
        Some(link)
    }

    fn remove(&mut self, number: u64) {
        let Some(open) = self.open.remove(&number) else { return };
        self.usages.end(&open.holder);
        if let Some(end) = open.client.end_unix_ms() {
            self.ends.remove(&(end, number));
        }
    }

    /// Checks one link, as [`OpenLink::check`] does, and when it is to be checked again.
    fn check(
        &mut self,
        number: u64,
        control: &AccessControl,
        changes: &mut RightsChanges,
        now_unix_ms: u64,
    ) -> Option<(Arc<Shared>, String)> {
        let open = self.open.get_mut(&number)?;
        let before = open.client.end_unix_ms();
        let cut = open.check(control, changes, now_unix_ms);
        let after = open.client.end_unix_ms();
        // The file may give its token another end.
        if before != after {
            if let Some(end) = before {
                self.ends.remove(&(end, number));
            }
            self.ends.extend(after.map(|end| (end, number)));
        }
        cut
    }
}

impl OpenLink {
    /// Updates the rights; the link and the reason if it must end now. A link that has not started
    /// is checked when it does.
    fn check(
        &mut self,
        control: &AccessControl,
        changes: &mut RightsChanges,
        now_unix_ms: u64,
    ) -> Option<(Arc<Shared>, String)> {
        let link = self.link.upgrade()?;
        let now = match control.recheck(&self.client, now_unix_ms) {
            Ok(now) => now,
            Err(why) => return Some((link, why.to_string())),
        };
        let before = std::mem::replace(&mut self.client, now).rights;
        match changes.between(&before, &self.client.rights) {
            RightsChange::Less => {
                return Some((link, "the policy has taken rights from this client".to_owned()));
            }
            RightsChange::More => drop(self.rights.send_replace(self.client.rights.clone())),
            RightsChange::Same => {}
        }
        None
    }
}

/// What a change of rules did to the rights of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RightsChange {
    Same,
    More,
    Less,
}

/// Changes of rights that were found: thousands of links may share one identity, and comparing the
/// rights of one takes up to a millisecond. By the addresses of rights, which are kept.
#[derive(Debug, Default)]
struct RightsChanges(HashMap<[usize; 2], ([Arc<Rights>; 2], RightsChange)>);

impl RightsChanges {
    fn between(&mut self, before: &Arc<Rights>, now: &Arc<Rights>) -> RightsChange {
        if Arc::ptr_eq(before, now) {
            return RightsChange::Same;
        }
        let key = [Arc::as_ptr(before).addr(), Arc::as_ptr(now).addr()];
        let (_, change) = self.0.entry(key).or_insert_with(|| {
            let change = match now.keep(before) {
                false => RightsChange::Less,
                true if now == before => RightsChange::Same,
                true => RightsChange::More,
            };
            ([before.clone(), now.clone()], change)
        });
        *change
    }
}

impl Registration {
    /// The link has started. Its rights may have changed since the client was admitted.
    pub(crate) fn started(&self, link: &Arc<Shared>) {
        let Authorization { control, links, .. } = &*self.authorization;
        let mut links = links.lock();
        if let Some(open) = links.open.get_mut(&self.number) {
            open.link = Arc::downgrade(link);
        }
        let first_end = links.ends.first().copied();
        let changes = &mut RightsChanges::default();
        let cut = links.check(self.number, control, changes, now_unix_ms());
        if links.ends.first().copied() != first_end {
            self.authorization.wake.notify_one();
        }
        drop(links);
        self.authorization.cut(cut);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.authorization.links.lock().remove(self.number);
    }
}

/// A client, for people.
fn named(identity: Option<&Identity>) -> String {
    identity.map_or_else(|| "this address".to_owned(), Identity::to_string)
}

fn now_unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
